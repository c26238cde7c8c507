//! Several limiters that are acquired together.

use std::borrow::Borrow;
use std::future::{Future, pending};
use std::panic::Location;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{Either, select, select_all};
use thiserror::Error;
use tokio::task::coop;
use tokio::time::Instant;

use crate::acquire::{AcquireOwned, PermitRequest, Reservation};
use crate::decision::Decision;
use crate::error::{AcquireError, RunError, TryAcquireError};
use crate::limiter::Limiter;
use crate::manager::{Awaited, Manager, RequestOptions, try_acquire_all};
use crate::permit::Permit;

/// How often a waiting group gives up its permit because another member denies. After that, the group acquires the members one
/// after the other and keeps each permit.
const OPTIMISTIC_ROUNDS: usize = 4;

/// Several limiters charged together, all or none: per client **and** per endpoint **and** in total.
///
/// All limiters are checked at one moment. If one denies, no other is charged, and the error names the one that denied. The
/// limits of one limiter are better combined as a [`Policy`](crate::Policy); a group is for limiters that are also used one by
/// one. A limiter that is listed twice is charged once.
///
/// # Order
///
/// A group that must wait joins the queue of the limiter that denied. When it is granted there, it tries the other limiters. If
/// one of those denies, the group [refunds](Permit::refund) the permit and joins the queue of the limiter that denied. So a
/// waiting group at first blocks no limiter that would admit other requests.
///
/// After a few failed attempts, the group waits for one limiter after the other, in the queue of each, and keeps each permit. All
/// groups use the same order of limiters, so they cannot deadlock, and each group is granted in the end.
///
/// The [TTL](crate::MaxConcurrency::ttl) of a permit counts from its delivery by the group. If a permit is reclaimed while the
/// group waits for others, the group acquires it again.
///
/// # Shared limiters
///
/// A [`SharedLimiter`](crate::SharedLimiter) cannot be a member. Each limiter of a store is a call of its own, so a group would be charged
/// by one before another one denies, and would need a refund. A store refunds a rate only as far as the refund can be
/// [proved](Permit::settle), and a SQL store does not refund a bucket at all: a group that is denied often would use up units that it
/// never got. Combine limits of a store as one [`Policy`](crate::Policy) of a shared limiter, which is charged in full or not at all.
/// Beside limits of this process, acquire the group first, and [refund](GroupPermit::refund) it if the shared limiter denies.
///
/// # Closing
///
/// When a member is [closed](Limiter::close), each waiting group request fails at once with [`AcquireError::Closed`] and the index
/// of that member, whichever member it waits for. When a member is [closed to new requests](Limiter::close_to_new), a group request
/// that waits in the queue of that member, or keeps its permit, goes on. It fails once it needs another place in that queue,
/// because another member denied.
///
/// [`LimiterGroup::close`] closes the members themselves.
///
/// # Examples
///
/// ```
/// use tollgate::{LimiterGroup, KeyedLimiter, Limiter, MaxConcurrency, Rate, TokenBucket};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let per_client = KeyedLimiter::builder(TokenBucket::new(Rate::per_minute(2), 2)).name("per client").build()?;
/// let per_endpoint = KeyedLimiter::builder(TokenBucket::new(Rate::per_minute(100), 100)).name("per endpoint").build()?;
/// let in_all = Limiter::builder(MaxConcurrency::new(50)).name("in all").build()?;
///
/// let group = LimiterGroup::new([per_client.limiter(&"alice")?, per_endpoint.limiter(&"/search")?, in_all.clone()]);
/// let _first = group.try_acquire()?;
/// let _second = group.acquire().await?;
/// let denied = group.try_acquire().unwrap_err();
/// assert_eq!((denied.member, denied.name.as_deref()), (0, Some("per client")));
/// assert_eq!(per_endpoint.check(&"/search", 1).remaining(), 98); // nothing was taken for the third
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct LimiterGroup {
    members: Vec<Limiter>,
}

/// The permits of all limiters of a group; dropping it **releases** them. [`LimiterGroup`] has an example.
#[derive(Debug)]
#[must_use = "the permits are released as soon as they are dropped"]
pub struct GroupPermit {
    permits: Vec<Permit>,
    group: LimiterGroup,
}

impl GroupPermit {
    /// The permits, in the order of the group.
    pub fn permits(&self) -> &[Permit] {
        &self.permits
    }

