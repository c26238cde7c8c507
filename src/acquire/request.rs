use std::sync::Arc;
use std::time::Duration;

use super::blocking;
use super::explained::AcquireExplained;
use super::future::Acquire;
use super::owned::AcquireOwned;
use super::reservation::Reservation;
use super::run::Run;
use super::ticket::OwnedTicket;
use crate::core::request::Caller;
use crate::decision::Decision;
use crate::error::{AcquireError, TryAcquireError};
use crate::manager::{Manager, RequestOptions};
use crate::permit::Permit;
use crate::priority::Priority;
use crate::snapshot::LimitStatus;

/// A request with more than a cost: what [`Limiter::request`](crate::Limiter::request) returns.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, MaxConcurrency, Priority, Throttle};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Throttle::every(Duration::from_secs(60)).burst(3))?;
/// let timeout = Duration::from_secs(5);
/// let _permit = limiter.request().cost(3).priority(Priority::HIGH).timeout(timeout).acquire().await?;
///
/// // The next grant is a minute away, so the request fails at once, not after five seconds.
/// let error = limiter.request().timeout(timeout).acquire().await.unwrap_err();
/// assert_eq!(error.retry_after(), Some(Duration::from_secs(60)));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a request does nothing until it is awaited, or `acquire` is called"]
pub struct PermitRequest<'a> {
    manager: &'a Arc<Manager>,
    options: RequestOptions,
}

/// The setters that [`PermitRequest`] and [`KeyedPermitRequest`](crate::KeyedPermitRequest) share.
macro_rules! request_setters {
    (with requested_in) => {
        /// Sets where it counts as requested, in place of the line that made this: for a layer, where that was made.
        #[cfg(feature = "http")]
        pub(crate) fn requested_in(mut self, caller: crate::core::request::Caller) -> Self {
            self.options.caller = caller;
            self
        }

        $crate::acquire::request_setters!();
    };
    () => {
        /// Sets how many units the request takes: 1 to the smallest [capacity](crate::Limit::capacity) in the policy. Defaults
        /// to 1. Any other number is an error of `acquire`. See the [example](crate::PermitRequest#examples).
        pub fn cost(mut self, units: u64) -> Self {
            self.options.cost = units;
            self
        }

        /// Sets how many the request takes of a unit that limits of the policy [count](crate::Counts::Unit), which has an example:
        /// 0 to the smallest [capacity](crate::Limit::capacity) of these limits. A later number replaces an earlier one. A unit that
        /// no limit counts changes nothing.
        pub fn cost_of(mut self, unit: &str, cost: u64) -> Self {
            self.options.set_cost_of(unit, cost);
            self
        }

        /// Sets the priority of the request in the queue. Defaults to [`Priority::NORMAL`]. See [`Priority`] for an example.
        pub fn priority(mut self, priority: Priority) -> Self {
            self.options.priority = priority;
            self
        }

        /// Sets how long the request may wait, from the first poll on: 0 (it does not wait) to 100 years. Defaults to no timeout.
        ///
        /// A request that cannot be granted in time fails at once, as far as time alone decides that: by rates, windows, penalties and
        /// pauses with an end, behind up to 256 requests, if none of them gives up. A request waits if a release, the end of
        /// a pause without a duration, or a shared store may grant it in time. Refunds and settlements, which may come later, are not
        /// foreseen. A request that can be granted at the very end of its timeout is granted. See the [example](crate::PermitRequest#examples).
        pub fn timeout(mut self, timeout: Duration) -> Self {
            self.options.timeout = Some(timeout);
            self
        }
    };
}

pub(crate) use request_setters;

impl<'a> PermitRequest<'a> {
    #[inline]
    pub(crate) fn new(manager: &'a Arc<Manager>, cost: u64, caller: Caller) -> Self {
        Self { manager, options: RequestOptions::new(cost, caller) }
    }

    request_setters!(with requested_in);

    /// Sets the TTL of the permit, from its grant on: 1 ns (0 counts as 1) to the [TTL of the policy](crate::MaxConcurrency::ttl); a
    /// longer one has no effect. [`Permit::renew`] restarts it, and [`Permit::renew_for`] also changes it. Defaults to that of the
    /// policy.
    ///
    /// It holds from the poll that takes the permit; a future that [is not polled](Acquire#when-it-is-not-polled) keeps its grant
    /// for the TTL of the policy.
    ///
    /// Where the policy has no TTL, the request fails with [`AcquireError::NoTtl`] or [`TryAcquireError::NoTtl`]. A permit that holds
    /// no place has none.
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

