use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::time::Instant;

use crate::acquire::{Acquire, PermitRequest};
use crate::carry_over::UsageCarryOver;
use crate::decision::Decision;
use crate::error::{AcquireError, ConfigError, RunError, TryAcquireError};
use crate::manager::Manager;
use crate::permit::Permit;
use crate::policy::Policy;
use crate::snapshot::LimiterSnapshot;
use crate::upstream::UpstreamSignal;

/// Bounds how much happens at once and how fast. Clones share one and the same limiter.
///
/// # Order
///
/// A request that need not wait is decided in place. One that must joins the queue: by [priority](crate::Priority), and within
/// one priority first come, first served. Nobody who arrives while others wait passes them, and whoever is at the front is
/// waited for, however large his cost: small requests behind a large one do not starve it.
///
/// # Runtimes
///
/// A limiter is built anywhere, also in a `static`. The first request that has to wait, or the first permit with a TTL, starts a
/// task in its tokio runtime that keeps the time for all. When that runtime ends, those who wait in another one start theirs.
/// Leaked permits are reclaimed on time as long as a runtime that keeps the time lives and is run, otherwise by whoever comes
/// next. Waiting outside every runtime is an error, unless the thread [blocks](Limiter::blocking_acquire). While nobody waits and no permit with a TTL is out there
/// is no timer (one that was set for a permit that came back in time may still fire, once).
///
/// # Closing
///
/// After [`Limiter::close`] all who wait and all who come get [`AcquireError::Closed`]; permits that are out stay valid, and
/// [`Limiter::drained`] waits for them.
///
/// # Examples
///
/// ```
/// use std::sync::LazyLock;
/// use std::time::Duration;
/// use tollgate::{Limiter, MaxConcurrency, Policy, Throttle};
///
/// static API: LazyLock<Limiter> = LazyLock::new(|| {
///     let policy = Policy::from(MaxConcurrency::new(8)).and(Throttle::every(Duration::from_millis(5)).burst(10));
///     Limiter::new(policy).expect("the limits are sound")
/// });
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let permit = API.acquire().await?;
/// // call the API
/// drop(permit);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Limiter {
    manager: Arc<Manager>,
}

impl Limiter {
    pub(crate) fn from_manager(manager: Arc<Manager>) -> Self {
        Self { manager }
    }

    pub(crate) fn manager(&self) -> &Arc<Manager> {
        &self.manager
    }

