//! The handle of one limiter: requests, snapshots, and changes while it is in use.

use std::borrow::Borrow;
use std::panic::Location;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use crate::acquire::{
    Acquire, AcquireExplained, AcquireOwned, OwnedTicket, PermitRequest, Reservation, Run,
    blocking_acquire,
};
use crate::carry_over::UsageCarryOver;
use crate::core::request::{Caller, Costs};
use crate::decision::Decision;
use crate::error::{AcquireError, ConfigError, TryAcquireError};
use crate::manager::{Awaited, Manager, RequestOptions};
use crate::permit::Permit;
use crate::policy::Policy;
use crate::snapshot::{FlowStatus, LimitStatus, LimiterSnapshot};
use crate::upstream::UpstreamSignal;

/// An async rate limiter and concurrency limiter for one [`Policy`]. Clones share its state.
///
/// # Order
///
/// A request that need not wait is granted at once. Any other joins the queue, which is ordered by [priority](crate::Priority),
/// and by arrival within one priority (FIFO). A new request never overtakes a waiting one of its own or a higher priority. The
/// front of the queue is always served first, whatever its cost, so that small requests do not starve a large one. Requests with a
/// [flow](PermitRequest::flow) share with those of other flows instead, and wait in order of arrival within their own.
///
/// # Runtimes
///
/// A limiter can be built anywhere, also in a `static`. While nothing waits it runs no task and no timer. The first request that
/// must wait, or the first permit with a TTL, starts one task with one timer in the caller's tokio runtime, for all waiters. A
/// request in another runtime that must wait for an instant starts a task there too, so that no request depends on a runtime
/// other than its own. (The timer for a permit that is released before its TTL is not stopped; it may fire once.)
///
/// A request that must wait outside every tokio runtime gets an error, unless it [blocks its thread](Limiter::blocking_acquire).
/// A leaked permit is reclaimed on time as long as a runtime that started such a task is running. Otherwise the next call to the
/// limiter reclaims it.
///
/// # Closing
///
/// After [`Limiter::close`] all requests get [`AcquireError::Closed`], including waiting ones. Permits in flight stay valid;
/// [`Limiter::drained`] waits for them.
///
/// # Examples
///
/// ```
/// use std::sync::LazyLock;
/// use std::time::Duration;
/// use tollgate::{Limiter, MaxConcurrency, Throttle};
///
/// static API: LazyLock<Limiter> = LazyLock::new(|| {
///     let policy = MaxConcurrency::new(8).and(Throttle::every(Duration::from_millis(5)).burst(10));
///     Limiter::new(policy).expect("the limits are valid")
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
#[doc(alias = "RateLimiter")]
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

    /// Starts a ticket, which makes one request after another.
    pub(crate) fn ticket(&self, caller: Caller) -> OwnedTicket {
        OwnedTicket::new(Arc::clone(&self.manager), RequestOptions::new(1, caller))
    }

    /// The name that the limiter was built with. See [`LimiterBuilder`](crate::LimiterBuilder) for an example.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.manager.name().map(AsRef::as_ref)
    }

    /// Waits until every limit of the policy admits one unit, in [order](Limiter#order), and returns the permit.
    ///
    /// Bind the permit to a name: `let _ = limiter.acquire().await?` releases it at once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing. A request that waits leaves the queue, and a permit that was granted but not taken yet
    /// goes to the next request. A new call starts at the end of the queue.
    ///
    /// A future that is kept but never polled may have been granted a permit. The permit then [stays in use](Acquire).
    ///
    /// # Errors
    ///
    /// - [`AcquireError::Closed`] when the limiter is closed, or is closed during the wait;
    /// - [`AcquireError::QueueFull`], [`AcquireError::Shed`] or [`AcquireError::Blocked`] when its queue is
    ///   [bounded](crate::LimiterBuilder::max_queue) and full;
    /// - [`AcquireError::NoRuntime`] when the request must wait outside a tokio runtime with timers.
    ///
    /// # Panics
    ///
    /// The future panics when it is polled after it has completed.
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
    #[doc(alias("until_ready", "wait"))]
    pub fn acquire(&self) -> Acquire<'_> {
        self.acquire_many(1)
    }

    /// [`Limiter::acquire`] for `cost` units: 1 to the smallest [capacity](crate::Limit::capacity) in the policy. They are granted
    /// all at once. The order and the cancel safety are the same.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::acquire`]; [`AcquireError::ExceedsLimit`] for a cost above that capacity; [`AcquireError::ZeroCost`].
    ///
    /// ```
    /// use tollgate::{Limiter, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(8))?;
    /// assert_eq!(limiter.acquire_many(3).await?.cost(), 3);
    /// assert_eq!(
    ///     limiter.acquire_many(9).await.unwrap_err().to_string(),
    ///     "a cost of 9 can never be admitted: the limit of `8 concurrent` is 8; split the request, or raise the limit",
    /// );
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    #[track_caller]
    #[doc(alias = "acquire_n")]
    pub fn acquire_many(&self, cost: u64) -> Acquire<'_> {
        PermitRequest::new(self, cost, Location::caller()).acquire()
    }

    /// [`Limiter::acquire`] as a future that borrows nothing: it can be spawned, or kept in a struct. Compared with
    /// [`Limiter::acquire`], it takes one more atomic write when it is made, and one when it is dropped.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::acquire`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{AcquireOwned, Limiter, MaxConcurrency};
    ///
    /// struct Job {
    ///     permit: AcquireOwned,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(2))?;
    /// let job = Job { permit: limiter.acquire_owned() };
    /// let _spawned = tokio::spawn(limiter.acquire_owned()).await??;
    /// let _permit = job.permit.await?;
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn acquire_owned(&self) -> AcquireOwned {
        self.request().acquire_owned()
    }

    /// Joins the queue for one unit now. The [`Reservation`] has the expected wait, and is awaited for the permit. (Go's
    /// *x/time/rate* has a similar `Reserve`. Here the limits are charged at the grant, so that none is exceeded in any span.)
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::acquire`] that are known at once.
    #[track_caller]
    pub fn reserve(&self) -> Result<Reservation, AcquireError> {
        self.request().reserve()
    }

    /// Starts a request with a cost, a priority or a timeout. See [`PermitRequest`].
    #[track_caller]
    pub fn request(&self) -> PermitRequest<&Self> {
        PermitRequest::new(self, 1, Location::caller())
    }

    /// Takes one unit now, or nothing. It does not wait, and is denied while other requests wait.
    ///
    /// # Errors
    ///
    /// [`TryAcquireError::Denied`] with the [`Decision`], which has the limit that denied and the time at which to retry;
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
    #[inline]
    #[track_caller]
    #[doc(alias = "allow")]
    pub fn try_acquire(&self) -> Result<Permit, TryAcquireError> {
        self.try_acquire_many(1)
    }

    /// [`Limiter::try_acquire`] for `cost` units: 1 to the smallest [capacity](crate::Limit::capacity) in the policy. Takes all
    /// of them or none. See [`Throttle::burst`](crate::Throttle::burst) for an example.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::try_acquire`]; [`TryAcquireError::ExceedsLimit`] for a cost above that capacity;
    /// [`TryAcquireError::ZeroCost`].
    #[inline]
    #[track_caller]
    pub fn try_acquire_many(&self, cost: u64) -> Result<Permit, TryAcquireError> {
        self.manager
            .in_channel()
            .try_acquire(cost, Location::caller(), None)
    }

    /// [`Limiter::acquire`] for a thread outside the runtime: blocks the thread until it has the permit.
    ///
    /// The thread waits in the same queue as tasks do. It needs no runtime: at the front of the queue the thread runs the timer
    /// itself. A thread behind a task depends on the task's runtime, which must be running.
    ///
    /// The thread sleeps by the system's clock. In `spawn_blocking` of a runtime whose clock is paused, it waits until a task has
    /// advanced that clock.
    ///
    /// # Panics
    ///
    /// In a task, like the blocking functions of tokio: use `acquire` there, or `tokio::task::spawn_blocking`.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::acquire`]. [`AcquireError::NoRuntime`] occurs in one case only: in the destructor of a thread-local,
    /// if tokio's clock was ever paused in the process (its feature `test-util`). Tokio cannot read its clock there.
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

    /// The decision that [`Limiter::try_acquire_many`] would make now; takes nothing. (The `check` of the crate *governor* takes
    /// a unit.) See [`Decision`] for an example.
    ///
    /// A closed limiter denies. So does any limiter for a cost of zero, or one above the smallest
    /// [capacity](crate::Limit::capacity) in the policy. These denials have no `retry_after`.
    pub fn check(&self, cost: u64) -> Decision {
        self.manager.check(Costs::plain(cost))
    }

    /// The largest cost that [`Limiter::try_acquire_many`] would be granted now; takes nothing. 0 while the limiter is closed or
    /// paused, or requests wait.
    ///
    /// The number is at most the smallest [capacity](crate::Limit::capacity) in the policy. The capacity of a concurrency that
    /// [adapts](crate::Adapt) is its floor. Further requests may get more: [`Decision::remaining`] is all that is left.
    ///
    /// ```
    /// use tollgate::{Limiter, MaxConcurrency};
    ///
    /// let limiter = Limiter::new(MaxConcurrency::new(8))?;
    /// let _permit = limiter.try_acquire_many(3)?;
    /// assert_eq!(limiter.available(), 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    #[doc(alias("available_permits", "remaining"))]
    pub fn available(&self) -> u64 {
        self.manager.ask(|outlook, now| outlook.available(now))
    }

    /// Waits for a permit of one unit, runs the future while it holds the permit, and releases it. If the permit is reclaimed
    /// meanwhile, the future is dropped.
    ///
    /// The returned future borrows only what the given future borrows, so it can be spawned.
    ///
    /// # Cancel safety
    ///
    /// Dropping the returned future drops the given one, and then releases the permit or leaves the queue.
    ///
    /// # Errors
    ///
    /// [`RunError::Acquire`](crate::RunError::Acquire) with an error of [`Limiter::acquire`]; the future was then never polled.
    /// [`RunError::Reclaimed`](crate::RunError::Reclaimed) if the TTL passed before the future completed, or before it was first
    /// polled.
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
    #[doc(alias("execute", "schedule"))]
    pub fn run<F: Future>(&self, future: F) -> Run<F> {
        self.request().run(future)
    }

    /// Returns a function that [runs](Limiter::run) `work` under a permit of one unit on each call.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Limiter, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// async fn fetch(page: u32) -> String {
    ///     format!("page {page}")
    /// }
    ///
    /// let fetch = Limiter::new(MaxConcurrency::new(8))?.wrap(fetch);
    /// let (one, other) = tokio::join!(fetch(1), tokio::spawn(fetch(2)));
    /// assert_eq!((one?.as_str(), other??.as_str()), ("page 1", "page 2"));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn wrap<T, F: Future, W: Fn(T) -> F>(
        &self,
        work: W,
    ) -> impl Fn(T) -> Run<F> + use<T, F, W> {
        let (limiter, caller) = (self.clone(), Location::caller());
        move |argument| PermitRequest::new(&limiter, 1, caller).run(work(argument))
    }

    /// The status of each limit of the policy now. [`acquire_explained`](PermitRequest::acquire_explained) returns a permit with
    /// the status at its grant.
    ///
    /// ```
    /// use tollgate::Limiter;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let model = Limiter::new("8 concurrent per request and 100000 tokens/min")?;
    /// let _permit = model.request().cost_of("tokens", 60_000).acquire().await?;
    /// let limits = model.limits();
    /// assert_eq!((limits[0].remaining, limits[1].remaining), (7, 40_000));
    /// assert_eq!(limits[1].reset_after.as_secs(), 36);
    /// assert_eq!(limits[1].to_string(), "100000 tokens/min: 40000 of 100000 remain, all in 36s");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn limits(&self) -> Vec<LimitStatus> {
        self.manager.limits()
    }

    /// The limiter's numbers now. See [`LimiterSnapshot`].
    #[must_use]
    pub fn snapshot(&self) -> LimiterSnapshot {
        self.manager.snapshot()
    }

    /// What the [flows](PermitRequest::flow) have now that wait or hold units, at most `max` of them: those with the most requests
    /// in the queue, the longest first; of equal ones, those whose permits hold the most. Takes time in proportion to the
    /// flows, under the lock of the limiter.
    ///
    /// ```
    /// use tollgate::{FlowId, Limiter, MaxConcurrency};
    ///
    /// let limiter = Limiter::new(MaxConcurrency::new(8))?;
    /// let _permits = (
    ///     limiter.request().flow("alice").try_acquire()?,
    ///     limiter.request().cost(3).flow("bob").weight(2).try_acquire()?,
    /// );
    /// let flows = limiter.flows(10);
    /// assert_eq!((flows[0].id, flows[0].in_flight, flows[0].weight), (FlowId::of("bob"), 3, 2));
    /// assert_eq!((flows[1].id, flows[1].in_flight, flows[1].queued), (FlowId::of("alice"), 1, 0));
    /// assert!(flows[0].to_string().ends_with(": 0 queued, 3 in flight, weight 2"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn flows(&self, max: usize) -> Vec<FlowStatus> {
        self.manager.flows(max)
    }

    /// Replaces the policy while the limiter is in use. The policy has the forms that [`Limiter::new`] takes. Queued requests
    /// keep their position, and usage carries over: [`Limiter::set_policy_with`] has the rules and an example.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when a limit of the policy or the policy text is invalid; then nothing changes.
    #[doc(alias = "set_limit")]
    pub fn set_policy(
        &self,
        policy: impl TryInto<Policy, Error: Into<ConfigError>>,
    ) -> Result<(), ConfigError> {
        self.set_policy_with(policy, UsageCarryOver::AsIs)
    }

    /// Replaces the policy while the limiter is in use. Queued requests keep their position. A request whose cost the new policy
    /// can never admit gets [`AcquireError::ExceedsLimit`]. A request that does not name a unit which the new policy counts gets
    /// [`AcquireError::MissingCost`].
    ///
    /// Each new limit takes over the usage of an old one, [as it is or in proportion](UsageCarryOver):
    ///
    /// - A limit that is in both policies keeps its state.
    /// - Any other limit takes over from an old limit of its own kind, or else from any that is left, if both
    ///   [count](crate::Counts) the same. The usage then counts in the new limit's present window.
    /// - A [`MaxConcurrency`](crate::MaxConcurrency) takes over only from another one, and no other limit takes over from it. A
    ///   limit without a counterpart starts unused.
    ///
    /// Permits in flight stay valid and count against a new `MaxConcurrency`. If more are in flight than it allows, requests wait
    /// for releases. A new TTL counts from each permit's grant or last renewal; a permit that was granted without a TTL gets
    /// none. An earlier permit [refunds](crate::Permit::settle) nothing to a limit that did not grant it. If a new
    /// `MaxConcurrency` counts something that no earlier one did, it takes over the number in flight of another one, and each
    /// permit gives back the units that it was granted for.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when a limit of the policy or the policy text is invalid; then nothing changes.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{FixedWindow, Limiter, UsageCarryOver};
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
    pub fn set_policy_with(
        &self,
        policy: impl TryInto<Policy, Error: Into<ConfigError>>,
        carry: UsageCarryOver,
    ) -> Result<(), ConfigError> {
        self.manager
            .set_policy(policy.try_into().map_err(Into::into)?, carry)
    }

    /// The present policy: the one that the limiter was built with, or that [`Limiter::set_policy`] set last.
    ///
    /// ```
    /// use tollgate::{Limiter, MaxConcurrency};
    ///
    /// let limiter = Limiter::new(MaxConcurrency::new(8))?;
    /// limiter.set_policy("8 concurrent and 100/min")?;
    /// assert_eq!(limiter.policy().to_string(), "8 concurrent and 100/min");
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.manager.policy()
    }

    /// Charges `units` (any number), whether or not the limits admit them: later requests wait until these are paid off. A
    /// [`Penalty`](crate::Penalty) is raised up to its ceiling, and bans only at a denied attempt; a
    /// [`MaxConcurrency`](crate::MaxConcurrency) and limits of a [unit](crate::Counts::Unit) are not charged.
    ///
    /// ```
    /// use tollgate::{Limiter, Rate, TokenBucket};
    ///
    /// let limiter = Limiter::new(TokenBucket::new(Rate::per_second(10), 40))?;
    /// limiter.penalize(50); // the answer was larger than expected
    /// assert!(limiter.try_acquire().is_err());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn penalize(&self, units: u64) {
        self.manager.charge(units);
    }

    /// Grants nothing for `duration`: requests wait, in order, and [`try_acquire`](Limiter::try_acquire) is denied.
    ///
    /// Zero changes nothing; [`Duration::MAX`] lasts until [`Limiter::resume`]. Of several pauses, the one that ends last counts.
    /// Permits in flight stay valid, and their TTLs run on.
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
    #[doc(alias = "pause")]
    pub fn pause_for(&self, duration: Duration) {
        self.manager.pause_for(duration);
    }

    /// Grants nothing before `instant` on tokio's clock. An instant that has passed changes nothing. See [`Limiter::pause_for`].
    pub fn pause_until(&self, instant: Instant) {
        self.manager
            .pause_for(instant.saturating_duration_since(Instant::now()));
    }

    /// Ends every pause now, and the spreading that an [upstream's signal](Limiter::apply_upstream_signal) began.
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

    /// Slows down as an upstream's response asks for. See [`UpstreamSignal`] for an example.
    ///
    /// If a response denies, or leaves nothing of the upstream's quota, the limiter is [paused](Limiter::pause_for) for the time
    /// that the response gives. A quota that is nearly spent is spread evenly until its reset, if the limiter was built with
    /// [`spread_below`](crate::LimiterBuilder::spread_below).
    pub fn apply_upstream_signal(&self, signal: &UpstreamSignal) {
        self.manager.apply_upstream_signal(signal);
    }

    /// Refuses all later requests with [`AcquireError::Closed`], and serves the waiting ones, which [`Limiter::close`] can still
    /// refuse. [`Limiter::drained`] returns when all waiting requests are served and their permits are back.
    ///
    /// ```
    /// use tollgate::{AcquireError, Limiter, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(1))?;
    /// let permit = limiter.acquire().await?;
    /// let waiting = tokio::spawn(limiter.acquire_owned());
    /// tokio::task::yield_now().await;
    /// limiter.close_to_new();
    /// assert_eq!(limiter.acquire().await.unwrap_err(), AcquireError::Closed);
    /// drop(permit);
    /// drop(waiting.await??); // served
    /// limiter.drained().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn close_to_new(&self) {
        self.manager.close(true);
    }

    /// Refuses all waiting and all later requests with [`AcquireError::Closed`]. Permits in flight
    /// stay valid. See [`Limiter::drained`] for an example.
    #[doc(alias = "shutdown")]
    pub fn close(&self) {
        self.manager.close(false);
    }

    /// Whether [`Limiter::close`] or [`Limiter::close_to_new`] was called on this handle or on a clone. See [`Limiter::drained`] for an example.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.manager.is_closed()
    }

    /// Waits until no request waits and every permit that holds a place was released or reclaimed. Returns at once if nothing is
    /// in use. After [`Limiter::close`] the limiter stays drained. While it is open, new requests may come at any time, also
    /// before the caller continues.
    ///
    /// Only permits of a [`MaxConcurrency`](crate::MaxConcurrency) hold a place; the method does not wait for permits of other
    /// limits.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped and the method called again at any time.
    ///
    /// # Examples
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
        self.manager.watch(Awaited::Drain).await;
    }
}

