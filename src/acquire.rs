//! How a caller requests a permit, and waits for it: as a future, or blocking its thread.

mod future;
mod ticket;

use std::hash::Hash;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::Instant;

use self::ticket::Ticket;
use crate::contain_panic::contain_panic;
use crate::core::request::Caller;
use crate::error::AcquireError;
use crate::flow::FlowId;
use crate::manager::{Manager, RequestOptions};
use crate::permit::Permit;
use crate::priority::Priority;

pub use self::future::{
    Acquire, AcquireExplained, AcquireOwned, Reservation, Run, TryAcquireShared,
};
pub(crate) use self::ticket::{OwnedTicket, random_up_to};

/// A request with more than a cost. `request()` of each limiter returns it. `T` is the target of the request: a
/// [limiter](crate::Limiter::request), a [key of a keyed limiter](crate::KeyedLimiter::request), a [shared
/// limiter](crate::SharedLimiter::request), or a [group](crate::LimiterGroup::request).
///
/// The options are the same for all. Below them, a block of methods for each target lists what its request can do, with the types
/// of its answers: all can `acquire`, `try_acquire`, `check` and `run`; a limiter and a key can also `reserve` and
/// `blocking_acquire`; a limiter has two more options, `ttl` and `jitter`.
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
///
/// A key with a timeout, and a group:
///
/// ```
/// use std::time::Duration;
/// use tollgate::{KeyedLimiter, Limiter, LimiterGroup, MaxConcurrency, Priority, Throttle};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let per_host = KeyedLimiter::new(Throttle::every(Duration::from_secs(1)).burst(3))?;
/// let request = per_host.request(&"a").cost(3).priority(Priority::HIGH).timeout(Duration::from_secs(5));
/// let _permit = request.acquire().await?;
///
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
///
/// A key in a store, which is settled by its unit:
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
/// assert!(permit.settle_costs([("tokens", 250)])); // the store gets it in the background
/// tokio::time::sleep(Duration::from_millis(1)).await;
/// assert_eq!(limiter.limits().await?[1].remaining, 750);
/// # Ok(())
/// # }
/// ```
// Each target has its own block of methods instead of a trait, so that the signatures in the docs have plain types.
#[derive(Clone)]
#[must_use = "a request does nothing until it is awaited, or `acquire` is called"]
pub struct PermitRequest<T> {
    pub(crate) target: T,
    pub(crate) options: RequestOptions,
}

impl<T> PermitRequest<T> {
    #[inline]
    pub(crate) fn new(target: T, cost: u64, caller: Caller) -> Self {
        Self {
            target,
            options: RequestOptions::new(cost, caller),
        }
    }

    setters! {
        /// Sets how many units the request takes: 1 to the smallest [capacity](crate::Limit::capacity) in the policy. Defaults
        /// to 1. `acquire` fails with any other number. See the [example](crate::PermitRequest#examples).
        pub cost(units: u64) => options.cost = units;
    }

    /// Sets the cost in a unit that limits of the policy [count](crate::Counts::Unit), which has an example: 0 to the smallest
    /// [capacity](crate::Limit::capacity) of these limits. A later number replaces an earlier one. A unit that no limit counts
    /// changes nothing.
    pub fn cost_of(mut self, unit: &str, cost: u64) -> Self {
        self.options.set_cost_of(unit, cost);
        self
    }

    setters! {
        /// Sets the priority of the request in the queue. Defaults to [`Priority::NORMAL`]. See [`Priority`] for an example.
        pub priority(priority: Priority) => options.priority = priority;

        /// Sets how long the request may wait, from the first poll on: 0 (it does not wait) to 100 years. Defaults to no timeout.
        ///
        /// A request fails at once if time alone shows that it cannot be granted in time. Time alone decides for rates, windows,
        /// penalties and pauses with an end, behind up to 256 requests, if none of them gives up. A request waits if a release, the end
        /// of a pause without a duration, or a shared store may grant it in time. Refunds and settlements, which may come later, are
        /// not foreseen. A request that can be granted at the very end of its timeout is granted. See the
        /// [example](crate::PermitRequest#examples).
        pub timeout(timeout: Duration) => options.timeout = Some(timeout);
    }
}

/// Flows: requests that share a limiter fairly with those of other flows.
///
/// Without flows, requests wait in one line, and the tenant that asks for the most gets the most: 10,000 requests of one tenant delay
/// every other tenant. With a flow for each tenant, the next grant goes to
///
/// 1. the flow whose permits hold the fewest units in flight (by the first [`MaxConcurrency`](crate::MaxConcurrency) of the policy),
/// 2. of these, the flow that was granted the fewest units (by [`cost`](PermitRequest::cost)) since they both wait,
/// 3. of these, the flow whose next request came first.
///
/// Both numbers are divided by the weight of the flow. So flows get equal numbers of places for equal times, however long each
/// holds one, and equal numbers of units of a rate. What a flow does not use goes to the others: nothing is set aside. A flow that
/// has not waited for a while has no claim to more than its share, and pays for no more than its latest grant of the time before
/// others came.
///
/// [Priorities](crate::Priority) rank above flows: the rule decides between requests of the same priority. All requests without a
/// flow form one more flow, of weight 1. A request whose turn has come while some units are free, but too few for its cost, is not
/// passed by other flows: large costs do not starve.
///
/// A flow needs no set-up. The limiter forgets it once no request of it waits, no permit of it is in flight, and it would be served as
/// a new flow would be. Up to 1,024 flows that only wait to be forgotten are remembered. A permit of a flow cannot be
/// [split](crate::Permit::split).
///
/// The rule is that of max-min fairness for units in flight, and of start-time fair queuing (Goyal, Vin and Cheng, 1996) for grants.
impl<T> PermitRequest<T> {
    /// Sets the flow of the request: any value that can be hashed, such as the name of a tenant. Equal values name the same flow of a
    /// limiter, for as long as the process runs. By default, a request has no flow.
    ///
    /// ```
    /// use tollgate::{Limiter, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(1))?;
    /// let permit = limiter.request().flow("flooding").acquire().await?;
    /// let flood: Vec<_> = (0..1_000).map(|_| limiter.request().flow("flooding").reserve()).collect::<Result<_, _>>()?;
    /// let quiet = limiter.request().flow("quiet").reserve()?;
    /// drop(permit);
    /// let _permit = quiet.await?; // although it came last
    /// assert_eq!(limiter.snapshot().queued, flood.len() as u64);
    /// # Ok(())
    /// # }
    /// ```
    pub fn flow(mut self, flow: impl Hash) -> Self {
        self.options.set_flow(FlowId::of(flow), None);
        self
    }

