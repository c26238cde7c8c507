use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use super::future::LimitFuture;
use super::shared::Shared;
use crate::http::admission::{Admits, Asked};
use crate::http::body::LimitBody;
use crate::http::identity::{Identified, Identifies};

/// A service behind a [`LimitLayer`](super::LimitLayer), which has an example. Clones share the limiter.
///
/// It is ready when the service behind it is: a limiter is asked by a request, and never makes the service pending. A request that is
/// refused at once leaves the readiness of the service to the next one. One that is decided later keeps the service that was ready, and
/// what that has reserved, until then.
#[derive(Debug)]
pub struct LimitService<S, L, I> {
    inner: S,
    shared: Arc<Shared<L, I>>,
}

impl<S, L, I> LimitService<S, L, I> {
    pub(super) const fn new(inner: S, shared: Arc<Shared<L, I>>) -> Self {
        Self { inner, shared }
    }
}

impl<S: Clone, L, I> Clone for LimitService<S, L, I> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: Arc::clone(&self.shared) }
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

    /// Asks the limiter at once if it can answer at once; then the service is not cloned.
    fn call(&mut self, request: Request<B>) -> LimitFuture<S, B, L, I> {
        let shared = Arc::clone(&self.shared);
        let key = match shared.identity.key_of(&request) {
            Identified::Later(finding) => return LimitFuture::identifying(finding, self.take_ready(), request, shared),
            Identified::Now(found) => match shared.key(found) {
                Ok(key) => key,
                Err(refusal) => return LimitFuture::refused(refusal, None, &request, shared),
            },
        };
        match shared.limiter.ask(&key, shared.options.terms()) {
            Asked::Later(asking) => LimitFuture::asking(asking, key, self.take_ready(), request, shared),
            Asked::Now(Err(refusal)) => LimitFuture::refused(refusal, Some(key), &request, shared),
            Asked::Now(Ok(granted)) => LimitFuture::calling(self.inner.call(request), granted, key, shared),
        }
    }
}

impl<S: Clone, L, I> LimitService<S, L, I> {
    /// The service that is ready; its clone need not be.
    fn take_ready(&mut self) -> S {
        let clone = self.inner.clone();
        mem::replace(&mut self.inner, clone)
    }
}