debug_fields! { Limiter, |limiter| name = limiter.name(), snapshot = limiter.snapshot() }

/// A request of a [`Limiter`].
impl<'a> PermitRequest<&'a Limiter> {
    /// Sets the TTL of the permit, from its grant on: 1 ns (0 counts as 1) to the [TTL of the
    /// policy](crate::MaxConcurrency::ttl); a longer one has no effect. [`Permit::renew`] restarts the TTL, and
    /// [`Permit::renew_for`] also changes it. Defaults to the TTL of the policy.
    ///
    /// The TTL counts from the poll that takes the permit; a future that [is not polled](Acquire#when-it-is-not-polled) keeps its
    /// grant for the TTL of the policy.
    ///
    /// Where the policy has no TTL, the request fails with [`AcquireError::NoTtl`] or [`TryAcquireError::NoTtl`]. A permit that
    /// holds no place has no TTL.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{AcquireError, Limiter, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(8).ttl(Duration::from_secs(60)))?;
    /// let short = limiter.request().ttl(Duration::from_secs(5)).acquire().await?;
    /// let start = tokio::time::Instant::now();
    /// short.reclaimed().await;
    /// assert_eq!(start.elapsed(), Duration::from_secs(5));
    ///
    /// limiter.set_policy(MaxConcurrency::new(8))?;
    /// let error = limiter.request().ttl(Duration::from_secs(5)).acquire().await.unwrap_err();
    /// assert!(matches!(error, AcquireError::NoTtl { .. }));
    /// # Ok(())
    /// # }
    /// ```
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.rare().ttl = Some(ttl);
        self
    }

    /// Delays the request by a uniformly random time of 0 to `max`, from the first poll on, **before** it joins the queue. So
    /// requests of clients that start at the same instant are spread. A delay after the grant would break the rate: two grants
    /// far apart could then be used at the same instant. Defaults to no delay.
    ///
    /// During the delay the request is not in the queue, and its timeout has not begun. The delay needs a tokio runtime with
    /// timers ([`AcquireError::NoRuntime`]), unless the request blocks its thread. [`PermitRequest::try_acquire`] ignores the
    /// delay.
    ///
    /// # Cancel safety
    ///
    /// As for [`Limiter::acquire`]. A new call draws another delay.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, Rate, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(TokenBucket::new(Rate::per_second(50), 50))?;
    /// let (start, max) = (tokio::time::Instant::now(), Duration::from_secs(2));
    /// let _permit = limiter.request().jitter(max).acquire().await?;
    /// assert!(start.elapsed() <= max + Duration::from_millis(1)); // and a tick of the timer
    /// # Ok(())
    /// # }
    /// ```
    pub fn jitter(mut self, max: Duration) -> Self {
        self.options.rare().jitter = Some(max);
        self
    }

    /// Waits for the permit. See [`Limiter::acquire`].
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::acquire`], and [`AcquireError::TimedOut`],
    /// [`AcquireError::TimeoutTooLong`] or [`AcquireError::NoTtl`].
    #[inline]
    pub fn acquire(self) -> Acquire<'a> {
        Acquire::new(self.target.manager(), self.options)
    }

    /// [`PermitRequest::acquire`] as a future that borrows nothing. See [`Limiter::acquire_owned`](Limiter::acquire_owned).
    ///
    /// # Errors
    ///
    /// Those of [`PermitRequest::acquire`].
    pub fn acquire_owned(self) -> AcquireOwned {
        AcquireOwned::new(Arc::clone(self.target.manager()), self.options)
    }

    /// Joins the queue now, not at the first poll of a future. See [`Limiter::reserve`]. The timeout counts from now on. A jitter
    /// has no effect.
    ///
    /// # Errors
    ///
    /// Those of [`PermitRequest::acquire`] that are known at once.
    pub fn reserve(mut self) -> Result<Reservation, AcquireError> {
        self.options.forgo_jitter();
        Reservation::new(Arc::clone(self.target.manager()), self.options)
    }

    /// Waits for the permit, and runs the future while it holds it. See [`Limiter::run`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(8))?;
    /// let work = limiter.request().cost(2).timeout(Duration::from_secs(1)).run(async { 6 * 7 });
    /// assert_eq!(tokio::spawn(work).await??, 42);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::run`] and of [`PermitRequest::acquire`].
    pub fn run<F: Future>(self, future: F) -> Run<F> {
        Run::new(self.acquire_owned(), future)
    }

    /// Takes the cost of the request now, or nothing. See [`Limiter::try_acquire`](Limiter::try_acquire), and
    /// [`Counts`](crate::Counts) for an example. A priority, a timeout and a jitter have no effect.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::try_acquire_many`](Limiter::try_acquire_many), [`TryAcquireError::MissingCost`] and
    /// [`TryAcquireError::NoTtl`].
    pub fn try_acquire(self) -> Result<Permit, TryAcquireError> {
        self.target
            .manager()
            .in_channel()
            .try_request(&self.options, None, None)
    }

    /// [`PermitRequest::try_acquire`], with the status of each limit of the policy right after the decision. A separate call would
    /// read a later status. Use it to write header fields, for example.
    ///
    /// ```
    /// use tollgate::Limiter;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let limiter = Limiter::new("8 concurrent and 100/min").unwrap();
    /// let (answer, limits) = limiter.request().try_acquire_explained();
    /// let left: Vec<_> = limits.iter().map(|of| format!("{}: {} left", of.limit, of.remaining)).collect();
    /// assert_eq!((answer.is_ok(), left), (true, vec!["8 concurrent: 7 left".to_owned(), "100/min: 99 left".to_owned()]));
    /// # }
    /// ```
    pub fn try_acquire_explained(self) -> (Result<Permit, TryAcquireError>, Vec<LimitStatus>) {
        let mut limits = Vec::new();
        let channel = self.target.manager().in_channel();
        let answer = channel.try_request(&self.options, Some(&mut limits), None);
        (answer, limits)
    }

    /// [`PermitRequest::acquire_owned`], with the status of each limit of the policy when the permit was granted or the request
    /// was refused.
    ///
    /// ```
    /// use tollgate::{FixedWindow, Limiter};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(FixedWindow::new(2, Duration::from_secs(60)))?;
    /// let (permit, limits) = limiter.request().acquire_explained().await;
    /// assert_eq!((permit?.cost(), limits[0].remaining, limits[0].reset_after), (1, 1, Duration::from_secs(60)));
    /// let (refused, limits) = limiter.request().cost(2).timeout(Duration::from_secs(1)).acquire_explained().await;
    /// assert_eq!((refused.is_err(), limits[0].remaining), (true, 1)); // it is known to wait for longer than a second
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`PermitRequest::acquire`]. At a timeout, the status shows which limit the request waited for.
    pub fn acquire_explained(self) -> AcquireExplained {
        AcquireExplained::new(Arc::clone(self.target.manager()), self.options)
    }

    /// The decision that [`PermitRequest::try_acquire`] would make now; takes nothing. See [`Limiter::check`].
    ///
    /// A request that does not name a unit that a limit counts is denied without a `retry_after`.
    pub fn check(self) -> Decision {
        self.target.manager().check(self.options.costs())
    }

    /// Blocks the thread until it has the permit. See [`Limiter::blocking_acquire`](Limiter::blocking_acquire).
    ///
    /// # Panics
    ///
    /// In a task, like the blocking functions of tokio: use `acquire` there, or `tokio::task::spawn_blocking`.
    ///
    /// # Errors
    ///
    /// Those of [`PermitRequest::acquire`]; [`AcquireError::NoRuntime`] only in the case that
    /// [`Limiter::blocking_acquire`](Limiter::blocking_acquire) describes.
    #[track_caller]
    pub fn blocking_acquire(self) -> Result<Permit, AcquireError> {
        blocking_acquire(self.target.manager(), self.options)
    }
}

