//! The builder of a limiter, and the options that all builders share.

#[cfg(feature = "quanta")]
mod fast_clock;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use uuid::Uuid;

use crate::core::gate::Gate;
use crate::core::gate::plan::Plan;
use crate::core::schedule::Options;
use crate::error::ConfigError;
use crate::limiter::Limiter;
use crate::manager::{Clock, Manager, PerLimiter, PerPlan, TimeSource, TimerHost};
use crate::observe::{LimiterEvent, Observer, Observers};
use crate::overflow::Overflow;
use crate::policy::Policy;
use crate::strategy::Moment;

/// Builds a [`Limiter`] with options. [`Limiter::builder`] returns it.
///
/// # Examples
///
/// ```
/// use tollgate::{Limiter, MaxConcurrency};
///
/// let limiter = Limiter::builder(MaxConcurrency::new(8)).name("search").max_queue(10_000).build()?;
/// assert_eq!(limiter.name(), Some("search"));
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct LimiterBuilder {
    policy: Result<Policy, ConfigError>,
    name: Option<Arc<str>>,
    options: Options,
    records_grant_time: bool,
    exact_refunds: bool,
    precise_timer: bool,
    time_source: TimeSource,
    observer: Observers,
}

/// The wall-clock time at [`Moment::START`] of a limiter that is built now.
pub(crate) fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
}

/// The options of a queue, which all builders share.
macro_rules! queue_options {
    () => {
        setters! {
            /// Sets how many requests may wait at the same time; a keyed limiter counts them for each key. With 0 no request
            /// waits. Defaults to about two billion, which is also the maximum.
            ///
            /// [`LimiterBuilder::overflow`](crate::LimiterBuilder::overflow) sets what happens to the next request, and has an
            /// example.
            pub max_queue(requests: usize) => options.max_queue = Some(requests);

            /// Sets which request is refused when one more must wait and the queue is full. Defaults to [`Overflow::Reject`].
            ///
            /// ```
            /// use tollgate::{AcquireError, Limiter, MaxConcurrency, Overflow};
            ///
            /// # #[tokio::main(flavor = "current_thread")]
            /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
            /// let limiter = Limiter::builder(MaxConcurrency::new(1)).max_queue(1).overflow(Overflow::DropOldest).build()?;
            /// let _in_flight = limiter.acquire().await?;
            /// let mut oldest = tokio_test::task::spawn(limiter.acquire());
            /// let mut newest = tokio_test::task::spawn(limiter.acquire());
            /// assert!(oldest.poll().is_pending() && newest.poll().is_pending());
            /// assert!(matches!(oldest.await.unwrap_err(), AcquireError::Shed { .. }));
            /// # Ok(())
            /// # }
            /// ```
            pub overflow(overflow: Overflow) => options.overflow = overflow;

            /// Within one priority, serves the latest request first (LIFO) instead of the oldest. Under overload that keeps the
            /// wait of most requests short, at the cost of the oldest ones: give requests a
            /// [timeout](crate::PermitRequest::timeout), or bound the queue and [drop the oldest](crate::Overflow::DropOldest).
            ///
            /// ```
            /// use tollgate::{Limiter, MaxConcurrency};
            ///
            /// # #[tokio::main(flavor = "current_thread")]
            /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
            /// let limiter = Limiter::builder(MaxConcurrency::new(1)).newest_first().build()?;
            /// let permit = limiter.acquire().await?;
            /// let mut first = tokio_test::task::spawn(limiter.acquire());
            /// let mut second = tokio_test::task::spawn(limiter.acquire());
            /// assert!(first.poll().is_pending() && second.poll().is_pending());
            /// drop(permit);
            /// assert!(first.poll().is_pending() && second.poll().is_ready());
            /// # Ok(())
            /// # }
            /// ```
            pub newest_first() => options.newest_first = true;
        }
    };
}