    /// Delays the request by a random time of 0 to `max`, uniform, from the first poll on, **before** it asks. So clients that start at
    /// the same instant come one by one. A delay after the grant would not keep the rate: two grants far apart could then be used
    /// at the same instant. Defaults to no delay.
    ///
    /// During the delay the request is not in the queue, and its timeout has not begun. It needs a tokio runtime with timers
    /// ([`AcquireError::NoRuntime`]), unless it blocks its thread. [`PermitRequest::try_acquire`] does not wait for it.
    ///
    /// # Cancel safety
    ///
    /// As for [`Limiter::acquire`](crate::Limiter::acquire). A new call draws another delay.
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

    /// Waits for the permit. See [`Limiter::acquire`](crate::Limiter::acquire).
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::acquire`](crate::Limiter::acquire), and [`AcquireError::TimedOut`],
    /// [`AcquireError::TimeoutTooLong`] or [`AcquireError::NoTtl`].
    #[inline]
    pub fn acquire(self) -> Acquire<'a> {
        Acquire::new(self.manager, self.options)
    }

    /// [`PermitRequest::acquire`] as a future that borrows nothing. See [`Limiter::acquire_owned`](crate::Limiter::acquire_owned).
    ///
    /// # Errors
    ///
    /// Those of [`PermitRequest::acquire`].
    pub fn acquire_owned(self) -> AcquireOwned {
        AcquireOwned::new(Arc::clone(self.manager), self.options)
    }

    /// Joins the queue now, and not when a future is first polled. See [`Limiter::reserve`](crate::Limiter::reserve). The timeout
    /// counts from now on. A jitter has no effect.
    ///
    /// # Errors
    ///
    /// Those of [`PermitRequest::acquire`] that are known at once.
    pub fn reserve(mut self) -> Result<Reservation, AcquireError> {
        self.options.forgo_jitter();
        Reservation::new(Arc::clone(self.manager), self.options)
    }

    /// Waits for the permit, and runs the future while it holds it. See [`Limiter::run`](crate::Limiter::run).
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
    /// Those of [`Limiter::run`](crate::Limiter::run) and of [`PermitRequest::acquire`].
    pub fn run<F: Future>(self, future: F) -> Run<F> {
        Run::new(self.acquire_owned(), future)
    }

    /// Takes what the request costs now, or nothing. See [`Limiter::try_acquire`](crate::Limiter::try_acquire), and
    /// [`Counts`](crate::Counts) for an example. A priority, a timeout and a jitter have no effect.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::try_acquire_many`](crate::Limiter::try_acquire_many), [`TryAcquireError::MissingCost`] and
    /// [`TryAcquireError::NoTtl`].
    pub fn try_acquire(self) -> Result<Permit, TryAcquireError> {
        self.manager.try_request(&self.options)
    }

    /// [`PermitRequest::try_acquire`], with what each limit of the policy says right after the decision, so that nobody needs a second
    /// look, which would be late: for headers, say.
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
        self.manager.try_request_explained(&self.options)
    }

    /// [`PermitRequest::acquire_owned`], with what each limit of the policy said when the permit was granted, or the request refused.
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
    /// Those of [`PermitRequest::acquire`]. Of a timeout, it says what the request waited for.
    pub fn acquire_explained(self) -> AcquireExplained {
        AcquireExplained::new(Arc::clone(self.manager), self.options)
    }

    /// What [`PermitRequest::try_acquire`] would answer now; it takes nothing. See [`Limiter::check`](crate::Limiter::check).
    ///
    /// A request that does not say how many it takes of a unit is denied without a `retry_after`.
    pub fn check(self) -> Decision {
        self.manager.check(self.options.costs())
    }

    pub(crate) fn into_ticket(self) -> OwnedTicket {
        OwnedTicket::new(Arc::clone(self.manager), self.options)
    }

    /// Blocks the thread until it has the permit. See [`Limiter::blocking_acquire`](crate::Limiter::blocking_acquire).
    ///
    /// # Panics
    ///
    /// In a task, like the blocking functions of tokio: use `acquire` there, or `tokio::task::spawn_blocking`.
    ///
    /// # Errors
    ///
    /// Those of [`PermitRequest::acquire`]; [`AcquireError::NoRuntime`] only where
    /// [`Limiter::blocking_acquire`](crate::Limiter::blocking_acquire) says.
    #[track_caller]
    pub fn blocking_acquire(self) -> Result<Permit, AcquireError> {
        blocking::acquire(self.manager, self.options)
    }
}

/// [`PermitRequest::acquire`], so that a request can be awaited itself.
impl<'a> IntoFuture for PermitRequest<'a> {
    type Output = Result<Permit, AcquireError>;
    type IntoFuture = Acquire<'a>;

    fn into_future(self) -> Acquire<'a> {
        self.acquire()
    }
}