/// [`PermitRequest::acquire`], so that a request can be awaited itself.
impl<'a> IntoFuture for PermitRequest<&'a Limiter> {
    type Output = Result<Permit, AcquireError>;
    type IntoFuture = Acquire<'a>;

    fn into_future(self) -> Acquire<'a> {
        self.acquire()
    }
}

/// A limiter that streams and sinks wait for: a [`Limiter`] or a [`SharedLimiter`](crate::SharedLimiter), or a reference to one.
///
/// ```
/// use futures_util::stream::{self, StreamExt};
/// use std::time::Duration;
/// use tollgate::store::MemoryStore;
/// use tollgate::{SharedLimiter, StreamLimitExt, Throttle};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = SharedLimiter::new(MemoryStore::new(), "mail", Throttle::every(Duration::from_millis(100)))?;
/// let start = tokio::time::Instant::now();
/// let sent: Vec<_> = stream::iter(0..5).throttled(&limiter).collect().await;
/// assert_eq!((sent.len(), start.elapsed()), (5, Duration::from_millis(400)));
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limiter",
    label = "expected a `Limiter` or a `SharedLimiter`, as a value or a reference",
    note = "of a `KeyedLimiter`, take the limiter of one key: `keyed.limiter(&key)?`; an `OutboundLayer` takes all keys by `by_host` or `by_key`"
)]
pub trait AnyLimiter: Handle {}