/// The options that [`LimiterBuilder`] and [`KeyedLimiterBuilder`](crate::KeyedLimiterBuilder) share.
macro_rules! shared_options {
    () => {
        setters! {
            /// Sets a name, which appears in errors of a [`LimiterGroup`](crate::LimiterGroup) and in `Debug` output. Defaults to
            /// none.
            ///
            /// A keyed limiter gives its name to the limiter of each key. See [`LimiterGroup`](crate::LimiterGroup#examples) for an
            /// example.
            pub name(name: impl Into<String>) => name = Some(name.into().into());
        }

        crate::builder::queue_options!();

        setters! {
            /// Sets the remaining quota of an upstream below which the limiter slows down. Defaults to 0: never.
            ///
            /// When a [signal](crate::Limiter::apply_upstream_signal) reports that fewer than `units` remain, the limiter spreads
            /// the rest evenly over the time until the upstream's quota resets. A keyed limiter does so for [the
            /// key](crate::KeyedLimiter::limiter) that the signal was applied to.
            ///
            /// ```
            /// use std::time::Duration;
            /// use tollgate::{Limiter, MaxConcurrency, UpstreamSignal};
            ///
            /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
            /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
            /// let limiter = Limiter::builder(MaxConcurrency::new(8)).spread_below(10).build()?;
            /// limiter.apply_upstream_signal(&UpstreamSignal::new().remaining(5).reset_after(Duration::from_secs(60)));
            /// let start = tokio::time::Instant::now();
            /// for _ in 0..5 {
            ///     let _permit = limiter.acquire().await?;
            /// }
            /// assert_eq!(start.elapsed(), Duration::from_secs(48)); // one every twelve seconds
            /// # Ok(())
            /// # }
            /// ```
            pub spread_below(units: u64) => options.spread_below = units;

            /// Grants waiting requests within some microseconds of their instants. Tokio's timer is late by about a millisecond.
            ///
            /// A [`Throttle`](crate::Throttle) without a burst loses that time at each grant, because it never makes up for a
            /// late one. With this option one thread, which all limiters of the process share, sleeps until a little before the
            /// next grant and spins for the rest. The thread sleeps while no request waits for an instant, and never grants
            /// early. It takes more CPU the shorter the interval is (BENCHMARKS.md has figures). Where the rate allows bursts, a
            /// burst of about 10 ms' worth of grants takes less.
            ///
            /// Where a test pauses or advances tokio's clock, that clock applies, as without the option. The observer of the
            /// limiter and the wakers of its waiters may be called in the thread.
            ///
            /// ```
            /// use std::time::Duration;
            /// use tollgate::{Limiter, Throttle};
            ///
            /// # #[tokio::main(flavor = "current_thread")]
            /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
            /// let every = Duration::from_micros(500);
            /// let limiter = Limiter::builder(Throttle::every(every)).precise_timer().build()?;
            /// let start = std::time::Instant::now();
            /// for _ in 0..10 {
            ///     let _permit = limiter.acquire().await?;
            /// }
            /// assert!(start.elapsed() >= 9 * every);
            /// # Ok(())
            /// # }
            /// ```
            pub precise_timer() => precise_timer = true;
        }
    };
}

pub(crate) use {queue_options, shared_options};

impl Limiter {
    /// Builds a limiter with the default options from a limit, a tuple of limits, a [`Policy`], or its [text](Policy#as-text).
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when a limit of the policy, which the error names, or the policy text is invalid.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{ConfigError, Limiter, MaxConcurrency, Throttle};
    ///
    /// let limiter = Limiter::new((MaxConcurrency::new(8), Throttle::every(Duration::from_millis(100))))?;
    /// let from_text = Limiter::new("8 concurrent and throttle every 100ms")?;
    /// assert_eq!(from_text.check(1), limiter.check(1));
    /// assert!(matches!(Limiter::new("8 concurent"), Err(ConfigError::Parse(_))));
    /// # Ok::<(), ConfigError>(())
    /// ```
    pub fn new(
        policy: impl TryInto<Policy, Error: Into<ConfigError>>,
    ) -> Result<Self, ConfigError> {
        Self::builder(policy).build()
    }

    /// Starts to build a limiter with options. See [`LimiterBuilder`]. The policy has the forms that [`Limiter::new`] takes.
    /// [`build`](LimiterBuilder::build) reports an invalid policy.
    pub fn builder(policy: impl TryInto<Policy, Error: Into<ConfigError>>) -> LimiterBuilder {
        LimiterBuilder {
            policy: policy.try_into().map_err(Into::into),
            name: None,
            options: Options::default(),
            records_grant_time: false,
            exact_refunds: false,
            precise_timer: false,
            time_source: TimeSource::TOKIO,
            observer: Observers::NONE,
        }
    }
}

impl LimiterBuilder {
    shared_options!();

