//! When a store that has failed is called again, and the random part of waits.

use crate::strategy::Moment;

/// By default, nothing has failed.
#[derive(Debug, Default)]
pub(super) struct BackOff {
    failures: u32,
    /// After a failure, no request is sent before this moment.
    pub(super) asks_from: Moment,
    /// After a failure, no call that has only returns and settlements is sent before this moment. Many keys may have some, and
    /// none needs to send them soon.
    pub(super) settles_from: Moment,
}

impl BackOff {
    /// Records a failed call. The next one is sent after a wait, which doubles up to the `longest`. A random part, up to half, is
    /// left out, so that processes do not ask at the same instants.
    pub(super) fn note_failure(&mut self, now: Moment, longest: u64, random: Random) {
        const FIRST: u64 = 50_000_000;
        const LONGEST_TO_SETTLE: u64 = 10_000_000_000;
        let doubled = FIRST.saturating_mul(1 << self.failures.min(16));
        let after = |longest| {
            let after = doubled.min(longest);
            now.plus(after - random.below(after / 2))
        };
        self.failures = self.failures.saturating_add(1);
        self.asks_from = after(longest);
        self.settles_from = after(LONGEST_TO_SETTLE);
    }

    /// Lets a call be sent at once, although one has failed.
    pub(super) fn end_wait(&mut self, now: Moment) {
        self.asks_from = now;
        self.settles_from = now;
    }
}

/// A source of numbers that differ between processes, and between the calls of one, so that processes do not ask at the same instants.
#[derive(Debug, Clone, Copy)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(self, end: u64) -> u64 {
        // A multiplicative hash (Knuth, "The art of computer programming", volume 3, 6.4).
        let hash = self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        ((u128::from(end) * u128::from(hash)) >> 32) as u64
    }

    /// A random time from half to one and a half times `nanos`.
    pub(super) fn around(self, nanos: u64) -> u64 {
        (nanos / 2).saturating_add(self.below(nanos))
    }
}