    /// The permits as separate guards, in the order of the group.
    #[must_use]
    pub fn into_permits(self) -> Vec<Permit> {
        self.permits
    }

    /// [Settles](Permit::settle) each permit. Returns whether all were live.
    #[must_use = "`false` means that a permit was not settled"]
    pub fn settle(self, actual_cost: u64) -> bool {
        self.end_each(|permit| permit.settle(actual_cost))
    }

    /// [Settles](Permit::settle_costs) each permit. Returns whether all were live.
    #[must_use = "`false` means that a permit was not settled"]
    pub fn settle_costs<'a>(
        self,
        actual: impl IntoIterator<Item = (&'a str, u64)> + Clone,
    ) -> bool {
        self.end_each(|permit| permit.settle_costs(actual.clone()))
    }

    /// [Refunds](Permit::refund) each permit. Returns whether all were live.
    #[must_use = "`false` means that a permit was not refunded"]
    pub fn refund(self) -> bool {
        self.end_each(Permit::refund)
    }

    /// Ends all permits, live or not. Returns whether all were live.
    fn end_each(self, end: impl Fn(Permit) -> bool) -> bool {
        let ended = self.permits.into_iter().map(end);
        ended.fold(true, |all, live| all & live)
    }

    /// Releases all permits; equivalent to `drop(permit)`.
    pub fn release(self) {
        drop(self);
    }

    /// Completes when one of the permits is reclaimed. Returns its index.
    async fn first_reclaim(&self) -> usize {
        let permits = self.permits.iter();
        first_of(permits.map(|permit| Box::pin(permit.reclaimed()))).await
    }

    fn reclaimed(&self, place: usize) -> GroupError<RunError> {
        self.group.error(
            place,
            RunError::Reclaimed {
                id: self.permits[place].id(),
            },
        )
    }
}

impl LimiterGroup {
    /// A group of limiters, given as values or as references. An empty group, which is the default,
    /// admits everything.
    pub fn new(members: impl IntoIterator<Item: Borrow<Limiter>>) -> Self {
        members.into_iter().fold(
            Self {
                members: Vec::new(),
            },
            Self::and,
        )
    }

    /// Adds a limiter. See [`LimiterGroup::new`].
    #[must_use]
    pub fn and(mut self, member: impl Borrow<Limiter>) -> Self {
        let member = member.borrow();
        let mut members = self.members.iter();
        if !members.any(|other| Arc::ptr_eq(other.manager(), member.manager())) {
            self.members.push(member.clone());
        }
        self
    }

    /// Takes one unit of every limiter now, or nothing.
    ///
    /// # Errors
    ///
    /// The error of [`Limiter::try_acquire`] from the first limiter that denies, with its index and name.
    #[track_caller]
    pub fn try_acquire(&self) -> Result<GroupPermit, GroupError<TryAcquireError>> {
        self.try_acquire_many(1)
    }

    /// [`LimiterGroup::try_acquire`] for a cost of several units of each.
    ///
    /// # Errors
    ///
    /// Those of [`LimiterGroup::try_acquire`] and of [`Limiter::try_acquire_many`].
    #[track_caller]
    pub fn try_acquire_many(&self, cost: u64) -> Result<GroupPermit, GroupError<TryAcquireError>> {
        self.request().cost(cost).try_acquire()
    }

    /// Waits until all limiters admit one unit at the same moment, in the [order](LimiterGroup#order) of each.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future refunds the permits that it holds and leaves the queue.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::acquire`], with the limiter that refused.
    #[track_caller]
    pub fn acquire(&self) -> GroupAcquire {
        self.request().acquire()
    }

    /// [`LimiterGroup::acquire`] for a cost of several units of each.
    ///
    /// # Errors
    ///
    /// Those of [`LimiterGroup::acquire`] and of [`Limiter::acquire_many`].
    #[track_caller]
    pub fn acquire_many(&self, cost: u64) -> GroupAcquire {
        self.request().cost(cost).acquire()
    }

    /// Starts a request with a cost, a priority or a timeout. See [`PermitRequest`](PermitRequest#examples) for an example.
    #[track_caller]
    pub fn request(&self) -> PermitRequest<&Self> {
        PermitRequest::new(self, 1, Location::caller())
    }

