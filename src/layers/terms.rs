//! What a layer asks for by the head of a request: its costs, its priority, its flow.

use std::hash::Hash;
use std::sync::Arc;

use http::Request;
use http::request::Parts;

use super::admission::AskTerms;
use super::identity::Identity;
use crate::flow::FlowId;
use crate::priority::Priority;

type Units = Arc<dyn Fn(&Parts) -> u64 + Send + Sync>;
type PriorityOf = Arc<dyn Fn(&Parts) -> Priority + Send + Sync>;
type FlowOf = Arc<dyn Fn(&Request<()>) -> Option<FlowId> + Send + Sync>;

#[derive(Clone, Default)]
pub(super) struct TermsByRequest {
    pub(super) cost: Option<Units>,
    pub(super) costs: Vec<(Arc<str>, Units)>,
    pub(super) priority: Option<PriorityOf>,
    pub(super) weight: Option<Units>,
    flow: Option<FlowOf>,
}

impl TermsByRequest {
    /// Sets the flow of a request: the key that the identity finds. Without one, a request has no flow.
    pub(super) fn set_flow<I>(&mut self, identity: I)
    where
        I: Identity<(), Key: Hash> + Send + Sync + 'static,
    {
        self.flow = Some(Arc::new(move |request| {
            identity.identify(request).ok().map(FlowId::of)
        }));
    }

    /// The terms of a request.
    pub(super) fn of<B>(
        &self,
        common: &AskTerms,
        request: Request<B>,
    ) -> (Box<AskTerms>, Request<B>) {
        let (mut head, body) = request.into_parts();
        let mut terms = Box::new(common.clone());
        let options = &mut terms.options;
        if let Some(cost) = &self.cost {
            options.cost = cost(&head);
        }
        for (unit, cost) in &self.costs {
            options.set_cost_of(unit, cost(&head));
        }
        if let Some(priority) = &self.priority {
            options.priority = priority(&head);
        }
        if let Some(weight) = &self.weight {
            options.set_weight(weight(&head));
        }
        if let Some(flow) = &self.flow {
            let request = Request::from_parts(head, ());
            if let Some(flow) = flow(&request) {
                options.set_flow(flow, None);
            }
            (head, ()) = request.into_parts();
        }
        (terms, Request::from_parts(head, body))
    }
}
