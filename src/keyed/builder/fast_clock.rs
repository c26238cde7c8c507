//! The option for a faster clock.

use std::hash::Hash;

use super::KeyedLimiterBuilder;
use crate::manager::TimeSource;

impl<K: Hash + Eq + Clone + Send + Sync + 'static> KeyedLimiterBuilder<K> {
    /// Reads the time of decisions from the processor's time stamp counter, for all keys, under the terms of
    /// [`LimiterBuilder::fast_clock`](crate::LimiterBuilder::fast_clock). Needs the feature `quanta`.
    ///
    /// ```
    /// use tollgate::{KeyedLimiter, Rate, TokenBucket};
    ///
    /// let per_client = KeyedLimiter::builder(TokenBucket::new(Rate::per_minute(100), 100)).fast_clock().build()?;
    /// assert!(per_client.try_acquire(&"alice").is_ok());
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
    use crate::{KeyedLimiter, Throttle};

    /// The counterpart of the test of the driver of a single limiter.
    #[tokio::test(start_paused = true)]
    async fn a_shared_driver_that_wakes_before_its_clock_is_there_sleeps_again_and_does_not_spin() {
        let every = Duration::from_millis(20);
        let (time_source, hand) = TimeSource::by_hand();
        let builder = KeyedLimiterBuilder {
            time_source,
            ..KeyedLimiter::builder(Throttle::every(every))
        };
        let keyed = builder.build().unwrap();
        drop(keyed.acquire(&1).await.unwrap());
        hand.increment(every - Duration::from_nanos(1));
        let mut waiting = Box::pin(keyed.acquire(&1));
        assert!(timeout(Duration::from_secs(1), &mut waiting).await.is_err());
        hand.increment(1_u64);
        let start = Instant::now();
        drop(waiting.await.unwrap());
        assert!(start.elapsed() <= Duration::from_millis(2));
    }
}