    /// Waits for a permit of one unit of each limiter, runs the future while it holds the permits, and releases them: see
    /// [`Limiter::run`]. If a permit is reclaimed meanwhile, the future is dropped. See [`PermitRequest`](PermitRequest#examples)
    /// for an example.
    ///
    /// # Cancel safety
    ///
    /// Dropping the returned future drops the given one, and then releases the permits, or leaves the queue.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::run`], with the limiter that refused or reclaimed its permit.
    #[track_caller]
    pub fn run<F: Future>(
        &self,
        future: F,
    ) -> impl Future<Output = Result<F::Output, GroupError<RunError>>> + use<F> {
        self.request().run(future)
    }

    async fn acquire_with(
        self,
        options: RequestOptions,
    ) -> Result<GroupPermit, GroupError<AcquireError>> {
        let deadline = options
            .timeout
            .and_then(|timeout| Instant::now().checked_add(timeout));
        let mut held = None::<HeldMember>;
        for _ in 0..OPTIMISTIC_ROUNDS {
            // A task that acquires in a loop must yield to other tasks.
            coop::consume_budget().await;
            let denied_by =
                match self.try_all(held.as_ref().map(|held| held.member), &options, true) {
                    Ok(permits) if held.as_ref().is_some_and(|held| !held.permit.renew()) => {
                        permits.into_iter().for_each(|permit| _ = permit.refund());
                        held = None;
                        continue;
                    }
                    Ok(mut permits) => {
                        if let Some(held) = held {
                            permits.insert(held.member, held.permit.keep());
                        }
                        return Ok(self.permit(permits));
                    }
                    Err(denied) => denied.member,
                };
            // The group holds no permit while it waits for another limiter.
            drop(held.take());
            held = Some(
                self.wait_for(denied_by, options.clone(), deadline, &[])
                    .await?,
            );
        }
        drop(held.take());
        self.acquire_one_by_one(options, deadline).await
    }

    /// Acquires the limiters in the order of their addresses, so a group that holds one waits only for a later one.
    ///
    /// The exception is a permit that was reclaimed meanwhile: the group acquires it again while it keeps the others. If groups
    /// deadlock because of that, they wait for a limiter with a TTL, so a reclaim ends the deadlock.
    async fn acquire_one_by_one(
        &self,
        options: RequestOptions,
        deadline: Option<Instant>,
    ) -> Result<GroupPermit, GroupError<AcquireError>> {
        let mut order: Vec<usize> = (0..self.members.len()).collect();
        order.sort_unstable_by_key(|&member| Arc::as_ptr(self.members[member].manager()));
        let mut held: Vec<HeldMember> = Vec::with_capacity(order.len());
        loop {
            held.retain(|held| held.permit.renew());
            let missing = order
                .iter()
                .find(|&&member| held.iter().all(|held| held.member != member));
            let Some(&member) = missing else { break };
            let granted = self
                .wait_for(member, options.clone(), deadline, &held)
                .await?;
            held.push(granted);
        }
        held.sort_unstable_by_key(|held| held.member);
        Ok(self.permit(held.into_iter().map(|held| held.permit.keep()).collect()))
    }

    /// Waits for one limiter, until the `deadline` of the whole request, or until another member is closed. `held` are the permits
    /// that the group keeps meanwhile.
    async fn wait_for(
        &self,
        member: usize,
        mut options: RequestOptions,
        deadline: Option<Instant>,
        held: &[HeldMember],
    ) -> Result<HeldMember, GroupError<AcquireError>> {
        if let Some(deadline) = deadline {
            options.timeout = Some(deadline.saturating_duration_since(Instant::now()));
        }
        let acquire = AcquireOwned::new(Arc::clone(self.members[member].manager()), options);
        match select(acquire, pin!(self.closing_of_another(member, held))).await {
            Either::Left((Ok(permit), _)) => Ok(HeldMember {
                member,
                permit: Reservation::granted(permit),
            }),
            Either::Left((Err(error), _)) => Err(self.error(member, error)),
            Either::Right((closed, _)) => Err(self.error(closed, AcquireError::Closed)),
        }
    }

    /// Completes when a member other than `awaited` is closed to the new request that the group must make there. Members whose
    /// permits are `held` need no new request. The queue of `awaited` reports its own closing.
    async fn closing_of_another(&self, awaited: usize, held: &[HeldMember]) -> usize {
        let is_held = |member| held.iter().any(|held| held.member == member);
        let others: Vec<usize> = (0..self.members.len())
            .filter(|member| *member != awaited)
            .collect();
        let closings = others.iter().map(|&member| {
            let closing = if is_held(member) {
                Awaited::Close
            } else {
                Awaited::CloseToNew
            };
            self.members[member].manager().watch(closing)
        });
        others[first_of(closings).await]
    }

