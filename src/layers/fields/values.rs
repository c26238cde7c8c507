//! What the header fields of one response show, and its text. Caches text that most responses have in common.

use std::cmp::Ordering;
use std::sync::OnceLock;
use std::time::Duration;

use http::{HeaderValue, StatusCode};
use sfv::{ItemSerializer, RefBareItem};

use super::text::{FieldText, ShortText};
use crate::decision::Decision;
use crate::policy::{Limit, with_limit};
use crate::snapshot::LimitStatus;
use crate::strategy::{Counts, Describe as _, Guards};

/// The state of the limits that one response of a server shows: as an explained grant or denial returned it, at that instant. See
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

getters!(FieldValues<'_> {
    /// The problem type of a denial: [abnormal usage](ProblemType::AbnormalUsage) if a [`Penalty`](crate::Penalty) denied, an exceeded
    /// [quota](ProblemType::QuotaExceeded) if another limit did, and [reduced capacity](ProblemType::ReducedCapacity) if none did.
    /// [`RateLimitFields::problem`](super::RateLimitFields::problem) has an example.
    ///
    /// For a limit that all clients share, [`ProblemType::ReducedCapacity`] is the better choice.
    pub problem_type: problem -> ProblemType,

    pub(super) is_denied: is_denied -> bool,

    pub(super) denied_by: denied_by -> Option<usize>,
});

impl<'a> FieldValues<'a> {
    /// A request was granted, and the limits are as
    /// [`try_acquire_explained`](crate::PermitRequest::try_acquire_explained) or
    /// [`acquire_explained`](crate::PermitRequest::acquire_explained) returned them. See the [type's example](Self).
    #[must_use]
    pub const fn granted(limits: &'a [LimitStatus]) -> Self {
        Self {
            limits,
            cost: 1,
            is_denied: false,
            denied_by: None,
            problem: ProblemType::ReducedCapacity,
            retry_after: None,
            jitter: Duration::ZERO,
            partition_key: None,
        }
    }

    /// The limits denied a request. See the [type's example](Self).
    #[must_use]
    pub fn denied(limits: &'a [LimitStatus], decision: &Decision) -> Self {
        let (denied_by, retry_after) = (decision.denied_by_index(), decision.retry_after());
        let problem = ProblemType::of_denial(decision.denied_by());
        Self {
            is_denied: true,
            denied_by,
            problem,
            retry_after,
            ..Self::granted(limits)
        }
    }

    /// A request was refused for another reason than a limit, such as a full queue; `limits` may be empty. A timeout has a
    /// [decision](crate::AcquireError::TimedOut) if it was explained: see [`FieldValues::denied`].
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use tollgate::layers::{FieldValues, RateLimitFields};
    ///
    /// let mut headers = http::HeaderMap::new();
    /// let values = FieldValues::refused(&[]).retry_after(Duration::from_millis(1_500));
    /// RateLimitFields::new("api")?.write(&mut headers, &values, SystemTime::now());
    /// assert_eq!(headers["retry-after"], "2");
    /// # Ok::<(), tollgate::layers::PolicyNameError>(())
    /// ```
    #[must_use]
    pub const fn refused(limits: &'a [LimitStatus]) -> Self {
        Self {
            is_denied: true,
            ..Self::granted(limits)
        }
    }

