use std::fmt;
use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{Either, select, select_all};

use super::{GroupError, GroupPermit, LimiterGroup};
use crate::acquire::request_setters;
use crate::decision::Decision;
use crate::error::{AcquireError, RunError, TryAcquireError};
use crate::manager::RequestOptions;
use crate::priority::Priority;

/// A request to all limiters of a group with more than a cost: what [`LimiterGroup::request`] returns.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, LimiterGroup, MaxConcurrency, Throttle};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let places = Limiter::new(MaxConcurrency::new(8))?;
/// let pace = Limiter::new(Throttle::every(Duration::from_secs(60)))?;
/// let group = LimiterGroup::new([places.clone(), pace]);
/// let request = || group.request().timeout(Duration::from_secs(5));
/// assert_eq!(request().run(async { 6 * 7 }).await?, 42);
/// // The next unit of the pace is a minute away, so the request fails at once, and takes no place.
/// let error = request().await.unwrap_err();
/// assert_eq!((error.member, error.retry_after()), (1, Some(Duration::from_secs(60))));
/// assert_eq!(places.snapshot().in_flight, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a request does nothing until it is awaited, or `acquire` is called"]
pub struct GroupRequest {
    pub(super) group: LimiterGroup,
    pub(super) options: RequestOptions,
}

/// A future that waits for the permits of a group. [`LimiterGroup::acquire`], which has an example, returns it.
///
/// It borrows nothing, so that it can be spawned, or kept in a struct.
///
/// # Cancel safety
///
/// Dropping it refunds the permits that it holds and leaves the queue.
#[must_use = "futures do nothing unless polled"]
pub struct GroupAcquire {
    acquire: Pin<Box<dyn Future<Output = Result<GroupPermit, GroupError<AcquireError>>> + Send>>,
}

impl GroupRequest {
    request_setters!();

    /// Waits until all limiters admit the request at the same moment. The timeout is for all of it. See [`LimiterGroup::acquire`].
    ///
    /// # Errors
    ///
    /// Those of [`PermitRequest::acquire`](crate::PermitRequest::acquire), with the limiter that refused.
    pub fn acquire(self) -> GroupAcquire {
        let Self { group, options } = self;
        GroupAcquire { acquire: Box::pin(group.acquire_with(options)) }
    }

    /// Takes what the request costs of each limiter now, or nothing. See [`LimiterGroup::try_acquire`].
    ///
    /// # Errors
    ///
    /// Those of [`PermitRequest::try_acquire`](crate::PermitRequest::try_acquire), with the limiter that refused.
    pub fn try_acquire(self) -> Result<GroupPermit, GroupError<TryAcquireError>> {
        let permits = self.group.try_all(None, &self.options, false);
        permits.map(|permits| self.group.permit(permits)).map_err(|(member, error)| self.group.error(member, error))
    }

    /// The decision of each limiter, in the order of the group, as [`GroupRequest::try_acquire`] would make it; takes nothing. Other
    /// calls may come between the decisions.
    pub fn check(&self) -> impl Iterator<Item = Decision> + '_ {
        self.group.members.iter().map(|member| member.manager().check(self.options.costs()))
    }

    /// Waits for the permits, and runs the future while it holds them. See [`LimiterGroup::run`].
    ///
    /// # Errors
    ///
    /// Those of [`LimiterGroup::run`] and of [`GroupRequest::acquire`].
    pub fn run<F: Future>(self, future: F) -> impl Future<Output = Result<F::Output, GroupError<RunError>>> + use<F> {
        let acquire = self.acquire();
        async move {
            let permit = acquire.await.map_err(|error| error.map(RunError::from))?;
            if let Some(place) = permit.permits.iter().position(|permit| !permit.is_live()) {
                return Err(permit.reclaimed(place)); // its TTL passed between its grant and this poll
            }
            // Dropped before the permits, so that the places are free only when the work is really over.
            let work = pin!(future);
            match select(work, pin!(permit.first_reclaim())).await {
                Either::Left((output, _)) => Ok(output),
                Either::Right((place, _)) => Err(permit.reclaimed(place)),
            }
        }
    }
}

impl GroupPermit {
    /// Completes when one of the permits is reclaimed: the place of the first.
    async fn first_reclaim(&self) -> usize {
        let reclaims: Vec<_> = self.permits.iter().map(|permit| Box::pin(permit.reclaimed())).collect();
        if reclaims.is_empty() { pending().await } else { select_all(reclaims).await.1 }
    }

    fn reclaimed(&self, place: usize) -> GroupError<RunError> {
        self.group.error(place, RunError::Reclaimed { id: self.permits[place].id() })
    }
}

impl Future for GroupAcquire {
    type Output = Result<GroupPermit, GroupError<AcquireError>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.acquire.as_mut().poll(cx)
    }
}

/// [`GroupRequest::acquire`], so that a request can be awaited itself.
impl IntoFuture for GroupRequest {
    type Output = Result<GroupPermit, GroupError<AcquireError>>;
    type IntoFuture = GroupAcquire;

    fn into_future(self) -> GroupAcquire {
        self.acquire()
    }
}

impl fmt::Debug for GroupAcquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupAcquire").finish_non_exhaustive()
    }
}