    /// The decision of each limiter, in the order of the group, that [`LimiterGroup::try_acquire_many`] would make; takes
    /// nothing. Other calls may come between the decisions.
    pub fn check(&self, cost: u64) -> impl Iterator<Item = Decision> + '_ {
        self.members.iter().map(move |member| member.check(cost))
    }

    /// How long until all limiters admit `cost`: the longest [`retry_after`](Decision::retry_after) of the members. `None` when
    /// all admit it now, or when a member that denies has no `retry_after`.
    #[must_use]
    pub fn retry_after(&self, cost: u64) -> Option<Duration> {
        let denials = self.check(cost).filter(|decision| !decision.is_allowed());
        denials
            .map(|decision| decision.retry_after())
            .reduce(|one, other| Some(one?.max(other?)))
            .flatten()
    }

    /// The limiters, in order.
    #[must_use]
    pub fn members(&self) -> &[Limiter] {
        &self.members
    }

    /// [Closes](Limiter::close) each member, also for callers that use it outside this group: the members are shared handles. If a
    /// member is the [limiter of a key](crate::KeyedLimiter::limiter), only that key is closed.
    ///
    /// ```
    /// use tollgate::{Limiter, LimiterGroup, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (disk, network) = (Limiter::new(MaxConcurrency::new(2))?, Limiter::new(MaxConcurrency::new(8))?);
    /// let both = LimiterGroup::new([disk.clone(), network.clone()]);
    /// let permit = both.acquire().await?;
    /// tokio::spawn(async move { permit.release() });
    /// both.close();
    /// assert!(both.acquire().await.unwrap_err().is_closed() && network.is_closed());
    /// both.drained().await;
    /// assert_eq!((disk.snapshot().in_flight, network.snapshot().in_flight), (0, 0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn close(&self) {
        self.members.iter().for_each(Limiter::close);
    }

    /// [Closes each member to new requests](Limiter::close_to_new), also for callers outside this group. Waiting requests of a
    /// single member are served. A waiting request of a group is a new request to the members for which it does not wait, so it
    /// [fails](LimiterGroup#closing), unless it keeps their permits. See [`LimiterGroup::close`] for an example.
    pub fn close_to_new(&self) {
        self.members.iter().for_each(Limiter::close_to_new);
    }

    /// Whether any member was closed, so that the group refuses every new request. See [`LimiterGroup::close`] for an example.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.members.iter().any(Limiter::is_closed)
    }

    /// Waits until each member [was drained](Limiter::drained), one after the other. If all members are closed, no member is in
    /// use then. While a member is open, requests may come at any time, also before the others are drained. See
    /// [`LimiterGroup::close`] for an example.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped and the method called again at any time.
    pub async fn drained(&self) {
        for member in &self.members {
            member.drained().await;
        }
    }

    /// Tries all members except one. `waits` is whether the caller will wait if a member denies.
    fn try_all(
        &self,
        but: Option<usize>,
        options: &RequestOptions,
        waits: bool,
    ) -> Result<Vec<Permit>, GroupError<TryAcquireError>> {
        let places: Vec<usize> = (0..self.members.len())
            .filter(|place| Some(*place) != but)
            .collect();
        let managers: Vec<&Arc<Manager>> = places
            .iter()
            .map(|place| self.members[*place].manager())
            .collect();
        let granted = try_acquire_all(&managers, options.costs(), waits, options.caller)
            .map_err(|(index, error)| self.error(places[index], error))?;
        Ok(managers
            .into_iter()
            .zip(granted)
            .map(|(manager, granted)| Permit::new(manager, granted, options.cost))
            .collect())
    }

    fn error<E>(&self, member: usize, error: E) -> GroupError<E> {
        GroupError {
            member,
            name: self.members[member].manager().name().cloned(),
            error,
        }
    }

    fn permit(&self, permits: Vec<Permit>) -> GroupPermit {
        GroupPermit {
            permits,
            group: self.clone(),
        }
    }
}