    setters! { const:
        /// When to retry, for a wait that the limiter cannot know, such as the time until a place of a concurrency is released.
        /// It replaces a time that the limiter knows. Any duration; without effect on a grant. See [`FieldValues::refused`] for
        /// an example.
        #[must_use]
        pub retry_after(after: Duration) => retry_after = Some(after);

        /// Any duration to add to `Retry-After`, so that denied clients do not all return at once. Draw it at random for each
        /// response.
        ///
        /// ```
        /// use std::time::{Duration, SystemTime};
        /// use tollgate::layers::{FieldValues, RateLimitFields};
        ///
        /// let mut headers = http::HeaderMap::new();
        /// let values = FieldValues::refused(&[]).retry_after(Duration::from_secs(5)).jitter(Duration::from_millis(2_300));
        /// RateLimitFields::new("api")?.write(&mut headers, &values, SystemTime::now());
        /// assert_eq!(headers["retry-after"], "8");
        /// # Ok::<(), tollgate::layers::PolicyNameError>(())
        /// ```
        #[must_use]
        pub jitter(jitter: Duration) => jitter = jitter;

        /// The partition of the limits that the request belongs to: any bytes, for the parameter `pk` of
        /// [`RateLimitStyle::Draft10`](super::RateLimitStyle::Draft10). It is sent to the client in base64, so it must not be a
        /// secret.
        ///
        /// ```
        /// use std::time::SystemTime;
        /// use tollgate::Limiter;
        /// use tollgate::layers::{FieldValues, RateLimitFields};
        ///
        /// let mut headers = http::HeaderMap::new();
        /// let limits = Limiter::new("window 100/min")?.limits();
        /// let values = FieldValues::granted(&limits).partition_key(b"trial");
        /// RateLimitFields::new("api")?.write(&mut headers, &values, SystemTime::now());
        /// assert_eq!(headers["ratelimit-policy"], r#""api";q=100;w=60;pk=:dHJpYWw=:"#);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        #[must_use]
        pub partition_key(key: &'a [u8]) => partition_key = Some(key);

        /// The probable cost of the next request of this client.
        pub(in crate::layers) cost(cost: u64) => cost = cost;
    }

    /// The remaining units of a limit: 0 for the limit that denied, even if a smaller request could be granted.
    fn remaining(&self, index: usize) -> u64 {
        if self.denied_by == Some(index) {
            0
        } else {
            self.limits[index].remaining
        }
    }

    /// Seconds, rounded up, until a limit has more units available, as far as that is known.
    ///
    /// While units are left, this is the time until the limit is reset. A client may conclude from `r=9000;t=1` that it may send
    /// 9,000 requests each second.
    fn reset(&self, index: usize) -> Option<u64> {
        let status = &self.limits[index];
        if status.limit.counts_places() {
            return None;
        }
        // A denial may start a ban after the status of the limit was read.
        let available_after = if self.is_denied && status.limit.description().bans {
            status.reset_after
        } else {
            status.available_after
        };
        let wait = match self.retry_after.filter(|_| self.is_denied) {
            Some(wait) if self.denied_by == Some(index) => wait,
            _ if status.remaining > 0 => until_reset(status),
            Some(wait) => available_after.min(wait), // after `wait` every limit admits the request
            None => available_after,
        };
        Some(whole_seconds(wait))
    }

    /// Seconds, at least 1, and at least the reset of the limit that denied.
    pub(super) fn retry_after_seconds(&self) -> Option<u64> {
        let wait = self.retry_after.filter(|_| self.is_denied)?;
        Some(whole_seconds(wait.saturating_add(self.jitter)).max(1))
    }

    /// The seconds until every limit of a grant has enough units for the next request. `None` if all have enough now.
    pub(super) fn spent_for(&self) -> Option<u64> {
        let wait = |status: &LimitStatus| {
            let cost = if status.limit.counts() == Counts::Cost {
                self.cost
            } else {
                1
            };
            let is_spent = status.remaining < cost && !status.limit.counts_places();
            let guards_conduct = || status.limit.description().guards == Guards::Conduct;
            is_spent.then(|| match cost {
                1 => status.available_after,
                _ if status.remaining > 0 && guards_conduct() => until_reset(status),
                _ => status.reset_after,
            })
        };
        self.limits.iter().filter_map(wait).max().map(whole_seconds)
    }

    /// The tightest limit, for a style with one limit: the one with the smallest share left, such as the one that denied. Among
    /// equal shares, the limit with the latest reset is the tightest. A concurrency is left out, because it has no reset.
    pub(super) fn tightest(&self) -> Option<Tightness> {
        let of = |(index, status): (usize, &LimitStatus)| {
            Some(Tightness {
                limit: status.capacity,
                remaining: self.remaining(index),
                reset: self.reset(index)?,
            })
        };
        let limits = self.limits.iter().enumerate().filter_map(of);
        limits.min_by(Tightness::compare)
    }

    /// Writes the quoted name of a limit: the name of the policy, with a number from 1 on if the policy has several limits.
    pub(super) fn put_name<const SHORT: usize>(
        &self,
        out: &mut ShortText<SHORT>,
        name: &str,
        index: usize,
    ) {
        out.put(b"\"");
        out.put(name.as_bytes());
        if self.limits.len() > 1 {
            out.put_number(b"-", index as u64 + 1);
        }
        out.put(b"\"");
    }

    /// `"api";q=100;w=60;qu="tokens";pk=:dHJpYWw=:`
    pub(super) fn policies(&self, name: &str) -> FieldText {
        self.members(name, |out, _, status| {
            out.put_number(b";q=", status.capacity);
            if let Some(seconds) = window_seconds(status) {
                out.put_number(b";w=", seconds);
            }
            put_unit(out, status);
        })
    }

    /// `"api";r=42;t=30`
    pub(super) fn states(&self, name: &str) -> FieldText {
        self.members(name, |out, index, _| {
            out.put_number(b";r=", self.remaining(index));
            // Zero means that the limit is full already.
            if let Some(seconds) = self.reset(index).filter(|seconds| *seconds > 0) {
                out.put_number(b";t=", seconds);
            }
        })
    }

    /// Writes a member for each limit, with its name, these parameters, and the partition key.
    #[inline]
    fn members(
        &self,
        name: &str,
        put_parameters: impl Fn(&mut FieldText, usize, &LimitStatus),
    ) -> FieldText {
        let mut text = FieldText::new();
        for (index, status) in self.limits.iter().enumerate() {
            text.put_comma();
            self.put_name(&mut text, name, index);
            put_parameters(&mut text, index, status);
            self.put_partition_key(&mut text);
        }
        text
    }

    /// `100;w=60`, the policies of draft-07. A quota may be in the list only once: the first limit with it is listed.
    pub(super) fn windows(&self) -> FieldText {
        let mut text = FieldText::new();
        let out = &mut text;
        for (index, status) in self.limits.iter().enumerate() {
            let has_window = |status: &&LimitStatus| window_seconds(status).is_some();
            let is_repeated = self.limits[..index]
                .iter()
                .filter(has_window)
                .any(|other| other.capacity == status.capacity);
            let Some(seconds) = window_seconds(status).filter(|_| !is_repeated) else {
                continue;
            };
            out.put_comma();
            out.put_number(b"", status.capacity);
            out.put_number(b";w=", seconds);
        }
        text
    }

    /// Writes the partition key in base64, with padding (RFC 9651, section 4.1.8).
    fn put_partition_key(&self, out: &mut FieldText) {
        let Some(key) = self.partition_key else {
            return;
        };
        let key = RefBareItem::ByteSequence(key);
        out.put(b";pk=");
        out.put(ItemSerializer::new().bare_item(key).finish().as_bytes());
    }
}

/// The window in seconds. It is rounded up, so it promises less than the limit allows. `None` below a second, because a rounded
/// window would promise far less.
fn window_seconds(status: &LimitStatus) -> Option<u64> {
    with_limit!(&status.limit, |limit| limit.window(status.capacity))
        .filter(|window| window.as_secs() > 0)
        .map(whole_seconds)
}

/// Writes the unit. Without this parameter, the limit counts requests.
fn put_unit(out: &mut FieldText, status: &LimitStatus) {
    let prefix: &[u8] = if status.limit.counts_places() {
        b"concurrent-"
    } else {
        b""
    };
    let counts = status.limit.counts();
    let unit = match &counts {
        Counts::Unit(unit) => unit.as_str(),
        Counts::Cost | Counts::Requests if prefix.is_empty() => return,
        Counts::Cost | Counts::Requests => "requests",
    };
    out.put(b";qu=\"");
    out.put(prefix);
    out.put(unit.as_bytes());
    out.put(b"\"");
}

/// A limit as described by the styles with one limit. The reset is in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tightness {
    pub(super) limit: u64,
    pub(super) remaining: u64,
    pub(super) reset: u64,
}

