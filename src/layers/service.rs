//! The service of a [`LimitLayer`], and the future of a request through it.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use http::header::CONTENT_LENGTH;
use http::{Method, Request, Response};
use pin_project::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::admission::{Admission, Admits, Answer, AskTerms};
use super::answer::Refusal;
use super::body::{HeldPermit, LimitBody, PermitBody, SettledBy};
use super::fields::{FieldValues, set_retry_pushback};
use super::grpc;
use super::identity::{FoundKey, Identified, Identifies, NoIdentity};
use super::layer::LimitLayer;
use crate::acquire::random_up_to;
use crate::core::request::Actual;
use crate::event::EventKind;
use crate::permit::Permit;
use crate::snapshot::LimitStatus;

/// The service that a [`LimitLayer`] makes. See the layer for an example. Clones share the limiter.
///
/// The service is ready when the inner service is: the limiter is asked for each request, and never makes the service pending.
/// After a request that is refused at once, the inner service is still ready for the next request. A request that is decided
/// later keeps the ready inner service, and what that has reserved, until the decision.
#[derive(Debug)]
pub struct LimitService<S, L, I> {
    inner: S,
    layer: Arc<LimitLayer<L, I>>,
}

impl<S, L: Clone, I> Layer<S> for LimitLayer<L, I> {
    type Service = LimitService<S, L, I>;

    fn layer(&self, inner: S) -> LimitService<S, L, I> {
        let layer = Arc::new(self.clone());
        LimitService { inner, layer }
    }
}

impl<S: Clone, L, I> Clone for LimitService<S, L, I> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            layer: Arc::clone(&self.layer),
        }
    }
}

impl<S, B, R, L, I> Service<Request<B>> for LimitService<S, L, I>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: http_body::Body,
    I: Identifies<B>,
    L: Admits<I::Key>,
{
    type Response = Response<LimitBody<R>>;
    type Error = S::Error;
    type Future = LimitFuture<S, B, L, I>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    /// Clones the service only if the key or the answer of the limiter must be awaited.
    fn call(&mut self, mut request: Request<B>) -> LimitFuture<S, B, L, I> {
        let layer = Arc::clone(&self.layer);
        let mut key = None;
        let mut terms = None;
        if let Some(by_request) = &layer.options.by_request {
            let own;
            (own, request) = by_request.of(&layer.options.terms, request);
            if own.options.cost == 0 {
                let stage = LimitStage::Calling(self.inner.call(request), None, Vec::new());
                return LimitFuture {
                    stage,
                    key,
                    terms,
                    layer,
                };
            }
            terms = Some(own);
        }
        let stage = match layer.identity.key_of(&request) {
            Identified::Later(finding) => {
                LimitStage::Identifying(finding, self.call_later(request))
            }
            Identified::Now(found) => match layer.ask(found, &mut key, terms.as_deref()) {
                Admission::Later(asking) => LimitStage::Asking(asking, self.call_later(request)),
                // This arm returns directly: a stage that is made in a shared `let` is moved once more.
                Admission::Now(Ok((permit, limits))) => {
                    let call = self.inner.call(request);
                    return LimitFuture {
                        stage: LimitStage::Calling(call, Some(permit), limits),
                        key,
                        terms,
                        layer,
                    };
                }
                Admission::Now(Err(mut refusal)) => {
                    refusal.set_by_key(I::HAS_KEYS);
                    if layer.lets_through(&refusal, key.as_ref(), terms.as_deref()) {
                        LimitStage::Calling(self.inner.call(request), None, Vec::new())
                    } else {
                        LimitStage::Refused(refusal, AnswerForm::to(&request))
                    }
                }
            },
        };
        LimitFuture {
            stage,
            key,
            terms,
            layer,
        }
    }
}

impl<S: Clone, L, I> LimitService<S, L, I> {
    /// Takes the ready service for a request and leaves its clone, which need not be ready.
    fn call_later<B>(&mut self, request: Request<B>) -> Call<S, B> {
        let clone = self.inner.clone();
        Some(Box::new((mem::replace(&mut self.inner, clone), request)))
    }
}

/// The future of a [`LimitService`]. See [`LimitLayer`] for an example.
///
/// # Cancel safety
///
/// If the future is dropped while it waits, the request leaves the queue, and no limit is charged. If it is dropped later, it
/// releases its permit; units of a rate stay spent.
#[pin_project]
pub struct LimitFuture<S: Service<Request<B>>, B, L, I: Identifies<B>> {
    #[pin]
    stage: LimitStage<S, B, I::Future, S::Future>,
    key: Option<I::Key>,
    /// Its own terms, if it has any.
    terms: Option<Box<AskTerms>>,
    layer: Arc<LimitLayer<L, I>>,
}

/// A ready service and the request that it will get. They are taken once. They are in a box, so that the future stays small: most
/// requests are decided at once, and have none.
type Call<S, B> = Option<Box<(S, Request<B>)>>;

