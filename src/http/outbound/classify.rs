//! Which outcome an `OutboundLayer` reports for an answer.

use http::response::Parts;

use crate::http::body::outcome_of;
use crate::http::grpc;
use crate::strategy::Outcome;

/// How a call to an inner service with the error `E` has gone: [`ByStatus`], or a closure for
/// [`OutboundLayer::classify`](super::OutboundLayer::classify), which has an example.
pub trait OutboundClassifier<E> {
    /// The outcome to report for an answer with this head, or for an error.
    fn classify(&self, answer: Result<&Parts, &E>) -> Outcome;
}

/// 408, 429, 503, 504 and 529 are an overload, and so is an error of the inner service, which is mostly a timeout or a connection that
/// failed; other statuses from 400 on say nothing about the load; all others are fine. A `grpc-status` in the head counts as the status of
/// HTTP for which it stands: 14 (`UNAVAILABLE`) as 503.
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
        outcome_of(
            answer
                .ok()
                .map(|head| grpc::http_status(head.status, &head.headers)),
        )
    }
}

impl<E, F: Fn(Result<&Parts, &E>) -> Outcome> OutboundClassifier<E> for F {
    fn classify(&self, answer: Result<&Parts, &E>) -> Outcome {
        self(answer)
    }
}