impl Tightness {
    /// Compares two limits. The tighter limit is less: its share left is smaller, or equal with a later reset.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        let own = u128::from(self.remaining) * u128::from(other.limit.max(1));
        let others = u128::from(other.remaining) * u128::from(self.limit.max(1));
        own.cmp(&others).then(other.reset.cmp(&self.reset))
    }
}

fn until_reset(status: &LimitStatus) -> Duration {
    with_limit!(&status.limit, |limit| limit
        .until_reset(status.reset_after, status.capacity))
}

pub(super) const fn whole_seconds(time: Duration) -> u64 {
    time.as_secs()
        .saturating_add((time.subsec_nanos() > 0) as u64)
}

/// Why a request was denied: a problem type of draft-ietf-httpapi-ratelimit-headers-10, section 4. The body of a response names
/// it (RFC 9457). See [`RateLimitFields::problem`](super::RateLimitFields::problem) for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProblemType {
    /// A quota of the client, or one that it shares, is used up: status 429.
    QuotaExceeded,
    /// The server has no capacity at present for such a request from any client: status 503.
    ReducedCapacity,
    /// The client is penalised or banned for its behaviour: status 429.
    AbnormalUsage,
}

impl ProblemType {
    /// The media type of a body that [`RateLimitFields::problem`](super::RateLimitFields::problem) returns, which has an example.
    pub const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");

