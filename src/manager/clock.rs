use std::time::Duration;

use tokio::time::Instant;

use crate::strategy::Moment;

/// Tokio's clock as moments that never step back.
///
/// Two runtimes can have two clocks: a paused one that was advanced by an hour is ahead of the next one's. A limiter that
/// outlives its first runtime would then wait out that hour. So when the clock is found behind the last reading, the moments go
/// on from that reading. Readings are taken under the limiter's lock, so a step back is never two threads racing.
#[derive(Debug)]
pub(crate) struct Clock {
    /// Where `moment` lies on the runtime's clock.
    anchor: Instant,
    moment: Moment,
    latest: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self { anchor: now, moment: Moment::START, latest: now }
    }

    pub(crate) fn now(&mut self) -> (Moment, Instant) {
        let now = Instant::now();
        (self.at(now), now)
    }

    pub(crate) fn instant(&self, moment: Moment) -> Instant {
        let (later, earlier) = (moment.since(self.moment), self.moment.since(moment));
        let shifted = self.anchor + Duration::from_nanos(later);
        shifted.checked_sub(Duration::from_nanos(earlier)).unwrap_or(shifted)
    }

    fn at(&mut self, now: Instant) -> Moment {
        if now < self.latest {
            self.moment = self.since_anchor(self.latest);
            self.anchor = now;
        }
        self.latest = now;
        self.since_anchor(now)
    }

    fn since_anchor(&self, now: Instant) -> Moment {
        let elapsed = now.saturating_duration_since(self.anchor);
        self.moment.plus(elapsed.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(elapsed.subsec_nanos())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Invariant 1, under clock steps.
    #[test]
    fn a_clock_that_steps_back_goes_on_from_its_latest_reading() {
        let mut clock = Clock::new();
        let (start, second) = (clock.anchor, Duration::from_secs(1));
        assert_eq!(clock.at(start + 3_600 * second), Moment::from_nanos(3_600_000_000_000));
        assert_eq!(clock.at(start + 10 * second), Moment::from_nanos(3_600_000_000_000));
        let next = clock.at(start + 12 * second);
        assert_eq!(next, Moment::from_nanos(3_602_000_000_000));
        assert_eq!(clock.instant(next), start + 12 * second);
        assert_eq!(clock.instant(Moment::from_nanos(3_599_000_000_000)), start + 9 * second);
    }
}
