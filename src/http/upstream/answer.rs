//! The limits that an answer of an upstream states.

use std::cmp::Reverse;
use std::time::Duration;

use crate::upstream::UpstreamSignal;

const MAX_QUOTAS: usize = 8;
/// The largest number of fields of a family.
pub(super) const MAX_MALFORMED: usize = 17;

/// The limits that the answer of an upstream states. [`UpstreamReader::read`](super::UpstreamReader::read), which has an example,
/// returns it. It borrows names from the header fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpstreamAnswer<'h> {
    pub(super) limited: bool,
    pub(super) retry_after: Option<Duration>,
    pub(super) quotas: Few<UpstreamQuota<'h>, MAX_QUOTAS>,
    pub(super) malformed: Few<&'static str, MAX_MALFORMED>,
}

/// One quota of an upstream. A value that the answer does not state is `None`. See [`UpstreamAnswer::quotas`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpstreamQuota<'h> {
    /// The name of the quota, if it has one. In a name from lists of draft-10, `"` and `\` have a `\` before them.
    pub name: Option<&'h str>,
    /// The partition that the quota belongs to, such as that of one caller, in base64; from lists of draft-10.
    pub partition_key: Option<&'h str>,
    /// The unit that the quota counts: `requests`, `tokens`, `project-tokens`, `input-tokens`, `output-tokens`, or a name that
    /// the upstream gave, such as `concurrent-requests`.
    pub unit: &'h str,
    /// The whole quota, in units.
    pub limit: Option<u64>,
    /// The units that are left of the quota.
    pub remaining: Option<u64>,
    /// How long until more units are available, at most the reader's [`max_wait`](super::UpstreamReader::max_wait).
    pub reset_after: Option<Duration>,
    /// The window of the quota, which is not capped.
    pub window: Option<Duration>,
}

getters!(UpstreamAnswer<'_> {
    /// Whether a limit of the upstream denied the request: status 429 or 503, or a further sign of the
    /// [family](super::UpstreamFamily).
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

    /// The names, in lower case, of the ignored fields: those that were malformed, or sent several times where one is allowed.
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

    /// A signal to a limiter that counts this unit. Case, and `_` or `-`, make no difference: the quota `input-tokens` matches
    /// `input_tokens`. If several quotas count this unit, the signal is about the one with the fewest units left, and among
    /// equals the one with the latest reset.
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

/// Whether two names mean the same unit. Upstreams write hyphens where most programs have underscores.
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

/// A list of at most `N` items, without an allocation.
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