    setters! {
        /// Records in every permit [when it was granted](crate::Permit::acquired_at). Without this option, permits have no grant
        /// time where the policy needs no clock: a [`MaxConcurrency`](crate::MaxConcurrency) alone, without a TTL, that does not
        /// adapt. With this option, each grant reads the clock.
        ///
        /// ```
        /// # use tollgate::{Limiter, MaxConcurrency};
        /// let limiter = Limiter::builder(MaxConcurrency::new(1)).record_grant_time().build()?;
        /// assert!(limiter.try_acquire()?.acquired_at().is_some());
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub record_grant_time() => records_grant_time = true;

        /// Records the data that is needed to refund more of the permits of a [`Throttle`](crate::Throttle) or a
        /// [`TokenBucket`](crate::TokenBucket). Such a policy then decides under a lock, which takes longer.
        ///
        /// By default, a refund is at most the part of the bucket's usage right after the grant that has not been refilled since.
        /// If no grant followed, the bound allows the whole refund. Under steady use it may be lower than would be safe. With
        /// this option, the bound is the lowest usage right before any later grant, which is exact for the grants of the latest
        /// 250 instants. With or without this option, a refund never lets the later grants exceed the limit. See
        /// [`Permit::settle`](crate::Permit::settle).
        ///
        /// ```
        /// use std::time::Duration;
        /// use tollgate::{Limiter, Rate, TokenBucket};
        ///
        /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
        /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// let policy = TokenBucket::new(Rate::per_second(1), 10);
        /// for (limiter, remaining) in [(Limiter::new(policy)?, 5), (Limiter::builder(policy).exact_refunds().build()?, 6)] {
        ///     let _used = limiter.try_acquire_many(6)?;
        ///     let estimate = limiter.try_acquire_many(2)?; // after it, 8 are used
        ///     tokio::time::sleep(Duration::from_secs(5)).await;
        ///     let _used = limiter.try_acquire_many(5)?; // 3 units were used right before it, so 2 can be refunded
        ///     tokio::time::sleep(Duration::from_secs(2)).await;
        ///     estimate.refund(); // of the 8, 7 have been refilled by now
        ///     assert_eq!(limiter.check(1).remaining(), remaining);
        /// }
        /// # Ok(())
        /// # }
        /// ```
        pub exact_refunds() => exact_refunds = true;
    }

    /// Adds an observer of the [events](LimiterEvent) and the waiting requests of the limiter. Defaults to none. [`LimiterEvent`]
    /// has a table of the events and their order; [`Observer`] has an example. Several observers are called in the order in which
    /// they were added.
    ///
    /// Without an observer, events take no time. With an observer, a waiting request reads the clock when it arrives and when it
    /// is granted, and a denial takes the lock. A grant without a wait takes no longer than before.
    ///
    /// The observer runs outside every lock, in the task or thread that acts for the limiter at that time. It must be quick and
    /// must not block. The limiter catches a panic in the observer. The observer may call the limiter. Events that the observer
    /// causes are reported, too. Events that it causes during that second report are not, so that reporting ends even if the
    /// observer retries at each denial.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = self.observer.and(observer);
        self
    }

    /// Calls `observer` for each [event](LimiterEvent). Equivalent to [`observer`](Self::observer), except that a closure needs
    /// no argument type here.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{EventKind, Limiter, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (events, mut seen) = tokio::sync::mpsc::unbounded_channel();
    /// let limiter = Limiter::builder(MaxConcurrency::new(1).ttl(Duration::from_secs(5)))
    ///     .on_event(move |event| drop(events.send(event.kind.clone())))
    ///     .build()?;
    /// let leaked = limiter.acquire().await?;
    /// let EventKind::Reclaimed { id, held, acquired_in, .. } = seen.recv().await.expect("an event") else { panic!() };
    /// assert_eq!((id, held), (leaked.id(), Duration::from_secs(5)));
    /// println!("{id} was held for {held:?} by {acquired_in}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_event(self, observer: impl Fn(&LimiterEvent<'_>) + Send + Sync + 'static) -> Self {
        self.observer(observer)
    }

    /// Builds the limiter. Starts no task: the first request that must wait, or the first permit with a TTL, starts one in its
    /// own tokio runtime.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when a limit of the policy, which the error names, or the policy text is invalid.
    pub fn build(self) -> Result<Limiter, ConfigError> {
        let clock = Clock::new(self.time_source);
        let since_epoch = since_epoch();
        let plan = Arc::new(Plan::new(self.policy?, since_epoch)?);
        let mut gate = Gate::new(Arc::clone(&plan), Moment::START, self.records_grant_time);
        if !self.exact_refunds {
            gate = gate.prefer_line(Moment::START);
        }
        let origin = PerLimiter {
            name: self.name,
            since_epoch,
            timer_host: TimerHost::own(self.precise_timer),
            store_link: None,
        };
        let options = Options {
            observed: self.observer.is_some(),
            ..self.options
        };
        let common = Arc::new(PerPlan::new(
            plan,
            Arc::new(options),
            Arc::new(origin),
            Uuid::new_v4().as_u64_pair().0,
            clock.clone(),
        ));
        let schedule = common.schedule(gate);
        let manager = Manager::open(common, 0, schedule, clock, self.observer);
        Ok(Limiter::from_manager(manager))
    }
}
