use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use uuid::Uuid;

use crate::core::gate::Gate;
use crate::core::plan::Plan;
use crate::core::schedule::{Options, Schedule};
use crate::error::ConfigError;
use crate::event::LimiterEvent;
use crate::limiter::Limiter;
use crate::manager::{Clock, Manager, TimerHost, registry};
use crate::observe::Observer;
use crate::overflow::Overflow;
use crate::policy::Policy;
use crate::strategy::Moment;

/// The options of a limiter: what [`Limiter::builder`] returns.
///
/// # Examples
///
/// ```
/// use tollgate::{Limiter, MaxConcurrency, Overflow};
///
/// let limiter = Limiter::builder(MaxConcurrency::new(8)).name("search").max_queue(10_000).build()?;
/// assert_eq!(limiter.name(), Some("search"));
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct LimiterBuilder {
    policy: Policy,
    name: Option<Arc<str>>,
    max_queue: usize,
    overflow: Overflow,
    spread_below: u64,
    records_grant_time: bool,
    observer: Observer,
}

impl Limiter {
    /// A limiter with the default options. See the [type's example](Limiter#examples).
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when a limit of the policy makes no sense; it carries the limit.
    pub fn new(policy: impl Into<Policy>) -> Result<Self, ConfigError> {
        Self::builder(policy).build()
    }

    /// A limiter with options of its own. See [`LimiterBuilder`].
    pub fn builder(policy: impl Into<Policy>) -> LimiterBuilder {
        LimiterBuilder::new(policy.into())
    }
}

impl LimiterBuilder {
    fn new(policy: Policy) -> Self {
        let Options { max_queue, overflow, spread_below, .. } = Options::default();
        Self { policy, name: None, max_queue, overflow, spread_below, records_grant_time: false, observer: Observer::NONE }
    }

    /// A name to know it by in what is printed. See the [type's example](LimiterBuilder#examples).
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into().into());
        self
    }

    /// How many requests may wait (0: none; at most about two billion, which is also the default).
    pub fn max_queue(mut self, requests: usize) -> Self {
        self.max_queue = requests;
        self
    }

    /// Who goes when a request must wait and the queue is full; [`Overflow::Reject`] unless told.
    ///
    /// ```
    /// use tollgate::{AcquireError, Limiter, MaxConcurrency, Overflow};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::builder(MaxConcurrency::new(1)).max_queue(1).overflow(Overflow::DropOldest).build()?;
    /// let _out = limiter.acquire().await?;
    /// let mut oldest = tokio_test::task::spawn(limiter.acquire());
    /// let mut newest = tokio_test::task::spawn(limiter.acquire());
    /// assert!(oldest.poll().is_pending() && newest.poll().is_pending());
    /// assert_eq!(oldest.await.unwrap_err(), AcquireError::Shed);
    /// # Ok(())
    /// # }
    /// ```
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }

    /// Slows down before an upstream's quota is gone: when it says that fewer than `units` remain (0, the default: never), they are
    /// spread evenly over the time until its quota is new. See [`Limiter::apply_upstream_signal`](crate::Limiter::apply_upstream_signal).
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
    pub fn spread_below(mut self, units: u64) -> Self {
        self.spread_below = units;
        self
    }

    /// Has every permit know [when it was granted](crate::Permit::acquired_at), at the price of a clock reading where the
    /// policy needs none.
    ///
    /// ```
    /// # use tollgate::{Limiter, MaxConcurrency};
    /// let limiter = Limiter::builder(MaxConcurrency::new(1)).record_grant_time().build()?;
    /// assert!(limiter.try_acquire()?.acquired_at().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn record_grant_time(mut self) -> Self {
        self.records_grant_time = true;
        self
    }

    /// Tells `observer` of what the limiter does of its own accord. It is called by whoever acts for the limiter, outside
    /// every lock: it must be quick, and must not block. A panic in it goes no further.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{LimiterEvent, Limiter, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (events, mut seen) = tokio::sync::mpsc::unbounded_channel();
    /// let limiter = Limiter::builder(MaxConcurrency::new(1).ttl(Duration::from_secs(5)))
    ///     .on_event(move |event| drop(events.send(event.clone())))
    ///     .build()?;
    /// let leaked = limiter.acquire().await?;
    /// let Some(LimiterEvent::Reclaimed { id, held, acquired_in, .. }) = seen.recv().await else { panic!("no event") };
    /// assert_eq!((id, held), (leaked.id(), Duration::from_secs(5)));
    /// println!("{id} was held for {held:?} by {acquired_in}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_event(mut self, observer: impl Fn(&LimiterEvent) + Send + Sync + 'static) -> Self {
        self.observer = Observer::new(observer);
        self
    }

    /// Builds the limiter. It starts nothing: the first request that has to wait, or the first permit with a TTL, starts the
    /// task that keeps the time, in the runtime that it runs in.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when a limit of the policy makes no sense; it carries the limit.
    pub fn build(self) -> Result<Limiter, ConfigError> {
        let Self { policy, name, max_queue, overflow, spread_below, records_grant_time, observer } = self;
        let clock = Clock::new();
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let gate = Gate::new(Plan::new(policy, since_epoch)?, Moment::START, records_grant_time);
        let options = Options { max_queue, overflow, spread_below, observed: observer.is_some() };
        let schedule = Schedule::new(gate, options);
        let (timer_host, id_prefix) = (TimerHost::Own(Arc::default()), Uuid::new_v4().as_u64_pair().0);
        let manager = Arc::new(Manager::new(schedule, clock, timer_host, since_epoch, id_prefix, name, observer));
        registry::enter(&manager);
        Ok(Limiter::from_manager(manager))
    }
}