#[pin_project(project = LimitStageProjection)]
enum LimitStage<S, B, F, G> {
    Identifying(#[pin] F, Call<S, B>),
    Asking(Pin<Box<dyn Future<Output = Answer> + Send>>, Call<S, B>),
    /// Without a permit if it was let through.
    Calling(#[pin] G, Option<Permit>, Vec<LimitStatus>),
    Refused(Box<Refusal>, AnswerForm),
    Done,
}

impl<S, B, R, L, I> Future for LimitFuture<S, B, L, I>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: http_body::Body,
    I: Identifies<B>,
    L: Admits<I::Key>,
{
    type Output = Result<Response<LimitBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let layer = &**this.layer;
        loop {
            let next = match this.stage.as_mut().project() {
                LimitStageProjection::Identifying(finding, call) => {
                    let found = ready!(finding.poll(cx)).found();
                    match layer.ask(found, this.key, this.terms.as_deref()) {
                        Admission::Later(asking) => LimitStage::Asking(asking, call.take()),
                        Admission::Now(answer) => {
                            LimitStage::answered(answer, call.take(), I::HAS_KEYS, |refusal| {
                                layer.lets_through(
                                    refusal,
                                    this.key.as_ref(),
                                    this.terms.as_deref(),
                                )
                            })
                        }
                    }
                }
                LimitStageProjection::Asking(asking, call) => {
                    let answer = ready!(asking.as_mut().poll(cx));
                    LimitStage::answered(answer, call.take(), I::HAS_KEYS, |refusal| {
                        layer.lets_through(refusal, this.key.as_ref(), this.terms.as_deref())
                    })
                }
                LimitStageProjection::Calling(call, permit, limits) => {
                    let result = ready!(call.poll(cx));
                    let granted = (permit, mem::take(limits));
                    let of_request = (this.key.as_ref(), this.terms.as_deref());
                    let ended = layer.end(result, granted, of_request);
                    this.stage.set(LimitStage::Done);
                    return Poll::Ready(ended);
                }
                LimitStageProjection::Refused(refusal, form) => {
                    let (key, terms) = (this.key.as_ref(), this.terms.as_deref());
                    let response = layer.refuse(refusal, key, terms, *form);
                    this.stage.set(LimitStage::Done);
                    return Poll::Ready(Ok(response));
                }
                LimitStageProjection::Done => {
                    panic!("a LimitFuture was polled after it had completed")
                }
            };
            this.stage.set(next);
        }
    }
}

impl<S: Service<Request<B>>, B, F> LimitStage<S, B, F, S::Future> {
    fn answered(
        mut answer: Answer,
        call: Call<S, B>,
        by_key: bool,
        lets_through: impl FnOnce(&Refusal) -> bool,
    ) -> Self {
        if let Err(refusal) = &mut answer {
            refusal.set_by_key(by_key);
        }
        let Some((mut service, request)) = call.map(|call| *call) else {
            return Self::Done;
        };
        match answer {
            Ok((permit, limits)) => Self::Calling(service.call(request), Some(permit), limits),
            Err(refusal) if lets_through(&refusal) => {
                Self::Calling(service.call(request), None, Vec::new())
            }
            Err(refusal) => Self::Refused(refusal, AnswerForm::to(&request)),
        }
    }
}

debug_fields! {
    [S: Service<Request<B>>, B, L, I: Identifies<B>] LimitFuture<S, B, L, I>,
    |future| stage = match future.stage {
        LimitStage::Identifying(..) => "identifying",
        LimitStage::Asking(..) => "asking",
        LimitStage::Calling(..) => "calling",
        LimitStage::Refused(..) => "refused",
        LimitStage::Done => "done",
    }
}

/// Marks the response to a request that a layer has refused, for the layers outside of it.
#[derive(Debug, Clone, Copy)]
struct RefusedWithin;

/// How a refusal is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerForm {
    Plain,
    /// The response to a HEAD request, which has no body.
    Head,
    Grpc,
}

impl AnswerForm {
    fn to<B>(request: &Request<B>) -> Self {
        match *request.method() {
            Method::HEAD => Self::Head,
            Method::POST if grpc::is_message(request.headers()) => Self::Grpc,
            _ => Self::Plain,
        }
    }
}

impl<L, I> LimitLayer<L, I> {
    /// Asks the limiter for the key that was found, or for the shared key if the key is unknown. Stores that key in `key`.
    #[inline(always)]
    fn ask<B>(
        &self,
        found: Result<I::Key, NoIdentity>,
        key: &mut Option<I::Key>,
        terms: Option<&AskTerms>,
    ) -> Admission
    where
        I: Identifies<B>,
        L: Admits<I::Key>,
    {
        match found.or_else(|unknown| self.identity.shared_key().ok_or(unknown)) {
            Ok(found) => self.limiter.ask(key.insert(found), self.terms(terms)),
            Err(unknown) => Admission::Now(Err(Box::new(Refusal::NoIdentity(unknown)))),
        }
    }