    /// Sets the flow of the request, and a parent that the flow is within. The parents share first, with each other and with the flows
    /// that have no parent; then the flows of a parent share what it gets. So a tenant gets no more by using many keys. The same value
    /// names another flow within another parent.
    ///
    /// ```
    /// # use tollgate::{Limiter, MaxConcurrency};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(2))?;
    /// let request = |tenant, user| limiter.request().flow_within(tenant, user);
    /// let _permit = request("a", 1).acquire().await?;
    /// let permit = request("b", 1).acquire().await?;
    /// let third = request("a", 2).reserve()?;
    /// let fourth = request("b", 1).reserve()?;
    /// drop(permit);
    /// let _permit = fourth.await?; // "a" holds a place already, although its user 2 holds none
    /// assert_eq!((limiter.snapshot().queued, third.ready_in()), (1, None));
    /// # Ok(())
    /// # }
    /// ```
    pub fn flow_within(mut self, parent: impl Hash, flow: impl Hash) -> Self {
        let parent = FlowId::of_parent(parent);
        let flow = parent.with(flow);
        self.options.set_flow(flow, Some(parent));
        self
    }

    /// Sets the weight of the request's flow among those that share with it: 1 to 1,000,000. Defaults to 1. A flow of weight 3 gets
    /// three times as much as one of weight 1. The latest request of a flow decides its weight. Without a flow, it has no effect. The
    /// request fails with [`AcquireError::WeightOutOfRange`] if it is out of range.
    ///
    /// ```
    /// # use tollgate::{AcquireError, Limiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new("100/s")?;
    /// let _permit = limiter.request().flow("paying").weight(3).acquire().await?;
    /// let error = limiter.request().flow("free").weight(0).acquire().await.unwrap_err();
    /// assert_eq!(error, AcquireError::WeightOutOfRange { weight: 0, max: 1_000_000 });
    /// # Ok(())
    /// # }
    /// ```
    pub fn weight(mut self, weight: u64) -> Self {
        self.options.set_weight(weight);
        self
    }

    /// Sets the weight of the [parent](PermitRequest::flow_within) of the request's flow, like [`PermitRequest::weight`].
    pub fn parent_weight(mut self, weight: u64) -> Self {
        self.options.set_parent_weight(weight);
        self
    }
}

debug_fields! { [T] PermitRequest<T>, |request| options = request.options }

/// Blocks the thread until the request is answered, so its ticket is never given up.
#[track_caller]
pub(crate) fn blocking_acquire(
    manager: &Arc<Manager>,
    mut options: RequestOptions,
) -> Result<Permit, AcquireError> {
    refuse_to_block_tasks();
    check_clock()?;
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    if let Some(max) = options.jitter() {
        thread::sleep(random_up_to(max));
        options.forgo_jitter();
    }
    let mut ticket = Ticket::new(RequestOptions {
        blocking: true,
        ..options
    });
    loop {
        if let Poll::Ready(answer) = ticket.poll_with(manager, &waker) {
            return answer;
        }
        let Some(id) = ticket.queued() else { continue };
        // An answer that comes before the park leaves a token, so that the park returns at once.
        match manager.run_due_on_blocked_thread(id) {
            Some(at) => thread::park_timeout(at.saturating_duration_since(Instant::now())),
            None => thread::park(),
        }
    }
}

/// Refuses the request if the time cannot be read. Tokio's clock panics in a thread whose thread-locals are gone, if a clock was
/// ever paused in this process (with tokio's feature `test-util`).
pub(crate) fn check_clock() -> Result<(), AcquireError> {
    if Handle::try_current()
        .err()
        .is_none_or(|error| !error.is_thread_local_destroyed())
    {
        return Ok(());
    }
    let mut read = Err(AcquireError::NoRuntime);
    contain_panic(|| {
        Instant::now();
        read = Ok(());
    });
    read
}

/// Panics if the thread drives tasks of a runtime. Blocking such a thread stops its tasks, possibly for ever. Only tokio knows
/// which threads these are, and its own blocking calls panic there.
///
/// The check is made only inside a runtime. In the destructor of a thread-local, the thread-locals that tokio needs may be gone.
/// Tokio would then panic, which aborts the process in a destructor.
#[track_caller]
fn refuse_to_block_tasks() {
    if Handle::try_current().is_ok() {
        drop(Mutex::const_new(()).blocking_lock());
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