#[diagnostic::do_not_recommend]
impl<L: Handle> AnyLimiter for L {}

/// Sealed: other crates cannot name it. Code that waits for the permits of a shared limiter must not call its other methods,
/// because they need a reply of the store.
pub trait Handle {
    fn handle(&self) -> Limiter;
}

impl Handle for Limiter {
    fn handle(&self) -> Limiter {
        self.clone()
    }
}

impl<L: Handle> Handle for &L {
    fn handle(&self) -> Limiter {
        (**self).handle()
    }
}

/// A limiter that is polled for permits, for hand-written futures and for `poll_ready` of a service or a sink, like tokio-util's
/// `PollSemaphore`.
///
/// One request waits at a time. It keeps its position in the queue between polls, until the `PollLimiter` is dropped. A permit
/// that was granted but not polled for then goes to the next request. A clone makes a request of its own.
///
/// # Examples
///
/// ```
/// use std::future::poll_fn;
/// use tollgate::{Limiter, MaxConcurrency, PollLimiter};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut limiter = PollLimiter::new(Limiter::new(MaxConcurrency::new(1))?);
/// let permit = poll_fn(|cx| limiter.poll_acquire(cx)).await?;
/// assert_eq!(limiter.limiter().snapshot().in_flight, 1);
/// drop(permit);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PollLimiter {
    limiter: Limiter,
    ticket: OwnedTicket,
    caller: Caller,
}

impl PollLimiter {
    /// Makes a `PollLimiter` whose requests have a cost of one unit.
    #[must_use]
    #[track_caller]
    pub fn new(limiter: impl Borrow<Limiter>) -> Self {
        Self::with_caller(limiter.borrow().clone(), Location::caller())
    }

    fn with_caller(limiter: Limiter, caller: Caller) -> Self {
        let ticket = limiter.ticket(caller);
        Self {
            limiter,
            ticket,
            caller,
        }
    }

    /// Polls for a permit of one unit. If the request must wait, the task of the latest poll is woken when it is answered. The
    /// poll after an answer makes a new request.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::acquire`].
    pub fn poll_acquire(&mut self, cx: &mut Context<'_>) -> Poll<Result<Permit, AcquireError>> {
        self.ticket.poll(cx)
    }

    /// The limiter.
    #[must_use]
    pub const fn limiter(&self) -> &Limiter {
        &self.limiter
    }
}

impl Clone for PollLimiter {
    fn clone(&self) -> Self {
        Self::with_caller(self.limiter.clone(), self.caller)
    }
}
