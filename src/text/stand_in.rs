//! The parameters of limits that are not in this tree yet, field for field.

use std::time::Duration;

use crate::rate::Rate;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlidingWindow {
    pub(super) limit: u64,
    pub(super) period: Duration,
    pub(super) method: SlidingMethod,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlidingMethod {
    Log,
    Counter,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Penalty {
    pub(super) threshold: u64,
    pub(super) fall: Fall,
    pub(super) ceiling: Option<u64>,
    pub(super) ban: Option<Duration>,
    pub(super) longest: Option<Duration>,
    pub(super) forgive_after: Option<Duration>,
    pub(super) counts_denied: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fall {
    Steps(Rate),
    HalfLife(Duration),
}
