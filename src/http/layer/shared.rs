use std::sync::Arc;

use http::Response;

use super::options::Options;
use crate::http::admission::Admits;
use crate::http::body::{Held, LimitBody, PermitBody};
use crate::http::fields::KnownPolicies;
use crate::permit::Permit;
use crate::snapshot::LimitStatus;

/// A permit, and what the limits said when they granted it.
pub(super) type Granted = (Permit, Vec<LimitStatus>);

/// What the clones of a service share.
#[derive(Debug)]
pub(super) struct Shared<L, I> {
    pub(super) limiter: L,
    pub(super) identity: Arc<I>,
    pub(super) options: Options,
    pub(super) known_policies: KnownPolicies,
}

impl<L, I> Shared<L, I> {
    /// The service has answered or failed.
    pub(super) fn end<K, R, E>(
        &self,
        result: Result<Response<R>, E>,
        (permit, limits): Granted,
        key: Option<&K>,
    ) -> Result<Response<LimitBody<R>>, E>
    where
        L: Admits<K>,
        R: http_body::Body,
    {
        let options = &self.options;
        let outcome = (options.classify)(result.as_ref().ok().map(Response::status));
        let mut held = Held::new(Some(permit), outcome);
        let mut response = result.inspect_err(|_| held.complete())?;
        if let (Some(penalty), Some(key)) = (&options.penalty, key) {
            match penalty(response.status()) {
                0 => {}
                units => self.limiter.penalize(key, units),
            }
        }
        options.write_granted(&mut response, &limits, &self.known_policies);
        let (head, body) = response.into_parts();
        let body = PermitBody::of_answer(&head.headers, body, held, options.releases_at_head);
        Ok(Response::from_parts(head, LimitBody::of_service(body)))
    }
}