    /// The name it was built with. See [`Builder::name`](crate::LimiterBuilder::name).
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.manager.name().map(AsRef::as_ref)
    }

    /// Waits until every limit of the policy admits one unit, in the [order](Limiter#order) of arrival.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future costs nobody anything; a permit on its way goes to the next who waits. A new call starts at the end
    /// of the queue.
    ///
    /// # Errors
    ///
    /// [`AcquireError::Closed`]; [`AcquireError::QueueFull`] or [`AcquireError::Shed`] where the queue is bounded;
    /// [`AcquireError::NoRuntime`] when it must wait outside a runtime.
    ///
    /// # Panics
    ///
    /// Not by itself; polling the future after it has completed does.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{AcquireError, Limiter, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(8))?;
    /// let permit = limiter.acquire().await?;
    /// limiter.close();
    /// assert_eq!(limiter.acquire().await.unwrap_err(), AcquireError::Closed);
    /// # drop(permit);
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    #[track_caller]
    pub fn acquire(&self) -> Acquire<'_> {
        self.acquire_many(1)
    }

    /// [`Limiter::acquire`] for a cost of several units (1 to the smallest [capacity](crate::Limit::capacity) in the policy),
    /// admitted all at once. Its cancel safety is the same.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::acquire`]; [`AcquireError::ExceedsLimit`] for a cost that no waiting can meet, and
    /// [`AcquireError::ZeroCost`].
    ///
    /// ```
    /// use tollgate::{AcquireError, Limiter, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(8))?;
    /// assert_eq!(limiter.acquire_many(3).await?.cost(), 3);
    /// assert_eq!(limiter.acquire_many(9).await.unwrap_err(), AcquireError::ExceedsLimit { cost: 9, max: 8 });
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    #[track_caller]
    pub fn acquire_many(&self, cost: u64) -> Acquire<'_> {
        PermitRequest::new(&self.manager, cost, Location::caller()).acquire()
    }

    /// A request with a cost, a priority or a timeout. See [`PermitRequest`].
    #[track_caller]
    pub fn request(&self) -> PermitRequest<'_> {
        PermitRequest::new(&self.manager, 1, Location::caller())
    }

    /// Takes one unit now, or nothing. It never passes anybody who waits.
    ///
    /// # Errors
    ///
    /// [`TryAcquireError::Denied`] with the [`Decision`], which names the limit and tells when to come back;
    /// [`TryAcquireError::Closed`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, Throttle, TryAcquireError};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(Throttle::every(Duration::from_millis(20)))?;
    /// let _permit = limiter.try_acquire()?;
    /// let Err(TryAcquireError::Denied(decision)) = limiter.try_acquire() else { panic!("too soon") };
    /// assert_eq!(decision.retry_after(), Some(Duration::from_millis(20)));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn try_acquire(&self) -> Result<Permit, TryAcquireError> {
        self.try_acquire_many(1)
    }

    /// [`Limiter::try_acquire`] for a cost of several units (1 to the smallest [capacity](crate::Limit::capacity) in the policy),
    /// admitted all at once. See [`Throttle::burst`](crate::Throttle::burst) for an example.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::try_acquire`]; [`TryAcquireError::ExceedsLimit`] for a cost that no waiting can meet, and
    /// [`TryAcquireError::ZeroCost`].
    #[track_caller]
    pub fn try_acquire_many(&self, cost: u64) -> Result<Permit, TryAcquireError> {
        let granted = self.manager.try_acquire(cost, Location::caller())?;
        Ok(Permit::new(&self.manager, granted, cost))
    }

    /// [`Limiter::acquire`] for a thread outside the runtime: blocks it until it has the permit.
    ///
    /// It waits in the same queue as everybody. It needs no runtime: the thread at the front keeps the time itself. In a task
    /// it would block the runtime's worker; use `acquire` there, or `tokio::task::spawn_blocking`. Behind a task it relies on
    /// that task's runtime to be run. While the thread sleeps it
    /// follows the system's clock: where tokio's is paused, it waits until that has been advanced.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::acquire`], but [`AcquireError::NoRuntime`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, Throttle};
    ///
    /// let limiter = Limiter::new(Throttle::every(Duration::from_millis(1)))?;
    /// for _ in 0..3 {
    ///     let _permit = limiter.blocking_acquire()?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn blocking_acquire(&self) -> Result<Permit, AcquireError> {
        self.request().blocking_acquire()
    }

    /// What [`Limiter::try_acquire_many`] would say to `cost`, taking nothing. A closed limiter denies, and so does one
    /// asked for a cost of zero or above what it can ever admit; neither tells when to come back.
    ///
    /// See [`Decision`] for an example.
    pub fn check(&self, cost: u64) -> Decision {
        self.manager.check(cost)
    }

    /// Waits for a permit, runs the future while holding it, and gives it back. If the permit is reclaimed, the future is
    /// dropped where it stands.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the future and gives the permit, or the place in the queue, back.
    ///
    /// # Errors
    ///
    /// [`RunError::Acquire`] with the errors of [`Limiter::acquire`], when the future was never polled;
    /// [`RunError::Reclaimed`] when it was dropped half-way, or its permit was reclaimed before the task came to take it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, MaxConcurrency, RunError};
    /// use tokio::time::sleep;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(8).ttl(Duration::from_secs(10)))?;
    /// assert_eq!(limiter.run(async { 6 * 7 }).await?, 42);
    /// let stuck = limiter.run(sleep(Duration::from_secs(3_600)));
    /// assert!(matches!(stuck.await, Err(RunError::Reclaimed { .. })));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn run<F: Future>(&self, future: F) -> impl Future<Output = Result<F::Output, RunError>> + use<'_, F> {
        let acquire = self.acquire();
        async move {
            let permit = acquire.await?;
            if !permit.is_live() {
                return Err(RunError::Reclaimed { id: permit.id() }); // it lay in its slot for too long
            }
            match select(pin!(future), pin!(permit.reclaimed())).await {
                Either::Left((output, _)) => Ok(output),
                Either::Right(_) => Err(RunError::Reclaimed { id: permit.id() }),
            }
        }
    }

    /// Its numbers now. See [`LimiterSnapshot`].
    #[must_use]
    pub fn snapshot(&self) -> LimiterSnapshot {
        self.manager.snapshot()
    }

    /// Goes by another policy from now on, under load and with waiters queued. What has been used stays used, as it is:
    /// [`Limiter::set_policy_with`] explains it and offers another way.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when a limit of the policy makes no sense; then nothing changes.
    pub fn set_policy(&self, policy: impl Into<Policy>) -> Result<(), ConfigError> {
        self.set_policy_with(policy, UsageCarryOver::AsIs)
    }

    /// Goes by another policy from now on, under load and with waiters queued.
    ///
    /// What has been used stays used, [as it is or in proportion](UsageCarryOver). A limit that stays the same keeps its state. Any other
    /// takes over what was used of an old one: of its kind if there is one, or else of what is left; it counts from now on, in
    /// the limit's present window. A limit that has no counterpart is new. A part of a unit that is used counts as one: a limit that
    /// is changed again and again sooner than it brings a unit may never grant any.
    ///
    /// What was carried over stays used: a permit from before has nothing to [refund](crate::Permit::settle) to a limit that was
    /// not there when it was granted.
    ///
    /// Permits that are out stay out and count against a new concurrency, which waits for releases where they are more than it
    /// allows; a new TTL is counted from their grant or last renewal, and those that had none get none. Whoever waits keeps his
    /// place; one whose cost the new policy can never admit gets [`AcquireError::ExceedsLimit`].
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when a limit of the policy makes no sense; then nothing changes.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{UsageCarryOver, FixedWindow, Limiter};
    ///
    /// let per_minute = |units| FixedWindow::new(units, Duration::from_secs(60));
    /// let limiter = Limiter::new(per_minute(100))?;
    /// let _used = limiter.try_acquire_many(60)?;
    /// limiter.set_policy(per_minute(200))?;
    /// assert_eq!(limiter.check(1).remaining(), 140);
    /// limiter.set_policy_with(per_minute(20), UsageCarryOver::InProportion)?;
    /// assert_eq!(limiter.check(1).remaining(), 14);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_policy_with(&self, policy: impl Into<Policy>, carry: UsageCarryOver) -> Result<(), ConfigError> {
        self.manager.set_policy(policy.into(), carry)
    }

    /// Grants nothing for so long: everybody waits, in order, and `try_acquire` is denied. Permits that are out stay valid, and
    /// a TTL runs on. Of several pauses the one that ends last stands. [`Duration::MAX`] is for ever; [`Limiter::resume`] ends it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(8))?;
    /// limiter.pause_for(Duration::from_secs(30));
    /// assert!(limiter.check(1).is_paused());
    /// let start = tokio::time::Instant::now();
    /// let _permit = limiter.acquire().await?;
    /// assert_eq!(start.elapsed(), Duration::from_secs(30));
    /// # Ok(())
    /// # }
    /// ```
    pub fn pause_for(&self, duration: Duration) {
        self.manager.pause_for(duration);
    }

    /// [`Limiter::pause_for`] until an instant on tokio's clock; one that has passed changes nothing.
    pub fn pause_until(&self, instant: Instant) {
        self.manager.pause_for(instant.saturating_duration_since(Instant::now()));
    }

    /// Ends a pause now, and with it what an upstream's signals have asked for.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Limiter, MaxConcurrency};
    /// let limiter = Limiter::new(MaxConcurrency::new(8))?;
    /// limiter.pause_for(Duration::MAX);
    /// assert!(limiter.try_acquire().is_err());
    /// limiter.resume();
    /// assert!(limiter.try_acquire().is_ok());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn resume(&self) {
        self.manager.resume();
    }

    /// Heeds what an upstream said about its own limit: a denial, or a quota that is spent, [pauses](Limiter::pause_for) everybody
    /// for as long as it asks; a quota that is nearly spent is spread out, if the limiter
    /// [was asked to](crate::LimiterBuilder::spread_below). See [`UpstreamSignal`] for an example.
    pub fn apply_upstream_signal(&self, signal: &UpstreamSignal) {
        self.manager.apply_upstream_signal(signal);
    }

    /// Refuses everybody from now on, those who wait first. Permits that are out stay valid. See [`Limiter::drained`].
    pub fn close(&self) {
        self.manager.close();
    }

    /// Whether it was closed, by this handle or another. See [`Limiter::drained`].
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.manager.is_closed()
    }

    /// Completes when the limiter is closed and every permit that holds a place has come back, or was reclaimed. Permits of
    /// rates hold none.
    ///
    /// # Cancel safety
    ///
    /// It can be dropped and called again at any time.
    ///
    /// ```
    /// use tollgate::{Limiter, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(8))?;
    /// let permit = limiter.acquire().await?;
    /// tokio::spawn(async move { permit.release() });
    /// limiter.close();
    /// assert!(limiter.is_closed());
    /// limiter.drained().await;
    /// assert_eq!(limiter.snapshot().in_flight, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn drained(&self) {
        self.manager.drained().await;
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("name", &self.name()).field("snapshot", &self.snapshot()).finish_non_exhaustive()
    }
}
