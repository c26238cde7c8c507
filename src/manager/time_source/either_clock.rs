use std::sync::LazyLock;

use tokio::time::Instant;

use super::fast_clock::FastClock;
use super::tokio_clock;

/// Tokio's clock, or the fast one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeSource(Option<&'static FastClock>);

/// What a clock showed. Only readings of one clock are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reading {
    Tokio(tokio_clock::Reading),
    /// In nanoseconds.
    Fast(u64),
}

impl TimeSource {
    pub(crate) const TOKIO: Self = Self(None);

    /// The fast clock. The first call in a process measures the counter, which takes up to 0.2 s.
    pub(crate) fn fast() -> Self {
        static FAST: LazyLock<FastClock> = LazyLock::new(|| FastClock::new(quanta::Clock::new()));
        Self(Some(&FAST))
    }

    #[inline(always)]
    pub(crate) fn now(self) -> Reading {
        match self.0 {
            None => Reading::Tokio(tokio_clock::TimeSource::TOKIO.now()),
            Some(clock) => Reading::Fast(clock.now()),
        }
    }

    /// A reading that is not before `latest`, unless the clock has stepped back.
    #[inline(always)]
    pub(in crate::manager) fn now_after(self, latest: Reading) -> Reading {
        match (self.0, latest) {
            (Some(clock), Reading::Fast(latest)) => Reading::Fast(clock.now_after(latest)),
            (None, Reading::Tokio(latest)) => Reading::Tokio(tokio_clock::TimeSource::TOKIO.now_after(latest)),
            _ => self.now(),
        }
    }

    /// The instant of a reading, on tokio's clock as long as that is neither paused nor advanced.
    pub(in crate::manager) fn instant(self, reading: Reading) -> Instant {
        match (self.0, reading) {
            (Some(clock), Reading::Fast(nanos)) => clock.instant(nanos),
            (_, Reading::Tokio(reading)) => tokio_clock::TimeSource::TOKIO.instant(reading),
            (None, Reading::Fast(_)) => Instant::now(), // a source gives no such reading
        }
    }

    /// The instant that tokio's clock will show when this one shows `reading`, if both run at the same speed.
    ///
    /// They need not: tokio's may be paused, and this one slower by some parts in a million. A timer that fires too early for this
    /// clock is then set again, for what is left. As tokio rounds up to a millisecond, that does not spin.
    pub(in crate::manager) fn on_tokio_clock(self, reading: Reading) -> Instant {
        match (self.0, reading) {
            (Some(clock), Reading::Fast(nanos)) => clock.on_tokio_clock(nanos),
            (_, Reading::Tokio(reading)) => tokio_clock::TimeSource::TOKIO.on_tokio_clock(reading),
            (None, Reading::Fast(_)) => Instant::now(), // as above
        }
    }
}

impl Reading {
    /// The nanoseconds since a reading that is not later; [`u64::MAX`] if they are more.
    #[inline(always)]
    pub(in crate::manager) fn nanos_since(self, earlier: Self) -> Option<u64> {
        match (self, earlier) {
            (Self::Tokio(now), Self::Tokio(earlier)) => now.nanos_since(earlier),
            (Self::Fast(now), Self::Fast(earlier)) => now.checked_sub(earlier),
            _ => None,
        }
    }

    /// [`Reading::nanos_since`] in fewer instructions; `None` if they are more than [`u64::MAX`].
    #[inline(always)]
    pub(in crate::manager) fn checked_nanos_since(self, earlier: Self) -> Option<u64> {
        match (self, earlier) {
            (Self::Tokio(now), Self::Tokio(earlier)) => now.checked_nanos_since(earlier),
            _ => self.nanos_since(earlier),
        }
    }

    #[inline(always)]
    pub(in crate::manager) fn plus(self, nanos: u64) -> Self {
        match self {
            Self::Tokio(reading) => Self::Tokio(reading.plus(nanos)),
            Self::Fast(reading) => Self::Fast(reading.saturating_add(nanos)),
        }
    }

    /// `None` where no reading is that early.
    #[inline(always)]
    pub(in crate::manager) fn minus(self, nanos: u64) -> Option<Self> {
        match self {
            Self::Tokio(reading) => reading.minus(nanos).map(Self::Tokio),
            Self::Fast(reading) => reading.checked_sub(nanos).map(Self::Fast),
        }
    }
}

#[cfg(test)]
impl TimeSource {
    /// A clock that stands still until it is moved by hand.
    pub(crate) fn by_hand() -> (Self, std::sync::Arc<quanta::Mock>) {
        let (counter, hand) = quanta::Clock::mock();
        let clock = FastClock::new(counter);
        hand.increment(1_u64); // 0 is no reading
        clock.now();
        (Self(Some(Box::leak(Box::new(clock)))), hand)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::manager::clock::Clock;

    #[test]
    fn while_the_fast_clock_is_a_little_back_time_stands_still() {
        let (source, hand) = TimeSource::by_hand();
        let mut clock = Clock::new(source);
        hand.increment(Duration::from_millis(5));
        let latest = clock.now();
        assert_eq!(latest.nanos(), 5_000_000);
        hand.decrement(Duration::from_millis(2));
        assert_eq!(clock.now(), latest);
        hand.increment(Duration::from_millis(3));
        assert_eq!(clock.now().since(latest), 1_000_000, "nothing counts twice");
        assert!(clock.is_the_only_one());
    }
}
