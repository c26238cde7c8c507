//! When an `OutboundLayer` sends a request again.

use http::StatusCode;

use super::budget::RetryBudget;

/// Whether requests with the body `B` are sent again: [`NoRetry`] or a [`Retry`]. See
/// [`OutboundLayer::retry`](super::OutboundLayer::retry).
pub trait OutboundRetry<B> {
    /// How many times a request is sent again at most.
    fn times(&self) -> u32;

    /// Whether a request is sent again after a denial with this status.
    fn retries(&self, status: StatusCode) -> bool;

    /// A clone of the body, if it can be cloned.
    fn clone_body(&self, body: &B) -> Option<B>;

    /// The budget that pays for retries; `None` if they are free.
    fn budget(&self) -> Option<&RetryBudget> {
        None
    }
}

/// No request is sent again: the default of an [`OutboundLayer`](super::OutboundLayer).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NoRetry;

impl<B> OutboundRetry<B> for NoRetry {
    fn times(&self) -> u32 {
        0
    }

    fn retries(&self, _: StatusCode) -> bool {
        false
    }

    fn clone_body(&self, _: &B) -> Option<B> {
        None
    }
}

/// Sends denied requests again. Made by [`OutboundLayer::retry`](super::OutboundLayer::retry).
///
/// For any other rule, put tower's `RetryLayer` with a policy of your own outside the layer. Each attempt then waits for a
/// permit, and so for the end of the pause; the policy itself need not wait.
///
/// ```
/// use std::convert::Infallible;
/// use std::future::{Ready, ready};
/// use std::sync::{Arc, Mutex};
/// use http::{Request, Response, StatusCode};
/// use tollgate::layers::{OutboundError, OutboundLayer, PermitBody};
/// use tollgate::{Limiter, MaxConcurrency};
/// use tower::retry::{Policy, RetryLayer};
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// #[derive(Clone)]
/// struct OfGets {
///     times_left: u32,
/// }
///
/// type Answer = Result<Response<PermitBody<String>>, OutboundError<Infallible>>;
///
/// impl Policy<Request<String>, Response<PermitBody<String>>, OutboundError<Infallible>> for OfGets {
///     type Future = Ready<()>;
///
///     fn retry(&mut self, _: &mut Request<String>, answer: &mut Answer) -> Option<Ready<()>> {
///         let failed = answer.as_ref().is_ok_and(|answer| answer.status() != StatusCode::OK);
///         self.times_left = self.times_left.checked_sub(1).filter(|_| failed)?;
///         Some(ready(()))
///     }
///
///     fn clone_request(&mut self, request: &Request<String>) -> Option<Request<String>> {
///         (request.method() == "GET").then(|| request.clone())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let answers = Arc::new(Mutex::new(vec![(200, ""), (503, "60"), (500, ""), (503, "30")]));
/// let upstream = service_fn(move |_: Request<String>| {
///     let (status, retry_after) = answers.lock().unwrap().pop().unwrap();
///     let answer = Response::builder().status(status).header("retry-after", retry_after);
///     async move { Ok::<_, Infallible>(answer.body(String::new()).unwrap()) }
/// });
/// let client = ServiceBuilder::new()
///     .layer(RetryLayer::new(OfGets { times_left: 3 }))
///     .layer(OutboundLayer::new(Limiter::new(MaxConcurrency::new(1))?))
///     .service(upstream);
/// let start = tokio::time::Instant::now();
/// let answer = client.oneshot(Request::get("/").body(String::new())?).await?;
/// assert_eq!((answer.status().as_u16(), start.elapsed().as_secs()), (200, 90));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Retry<F = Cloned> {
    pub(super) times: u32,
    pub(super) unavailable: bool,
    pub(super) clone: F,
    pub(super) budget: RetryBudget,
}

/// Clones bodies by their `Clone`. See [`Retry`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cloned;

/// How bodies are cloned. Other crates cannot name this trait.
pub trait CloneBody<B> {
    fn clone_body(&self, body: &B) -> Option<B>;
}

impl<B: Clone> CloneBody<B> for Cloned {
    fn clone_body(&self, body: &B) -> Option<B> {
        Some(body.clone())
    }
}

impl<B, F: Fn(&B) -> Option<B>> CloneBody<B> for F {
    fn clone_body(&self, body: &B) -> Option<B> {
        self(body)
    }
}

impl<B, F: CloneBody<B>> OutboundRetry<B> for Retry<F> {
    fn times(&self) -> u32 {
        self.times
    }

    fn retries(&self, status: StatusCode) -> bool {
        self.unavailable || status != StatusCode::SERVICE_UNAVAILABLE
    }

    fn clone_body(&self, body: &B) -> Option<B> {
        self.clone.clone_body(body)
    }

    fn budget(&self) -> Option<&RetryBudget> {
        Some(&self.budget)
    }
}
