use http::StatusCode;
use http::response::Parts;

use crate::strategy::Outcome;

/// How a call to an inner service with the error `E` has gone: [`ByStatus`], or a closure for
/// [`OutboundLayer::classify`](super::OutboundLayer::classify), which has an example.
pub trait OutboundClassifier<E> {
    /// What is reported of an answer with this head, or of an error.
    fn classify(&self, answer: Result<&Parts, &E>) -> Outcome;
}

/// 429, 503, 504 and 529 are an overload, and so is an error of the inner service, which is mostly a timeout or a connection that
/// failed; other statuses from 500 on say nothing about the load; all others are fine.
///
/// ```
/// use http::Response;
/// use tollgate::Outcome;
/// use tollgate::http::{ByStatus, OutboundClassifier};
///
/// let (head, ()) = Response::builder().status(503).body(()).unwrap().into_parts();
/// assert_eq!(ByStatus.classify(Ok::<_, &()>(&head)), Outcome::Overloaded);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByStatus;

impl<E> OutboundClassifier<E> for ByStatus {
    fn classify(&self, answer: Result<&Parts, &E>) -> Outcome {
        match answer.map(|head| head.status.as_u16()) {
            Ok(429 | 503 | 504 | 529) | Err(_) => Outcome::Overloaded,
            Ok(500..) => Outcome::Ignored,
            Ok(_) => Outcome::Ok,
        }
    }
}

impl<E, F: Fn(Result<&Parts, &E>) -> Outcome> OutboundClassifier<E> for F {
    fn classify(&self, answer: Result<&Parts, &E>) -> Outcome {
        self(answer)
    }
}

/// Whether requests with the body `B` are sent again: [`NoRetry`] or a [`Retry`]. See
/// [`OutboundLayer::retry`](super::OutboundLayer::retry).
pub trait OutboundRetry<B> {
    /// How often at most.
    fn times(&self) -> u32;

    /// Whether after this denial.
    fn retries(&self, status: StatusCode) -> bool;

    /// The body once more, if it can be had.
    fn clone_body(&self, body: &B) -> Option<B>;
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

/// Requests that were denied are sent again. [`OutboundLayer::retry`](super::OutboundLayer::retry) makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry<F = Cloned> {
    pub(super) times: u32,
    pub(super) unavailable: bool,
    pub(super) clone: F,
}

/// Bodies are cloned by their `Clone`. See [`Retry`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cloned;

/// Not to be named by others.
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
}
