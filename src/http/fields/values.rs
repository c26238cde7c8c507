use std::time::Duration;

use super::problem::ProblemType;
use crate::decision::Decision;
use crate::policy::Limit;
use crate::rate::Rate;
use crate::snapshot::LimitStatus;
use crate::strategy::{Counts, Penalty};

/// What one answer of a server says about the limits: those of an explained grant or denial, at that instant. See
/// [`RateLimitFields`](super::RateLimitFields) for an example.
#[derive(Debug, Clone, Copy)]
pub struct FieldValues<'a> {
    limits: &'a [LimitStatus],
    cost: u64,
    is_denied: bool,
    denied_by: Option<usize>,
    problem: ProblemType,
    retry_after: Option<Duration>,
    jitter: Duration,
    partition_key: Option<&'a [u8]>,
}

impl<'a> FieldValues<'a> {
    /// A request was granted, and the limits are as
    /// [`try_acquire_explained`](crate::PermitRequest::try_acquire_explained) or
    /// [`acquire_explained`](crate::PermitRequest::acquire_explained) returned them. See the [type's example](Self).
    #[must_use]
    pub const fn granted(limits: &'a [LimitStatus]) -> Self {
        let problem = ProblemType::ReducedCapacity;
        let (retry_after, jitter) = (None, Duration::ZERO);
        Self { limits, cost: 1, is_denied: false, denied_by: None, problem, retry_after, jitter, partition_key: None }
    }

    /// The limits denied a request. See the [type's example](Self).
    #[must_use]
    pub fn denied(limits: &'a [LimitStatus], decision: &Decision) -> Self {
        let (denied_by, retry_after) = (decision.denied_by_index(), decision.retry_after());
        let problem = ProblemType::of_denial(decision.denied_by());
        Self { is_denied: true, denied_by, problem, retry_after, ..Self::granted(limits) }
    }

    /// A request was refused for another reason than a limit, such as a full queue; `limits` may be empty. A timeout has a
    /// [decision](crate::AcquireError::TimedOut) if it was explained: see [`FieldValues::denied`].
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use tollgate::http::{FieldValues, RateLimitFields};
    ///
    /// let mut headers = http::HeaderMap::new();
    /// let values = FieldValues::refused(&[]).retry_after(Duration::from_millis(1_500));
    /// RateLimitFields::new("api")?.write(&mut headers, &values, SystemTime::now());
    /// assert_eq!(headers["retry-after"], "2");
    /// # Ok::<(), tollgate::http::PolicyNameError>(())
    /// ```
    #[must_use]
    pub const fn refused(limits: &'a [LimitStatus]) -> Self {
        Self { is_denied: true, ..Self::granted(limits) }
    }

    /// When to retry, where the limiter does not know: when a place of a concurrency will be released, for instance. A time that
    /// the limiter does know is replaced. Any duration; without effect on a grant. See [`FieldValues::refused`] for an example.
    #[must_use]
    pub const fn retry_after(self, after: Duration) -> Self {
        Self { retry_after: Some(after), ..self }
    }

    /// Any duration to add to `Retry-After`, so that denied clients do not all come back at once. Draw it at random for each answer.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use tollgate::http::{FieldValues, RateLimitFields};
    ///
    /// let mut headers = http::HeaderMap::new();
    /// let values = FieldValues::refused(&[]).retry_after(Duration::from_secs(5)).jitter(Duration::from_millis(2_300));
    /// RateLimitFields::new("api")?.write(&mut headers, &values, SystemTime::now());
    /// assert_eq!(headers["retry-after"], "8");
    /// # Ok::<(), tollgate::http::PolicyNameError>(())
    /// ```
    #[must_use]
    pub const fn jitter(self, jitter: Duration) -> Self {
        Self { jitter, ..self }
    }

