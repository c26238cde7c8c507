use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::SharedLimiter;
use super::ask::TryAcquireShared;
use crate::acquire::{Acquire, AcquireExplained, AcquireOwned, Run, request_setters};
use crate::core::request::Caller;
use crate::decision::Decision;
use crate::error::{StoreError, TryAcquireError};
use crate::manager::RequestOptions;
use crate::permit::Permit;
use crate::priority::Priority;
use crate::snapshot::LimitStatus;

/// A request with more than a cost: what [`SharedLimiter::request`] returns.
///
/// ```
/// use std::time::Duration;
/// use tollgate::store::MemoryStore;
/// use tollgate::{Priority, SharedLimiter};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = SharedLimiter::new(MemoryStore::new(), "model", "2 concurrent per request and 1000 tokens/min")?;
/// let request = limiter.request().cost_of("tokens", 400).priority(Priority::HIGH).timeout(Duration::from_secs(5));
/// let permit = request.acquire().await?;
/// assert!(permit.settle_costs([("tokens", 250)])); // the store is told in the background
/// tokio::time::sleep(Duration::from_millis(1)).await;
/// assert_eq!(limiter.limits().await?[1].remaining, 750);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a request does nothing until `acquire` is called"]
pub struct SharedPermitRequest<'a> {
    limiter: &'a SharedLimiter,
    options: RequestOptions,
}

impl<'a> SharedPermitRequest<'a> {
    pub(super) fn new(limiter: &'a SharedLimiter, cost: u64, caller: Caller) -> Self {
        Self { limiter, options: RequestOptions::new(cost, caller) }
    }

    request_setters!(with requested_in);

    /// Waits for the permit. See [`SharedLimiter::acquire`].
    ///
    /// # Errors
    ///
    /// Those of [`SharedLimiter::acquire`], and [`AcquireError::TimedOut`](crate::AcquireError::TimedOut).
    pub fn acquire(self) -> Acquire<'a> {
        Acquire::new(&self.limiter.manager, self.options)
    }

    /// [`SharedPermitRequest::acquire`] as a future that borrows nothing.
    ///
    /// # Errors
    ///
    /// Those of [`SharedPermitRequest::acquire`].
    pub fn acquire_owned(self) -> AcquireOwned {
        AcquireOwned::new(Arc::clone(&self.limiter.manager), self.options)
    }

    /// Waits for the permit, and runs the future while it holds it. See [`SharedLimiter::run`].
    ///
    /// # Errors
    ///
    /// Those of [`SharedLimiter::run`].
    pub fn run<F: Future>(self, future: F) -> Run<F> {
        Run::new(self.acquire_owned(), future)
    }

    /// Takes what the request costs now, or nothing. See [`SharedLimiter::try_acquire`]. A priority and a timeout have no effect.
    ///
    /// # Errors
    ///
    /// Those of [`SharedLimiter::try_acquire`].
    pub fn try_acquire(self) -> TryAcquireShared {
        TryAcquireShared::new(Arc::clone(&self.limiter.manager), self.options)
    }

    /// [`SharedPermitRequest::acquire`], and what each limit said when it granted, in the reply that did, or in the latest denial before
    /// the request was refused. It says nothing of a permit that was granted [ahead](super::SharedLimiterBuilder::prefetch), or without
    /// the store.
    ///
    /// # Errors
    ///
    /// Those of [`SharedPermitRequest::acquire`].
    pub fn acquire_explained(self) -> AcquireExplained {
        AcquireExplained::new(Arc::clone(&self.limiter.manager), self.options)
    }

    /// [`SharedPermitRequest::try_acquire`], and what each limit said when it granted or denied. It says nothing if the store was
    /// not asked, because it does not answer or has granted the permit [ahead](super::SharedLimiterBuilder::prefetch).
    ///
    /// ```
    /// use tollgate::SharedLimiter;
    /// use tollgate::store::MemoryStore;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = SharedLimiter::new(MemoryStore::new(), "api", "5/min burst 5")?;
    /// let (answer, limits) = limiter.request().cost(3).try_acquire_explained().await;
    /// assert_eq!((answer.is_ok(), limits[0].capacity, limits[0].remaining), (true, 5, 2));
    /// let (answer, limits) = limiter.request().cost(3).try_acquire_explained().await;
    /// assert_eq!((answer.is_ok(), limits[0].remaining), (false, 2));
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_acquire_explained(
        self,
    ) -> impl Future<Output = (Result<Permit, TryAcquireError>, Vec<LimitStatus>)> + Send + use<> {
        self.try_acquire().explained()
    }

    /// What [`SharedPermitRequest::try_acquire`] would answer now; it takes nothing.
    ///
    /// # Errors
    ///
    /// A [`StoreError`].
    pub async fn check(self) -> Result<Decision, StoreError> {
        self.limiter.manager.check_with_store(&self.options).await
    }
}
