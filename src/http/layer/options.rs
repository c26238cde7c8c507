use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};

use crate::http::admission::Terms;
use crate::http::answer::Refusal;
use crate::http::fields::{RateLimitFields, RateLimitStyle};
use crate::strategy::Outcome;

type Respond = Arc<dyn Fn(&Refusal) -> Response<Bytes> + Send + Sync>;
type Classify = Arc<dyn Fn(Option<StatusCode>) -> Outcome + Send + Sync>;
type Charge = Arc<dyn Fn(StatusCode) -> u64 + Send + Sync>;

/// What a layer does beside asking its limiter.
#[derive(Clone)]
pub(super) struct Options {
    pub(super) fields: RateLimitFields,
    pub(super) cost: u64,
    pub(super) wait: Option<Duration>,
    pub(super) releases_at_head: bool,
    pub(super) jitter: Option<Duration>,
    pub(super) respond: Option<Respond>,
    pub(super) classify: Classify,
    pub(super) penalty: Option<Charge>,
}

impl Options {
    pub(super) fn new() -> Self {
        let fields = RateLimitFields::new("default").expect("it is printable ASCII");
        Self {
            fields,
            cost: 1,
            wait: None,
            releases_at_head: false,
            jitter: None,
            respond: None,
            classify: Arc::new(outcome_of),
            penalty: None,
        }
    }

    pub(super) fn terms(&self) -> Terms {
        Terms { cost: self.cost, wait: self.wait, is_explained: self.fields.style != RateLimitStyle::None }
    }
}

/// The default of [`LimitLayer::classify`](super::LimitLayer::classify).
fn outcome_of(status: Option<StatusCode>) -> Outcome {
    let Some(status) = status else { return Outcome::Overloaded };
    match status {
        StatusCode::REQUEST_TIMEOUT
        | StatusCode::TOO_MANY_REQUESTS
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Outcome::Overloaded,
        _ if status.is_client_error() || status.is_server_error() => Outcome::Ignored,
        _ => Outcome::Ok,
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("fields", &self.fields).field("wait", &self.wait).finish_non_exhaustive()
    }
}