    /// Which share of the limits the request belongs to: any bytes, for the parameter `pk` of
    /// [`RateLimitStyle::Draft10`](super::RateLimitStyle::Draft10). It is sent to the client in base64, so it must not be a secret.
    ///
    /// ```
    /// use std::time::SystemTime;
    /// use tollgate::Limiter;
    /// use tollgate::http::{FieldValues, RateLimitFields};
    ///
    /// let mut headers = http::HeaderMap::new();
    /// let limits = Limiter::new("window 100/min")?.limits();
    /// let values = FieldValues::granted(&limits).partition_key(b"trial");
    /// RateLimitFields::new("api")?.write(&mut headers, &values, SystemTime::now());
    /// assert_eq!(headers["ratelimit-policy"], r#""api";q=100;w=60;pk=:dHJpYWw=:"#);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn partition_key(self, key: &'a [u8]) -> Self {
        Self { partition_key: Some(key), ..self }
    }

    /// The problem type of a denial: [abnormal usage](ProblemType::AbnormalUsage) if a [`Penalty`] denied, an exceeded
    /// [quota](ProblemType::QuotaExceeded) if another limit did, and [reduced capacity](ProblemType::ReducedCapacity) if none did.
    /// [`RateLimitFields::problem`](super::RateLimitFields::problem) has an example.
    ///
    /// Where all clients share a limit, [`ProblemType::ReducedCapacity`] is the better choice for it.
    #[must_use]
    pub const fn problem_type(&self) -> ProblemType {
        self.problem
    }

    /// What the next request of this client will probably cost.
    pub(in crate::http) const fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    pub(super) const fn limits(&self) -> &'a [LimitStatus] {
        self.limits
    }

    pub(super) const fn is_denied(&self) -> bool {
        self.is_denied
    }

    pub(super) const fn key(&self) -> Option<&'a [u8]> {
        self.partition_key
    }

    pub(super) const fn denied_by(&self) -> Option<usize> {
        self.denied_by
    }

    /// The limit that denied has none left for this request, whatever it has for a smaller one.
    pub(super) fn remaining(&self, index: usize) -> u64 {
        if self.denied_by == Some(index) { 0 } else { self.limits[index].remaining }
    }

    /// Seconds, rounded up, until a limit has more available, as far as that is known.
    ///
    /// While something is left it is the time until the limit is reset, because a client may conclude from `r=9000;t=1` that it is
    /// free to send 9,000 requests each second.
    pub(super) fn reset(&self, index: usize) -> Option<u64> {
        let status = &self.limits[index];
        if status.limit.counts_places() {
            return None;
        }
        // A denial may ban, after the limit has said when a unit is available.
        let available_after = if self.is_denied && bans(status) { status.reset_after } else { status.available_after };
        let wait = match self.retry_after.filter(|_| self.is_denied) {
            Some(wait) if self.denied_by == Some(index) => wait,
            _ if status.remaining > 0 => until_reset(status),
            Some(wait) => available_after.min(wait), // then every limit admits the request
            None => available_after,
        };
        Some(whole_seconds(wait))
    }

    /// Seconds from 1 on, and never fewer than the reset of the limit that denied.
    pub(super) fn retry_after_seconds(&self) -> Option<u64> {
        let wait = self.retry_after.filter(|_| self.is_denied)?;
        Some(whole_seconds(wait.saturating_add(self.jitter)).max(1))
    }

    /// After how many seconds all of a grant's limits that have not enough left for the next request have enough, at the latest.
    pub(super) fn spent_for(&self) -> Option<u64> {
        let wait = |status: &LimitStatus| {
            let cost = if status.limit.counts() == Counts::Cost { self.cost } else { 1 };
            let is_spent = status.remaining < cost && !status.limit.counts_places();
            is_spent.then(|| match status.limit {
                _ if cost == 1 => status.available_after,
                Limit::Penalty(_) if status.remaining > 0 => until_reset(status), // without the time until it forgives bans
                _ => status.reset_after,
            })
        };
        self.limits.iter().filter_map(wait).max().map(whole_seconds)
    }

    /// For a style with one limit: the one with the smallest share left, which the one that denied is; of those the one with the
    /// latest reset. A concurrency is none, because it has no reset.
    pub(super) fn tightest(&self) -> Option<Tightness> {
        let of = |(index, status): (usize, &LimitStatus)| {
            Some(Tightness { limit: status.capacity, remaining: self.remaining(index), reset: self.reset(index)? })
        };
        let limits = self.limits.iter().enumerate().filter_map(of);
        limits.reduce(|one, other| if other.is_tighter_than(&one) { other } else { one })
    }
}

/// A limit as the styles with one limit describe it. The reset is in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tightness {
    pub(super) limit: u64,
    pub(super) remaining: u64,
    pub(super) reset: u64,
}

impl Tightness {
    /// Whether a smaller share is left of it, or the same for longer.
    pub(super) fn is_tighter_than(&self, other: &Self) -> bool {
        let own = u128::from(self.remaining) * u128::from(other.limit.max(1));
        let others = u128::from(other.remaining) * u128::from(self.limit.max(1));
        own < others || own == others && self.reset > other.reset
    }
}

/// How long the whole capacity takes to come back: the window of a quota. None for a concurrency and for a half-life.
pub(super) fn window(status: &LimitStatus) -> Option<Duration> {
    match status.limit {
        Limit::FixedWindow(window) => Some(window.get_period()),
        Limit::SlidingWindow(window) => Some(window.period()),
        Limit::Throttle(throttle) => Some(times(Rate::new(1, throttle.get_interval()), status.capacity)),
        Limit::TokenBucket(bucket) => Some(times(bucket.get_rate(), status.capacity)),
        Limit::Penalty(penalty) => Some(times(penalty.get_fall()?, status.capacity)),
        Limit::MaxConcurrency(_) => None,
    }
}

/// How long until a limit with something left is reset. Two times are left out because no client need wait for them: that until a
/// penalty forgives its bans, and the second window of a sliding counter.
fn until_reset(status: &LimitStatus) -> Duration {
    match status.limit {
        Limit::SlidingWindow(window) => status.reset_after.min(window.period()),
        Limit::Penalty(penalty) => {
            let longest_ban = penalty.get_ban().max(penalty.get_escalate());
            let is_to_forgive = status.reset_after > falls_for(&penalty, status.capacity);
            let forgiven_after = penalty.get_forgive_after().or(longest_ban).filter(|_| is_to_forgive);
            status.reset_after.saturating_sub(forgiven_after.unwrap_or_default())
        }
        _ => status.reset_after,
    }
}

fn bans(status: &LimitStatus) -> bool {
    matches!(status.limit, Limit::Penalty(penalty) if penalty.get_ban().is_some())
}

/// How long the counter of a penalty takes from this value to zero, at most.
fn falls_for(penalty: &Penalty, value: u64) -> Duration {
    match (penalty.get_fall(), penalty.get_half_life()) {
        (Some(fall), _) => periods(fall.period(), value.div_ceil(fall.units().max(1))),
        (None, half_life) => periods(half_life.unwrap_or_default(), u64::from(u64::BITS - value.leading_zeros())),
    }
}

fn periods(period: Duration, count: u64) -> Duration {
    period.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
}

/// How long so many units take to come.
fn times(rate: Rate, units: u64) -> Duration {
    let (nanos, each) = (rate.period().as_nanos().saturating_mul(u128::from(units)), rate.units().max(1));
    // Dividing 128 bits is slow.
    let nanos = u64::try_from(nanos).map_or_else(|_| nanos / u128::from(each), |nanos| (nanos / each).into());
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

pub(super) const fn whole_seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add((time.subsec_nanos() > 0) as u64)
}
