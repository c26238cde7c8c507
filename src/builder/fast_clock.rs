//! The option for a faster clock.

use super::LimiterBuilder;
use crate::manager::TimeSource;

impl LimiterBuilder {
    /// Reads the time of decisions from the processor's time stamp counter, through the crate quanta, instead of from tokio's
    /// clock. A decision on a rate then takes about a quarter less: 32 instead of 44 ns on the machine of BENCHMARKS.md. Needs
    /// the feature `quanta`.
    ///
    /// The option gains nothing where no clock is read (a plain [`MaxConcurrency`](crate::MaxConcurrency)), or where the
    /// processor has no counter of constant speed: quanta then reads the system's clock.
    ///
    /// **Not for tests with a paused clock.** Pausing or advancing tokio's clock does not affect this clock: a limiter waits in
    /// real time. Meanwhile its timers fire again and again, so a paused clock runs far ahead of the instant for which the
    /// limiter waits.
    ///
    /// - **Waiting** still uses tokio's timers. A timer that fires before this clock has reached the instant is set again for the
    ///   rest, by at least a tick of a millisecond.
    /// - **Drift**: the counter is compared with the system's clock every 100 ms, and whenever it has stepped back. Between two
    ///   comparisons the clocks drift apart by some microseconds, and so does a limiter's pace. When a comparison sets the clock
    ///   back, the limiter's time stands still until the clock has caught up. By the limiter's own time, no limit is ever exceeded.
    /// - **Suspend**, or migration of a virtual machine: the first reading afterwards compares the clocks, so this clock
    ///   continues like the system's. Linux does not count the time of a suspended machine, other systems may. A jump of the
    ///   counter by less than 100 ms counts until the next comparison.
    /// - **Instants of permits** ([`acquired_at`](crate::Permit::acquired_at)) are on the system's clock, which is tokio's clock
    ///   unless tokio's clock was paused.
    ///
    /// The first call in a process measures the speed of the counter, which takes up to 0.2 s.
    ///
    /// ```
    /// use tollgate::{Limiter, Rate, TokenBucket};
    ///
    /// let limiter = Limiter::builder(TokenBucket::new(Rate::per_second(1_000_000), 1_000)).fast_clock().build()?;
    /// assert!(limiter.try_acquire().is_ok());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn fast_clock(mut self) -> Self {
        self.time_source = TimeSource::fast();
        self
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::{Limiter, Throttle};

    /// The timer fires by tokio's clock, which is paused here and runs ahead.
    #[tokio::test(start_paused = true)]
    async fn a_driver_that_wakes_before_its_clock_is_there_sleeps_again_and_does_not_spin() {
        let every = Duration::from_millis(20);
        let (time_source, hand) = TimeSource::by_hand();
        let limiter = LimiterBuilder {
            time_source,
            ..Limiter::builder(Throttle::every(every))
        }
        .build()
        .unwrap();
        drop(limiter.acquire().await.unwrap());
        hand.increment(every - Duration::from_nanos(1));
        let mut waiting = Box::pin(limiter.acquire());
        // If the driver did not sleep for the last nanosecond, this timer would never fire.
        assert!(timeout(Duration::from_secs(1), &mut waiting).await.is_err());
        hand.increment(1_u64);
        let start = Instant::now();
        drop(waiting.await.unwrap());
        assert!(start.elapsed() <= Duration::from_millis(2));
    }
}
