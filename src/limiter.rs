//! The handle of one limiter, and how callers ask it for permits.

mod any;
mod control;
mod poll_limiter;

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::sync::Arc;

use crate::acquire::{Acquire, AcquireOwned, PermitRequest, Reservation, Run};
use crate::core::costs::Costs;
use crate::decision::Decision;
use crate::error::{AcquireError, TryAcquireError};
use crate::manager::Manager;
use crate::permit::Permit;
use crate::snapshot::{LimitStatus, LimiterSnapshot};

pub use any::AnyLimiter;
pub(crate) use any::Handle;
pub use poll_limiter::PollLimiter;

/// An async rate limiter and concurrency limiter for one [`Policy`](crate::Policy). Clones share its state.
///
/// # Order
///
/// A request that need not wait is granted at once. Any other joins the queue: ordered by [priority](crate::Priority), and by
/// arrival within one priority (FIFO). A new request never overtakes a waiting one of its own or a higher priority. The front of
/// the queue is always served first, whatever its cost, so that small requests do not starve a large one.
///
/// # Runtimes
///
/// A limiter can be built anywhere, also in a `static`. While nothing waits it runs no task and no timer. The first request that
/// must wait, or the first permit with a TTL, starts one task with one timer in the caller's tokio runtime, for all waiters. When
/// time matters to a request in another runtime, it starts a task there too, so that no request depends on a runtime other than
/// its own. (The timer for a permit that is released before its TTL is not stopped; it may fire once.)
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
    /// A future that is kept but never polled may have been granted a permit, which then [stays in use](Acquire).
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
    pub fn acquire_many(&self, cost: u64) -> Acquire<'_> {
        PermitRequest::new(&self.manager, cost, Location::caller()).acquire()
    }

    /// [`Limiter::acquire`] as a future that borrows nothing: it can be spawned, or kept in a struct. It takes one more atomic
    /// write than [`Limiter::acquire`] when it is made, and one when it is dropped.
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

    /// Takes a turn for one unit now, to be used later: the [`Reservation`] says when that is, and is awaited for the permit. (Like
    /// `Reserve` of Go's *x/time/rate*; but the limits are charged when the turn comes, so that none is exceeded in any span.)
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
    pub fn request(&self) -> PermitRequest<'_> {
        PermitRequest::new(&self.manager, 1, Location::caller())
    }

    /// Takes one unit now, or nothing. It does not wait, and is denied while other requests wait.
    ///
    /// # Errors
    ///
    /// [`TryAcquireError::Denied`] with the [`Decision`], which names the limit that denied and says when to retry;
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
    pub fn try_acquire(&self) -> Result<Permit, TryAcquireError> {
        self.try_acquire_many(1)
    }

    /// [`Limiter::try_acquire`] for `cost` units: 1 to the smallest [capacity](crate::Limit::capacity) in the policy. It takes all of
    /// them or none. See [`Throttle::burst`](crate::Throttle::burst) for an example.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::try_acquire`]; [`TryAcquireError::ExceedsLimit`] for a cost above that capacity;
    /// [`TryAcquireError::ZeroCost`].
    #[inline]
    #[track_caller]
    pub fn try_acquire_many(&self, cost: u64) -> Result<Permit, TryAcquireError> {
        self.manager.try_acquire(cost, Location::caller())
    }

    /// [`Limiter::acquire`] for a thread outside the runtime: blocks the thread until it has the permit.
    ///
    /// The thread waits in the same queue as tasks do. It needs no runtime: at the front of the queue the thread runs the timer
    /// itself. A thread behind a task depends on that task's runtime, which must be running.
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
    /// Those of [`Limiter::acquire`] except [`AcquireError::NoRuntime`], which it returns in one case: in the destructor of a
    /// thread-local, if tokio's clock was ever paused in the process (its feature `test-util`). Tokio cannot read it there.
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

    /// What [`Limiter::try_acquire_many`] would answer now; it takes nothing. (The `check` of the crate *governor* takes a unit.)
    /// See [`Decision`] for an example.
    ///
    /// A closed limiter denies. So does any limiter for a cost of zero, or one above the smallest
    /// [capacity](crate::Limit::capacity) in the policy. These denials have no `retry_after`.
    pub fn check(&self, cost: u64) -> Decision {
        self.manager.check(Costs::plain(cost))
    }

    /// The units that one request that does not wait would get now: the largest cost that [`Limiter::try_acquire_many`] would be
    /// granted. It takes nothing. 0 while the limiter is closed or paused, or requests wait.
    ///
    /// It is at most the smallest [capacity](crate::Limit::capacity) in the policy, which for a concurrency that
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
    pub fn available(&self) -> u64 {
        self.manager.available()
    }

    /// Waits for a permit of one unit, runs the future while it holds the permit, and releases it. If the permit is reclaimed
    /// meanwhile, the future is dropped.
    ///
    /// The returned future borrows nothing but what the given one borrows, so that it can be spawned.
    ///
    /// # Cancel safety
    ///
    /// Dropping the returned future drops the given one, and then releases the permit or leaves the queue.
    ///
    /// # Errors
    ///
    /// [`RunError::Acquire`](crate::RunError::Acquire) with an error of [`Limiter::acquire`]: the future was never polled.
    /// [`RunError::Reclaimed`](crate::RunError::Reclaimed): the TTL passed before the future completed, or before it was first
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
    pub fn run<F: Future>(&self, future: F) -> Run<F> {
        self.request().run(future)
    }

    /// A function that [runs](Limiter::run) `work` under a permit of one unit, each time that it is called.
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
    pub fn wrap<T, F: Future, W: Fn(T) -> F>(&self, work: W) -> impl Fn(T) -> Run<F> + use<T, F, W> {
        let (limiter, caller) = (self.clone(), Location::caller());
        move |argument| PermitRequest::new(&limiter.manager, 1, caller).run(work(argument))
    }

    /// What each limit of the policy says now. A request can get it [with its permit](PermitRequest::acquire_explained), as of its
    /// grant.
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
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("name", &self.name()).field("snapshot", &self.snapshot()).finish_non_exhaustive()
    }
}
