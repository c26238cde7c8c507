//! How a call went, by the status of its answer.

use http::StatusCode;

use crate::strategy::Outcome;

/// 408, 429, 503, 504 and 529 are an overload, and so is no answer: mostly a timeout, or a connection that failed. Other errors say
/// nothing about the load: they may have taken no work.
pub(super) fn outcome_of(status: Option<StatusCode>) -> Outcome {
    match status.map(|status| status.as_u16()) {
        Some(408 | 429 | 503 | 504 | 529) | None => Outcome::Overloaded,
        Some(400..) => Outcome::Ignored,
        Some(_) => Outcome::Ok,
    }
}
