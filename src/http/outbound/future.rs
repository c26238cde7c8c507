use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::SystemTime;

use http::{Request, Response};
use http_body::Body;
use pin_project::pin_project;
use tower_service::Service;

use super::OutboundLayer;
use super::classify::OutboundClassifier;
use super::error::OutboundError;
use super::retry::OutboundRetry;
use crate::acquire::AcquireOwned;
use crate::error::AcquireError;
use crate::http::body::{Held, PermitBody};
use crate::http::grpc;
use crate::http::upstream::UpstreamReader;
use crate::limiter::Limiter;
use crate::manager::RequestOptions;
use crate::permit::Permit;

/// The future of an [`OutboundService`](super::OutboundService).
///
/// # Cancel safety
///
/// Dropping it drops the call inside, and then releases the permit; or the request leaves the queue.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct OutboundFuture<S: Service<Request<B>>, B, A, C, R> {
    #[pin]
    stage: Stage<S::Future>,
    inner: S,
    layer: Arc<OutboundLayer<C, R>>,
    reader: UpstreamReader,
    /// To be sent next.
    request: Option<Request<B>>,
    /// How often it may be sent again.
    retries: u32,
    plan: Option<(Limiter, RequestOptions)>,
    /// The answer that is returned if there is no permit for a retry.
    denied: Option<Response<PermitBody<A>>>,
}

#[pin_project(project = StageNow)]
enum Stage<F> {
    Refused(Option<AcquireError>),
    Acquiring(AcquireOwned),
    Readying(Option<Permit>),
    /// The call is dropped before its permit.
    Calling(#[pin] F, Option<Permit>),
    Done,
}

impl<F> Stage<F> {
    fn acquire((limiter, options): &(Limiter, RequestOptions)) -> Self {
        Self::Acquiring(AcquireOwned::new(Arc::clone(limiter.manager()), options.clone()))
    }
}

impl<S, B, A, C, R> OutboundFuture<S, B, A, C, R>
where
    S: Service<Request<B>>,
    R: OutboundRetry<B>,
{
    pub(super) fn new(inner: S, layer: Arc<OutboundLayer<C, R>>, request: Request<B>) -> Self {
        let (parts, body) = request.into_parts();
        let reader = (layer.common.reader_of)(&parts);
        let (stage, plan) = match layer.common.plan(&parts) {
            Ok(plan) => (Stage::acquire(&plan), Some(plan)),
            Err(error) => (Stage::Refused(Some(error)), None),
        };
        let (request, retries) = (Some(Request::from_parts(parts, body)), layer.retry.times());
        Self { stage, inner, layer, reader, request, retries, plan, denied: None }
    }
}

impl<S, B, A, C, R> Future for OutboundFuture<S, B, A, C, R>
where
    S: Service<Request<B>, Response = Response<A>>,
    A: Body,
    C: OutboundClassifier<S::Error>,
    R: OutboundRetry<B>,
{
    type Output = Result<Response<PermitBody<A>>, OutboundError<S::Error>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.stage.as_mut().project() {
                StageNow::Refused(error) => {
                    let error = error.take().unwrap_or(AcquireError::Closed);
                    this.stage.set(Stage::Done);
                    return Poll::Ready(Err(OutboundError::Acquire(error)));
                }
                StageNow::Acquiring(acquire) => {
                    let acquired = Pin::new(acquire).poll(cx);
                    let denied = this.denied.take(); // its connection is of use to others while this waits
                    match ready!(acquired) {
                        Ok(permit) => this.stage.set(Stage::Readying(Some(permit))),
                        Err(error) => {
                            this.stage.set(Stage::Done);
                            return Poll::Ready(denied.ok_or(OutboundError::Acquire(error)));
                        }
                    }
                }
                StageNow::Readying(permit) => {
                    // It is ready already, but for a retry.
                    let ready = ready!(this.inner.poll_ready(cx));
                    let (permit, request) = (permit.take(), this.request.take());
                    this.stage.set(Stage::Done);
                    ready.map_err(OutboundError::Service)?;
                    let Some(request) = request else { continue };
                    if *this.retries > 0 {
                        let copy = this.layer.retry.clone_body(request.body());
                        *this.request = copy.map(|body| {
                            let mut copy = Request::new(body);
                            *copy.method_mut() = request.method().clone();
                            *copy.uri_mut() = request.uri().clone();
                            *copy.version_mut() = request.version();
                            *copy.headers_mut() = request.headers().clone();
                            *copy.extensions_mut() = request.extensions().clone();
                            copy
                        });
                    }
                    let future = this.inner.call(request);
                    this.stage.set(Stage::Calling(future, permit));
                }
                StageNow::Calling(future, permit) => {
                    let answer = ready!(future.poll(cx));
                    let permit = permit.take();
                    this.stage.set(Stage::Done);
                    let (head, body) = match answer {
                        Ok(response) => response.into_parts(),
                        Err(error) => {
                            let outcome = this.layer.classifier.classify(Err(&error));
                            Held::new(permit, outcome).complete();
                            return Poll::Ready(Err(OutboundError::Service(error)));
                        }
                    };
                    let outcome = this.layer.classifier.classify(Ok(&head));
                    let status = grpc::http_status(head.status, &head.headers);
                    let answer = this.reader.read(status, &head.headers, SystemTime::now());
                    // Before the permit is released, so that it goes to nobody during the pause.
                    this.plan.iter().for_each(|(limiter, _)| this.layer.common.heed(&answer, limiter));
                    let again = answer.is_limited() && this.layer.retry.retries(status) && this.request.is_some();
                    let until_head = again || this.layer.common.until_head;
                    let body = PermitBody::of_answer(&head.headers, body, Held::new(permit, outcome), until_head);
                    let response = Response::from_parts(head, body);
                    match this.plan.as_ref().filter(|_| again) {
                        Some(plan) => {
                            *this.retries -= 1;
                            *this.denied = Some(response);
                            this.stage.set(Stage::acquire(plan));
                        }
                        None => return Poll::Ready(Ok(response)),
                    }
                }
                StageNow::Done => panic!("an outbound future was polled after it had completed"),
            }
        }
    }
}

impl<S: Service<Request<B>>, B, A, C, R> fmt::Debug for OutboundFuture<S, B, A, C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboundFuture").field("plan", &self.plan).field("retries", &self.retries).finish_non_exhaustive()
    }
}
