//! What an answer of an upstream said.

use std::cmp::Reverse;
use std::time::Duration;

use crate::upstream::UpstreamSignal;

const MAX_QUOTAS: usize = 8;
/// The most fields that a family has.
pub(super) const MAX_MALFORMED: usize = 17;

/// What the answer of an upstream said about its limits. [`UpstreamReader::read`](super::UpstreamReader::read), which has an
/// example, returns it. It borrows names from the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpstreamAnswer<'h> {
    pub(super) limited: bool,
    pub(super) retry_after: Option<Duration>,
    pub(super) quotas: Few<UpstreamQuota<'h>, MAX_QUOTAS>,
    pub(super) malformed: Few<&'static str, MAX_MALFORMED>,
}

/// One quota of an upstream. What the answer did not say is `None`. See [`UpstreamAnswer::quotas`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpstreamQuota<'h> {
    /// Its name, where it has one. In lists of draft-10 `"` and `\` in it have a `\` before them.
    pub name: Option<&'h str>,
    /// The partition that the quota belongs to, such as that of one caller, in base64; from lists of draft-10.
    pub partition_key: Option<&'h str>,
    /// What it counts: `requests`, `tokens`, `project-tokens`, `input-tokens`, `output-tokens`, or what the upstream called it, such
    /// as `concurrent-requests`.
    pub unit: &'h str,
    /// The whole quota, in units.
    pub limit: Option<u64>,
    /// What is left of it, in units.
    pub remaining: Option<u64>,
    /// How long until more is available, at most the reader's [`max_wait`](super::UpstreamReader::max_wait).
    pub reset_after: Option<Duration>,
    /// The window of the quota, which is not capped.
    pub window: Option<Duration>,
}

getters!(UpstreamAnswer<'_> {
    /// Whether the upstream denied the request for a limit: status 429 or 503, and what the
    /// [family](super::UpstreamFamily) adds.
    pub is_limited: limited -> bool,

    /// How long to wait before the next request, at most the reader's [`max_wait`](super::UpstreamReader::max_wait). It takes
    /// precedence over the resets of quotas.
    pub retry_after: retry_after -> Option<Duration>,
});

impl<'h> UpstreamAnswer<'h> {
    /// The quotas, in the order in which they were read; at most the first eight of a list.
    #[must_use]
    pub fn quotas(&self) -> &[UpstreamQuota<'h>] {
        self.quotas.as_slice()
    }

    /// The names, in lower case, of the fields that were malformed or, where one is allowed, sent several times. They were ignored.
    #[must_use]
    pub fn malformed(&self) -> &[&'static str] {
        self.malformed.as_slice()
    }

    /// A signal to a limiter whose limits count requests: [`signal_for("requests")`](Self::signal_for).
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use http::{HeaderMap, HeaderValue, StatusCode};
    /// use tollgate::UpstreamSignal;
    /// use tollgate::http::{UpstreamFamily, UpstreamReader};
    ///
    /// let mut fields = HeaderMap::new();
    /// fields.insert("ratelimit", HeaderValue::from_static(r#""burst";r=3;t=1, "daily";r=0;t=600"#));
    /// let reader = UpstreamReader::new(UpstreamFamily::Draft10);
    /// let answer = reader.read(StatusCode::OK, &fields, SystemTime::now());
    /// assert_eq!(answer.signal(), UpstreamSignal::new().remaining(0).reset_after(Duration::from_secs(600)));
    /// ```
    pub fn signal(&self) -> UpstreamSignal {
        self.signal_for("requests")
    }

    /// A signal to a limiter that counts this unit, in upper or lower case, with `_` or `-`: the quota `input-tokens` is that of
    /// `input_tokens`. If several quotas count this unit, the signal is about the one with the fewest units left, and among equals the one
    /// with the latest reset.
    ///
    /// The signal names the first malformed field.
    ///
    /// After a denial without a [`retry_after`](Self::retry_after), the limiter pauses until the last reset of the quotas that are spent,
    /// whatever they count. If no quota is spent, it pauses until the last reset of those for which the answer does not say what remains. If
    /// there is no such quota either, it pauses for one second. With a `retry_after`, the reset of a quota that is spent is left out,
    /// because the limiter would wait for the later of the two.
    pub fn signal_for(&self, unit: &str) -> UpstreamSignal {
        let quotas = self.quotas().iter();
        let least = |quota: &&UpstreamQuota<'_>| {
            (
                quota.remaining.unwrap_or(u64::MAX),
                Reverse(quota.reset_after),
            )
        };
        let quota = quotas
            .clone()
            .filter(|quota| is_same(quota.unit, unit))
            .min_by_key(least);
        let last_reset = |remaining| {
            quotas
                .clone()
                .filter(|quota| quota.remaining == remaining)
                .filter_map(|quota| quota.reset_after)
                .max()
        };
        let denied = self.limited.then(|| {
            last_reset(Some(0))
                .or_else(|| last_reset(None))
                .unwrap_or(UpstreamSignal::UNKNOWN)
        });
        let is_overruled =
            |quota: &&UpstreamQuota<'_>| self.retry_after.is_some() && quota.remaining == Some(0);
        UpstreamSignal {
            limited: self.limited,
            retry_after: self.retry_after.or(denied),
            remaining: quota.and_then(|quota| quota.remaining),
            reset_after: quota
                .filter(|quota| !is_overruled(quota))
                .and_then(|quota| quota.reset_after),
            malformed: self.malformed().first().copied(),
        }
    }
}

/// Whether two names are of one unit. Upstreams write hyphens where most programs have underscores.
fn is_same(one: &str, other: &str) -> bool {
    let plain = |byte: u8| {
        if byte == b'_' {
            b'-'
        } else {
            byte.to_ascii_lowercase()
        }
    };
    one.bytes().map(plain).eq(other.bytes().map(plain))
}

/// At most `N` of something, without an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Few<T, const N: usize> {
    items: [T; N],
    len: usize,
}

impl<T: Copy + Default, const N: usize> Few<T, N> {
    pub(super) fn new() -> Self {
        Self {
            items: [T::default(); N],
            len: 0,
        }
    }

    /// Adds an item, or drops it if there is no room.
    pub(super) fn push(&mut self, item: T) {
        if self.len < N {
            self.items[self.len] = item;
            self.len += 1;
        }
    }

    pub(super) fn as_slice(&self) -> &[T] {
        &self.items[..self.len]
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.items[..self.len]
    }
}