/// Returns the index of the future that completes first. Never completes without futures.
async fn first_of(futures: impl Iterator<Item = impl Future + Unpin>) -> usize {
    let futures: Vec<_> = futures.collect();
    if futures.is_empty() {
        return pending().await;
    }
    select_all(futures).await.1
}

/// The permit of a member, refunded on drop like any reservation.
struct HeldMember {
    member: usize,
    permit: Reservation,
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

/// A request of all limiters of a [`LimiterGroup`].
impl PermitRequest<&LimiterGroup> {
    /// Waits until all limiters admit the request at the same moment. The timeout is for the whole wait. See
    /// [`LimiterGroup::acquire`].
    ///
    /// # Errors
    ///
    /// Those of [`PermitRequest::acquire`](crate::PermitRequest::acquire), with the limiter that refused.
    pub fn acquire(self) -> GroupAcquire {
        GroupAcquire {
            acquire: Box::pin(self.target.clone().acquire_with(self.options)),
        }
    }

    /// Takes the cost of the request from every limiter now, or nothing. See [`LimiterGroup::try_acquire`].
    ///
    /// # Errors
    ///
    /// Those of [`PermitRequest::try_acquire`](crate::PermitRequest::try_acquire), with the limiter that refused.
    pub fn try_acquire(self) -> Result<GroupPermit, GroupError<TryAcquireError>> {
        let permits = self.target.try_all(None, &self.options, false)?;
        Ok(self.target.permit(permits))
    }

    /// The decision of each limiter, in the order of the group, that [`LimiterGroup::try_acquire`] would make; takes nothing.
    /// Other calls may come between the decisions.
    pub fn check(&self) -> impl Iterator<Item = Decision> + '_ {
        self.target
            .members
            .iter()
            .map(|member| member.manager().check(self.options.costs()))
    }

    /// Waits for the permits, and runs the future while it holds them. See [`LimiterGroup::run`].
    ///
    /// # Errors
    ///
    /// Those of [`LimiterGroup::run`] and of [`LimiterGroup::acquire`].
    pub fn run<F: Future>(
        self,
        future: F,
    ) -> impl Future<Output = Result<F::Output, GroupError<RunError>>> + use<F> {
        let acquire = self.acquire();
        async move {
            let permit = acquire.await.map_err(|refused| GroupError {
                member: refused.member,
                name: refused.name,
                error: RunError::from(refused.error),
            })?;
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

impl Future for GroupAcquire {
    type Output = Result<GroupPermit, GroupError<AcquireError>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.acquire.as_mut().poll(cx)
    }
}

/// [`LimiterGroup::acquire`], so that a request can be awaited itself.
impl IntoFuture for PermitRequest<&LimiterGroup> {
    type Output = Result<GroupPermit, GroupError<AcquireError>>;
    type IntoFuture = GroupAcquire;

    fn into_future(self) -> GroupAcquire {
        self.acquire()
    }
}

debug_fields! { GroupAcquire }

/// Which limiter of a group refused, and why. [`LimiterGroup`] has an example. The error converts into the
/// error of that limiter, without the index and the name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{} refused", name.as_ref().map_or_else(|| format!("limiter {member} of the group"), |name| format!("the limiter `{name}`")))]
pub struct GroupError<E> {
    /// The index of the limiter in the [members](LimiterGroup::members), from 0.
    pub member: usize,
    /// The name of the limiter, if it has one.
    pub name: Option<Arc<str>>,
    /// Why the limiter refused.
    #[source]
    pub error: E,
}

macro_rules! of_the_member {
    ($($error:ident),*) => {$(
        /// Drops the index and the name of the limiter, for `?` in a function that returns the error of one limiter. To keep
        /// them, return the [`GroupError`], or match on its fields.
        impl From<GroupError<$error>> for $error {
            fn from(refused: GroupError<$error>) -> Self {
                refused.error
            }
        }

        impl GroupError<$error> {
            #[doc = concat!("[`", stringify!($error), "::retry_after`] of the limiter that refused; another one may need longer.")]
            #[must_use]
            pub const fn retry_after(&self) -> Option<Duration> {
                self.error.retry_after()
            }

            #[doc = concat!("Whether the limiter that refused was closed. See [`", stringify!($error), "::is_closed`].")]
            #[must_use]
            pub const fn is_closed(&self) -> bool {
                self.error.is_closed()
            }
        }
    )*};
}

of_the_member!(AcquireError, TryAcquireError, RunError);
