//! The answers to refused requests: `application/problem+json` (RFC 9457) with an error code.

use axum::body::Bytes;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, Response, StatusCode};
use common::Human;
use tollgate::layers::{ProblemType, Refusal};

/// The error code of a denial by limits, and a sentence for people.
pub(crate) struct Denial {
    pub(crate) code: &'static str,
    detail: &'static str,
}

pub(crate) const PENALTY: Denial = Denial {
    code: "too_many_attempts",
    detail: "too many or too many bad requests from this address",
};
pub(crate) const CAPACITY: Denial = Denial {
    code: "server_is_busy",
    detail: "the server has no capacity for this now",
};
pub(crate) const PLAN: Denial = Denial {
    code: "plan_is_used_up",
    detail: "the plan allows no more requests now",
};
pub(crate) const SEARCH: Denial = Denial {
    code: "too_many_searches",
    detail: "no more searches are allowed now",
};

/// The answer with an error code and a sentence for people, which JSON need not escape. The status says what the problem is if it has
/// no type.
pub(crate) fn problem(
    status: StatusCode,
    problem: Option<ProblemType>,
    code: &str,
    detail: &str,
) -> Response<Bytes> {
    let (uri, title) = match problem {
        Some(problem) => (problem.uri(), problem.title()),
        None => ("about:blank", status.canonical_reason().unwrap_or_default()),
    };
    let status_code = status.as_u16();
    let body = format!(
        r#"{{"type":"{uri}","title":"{title}","status":{status_code},"code":"{code}","detail":"{detail}"}}"#
    ) + "\n";
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, ProblemType::CONTENT_TYPE);
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from_static("1")); // the layer replaces it by a later one
    }
    response
}

/// Answers the refusals of a layer; `denial` is for those by its limits.
pub(crate) fn refused(denial: Denial) -> impl Fn(&Refusal) -> Response<Bytes> {
    move |refusal| {
        let (code, detail) = match refusal {
            Refusal::Denied { .. } | Refusal::TimedOut { .. } | Refusal::QueueFull { .. } => {
                (denial.code, denial.detail)
            }
            Refusal::TooManyKeys { .. } => (CAPACITY.code, CAPACITY.detail),
            Refusal::NoIdentity(_) => ("unknown_address", "the address of the client is not known"),
            Refusal::Store(_) => (
                "limits_unavailable",
                "the store of the limits does not answer now",
            ),
            _ => ("internal", "this request cannot be limited"),
        };
        let after = refusal
            .retry_after()
            .map(|after| format!("; retry after {}", Human(after)));
        problem(
            refusal.status(),
            refusal.problem_type(),
            code,
            &(detail.to_owned() + after.as_deref().unwrap_or_default()),
        )
    }
}
