//! A clock as moments, computed from the readings of one or several clocks.
//!
//! A limiter reads tokio's clock, or by choice, with the feature `quanta`, the [fast clock](super::fast_clock). Timers always
//! follow tokio's clock, so an instant at which one is to fire is [translated](TimeSource::on_tokio_clock).

use std::time::Duration;

use tokio::time::Instant;

use super::Reading;
#[cfg(feature = "quanta")]
use super::fast_clock::{CounterClock, FastClock};
#[cfg(not(feature = "quanta"))]
use super::no_fast_clock::FastClock;
use crate::strategy::Moment;

/// A clock as moments that never step back.
///
/// Two runtimes can have two clocks: a paused clock that was advanced by an hour is an hour ahead of the others. A limiter that
/// outlives its first runtime must neither wait for that hour, nor count every change between clocks as time that has passed. So
/// a limiter keeps the latest reading of each clock, and counts the time since the latest reading of the same clock.
///
/// A reading is taken to be of the clock whose latest reading is the nearest one before it. A wrong guess among known clocks can only
/// count too little. The first reading of an unknown clock that is ahead counts as time that has passed, as it does when a paused
/// clock was advanced. A reading that was taken before the limiter's lock counts only if it is ahead of the latest one, so a step
/// back is never a race of two threads.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    /// The moment of the latest reading.
    moment: Moment,
    latest: Reading,
    source: TimeSource,
    /// Most limiters have none: then a copy of the clock takes fewer instructions than with a bare `Vec`.
    others: Option<Box<Others>>,
}

/// The latest reading of each clock, apart from the clock that was read last.
#[derive(Debug, Clone, Default)]
struct Others(Vec<Reading>);

/// What a clock shows at [`Moment::START`], modulo 2^64. A clock that is read without the lock is no more than this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClockOrigin(u64);

impl ClockOrigin {
    /// The origin of a grant that no clock was read for.
    pub(crate) const NONE: Self = Self(0);

    /// The instant of a moment on the clock; `None` for [`Moment::NEVER`].
    pub(crate) fn instant(self, moment: Moment) -> Option<Instant> {
        let nanos = moment.known()?.nanos();
        Some(Reading(self.0.wrapping_add(nanos)).instant())
    }

    /// The moment of a reading, if it is not before the start.
    #[inline(always)]
    pub(in crate::manager) fn moment(self, reading: Reading) -> Option<Moment> {
        reading.nanos_since(Reading(self.0)).map(Moment::from_nanos)
    }
}

impl Clock {
    pub(crate) fn new(source: TimeSource) -> Self {
        Self {
            moment: Moment::START,
            latest: source.now(),
            source,
            others: None,
        }
    }

    #[inline]
    pub(crate) fn now(&mut self) -> Moment {
        self.at(self.source.now_after(self.latest))
    }

    /// [`Clock::now`] with a reading that was taken just before the limiter's lock. If it is behind the latest reading, it may have
    /// lost a race: the clock is read again.
    #[inline(always)]
    pub(crate) fn now_since(&mut self, reading: Reading) -> Moment {
        match reading.nanos_since(self.latest) {
            Some(elapsed) if self.others.is_none() => self.advance(elapsed, reading),
            _ => self.now(),
        }
    }

    /// The moment of the latest reading.
    #[inline]
    pub(crate) fn latest(&self) -> Moment {
        self.moment
    }

    /// Whether every reading so far was taken to be of one clock.
    #[inline]
    pub(in crate::manager) fn is_the_only_one(&self) -> bool {
        self.others.is_none()
    }

    /// Where readings come from.
    pub(in crate::manager) fn source(&self) -> TimeSource {
        self.source
    }

    /// Records that the clock was read at this moment, without the lock.
    pub(in crate::manager) fn was_read(&mut self, moment: Moment) {
        if moment > self.moment {
            self.latest = self.latest.plus(moment.since(self.moment));
            self.moment = moment;
        }
    }

