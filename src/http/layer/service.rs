//! The service of a `LimitLayer`, and the future of a request through it.

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

use super::{LayerOptions, LimitLayer};
use crate::acquire::random_up_to;
use crate::event::EventKind;
use crate::http::admission::{Admission, Admits, Asking};
use crate::http::answer::Refusal;
use crate::http::body::{HeldPermit, LimitBody, PermitBody};
use crate::http::fields::{FieldValues, set_retry_pushback};
use crate::http::grpc;
use crate::http::identity::{FoundKey, Identified, Identifies, NoIdentity};
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
    fn call(&mut self, request: Request<B>) -> LimitFuture<S, B, L, I> {
        let layer = Arc::clone(&self.layer);
        let mut key = None;
        let stage = match layer.identity.key_of(&request) {
            Identified::Later(finding) => {
                LimitStage::Identifying(finding, Some((self.take_ready(), request)))
            }
            Identified::Now(found) => match layer.ask(found, &mut key) {
                Admission::Later(asking) => {
                    LimitStage::Asking(asking, Some((self.take_ready(), request)))
                }
                // This arm returns directly: a stage that is made in a shared `let` is moved once more.
                Admission::Now(Ok(granted)) => {
                    let stage = LimitStage::Calling(self.inner.call(request), Some(granted));
                    return LimitFuture { stage, key, layer };
                }
                Admission::Now(Err(refusal)) => {
                    LimitStage::Refused(refusal, AnswerForm::to(&request))
                }
            },
        };
        LimitFuture { stage, key, layer }
    }
}

impl<S: Clone, L, I> LimitService<S, L, I> {
    /// Takes the ready service and leaves its clone, which need not be ready.
    fn take_ready(&mut self) -> S {
        let clone = self.inner.clone();
        mem::replace(&mut self.inner, clone)
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
    layer: Arc<LimitLayer<L, I>>,
}

/// A ready service and the request that it will get. They are taken once.
type Call<S, B> = Option<(S, Request<B>)>;

#[pin_project(project = LimitStageProjection)]
enum LimitStage<S, B, F, G> {
    Identifying(#[pin] F, Call<S, B>),
    Asking(#[pin] Asking, Call<S, B>),
    Calling(#[pin] G, Option<Granted>),
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
                    match layer.ask(found, this.key) {
                        Admission::Later(asking) => LimitStage::Asking(asking, call.take()),
                        Admission::Now(answer) => LimitStage::answered(answer, call.take()),
                    }
                }
                LimitStageProjection::Asking(asking, call) => {
                    LimitStage::answered(ready!(asking.poll(cx)), call.take())
                }
                LimitStageProjection::Calling(call, granted) => {
                    let result = ready!(call.poll(cx));
                    let granted = granted.take();
                    this.stage.set(LimitStage::Done);
                    let Some(granted) = granted else { continue };
                    return Poll::Ready(layer.end(result, granted, this.key.as_ref()));
                }
                LimitStageProjection::Refused(refusal, form) => {
                    if I::HAS_KEYS {
                        refusal.set_by_key();
                    }
                    let response = layer.refuse(refusal, this.key.as_ref(), *form);
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
    fn answered(answer: Result<Granted, Box<Refusal>>, call: Call<S, B>) -> Self {
        match (answer, call) {
            (Ok(granted), Some((mut service, request))) => {
                Self::Calling(service.call(request), Some(granted))
            }
            (Err(refusal), Some((_, request))) => Self::Refused(refusal, AnswerForm::to(&request)),
            (_, None) => Self::Done,
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

/// A permit, and the state of the limits when they granted it.
type Granted = (Permit, Vec<LimitStatus>);

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
    #[inline]
    fn ask<B>(&self, found: Result<I::Key, NoIdentity>, key: &mut Option<I::Key>) -> Admission
    where
        I: Identifies<B>,
        L: Admits<I::Key>,
    {
        match found.or_else(|unknown| self.identity.shared_key().ok_or(unknown)) {
            Ok(found) => self.limiter.ask(key.insert(found), self.options.terms),
            Err(unknown) => Admission::Now(Err(Box::new(Refusal::NoIdentity(unknown)))),
        }
    }

    /// Handles the result of the service: charges the key, writes the fields, and hands the permit to the body.
    fn end<K, R, E>(
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
        let status = match &result {
            Ok(response) => Some(grpc::http_status(response.status(), response.headers())),
            Err(_) => None,
        };
        let mut held = HeldPermit::new(Some(permit), (options.classify)(status));
        let mut response = result.inspect_err(|_| held.complete())?;
        if let (Some(penalty), Some(key), Some(status)) = (&options.penalty, key, status) {
            match penalty(status) {
                0 => {}
                units => self.limiter.penalize(key, units),
            }
        }
        // If the store was not asked, no limit has a state.
        if !limits.is_empty() {
            let values = FieldValues::granted(&limits).cost(options.terms.cost);
            let (headers, known) = (response.headers_mut(), Some(&self.known_policies));
            options
                .fields
                .write_at(headers, &values, known, SystemTime::now);
        }
        let (head, body) = response.into_parts();
        let body = PermitBody::of_answer(&head.headers, body, held, options.until_head);
        Ok(Response::from_parts(head, LimitBody::of_service(body)))
    }

    fn refuse<K, R>(
        &self,
        refusal: &Refusal,
        key: Option<&K>,
        form: AnswerForm,
    ) -> Response<LimitBody<R>>
    where
        L: Admits<K>,
    {
        let LayerOptions {
            fields,
            terms,
            respond,
            jitter,
            ..
        } = &self.options;
        if let Some(reason) = refusal.reason() {
            let event = || EventKind::Refused {
                cost: terms.cost,
                reason,
                error: refusal.in_words(),
                requested_in: terms.caller,
            };
            self.limiter.tell(key, event);
        }
        let mut response = match respond {
            Some(respond) => respond(refusal),
            None if form == AnswerForm::Grpc => refusal.grpc_response(fields),
            None => refusal.response(fields),
        };
        let jitter = jitter.map_or(Duration::ZERO, random_up_to);
        let (headers, known) = (response.headers_mut(), Some(&self.known_policies));
        fields.write_at(
            headers,
            &refusal.values().jitter(jitter),
            known,
            SystemTime::now,
        );
        match form {
            AnswerForm::Plain => {}
            AnswerForm::Head => {
                // Over HTTP/2, no other layer removes the body of a response to HEAD.
                let len = mem::take(response.body_mut()).len();
                let _full = response
                    .headers_mut()
                    .try_insert(CONTENT_LENGTH, len.into());
            }
            AnswerForm::Grpc => {
                if let Some(wait) = refusal.retry_after() {
                    set_retry_pushback(response.headers_mut(), wait.saturating_add(jitter));
                }
            }
        }
        response.map(LimitBody::of_refusal)
    }
}