    /// The terms of a request, which are those of the layer unless it has its own.
    fn terms<'a>(&'a self, own: Option<&'a AskTerms>) -> &'a AskTerms {
        own.unwrap_or(&self.options.terms)
    }

    /// Whether a request that the limiter refuses is served all the same. If so, this is reported to the observers.
    fn lets_through<K>(&self, refusal: &Refusal, key: Option<&K>, terms: Option<&AskTerms>) -> bool
    where
        L: Admits<K>,
    {
        if !self.options.is_shadow {
            return false;
        }
        let options = &self.terms(terms).options;
        let event = || EventKind::WouldRefuse {
            cost: options.cost,
            flow: options.flow_id(),
            status: refusal.status().as_u16(),
            error: refusal.to_string(),
            requested_in: options.caller,
        };
        self.limiter.tell(key, event);
        true
    }

    /// Handles the result of the service: charges the key, writes the fields, and hands the permit to the body.
    fn end<K, R, E>(
        &self,
        result: Result<Response<R>, E>,
        (permit, mut limits): (&mut Option<Permit>, Vec<LimitStatus>),
        (key, terms): (Option<&K>, Option<&AskTerms>),
    ) -> Result<Response<LimitBody<R>>, E>
    where
        L: Admits<K>,
        R: http_body::Body,
    {
        let options = &self.options;
        let (mut head, body) = match result {
            Ok(response) => response.into_parts(),
            Err(error) => {
                HeldPermit::new(permit, None, || (options.classify)(None)).complete();
                return Err(error);
            }
        };
        let status = || grpc::http_status(head.status, &head.headers);
        if let (Some(penalty), Some(key)) = (&options.penalty, key)
            && let units @ 1.. = penalty(status())
        {
            self.limiter.penalize(key, units);
        }
        let cost = permit.as_ref().map_or(0, Permit::cost);
        if head.extensions.get::<RefusedWithin>().is_some() {
            if let Some(permit) = permit.take() {
                permit.end(Actual::Nothing, None);
            }
            let costs = self.terms(terms).options.costs();
            for status in &mut limits {
                status.refund(costs.of(status.limit.counts()).unwrap_or(0));
            }
        }
        let actual = options
            .actual
            .as_ref()
            .and_then(|actual_of| actual_of(&head));
        let outcome = || (options.classify)(Some(status()));
        let held = HeldPermit::new(permit, actual.map(SettledBy::AtEnd), outcome);
        // If the store was not asked, no limit has a state.
        if !limits.is_empty() && !options.is_shadow {
            let values = FieldValues::granted(&limits).cost(cost);
            let (headers, known) = (&mut head.headers, Some(&self.known_policies));
            options
                .fields
                .write_at(headers, &values, known, SystemTime::now);
        }
        let body = PermitBody::of_answer(&head.headers, body, held, options.until_head);
        Ok(Response::from_parts(head, LimitBody::of_service(body)))
    }

    fn refuse<K, R>(
        &self,
        refusal: &Refusal,
        key: Option<&K>,
        terms: Option<&AskTerms>,
        form: AnswerForm,
    ) -> Response<LimitBody<R>>
    where
        L: Admits<K>,
    {
        let options = &self.options;
        if let Some(reason) = refusal.reason() {
            let asked = &self.terms(terms).options;
            let event = || EventKind::Refused {
                cost: asked.cost,
                reason,
                error: refusal.in_words(),
                requested_in: asked.caller,
            };
            self.limiter.tell(key, event);
        }
        let mut response = match &options.respond {
            Some(respond) => respond(refusal),
            None if form == AnswerForm::Grpc => refusal.grpc_response(&options.fields),
            None => refusal.response(&options.fields),
        };
        response.extensions_mut().insert(RefusedWithin);
        let jitter = options.jitter.map_or(Duration::ZERO, random_up_to);
        let (headers, known) = (response.headers_mut(), Some(&self.known_policies));
        let values = refusal.values().jitter(jitter);
        options
            .fields
            .write_at(headers, &values, known, SystemTime::now);
        match (form, refusal.retry_after()) {
            (AnswerForm::Head, _) => {
                // Over HTTP/2, no other layer removes the body of a response to HEAD.
                let len = mem::take(response.body_mut()).len();
                let _full = response
                    .headers_mut()
                    .try_insert(CONTENT_LENGTH, len.into());
            }
            (AnswerForm::Grpc, Some(wait)) => {
                set_retry_pushback(response.headers_mut(), wait.saturating_add(jitter));
            }
            _ => {}
        }
        response.map(LimitBody::of_refusal)
    }
}
