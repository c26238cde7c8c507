//! The service of an `OutboundLayer`, and the future of a request through it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::SystemTime;

use http::{Request, Response};
use http_body::Body;
use pin_project::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::OutboundLayer;
use super::classify::{ByStatus, OutboundClassifier};
use super::error::OutboundError;
use super::retry::{NoRetry, OutboundRetry};
use crate::acquire::AcquireOwned;
use crate::error::AcquireError;
use crate::http::body::{HeldPermit, PermitBody};
use crate::http::grpc;
use crate::http::upstream::UpstreamReader;
use crate::limiter::Limiter;
use crate::manager::RequestOptions;
use crate::permit::Permit;

/// A service whose requests wait for a limiter. Made by an [`OutboundLayer`], which has an example.
///
/// The service is ready when the inner service is. What the inner service reserves when it is ready stays reserved while the
/// request waits for its permit.
#[derive(Debug)]
pub struct OutboundService<S, C = ByStatus, R = NoRetry> {
    inner: S,
    layer: Arc<OutboundLayer<C, R>>,
}

/// Not derived, because `C` and `R` need not be `Clone`.
impl<S: Clone, C, R> Clone for OutboundService<S, C, R> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            layer: Arc::clone(&self.layer),
        }
    }
}

impl<S, C: Clone, R: Clone> Layer<S> for OutboundLayer<C, R> {
    type Service = OutboundService<S, C, R>;

    fn layer(&self, inner: S) -> Self::Service {
        OutboundService {
            inner,
            layer: Arc::new(self.clone()),
        }
    }
}

impl<S, B, A, C, R> Service<Request<B>> for OutboundService<S, C, R>
where
    S: Service<Request<B>, Response = Response<A>> + Clone,
    A: Body,
    C: OutboundClassifier<S::Error>,
    R: OutboundRetry<B>,
{
    type Response = Response<PermitBody<A>>;
    type Error = OutboundError<S::Error>;
    type Future = OutboundFuture<S, B, A, C, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(OutboundError::Service)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let layer = Arc::clone(&self.layer);
        let (parts, body) = request.into_parts();
        let reader = (layer.common.reader_of)(&parts);
        let plan = layer.common.plan(&parts);
        // The clone is not ready, so it stays here, and the ready service takes the call.
        let clone = self.inner.clone();
        OutboundFuture {
            stage: OutboundStage::Asking,
            inner: std::mem::replace(&mut self.inner, clone),
            reader,
            request: Some(Request::from_parts(parts, body)),
            retries: layer.retry.times(),
            plan,
            denied: None,
            layer,
        }
    }
}

/// The future of an [`OutboundService`].
///
/// # Cancel safety
///
/// Dropping the future drops the inner call and then releases the permit. A request that still waits leaves the queue.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct OutboundFuture<S: Service<Request<B>>, B, A, C, R> {
    #[pin]
    stage: OutboundStage<S::Future>,
    inner: S,
    layer: Arc<OutboundLayer<C, R>>,
    reader: UpstreamReader,
    /// The request to send next.
    request: Option<Request<B>>,
    /// How many times the request may still be sent again.
    retries: u32,
    /// Which limiter is asked, and for what.
    plan: Result<(Limiter, RequestOptions), AcquireError>,
    /// The denial that is returned if there is no permit for a retry.
    denied: Option<Response<PermitBody<A>>>,
}

#[pin_project(project = OutboundStageNow)]
enum OutboundStage<F> {
    Asking,
    Acquiring(AcquireOwned),
    Readying(Option<Permit>),
    /// The call is dropped before its permit.
    Calling(#[pin] F, Option<Permit>),
    Done,
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
                OutboundStageNow::Asking => match this.plan {
                    Ok((limiter, options)) => {
                        let manager = Arc::clone(limiter.manager());
                        let acquire = AcquireOwned::new(manager, options.clone());
                        this.stage.set(OutboundStage::Acquiring(acquire));
                    }
                    Err(error) => {
                        this.stage.set(OutboundStage::Done);
                        return Poll::Ready(Err(OutboundError::Acquire(error.clone())));
                    }
                },
                OutboundStageNow::Acquiring(acquire) => {
                    let acquired = Pin::new(acquire).poll(cx);
                    let denied = this.denied.take(); // others can use its connection while this request waits
                    match ready!(acquired) {
                        Ok(permit) => this.stage.set(OutboundStage::Readying(Some(permit))),
                        Err(error) => {
                            this.stage.set(OutboundStage::Done);
                            return Poll::Ready(denied.ok_or(OutboundError::Acquire(error)));
                        }
                    }
                }
                OutboundStageNow::Readying(permit) => {
                    // The service is ready already, except before a retry.
                    let ready = ready!(this.inner.poll_ready(cx));
                    let (permit, request) = (permit.take(), this.request.take());
                    this.stage.set(OutboundStage::Done);
                    ready.map_err(OutboundError::Service)?;
                    let Some(request) = request else { continue };
                    let (head, body) = request.into_parts();
                    if *this.retries > 0 {
                        let copy = this.layer.retry.clone_body(&body);
                        *this.request = copy.map(|body| Request::from_parts(head.clone(), body));
                    }
                    let future = this.inner.call(Request::from_parts(head, body));
                    this.stage.set(OutboundStage::Calling(future, permit));
                }
                OutboundStageNow::Calling(future, permit) => {
                    let answer = ready!(future.poll(cx));
                    let permit = permit.take();
                    this.stage.set(OutboundStage::Done);
                    let (head, body) = match answer {
                        Ok(response) => response.into_parts(),
                        Err(error) => {
                            let outcome = this.layer.classifier.classify(Err(&error));
                            HeldPermit::new(permit, outcome).complete();
                            return Poll::Ready(Err(OutboundError::Service(error)));
                        }
                    };
                    let outcome = this.layer.classifier.classify(Ok(&head));
                    let status = grpc::http_status(head.status, &head.headers);
                    let answer = this.reader.read(status, &head.headers, SystemTime::now());
                    // The pause begins before the permit is released, so that no other request gets the permit.
                    if let Ok((limiter, _)) = this.plan {
                        this.layer.common.heed(&answer, limiter);
                    }
                    let again = answer.is_limited()
                        && this.layer.retry.retries(status)
                        && this.request.is_some();
                    let until_head = again || this.layer.common.until_head;
                    let body = PermitBody::of_answer(
                        &head.headers,
                        body,
                        HeldPermit::new(permit, outcome),
                        until_head,
                    );
                    let response = Response::from_parts(head, body);
                    if !again {
                        return Poll::Ready(Ok(response));
                    }
                    *this.retries -= 1;
                    *this.denied = Some(response);
                    this.stage.set(OutboundStage::Asking);
                }
                OutboundStageNow::Done => {
                    panic!("an outbound future was polled after it had completed")
                }
            }
        }
    }
}

debug_fields! {
    [S: Service<Request<B>>, B, A, C, R] OutboundFuture<S, B, A, C, R>,
    |future| plan = future.plan, retries = future.retries
}
