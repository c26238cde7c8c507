//! The processor's time stamp counter as a clock.
//!
//! The crate quanta reads the counter, because an instruction for that needs unsafe code, and measures how fast it counts.

use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Reading;

/// How long the counter is relied on after it was compared with the system's clock, in nanoseconds.
///
/// In this time the two clocks diverge by some microseconds: quanta measures the counter to about one part in 100,000, and the
/// system slews its own clock by at most one in 2,000.
const COMPARE_EVERY: u64 = 100_000_000;

/// The system's monotonic clock, as the processor's counter continues it.
///
/// A counter alone would drift from the timers, by a second in a day. It may also restart while the machine sleeps, and jump when
/// a virtual one is moved. So it is compared with the system's clock every [`COMPARE_EVERY`], and whenever it was behind. A
/// reading that compares returns the system's clock.
///
/// `ahead` and `compared` belong together, and one comparison at a time stores them. It stores `compared` (Release) after `ahead`,
/// and a reading loads `compared` first (Acquire), so it sees an `ahead` that is as new, or newer. If it is newer, then either
/// this reading needs no comparison, and both values serve; or the counter, which is read later, is due for another comparison.
#[derive(Debug)]
pub(super) struct CounterClock {
    counter: quanta::Clock,
    /// The reading of the system's clock, less what the counter has counted, in nanoseconds modulo 2^64.
    ahead: AtomicU64,
    /// What the counter had counted at the latest comparison, in nanoseconds.
    compared: AtomicU64,
    /// Held by the comparison that stores them. A thread that is interrupted between measuring and storing must not undo a later one.
    comparing: Mutex<()>,
}

/// One clock serves all limiters of the process.
pub(super) type FastClock = &'static CounterClock;

impl CounterClock {
    /// The clock of the process. The first call measures the counter, which takes up to 0.2 s.
    pub(super) fn of_process() -> FastClock {
        static CLOCK: LazyLock<CounterClock> =
            LazyLock::new(|| CounterClock::new(quanta::Clock::new()));
        &CLOCK
    }

    fn new(counter: quanta::Clock) -> Self {
        const NEVER: u64 = 1 << 63; // 292 years, which no counter reaches
        Self {
            counter,
            ahead: AtomicU64::new(0),
            compared: AtomicU64::new(NEVER),
            comparing: Mutex::new(()),
        }
    }

    /// Not inlined: a limiter that reads tokio's clock needs none of its registers.
    #[inline(never)]
    pub(super) fn now(&self) -> Reading {
        self.now_by(system_clock)
    }

    /// A reading that is not before `latest`, unless the clock has stepped back.
    ///
    /// A processor may read its counter before it holds the lock, the counters of two processors may differ by a little, and a
    /// comparison may put the clock back. None of that is a step: time stands still until the clock reaches `latest` again.
    #[inline(never)]
    pub(super) fn now_after(&self, latest: Reading) -> Reading {
        let now = self.now();
        if now < latest && latest.0 - now.0 <= COMPARE_EVERY {
            latest
        } else {
            now
        }
    }

    #[inline(always)]
    fn now_by(&self, system_clock: impl FnOnce() -> Instant) -> Reading {
        let (compared, ahead) = (self.compared.load(Acquire), self.ahead.load(Relaxed));
        let counted = self.counted();
        // If the counter is behind the comparison, the difference wraps and is larger than any count.
        if counted.wrapping_sub(compared) < COMPARE_EVERY {
            Reading(counted.wrapping_add(ahead))
        } else {
            self.compare(system_clock)
        }
    }

    /// Reads the system's clock, and compares the counter with it.
    #[cold]
    fn compare(&self, system_clock: impl FnOnce() -> Instant) -> Reading {
        /// A comparison that takes longer was interrupted, and is not used. In nanoseconds.
        const LONGEST: u64 = 10_000;
        let comparing = self.comparing.try_lock();
        let before = self.counted();
        let now = Reading::of(system_clock());
        let counted = self.counted();
        if comparing.is_some() && counted.wrapping_sub(before) <= LONGEST {
            self.ahead.store(now.0.wrapping_sub(counted), Relaxed);
            self.compared.store(counted, Release);
        }
        now
    }

    /// What the counter has counted, in nanoseconds.
    #[inline(always)]
    fn counted(&self) -> u64 {
        self.counter.delta_as_nanos(0, self.counter.raw())
    }
}

/// Not tokio's clock, which may be paused.
fn system_clock() -> Instant {
    Instant::from_std(std::time::Instant::now())
}