    /// The status of a response with this problem, 429 or 503.
    ///
    /// ```
    /// use tollgate::layers::ProblemType;
    ///
    /// assert_eq!(ProblemType::QuotaExceeded.status(), 429);
    /// assert_eq!(ProblemType::ReducedCapacity.status(), 503);
    /// ```
    #[must_use]
    pub const fn status(self) -> StatusCode {
        match self {
            Self::QuotaExceeded | Self::AbnormalUsage => StatusCode::TOO_MANY_REQUESTS,
            Self::ReducedCapacity => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    pub(in crate::layers) fn of_denial(denied_by: Option<Limit>) -> Self {
        match denied_by.map(|limit| limit.description().guards) {
            Some(Guards::Conduct) => Self::AbnormalUsage,
            Some(Guards::Quota | Guards::Capacity) => Self::QuotaExceeded,
            None => Self::ReducedCapacity,
        }
    }

    /// The URI of the type.
    ///
    /// ```
    /// use tollgate::layers::ProblemType;
    ///
    /// assert_eq!(ProblemType::QuotaExceeded.uri(), "https://iana.org/assignments/http-problem-types#quota-exceeded");
    /// ```
    #[must_use]
    pub const fn uri(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "https://iana.org/assignments/http-problem-types#quota-exceeded",
            Self::ReducedCapacity => {
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
            }
            Self::AbnormalUsage => {
                "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
            }
        }
    }

    /// The title of the type in the registry, for people to read.
    ///
    /// ```
    /// use tollgate::layers::ProblemType;
    ///
    /// assert_eq!(ProblemType::QuotaExceeded.title(), "Quota Exceeded");
    /// ```
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "Quota Exceeded",
            Self::ReducedCapacity => "Temporary Reduced Capacity",
            Self::AbnormalUsage => "Abnormal Usage Detected",
        }
    }
}

/// The fields of the policies that were asked for first. Most layers have one policy or few plans, and writing the text of one
/// policy takes as long as the rest of a response.
#[derive(Debug, Default)]
pub(in crate::layers) struct KnownPolicies([OnceLock<KnownField>; 4]);

#[derive(Debug)]
struct KnownField {
    /// The limits of the policy, each with its capacity.
    limits: Vec<(Limit, u64)>,
    field: HeaderValue,
}

impl KnownPolicies {
    /// The field of these limits, if it is known. Otherwise the caller writes it.
    pub(super) fn field(
        &self,
        values: &FieldValues<'_>,
        write: impl Fn() -> Option<HeaderValue>,
    ) -> Option<&HeaderValue> {
        if values.partition_key.is_some() || values.limits.is_empty() {
            return None;
        }
        let limits = || {
            values
                .limits
                .iter()
                .map(|status| (&status.limit, status.capacity))
        };
        self.0.iter().find_map(|known| {
            let known = match known.get() {
                Some(known) => known,
                None => {
                    let field = write()?;
                    let limits = limits()
                        .map(|(limit, capacity)| (*limit, capacity))
                        .collect();
                    known.get_or_init(|| KnownField { limits, field })
                }
            };
            let its_limits = known
                .limits
                .iter()
                .map(|(limit, capacity)| (limit, *capacity));
            limits().eq(its_limits).then_some(&known.field)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Limiter;

    /// The next request of the same cost: one unit comes before the reset. Past bans of a penalty are forgiven long after the units
    /// are there, but a counter above its threshold is no ban.
    #[test]
    fn a_grant_that_leaves_less_than_its_cost_states_when_there_is_enough() {
        for (policy, taken, cost, hours) in [
            ("1/h burst 10", &[9][..], 1, None),
            ("1/h burst 10", &[10], 1, Some(1)),
            ("1/h burst 10", &[10], 4, Some(10)),
            ("window 10/h from first grant", &[6], 4, None),
            ("window 10/h from first grant", &[7], 4, Some(1)),
            (
                "penalty 10 falling 1/h ban 1ns forgive 24h",
                &[7],
                4,
                Some(7),
            ),
            (
                "penalty 10 falling 1/h ban 1ns forgive 24h",
                &[8, 8, 7],
                4,
                Some(7),
            ),
            ("penalty 10 falling 1/h forgive 24h", &[10, 10], 4, Some(20)),
        ] {
            let limiter = Limiter::new(policy).unwrap();
            for units in taken {
                let _denied = limiter.try_acquire_many(*units).is_err();
            }
            let limits = limiter.limits();
            let values = FieldValues::granted(&limits).cost(cost);
            assert_eq!(
                values.spent_for(),
                hours.map(|hours| hours * 3_600),
                "{policy} {taken:?} {cost}"
            );
        }
    }

    /// A fixed bug: if the first response had no limits, its field was kept for all later ones.
    #[test]
    fn the_first_four_policies_are_written_once() {
        let known = KnownPolicies::default();
        let of = |values: FieldValues<'_>| {
            known
                .field(&values, || values.policies("api").value())
                .map(std::ptr::from_ref)
        };
        assert_eq!(of(FieldValues::refused(&[])), None);
        let plans = ["1/s", "2/s", "3/s and 9 concurrent", "4/s", "5/s"]
            .map(|plan| Limiter::new(plan).unwrap().limits());
        let first = plans
            .each_ref()
            .map(|limits| of(FieldValues::granted(limits)));
        let again = plans
            .each_ref()
            .map(|limits| of(FieldValues::granted(limits)));
        assert_eq!(
            (first, first.map(|field| field.is_some())),
            (again, [true, true, true, true, false])
        );
        assert_eq!(
            of(FieldValues::granted(&plans[0]).partition_key(b"trial")),
            None
        );
    }
}
