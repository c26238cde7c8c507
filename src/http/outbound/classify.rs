//! Which outcome an `OutboundLayer` reports for a response.

use http::response::Parts;

use crate::http::body::outcome_of;
use crate::http::grpc;
use crate::strategy::Outcome;

/// Classifies the calls to an inner service with the error `E`: [`ByStatus`], or a closure for
/// [`OutboundLayer::classify`](super::OutboundLayer::classify), which has an example.
pub trait OutboundClassifier<E> {
    /// The outcome to report for a response with this head, or for an error.
    fn classify(&self, answer: Result<&Parts, &E>) -> Outcome;
}

/// Classifies by the status. 408, 429, 503, 504 and 529 are [overloads](Outcome::Overloaded), and so is an error of the inner
/// service, usually a timeout or a failed connection. Other statuses from 400 on are [ignored](Outcome::Ignored), and the rest is
/// [`Outcome::Ok`]. A `grpc-status` in the head counts as the equivalent HTTP status: 14 (`UNAVAILABLE`) as 503.
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