#[cfg(test)]
impl CounterClock {
    /// A clock that stands still until it is moved by hand.
    pub(super) fn by_hand() -> (FastClock, std::sync::Arc<quanta::Mock>) {
        let (counter, hand) = quanta::Clock::mock();
        let clock = Self::new(counter);
        clock.now();
        (Box::leak(Box::new(clock)), hand)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::manager::time::clock::{Clock, TimeSource};

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

    const MILLI: u64 = 1_000_000;

    /// A counter and a system's clock that are moved by hand.
    struct Clocks {
        clock: CounterClock,
        counter: Arc<quanta::Mock>,
        zero: Instant,
        system: Cell<u64>,
        /// How long a comparison takes, by the counter.
        comparison: u64,
        comparisons: Cell<u32>,
    }

    impl Clocks {
        fn new(comparison: u64) -> Self {
            let (clock, counter) = quanta::Clock::mock();
            counter.increment(1_000 * MILLI);
            let clocks = Self {
                clock: CounterClock::new(clock),
                counter,
                zero: system_clock(),
                system: Cell::new(0),
                comparison,
                comparisons: Cell::new(0),
            };
            clocks.pass(1, 1);
            clocks
        }

        fn pass(&self, counter: u64, system: u64) {
            self.counter.increment(counter);
            self.system.set(self.system.get() + system);
        }

        fn read(&self) -> u64 {
            let reading = self.clock.now_by(|| {
                self.comparisons.set(self.comparisons.get() + 1);
                self.counter.increment(self.comparison);
                self.zero + Duration::from_nanos(self.system.get())
            });
            reading.0 - Reading::of(self.zero).0
        }
    }

    #[test]
    fn the_counter_is_compared_every_100_ms() {
        let clocks = Clocks::new(0);
        assert_eq!(clocks.read(), 1, "the first reading compares");
        clocks.pass(COMPARE_EVERY - 1, COMPARE_EVERY + 1_000);
        assert_eq!(clocks.read(), COMPARE_EVERY, "the counter alone");
        clocks.pass(1, 1);
        assert_eq!(clocks.read(), COMPARE_EVERY + 1_002, "the system's clock");
        clocks.pass(7, 7);
        assert_eq!(
            (clocks.read(), clocks.comparisons.get()),
            (COMPARE_EVERY + 1_009, 2),
            "the counter goes on from there"
        );
    }

    #[test]
    fn a_counter_that_is_too_slow_or_too_fast_stays_with_the_system() {
        for (counter, most) in [(9_990, 100_100), (10_010, 100_100)] {
            let clocks = Clocks::new(100);
            for _ in 0..1_000_000 {
                clocks.pass(counter * 100, 10_000 * 100);
                let (read, system) = (clocks.read(), clocks.system.get());
                assert!(read.abs_diff(system) <= most, "{read} instead of {system}");
            }
        }
    }

    /// As in a machine that slept, or a virtual one that was moved.
    #[test]
    fn a_counter_that_jumps_is_compared_at_once() {
        let clocks = Clocks::new(100);
        clocks.pass(10 * MILLI, 10 * MILLI);
        clocks.read();
        clocks.pass(3_600_000 * MILLI, MILLI);
        assert_eq!(clocks.read(), clocks.system.get(), "an hour ahead");
        clocks.counter.decrement(3_600_000 * MILLI);
        assert_eq!(clocks.read(), clocks.system.get(), "an hour back");
        let comparisons = clocks.comparisons.get();
        clocks.counter.decrement(500 * MILLI);
        for _ in 0..3 {
            clocks.pass(MILLI, MILLI);
            assert_eq!(clocks.read(), clocks.system.get(), "restarted");
        }
        assert_eq!(
            clocks.comparisons.get(),
            comparisons + 1,
            "then the counter alone"
        );
        clocks.pass(1_000 * MILLI, MILLI);
        clocks.read();
        clocks.pass(MILLI, MILLI);
        assert_eq!(clocks.read(), clocks.system.get(), "the counter alone");
    }

    #[test]
    fn a_counter_counts_from_zero() {
        let clocks = Clocks::new(0);
        clocks.counter.decrement(1_000 * MILLI + 1);
        for nanos in [0, 5, 5] {
            clocks.pass(nanos, nanos);
            assert_eq!(clocks.read(), clocks.system.get());
        }
        assert_eq!(clocks.comparisons.get(), 1);
    }

    #[test]
    fn a_comparison_that_was_interrupted_is_not_used() {
        let clocks = Clocks::new(MILLI);
        for comparisons in 1..4 {
            clocks.pass(0, 10);
            assert_eq!(
                (clocks.read(), clocks.comparisons.get()),
                (clocks.system.get(), comparisons)
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn instants_of_timers_are_as_far_ahead_on_tokios_clock() {
        let (source, _hand) = TimeSource::by_hand();
        let now = source.now();
        tokio::time::advance(Duration::from_secs(3_600)).await;
        let tokio_now = Instant::now();
        let five = Duration::from_nanos(5);
        assert_eq!(source.on_tokio_clock(now.plus(5)), tokio_now + five);
        assert_eq!(source.on_tokio_clock(now.minus(5)), tokio_now - five);
    }

    #[test]
    fn a_clock_that_is_more_than_100_ms_back_has_stepped_back() {
        let (clock, hand) = CounterClock::by_hand();
        hand.increment(Duration::from_millis(5));
        let now = clock.now();
        assert_eq!(clock.now_after(now.minus(1)), now);
        for ahead in [1, COMPARE_EVERY] {
            assert_eq!(clock.now_after(now.plus(ahead)), now.plus(ahead));
        }
        assert_eq!(clock.now_after(now.plus(COMPARE_EVERY + 1)), now);
    }
}
