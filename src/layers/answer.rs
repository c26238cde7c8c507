//! The refusal of a request, and the response to it.

use std::error::Error;
use std::iter::successors;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Response, StatusCode};
use thiserror::Error;

use super::fields::{FieldValues, ProblemType, RateLimitFields};
use super::grpc;
use super::identity::NoIdentity;
use crate::decision::Decision;
use crate::error::{AcquireError, StoreError, TryAcquireError};
use crate::event::RefusedReason;
use crate::policy::Limit;
use crate::snapshot::LimitStatus;

/// Why a [`LimitLayer`](super::LimitLayer) has refused a request. [`LimitLayer::on_refusal`](super::LimitLayer::on_refusal) has
/// an example.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A limit denied the request: status 429. The status is 503 if that limit is a concurrency of all clients together, or if no
    /// limit denied: the limiter is paused, or its store does not answer.
    #[error("{decision}")]
    Denied {
        /// Which limit denied, and when to retry.
        decision: Decision,
        /// The state of each limit at the refusal. May be empty with [`RateLimitStyle::None`](super::RateLimitStyle::None).
        limits: Vec<LimitStatus>,
        /// Whether each key has limits of its own, so that other keys may have capacity left.
        by_key: bool,
    },
    /// The request waited for the longest wait, or would have to wait longer: status 429 or 503, as for [`Refusal::Denied`].
    #[error("no permit within the longest wait: {decision}")]
    TimedOut {
        /// Which limit held the request back, and when to retry.
        decision: Decision,
        /// The state of each limit at the refusal, as in [`Refusal::Denied`].
        limits: Vec<LimitStatus>,
        /// As in [`Refusal::Denied`].
        by_key: bool,
    },
    /// The queue is full, has dropped the request in favour of another, or [blocks](crate::Overflow::Block): status 503.
    #[error("the queue is full")]
    QueueFull {
        /// As in [`AcquireError::TimedOut`].
        retry_after: Option<Duration>,
        /// The state of each limit at the refusal, as in [`Refusal::Denied`].
        limits: Vec<LimitStatus>,
    },
    /// The client is unknown: status 403. The body states [what is missing](NoIdentity::detail).
    #[error("the client that sends the request is unknown")]
    NoIdentity(#[source] NoIdentity),
    /// The limiter already holds its maximum number of keys: status 503.
    #[error("the limiter already holds {max} keys, its most")]
    TooManyKeys {
        /// The maximum number of keys.
        max: usize,
    },
    /// The [cost](super::LimitLayer::cost) of the request is above the capacity of a limit, for instance in a small plan, so that
    /// no retry can help: status 413.
    #[error("a cost of {cost} is above {max}, the most that `{limit}` admits")]
    ExceedsLimit {
        /// The cost of the request.
        cost: u64,
        /// The largest cost that is admitted.
        max: u64,
        /// The limit with this capacity.
        limit: Box<Limit>,
        /// The state of each limit at the refusal, as in [`Refusal::Denied`].
        limits: Vec<LimitStatus>,
    },
    /// The store of the limits has not answered, and the limiter is set to [fail](crate::store::OnStoreDown::Error) in this case:
    /// status 503.
    #[error("the store of the limiter failed")]
    Store(#[source] Box<StoreError>),
    /// The limiter is closed: status 503.
    #[error("the limiter is closed")]
    Closed,
    /// The limiter cannot decide because of its configuration: the policy of a tier is invalid, or a unit that it counts has no
    /// cost. Status 500.
    #[error("the limiter cannot be asked")]
    Misconfigured(#[source] Box<dyn Error + Send + Sync>),
}

impl Refusal {
    /// The status of the response in plain HTTP.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NoIdentity(_) => StatusCode::FORBIDDEN,
            Self::ExceedsLimit { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            _ => self
                .problem_type()
                .map_or(StatusCode::INTERNAL_SERVER_ERROR, ProblemType::status),
        }
    }

    /// The gRPC status code of the response to a gRPC call; `tonic::Code::from` takes it.
    ///
    /// | refusal | in plain HTTP | in gRPC |
    /// |---|---|---|
    /// | a quota or a [`Penalty`](crate::Penalty) denied, also after a wait | 429 | 8, `RESOURCE_EXHAUSTED` |
    /// | no capacity: a concurrency of all clients together, a pause, a full queue or table of keys, a store that fails, a closed limiter | 503 | 14, `UNAVAILABLE` |
    /// | [`NoIdentity`](Self::NoIdentity) | 403 | 16, `UNAUTHENTICATED`, the gRPC code for callers that cannot be identified |
    /// | [`ExceedsLimit`](Self::ExceedsLimit) | 413 | 9, `FAILED_PRECONDITION`: no retry helps until the limit is raised |
    /// | [`Misconfigured`](Self::Misconfigured) | 500 | 13, `INTERNAL` |
    ///
    /// ```
    /// use tollgate::layers::{NoIdentity, Refusal};
    ///
    /// assert_eq!(Refusal::Closed.grpc_code(), 14);
    /// assert_eq!(Refusal::NoIdentity(NoIdentity::Unknown).grpc_code(), 16);
    /// ```
    #[must_use]
    pub fn grpc_code(&self) -> i32 {
        match self.status() {
            StatusCode::FORBIDDEN => grpc::UNAUTHENTICATED,
            StatusCode::PAYLOAD_TOO_LARGE => grpc::FAILED_PRECONDITION,
            StatusCode::TOO_MANY_REQUESTS => grpc::RESOURCE_EXHAUSTED,
            StatusCode::SERVICE_UNAVAILABLE => grpc::UNAVAILABLE,
            _ => grpc::INTERNAL,
        }
    }

    /// The time from now after which a retry can succeed, behind the requests that wait; `None` if it is unknown.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Denied { decision, .. } | Self::TimedOut { decision, .. } => {
                decision.retry_after()
            }
            Self::QueueFull { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// The state of each limit at the refusal. Empty if no limit was asked, and possibly with
    /// [`RateLimitStyle::None`](super::RateLimitStyle::None).
    #[must_use]
    pub fn limits(&self) -> &[LimitStatus] {
        match self {
            Self::Denied { limits, .. }
            | Self::TimedOut { limits, .. }
            | Self::QueueFull { limits, .. }
            | Self::ExceedsLimit { limits, .. } => limits,
            _ => &[],
        }
    }

    /// The problem type of the response; `None` if the refusal is not about limits: [`NoIdentity`](Self::NoIdentity),
    /// [`ExceedsLimit`](Self::ExceedsLimit), [`Misconfigured`](Self::Misconfigured).
    ///
    /// With it, a response of [your own](super::LimitLayer::on_refusal) can have an error code and still be a problem document:
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::Response;
    /// use tollgate::Limiter;
    /// use tollgate::layers::{LimitLayer, ProblemType};
    ///
    /// let layer = LimitLayer::new(Limiter::new("100/min")?).on_refusal(|refusal| {
    ///     let (uri, status) = (refusal.problem_type().map_or("about:blank", ProblemType::uri), refusal.status());
    ///     let body = format!(r#"{{"type":"{uri}","status":{},"code":"E1003"}}"#, status.as_u16());
    ///     let mut response = Response::new(Bytes::from(body));
    ///     *response.status_mut() = status;
    ///     response.headers_mut().insert("content-type", ProblemType::CONTENT_TYPE);
    ///     response
    /// });
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn problem_type(&self) -> Option<ProblemType> {
        Some(match self {
            Self::NoIdentity(_) | Self::ExceedsLimit { .. } | Self::Misconfigured(_) => {
                return None;
            }
            Self::Denied {
                decision, by_key, ..
            }
            | Self::TimedOut {
                decision, by_key, ..
            } => match decision.denied_by() {
                Some(limit) if limit.counts_places() && !by_key => ProblemType::ReducedCapacity,
                denied_by => ProblemType::of_denial(denied_by),
            },
            _ => ProblemType::ReducedCapacity,
        })
    }

    /// What the header fields of the refusal show.
    pub(super) fn values(&self) -> FieldValues<'_> {
        match self {
            Self::Denied {
                decision, limits, ..
            }
            | Self::TimedOut {
                decision, limits, ..
            } => FieldValues::denied(limits, decision),
            _ => {
                let values = FieldValues::refused(self.limits());
                self.retry_after()
                    .map_or(values, |after| values.retry_after(after))
            }
        }
    }

    /// Records whether each key has limits of its own.
    pub(super) fn set_by_key(&mut self, has_keys: bool) {
        if let Self::Denied { by_key, .. } | Self::TimedOut { by_key, .. } = self {
            *by_key = has_keys;
        }
    }

    /// The default response of a layer, without the header fields of the limits, which the layer adds to any response. Use it in
    /// an [`on_refusal`](super::LimitLayer::on_refusal) that logs, or that adds something. The body names the limit that denied
    /// as `fields` do, so give `fields` the [name](super::LimitLayer::name) of the layer.
    ///
    /// ```
    /// use tollgate::Limiter;
    /// use tollgate::layers::{LimitLayer, RateLimitFields, Refusal};
    ///
    /// let fields = RateLimitFields::new("api")?;
    /// let layer = LimitLayer::new(Limiter::new("100/min")?).name("api")?.on_refusal(move |refusal| {
    ///     if let Refusal::NoIdentity(why) = refusal {
    ///         eprintln!("{refusal}: {why}");
    ///     }
    ///     let mut response = refusal.response(&fields);
    ///     response.headers_mut().insert("x-help", "https://example.org/limits".parse().expect("it is printable"));
    ///     response
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn response(&self, fields: &RateLimitFields) -> Response<Bytes> {
        let (status, body) = match self.problem_type() {
            Some(problem) => (problem.status(), fields.problem(&self.values(), problem)),
            None => {
                let (status, title) = (self.status(), self.title());
                let detail = match self {
                    Self::NoIdentity(unknown) => format!(r#","detail":"{}""#, unknown.detail()),
                    _ => String::new(),
                };
                let body = format!(
                    r#"{{"type":"about:blank","title":"{title}","status":{}{detail}}}"#,
                    status.as_u16()
                );
                (status, body.into())
            }
        };
        let mut response = Response::new(body.into());
        *response.status_mut() = status;
        response
            .headers_mut()
            .insert(CONTENT_TYPE, ProblemType::CONTENT_TYPE);
        response
    }

    /// The default response of a layer to a gRPC call, without the metadata for the limits and the wait, which the layer adds to
    /// any response. The response has status 200, the [`grpc_code`](Self::grpc_code), and no message. Its `grpc-message` names
    /// the problem and the limit that denied, as the body of [`response`](Self::response) does.
    ///
    /// ```
    /// use tollgate::Limiter;
    /// use tollgate::layers::{LimitLayer, RateLimitFields};
    ///
    /// let fields = RateLimitFields::new("api")?;
    /// let layer = LimitLayer::new(Limiter::new("100/min")?).name("api")?.on_refusal(move |refusal| {
    ///     eprintln!("{refusal}");
    ///     refusal.grpc_response(&fields) // all clients of this server speak gRPC
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn grpc_response(&self, fields: &RateLimitFields) -> Response<Bytes> {
        let title = self.title();
        let detail = match self {
            Self::NoIdentity(unknown) => Some(unknown.detail()),
            _ => fields.name_of_denier(&self.values()),
        };
        grpc::trailers_only(
            self.grpc_code(),
            &detail.map_or_else(|| title.to_owned(), |detail| format!("{title}: {detail}")),
        )
    }

    fn title(&self) -> &'static str {
        let of_status = || self.status().canonical_reason().unwrap_or_default();
        self.problem_type()
            .map_or_else(of_status, ProblemType::title)
    }

    /// Why the layer itself refused the request; `None` if the limiter reports the refusal.
    pub(super) const fn reason(&self) -> Option<RefusedReason> {
        Some(match self {
            Self::Denied { .. }
            | Self::TimedOut { .. }
            | Self::QueueFull { .. }
            | Self::TooManyKeys { .. } => return None,
            Self::NoIdentity(_) => RefusedReason::NoIdentity,
            Self::ExceedsLimit { .. } => RefusedReason::ExceedsLimit,
            Self::Store(_) => RefusedReason::StoreFailed,
            Self::Closed => RefusedReason::Closed,
            Self::Misconfigured(_) => RefusedReason::Misconfigured,
        })
    }

    /// The chain of source errors as text, or the text of this error if it has no source.
    pub(super) fn in_words(&self) -> String {
        let first = self.source().unwrap_or(self);
        let errors = successors(Some(first), |&error| error.source());
        errors
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(": ")
    }

    /// The refusal of a request that may have waited. `limits` is the state of the limits at the refusal.
    pub(super) fn of_wait(error: AcquireError, limits: Vec<LimitStatus>) -> Self {
        match error {
            AcquireError::Closed => Self::Closed,
            AcquireError::TimedOut {
                decision: Some(decision),
                ..
            } => Self::TimedOut {
                decision: *decision,
                limits,
                by_key: false,
            },
            AcquireError::QueueFull { .. }
            | AcquireError::Shed { .. }
            | AcquireError::Blocked { .. }
            | AcquireError::TimedOut { decision: None, .. } => Self::QueueFull {
                retry_after: error.retry_after(),
                limits,
            },
            AcquireError::ExceedsLimit { cost, max, limit } => Self::ExceedsLimit {
                cost,
                max,
                limit,
                limits,
            },
            AcquireError::TooManyKeys { max } => Self::TooManyKeys { max },
            AcquireError::Store(error) => Self::Store(error),
            error => Self::Misconfigured(Box::new(error)),
        }
    }

    /// The refusal of a request that did not wait. `limits` is the state of the limits at the decision.
    pub(super) fn at_once(error: TryAcquireError, limits: Vec<LimitStatus>) -> Self {
        match error {
            TryAcquireError::Denied(decision) => Self::Denied {
                decision,
                limits,
                by_key: false,
            },
            TryAcquireError::Closed => Self::Closed,
            TryAcquireError::ExceedsLimit { cost, max, limit } => Self::ExceedsLimit {
                cost,
                max,
                limit,
                limits,
            },
            TryAcquireError::TooManyKeys { max } => Self::TooManyKeys { max },
            TryAcquireError::Store(error) => Self::Store(error),
            TryAcquireError::NotAsked(error) => Self::of_wait(*error, limits),
            error => Self::Misconfigured(Box::new(error)),
        }
    }
}