    /// The origin of the clock of the latest reading.
    #[inline]
    pub(crate) fn origin(&self) -> ClockOrigin {
        ClockOrigin(self.latest.0.wrapping_sub(self.moment.nanos()))
    }

    /// The instant of a moment on tokio's clock. The latest reading must be of the caller's clock: an instant of another clock may be an
    /// hour too late.
    pub(crate) fn instant(&self, moment: Moment) -> Instant {
        self.source.on_tokio_clock(self.reading_at(moment))
    }

    /// What the clock of the latest reading shows at a moment.
    fn reading_at(&self, moment: Moment) -> Reading {
        let later = self.latest.plus(moment.since(self.moment));
        later.minus(self.moment.since(moment))
    }

    /// Continues from `other`, a former copy of this clock, if that is ahead.
    pub(crate) fn catch_up(&mut self, other: Self) {
        if other.moment > self.moment {
            *self = other;
        }
    }

    #[inline]
    fn at(&mut self, now: Reading) -> Moment {
        match now.nanos_since(self.latest) {
            Some(elapsed) if self.others.is_none() => self.advance(elapsed, now),
            _ => self.change_clock(now),
        }
    }

    #[inline(always)]
    fn advance(&mut self, nanos: u64, now: Reading) -> Moment {
        self.moment = self.moment.plus(nanos).min(Moment::LAST);
        self.latest = now;
        self.moment
    }

    /// Counts the time since the latest reading of the clock that `now` was read from.
    #[cold]
    fn change_clock(&mut self, now: Reading) -> Moment {
        /// Above this number, clocks are forgotten, the slowest first.
        const REMEMBERED: usize = 64;
        let Others(others) = &mut **self.others.get_or_insert_default();
        others.push(self.latest);
        others.sort_unstable();
        let not_later = others.partition_point(|latest| *latest <= now);
        self.latest = match not_later.checked_sub(1) {
            Some(nearest) => others.remove(nearest),
            None => now,
        };
        if others.len() > REMEMBERED {
            others.remove(0);
        }
        let elapsed = now.nanos_since(self.latest).unwrap_or(0);
        self.advance(elapsed, now)
    }
}

/// Where a limiter reads the time by which it decides: tokio's clock, or the fast one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeSource(Option<FastClock>);

impl TimeSource {
    pub(crate) const TOKIO: Self = Self(None);

    #[inline(always)]
    pub(crate) fn now(self) -> Reading {
        match self.0 {
            None => Reading::of(Instant::now()),
            Some(clock) => clock.now(),
        }
    }

    /// A reading that is not before `latest`, unless the clock has stepped back.
    #[inline(always)]
    fn now_after(self, latest: Reading) -> Reading {
        match self.0 {
            None => self.now(),
            Some(clock) => clock.now_after(latest),
        }
    }

    /// The instant that tokio's clock will show when this one shows `reading`, if both run at the same speed.
    ///
    /// Their speeds may differ: tokio's clock may be paused, and the fast one may be slower by some parts in a million. A timer
    /// that fires too early for this clock is then set again, for the rest. As tokio rounds up to a millisecond, that does not
    /// spin.
    pub(super) fn on_tokio_clock(self, reading: Reading) -> Instant {
        let Some(clock) = self.0 else {
            return reading.instant();
        };
        let (now, tokio_now) = (clock.now(), Instant::now());
        let ahead =
            |reading: Reading, other| Duration::from_nanos(reading.nanos_since(other).unwrap_or(0));
        let later = tokio_now + ahead(reading, now);
        later.checked_sub(ahead(now, reading)).unwrap_or(later)
    }
}

#[cfg(feature = "quanta")]
impl TimeSource {
    /// The fast clock. The first call in a process measures the counter, which takes up to 0.2 s.
    pub(crate) fn fast() -> Self {
        Self(Some(CounterClock::of_process()))
    }

    /// A fast clock that stands still until it is moved by hand.
    #[cfg(test)]
    pub(crate) fn by_hand() -> (Self, std::sync::Arc<quanta::Mock>) {
        let (clock, hand) = CounterClock::by_hand();
        (Self(Some(clock)), hand)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const HOUR: u64 = 3_600 * SECOND;

    fn seconds(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * SECOND)
    }

