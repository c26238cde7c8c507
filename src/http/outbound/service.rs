use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::OutboundLayer;
use super::classify::{ByStatus, OutboundClassifier};
use super::error::OutboundError;
use super::future::OutboundFuture;
use super::retry::{NoRetry, OutboundRetry};
use crate::http::body::PermitBody;

/// A service that keeps to a limiter. An [`OutboundLayer`], which has an example, makes it.
///
/// It is ready when the inner service is. That one keeps what it has reserved, if it reserves something, while the request waits for its
/// permit.
#[derive(Debug)]
pub struct OutboundService<S, C = ByStatus, R = NoRetry> {
    inner: S,
    layer: Arc<OutboundLayer<C, R>>,
}

/// Not derived: what the layer is made of need not be `Clone`.
impl<S: Clone, C, R> Clone for OutboundService<S, C, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: Arc::clone(&self.layer) }
    }
}

impl<S, C: Clone, R: Clone> Layer<S> for OutboundLayer<C, R> {
    type Service = OutboundService<S, C, R>;

    fn layer(&self, inner: S) -> Self::Service {
        OutboundService { inner, layer: Arc::new(self.clone()) }
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
        // The clone is not ready, so it is the one that stays.
        let clone = self.inner.clone();
        OutboundFuture::new(std::mem::replace(&mut self.inner, clone), Arc::clone(&self.layer), request)
    }
}
