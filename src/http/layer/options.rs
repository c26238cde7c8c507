use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Response, StatusCode};

use crate::acquire::random_up_to;
use crate::http::admission::Terms;
use crate::http::answer::Refusal;
use crate::http::body::LimitBody;
use crate::http::fields::{FieldValues, KnownPolicies, RateLimitFields, RateLimitStyle};
use crate::snapshot::LimitStatus;
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

    /// Adds what the limits said when they granted.
    pub(super) fn write_granted<B>(&self, response: &mut Response<B>, limits: &[LimitStatus], known: &KnownPolicies) {
        // A store that was not asked says nothing.
        if !limits.is_empty() {
            self.fields.write_at(response.headers_mut(), &FieldValues::granted(limits), Some(known), SystemTime::now);
        }
    }

    pub(super) fn refuse<B>(&self, refusal: &Refusal, is_head: bool, known: &KnownPolicies) -> Response<LimitBody<B>> {
        let mut response = match &self.respond {
            Some(respond) => respond(refusal),
            None => refusal.response(&self.fields),
        };
        let jitter = self.jitter.map_or(Duration::ZERO, random_up_to);
        refusal.write(&self.fields, response.headers_mut(), jitter, known);
        if is_head {
            // Over HTTP/2 nobody else takes the content from an answer to HEAD.
            let len = std::mem::take(response.body_mut()).len();
            let _full = response.headers_mut().try_insert(CONTENT_LENGTH, len.into());
        }
        response.map(LimitBody::of_refusal)
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