    /// A paused clock may show it.
    #[test]
    fn an_instant_before_the_first_reading_can_be_read() {
        let now = Instant::now();
        let earlier = Reading::of(now - Duration::from_secs(60));
        assert_eq!(Reading::of(now).nanos_since(earlier), Some(60 * SECOND));
    }

    /// Invariant 1, under clock steps.
    #[test]
    fn a_clock_that_steps_back_goes_on_from_its_latest_reading() {
        let mut clock = Clock::new(TimeSource::TOKIO);
        let start = clock.latest;
        assert_eq!(clock.at(start.plus(HOUR)), seconds(3_600));
        assert_eq!(clock.at(start.plus(10 * SECOND)), seconds(3_600));
        let next = clock.at(start.plus(12 * SECOND));
        assert_eq!(next, seconds(3_602));
        assert_eq!(clock.reading_at(next), start.plus(12 * SECOND));
        assert_eq!(clock.reading_at(seconds(3_599)), start.plus(9 * SECOND));
    }

    /// A fixed bug: every change between two clocks counted their distance as time.
    #[test]
    fn clocks_that_take_turns_count_what_passes_on_each() {
        let mut clock = Clock::new(TimeSource::TOKIO);
        let start = clock.latest;
        clock.at(start.plus(HOUR));
        for run_due in 0..100 {
            assert_eq!(
                clock.at(start.plus(run_due * SECOND)),
                seconds(3_600 + run_due)
            );
            assert_eq!(
                clock.at(start.plus(HOUR)),
                seconds(3_600 + run_due),
                "the other clock stands still"
            );
        }
        assert_eq!(clock.others.as_ref().unwrap().0.len(), 1);
    }

    #[test]
    fn the_slowest_of_more_than_64_other_clocks_is_forgotten() {
        let mut clock = Clock::new(TimeSource::TOKIO);
        let start = clock.latest;
        for hours in (0..100).rev() {
            assert_eq!(
                clock.at(start.plus(hours * HOUR)),
                seconds(99 * 3_600),
                "an unknown clock that is behind counts nothing"
            );
        }
        assert_eq!(clock.others.as_ref().unwrap().0.len(), 64);
        assert_eq!(
            clock.at(start.plus(36 * HOUR + SECOND)),
            seconds(99 * 3_600 + 1),
            "the slowest that is remembered"
        );
        let forgotten = seconds(99 * 3_600 + 1 + 35 * 3_600);
        assert_eq!(
            clock.at(start.plus(35 * HOUR)),
            forgotten,
            "it is taken for the clock of the latest reading before it"
        );
    }

    #[test]
    fn a_clock_that_goes_forward_is_the_only_one_and_one_that_steps_back_is_another() {
        let mut clock = Clock::new(TimeSource::TOKIO);
        let start = clock.latest;
        assert_eq!(clock.at(start.plus(SECOND)), seconds(1));
        assert_eq!(
            clock.now_since(start.plus(HOUR)),
            seconds(3_600),
            "the reading counts, not a later one"
        );
        assert!(clock.is_the_only_one());
        let origin = clock.origin();
        assert_eq!(origin.moment(start.plus(HOUR)), Some(seconds(3_600)));
        assert_eq!(origin.moment(start.minus(1)), None);
        clock.at(start);
        assert!(!clock.is_the_only_one());
    }

    #[test]
    fn a_clock_goes_on_from_a_copy_only_if_that_is_ahead() {
        let mut clock = Clock::new(TimeSource::TOKIO);
        let (start, behind) = (clock.latest, clock.clone());
        let mut ahead = clock.clone();
        ahead.at(start.plus(HOUR));
        let no_further = ahead.clone();
        ahead.at(start);
        for copy in [ahead, no_further, behind] {
            clock.catch_up(copy);
            assert_eq!(clock.latest(), seconds(3_600));
        }
        assert_eq!(clock.at(start.plus(SECOND)), seconds(3_601));
    }
}
