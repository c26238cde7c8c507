use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};

use crate::core::request::Caller;
use crate::http::admission::Terms;
use crate::http::answer::Refusal;
use crate::http::fields::{RateLimitFields, RateLimitStyle};
use crate::http::outcome::outcome_of;
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
    pub(super) until_head: bool,
    pub(super) jitter: Option<Duration>,
    pub(super) respond: Option<Respond>,
    pub(super) classify: Classify,
    pub(super) penalty: Option<Charge>,
    pub(super) caller: Caller,
}

impl Options {
    pub(super) fn new(caller: Caller) -> Self {
        let fields = RateLimitFields::new("default").expect("it is printable ASCII");
        Self {
            fields,
            cost: 1,
            wait: None,
            until_head: false,
            jitter: None,
            respond: None,
            classify: Arc::new(outcome_of),
            penalty: None,
            caller,
        }
    }

    pub(super) fn terms(&self) -> Terms {
        let is_explained = self.fields.style != RateLimitStyle::None;
        Terms { cost: self.cost, wait: self.wait, is_explained, caller: self.caller }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("fields", &self.fields).field("wait", &self.wait).finish_non_exhaustive()
    }
}
