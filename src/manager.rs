//! The manager of one limiter: a schedule under a mutex, and whoever acts for it.
//!
//! Most is done in place, by the caller who brings the news: an `acquire` that need not wait is decided by its caller, a
//! release serves those who wait. That is the *in* and the *release* channel with no task switch between: the queue is the
//! first, the lock is what a message would go through. What nobody brings, the passing of time, is the business of the
//! [driver](crate::driver), a task in the runtime of those who wait.

use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::Instant;
use uuid::Uuid;

use crate::arena::Key;
use crate::clock::Clock;
use crate::decision::Decision;
use crate::driver::{Post, drive};
use crate::error::{AcquireError, TryAcquireError};
use crate::gate::Admission;
use crate::lease::Lease;
use crate::observe::{Event, Observer};
use crate::permit::Permit;
use crate::queue::{Priority, Request};
use crate::schedule::{Effects, Outcome, Schedule};
use crate::snapshot::Snapshot;
use crate::strategy::{MAX_SPAN_NANOS, Moment};

/// What a caller asks for, before it is known when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    pub(crate) cost: u64,
    pub(crate) timeout: Option<Duration>,
    pub(crate) priority: Priority,
    pub(crate) location: &'static Location<'static>,
    /// The caller blocks his own thread, and keeps the time there when he is at the front.
    pub(crate) on_own_thread: bool,
}

/// What became of an order.
#[derive(Debug)]
pub(crate) enum Begun {
    Permit(Permit),
    Queued(Key),
}

#[derive(Debug)]
pub(crate) struct Manager {
    desk: Mutex<Desk>,
    /// Wakes all drivers before their timers do.
    bell: Arc<Notify>,
    drained: Notify,
    /// The random part of permit ids.
    seed: u64,
    holds_places: bool,
    name: Option<Box<str>>,
    observer: Observer,
}

#[derive(Debug)]
struct Desk {
    schedule: Schedule,
    clock: Clock,
    /// The runtimes that have a driver. Mostly one; a limiter in a `static` may see several, and the first need not be the
    /// one that is running.
    drivers: Vec<runtime::Id>,
    /// Runtimes in which the driver panicked: they have no timers.
    unusable: Vec<runtime::Id>,
    /// Every driver wakes by then at the latest. [`Moment::NEVER`] when there is none.
    armed: Moment,
}

/// What must be done so that somebody wakes when time matters next.
enum Arm {
    Nothing,
    Ring,
    Start(Handle),
}

impl Desk {
    /// Now, where it matters.
    fn now(&mut self) -> (Moment, Option<Instant>) {
        if !self.schedule.follows_time() {
            return (Moment::START, None);
        }
        let (moment, instant) = self.clock.now();
        (moment, Some(instant))
    }

    fn arm(&mut self) -> Arm {
        let next = self.schedule.next_wake();
        if next >= self.armed {
            // Nothing is left to wake for. Of a lease that came back in time, the timer stays: stopping and starting it for
            // each would cost more than all the rest, and it fires once at most.
            if next == Moment::NEVER && self.armed != Moment::NEVER && !self.schedule.gate().leases_permits() {
                self.armed = Moment::NEVER;
                return Arm::Ring;
            }
            return Arm::Nothing;
        }
        if self.drivers.is_empty() {
            // Outside every runtime nobody is found; whoever comes next does what is due by then.
            return self.recruit().ok().flatten().map_or(Arm::Nothing, Arm::Start);
        }
        self.armed = next;
        Arm::Ring
    }

    /// Makes sure that a driver serves the caller; hands out the runtime in which one is to be started.
    ///
    /// Where no time matters, a driver in another runtime will do. Otherwise the caller's gets one of its own: the other may
    /// be alive and yet not be run.
    fn recruit(&mut self) -> Result<Option<Handle>, AcquireError> {
        if !self.drivers.is_empty() && !self.schedule.follows_time() {
            return Ok(None);
        }
        match Handle::try_current() {
            Ok(handle) if self.drivers.contains(&handle.id()) => Ok(None),
            Ok(handle) if !self.unusable.contains(&handle.id()) => {
                self.drivers.push(handle.id());
                Ok(Some(handle))
            }
            _ if self.drivers.is_empty() => Err(AcquireError::NoRuntime),
            _ => Ok(None),
        }
    }
}

impl Manager {
    pub(crate) fn new(schedule: Schedule, clock: Clock, holds_places: bool, name: Option<Box<str>>, observer: Observer) -> Self {
        let desk = Desk { schedule, clock, drivers: Vec::new(), unusable: Vec::new(), armed: Moment::NEVER };
        Self {
            desk: Mutex::new(desk),
            bell: Arc::new(Notify::new()),
            drained: Notify::new(),
            seed: Uuid::new_v4().as_u64_pair().0,
            holds_places,
            name,
            observer,
        }
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(crate) fn try_acquire(
        self: &Arc<Self>,
        cost: u64,
        location: &'static Location<'static>,
    ) -> Result<Permit, TryAcquireError> {
        let mut desk = self.lock();
        let (now, instant) = desk.now();
        let mut effects = Effects::default();
        let answer = desk.schedule.try_acquire(now, cost, location, &mut effects);
        self.settle(desk, effects);
        answer.map(|admission| self.permit(admission, cost, instant))
    }

    /// Takes a permit, or a place in the queue: `waker` is woken when [`Manager::poll`] has the answer.
    pub(crate) fn begin(self: &Arc<Self>, order: &Order, waker: &Waker) -> Result<Begun, AcquireError> {
        let &Order { cost, timeout, priority, location, on_own_thread } = order;
        let timeout = timeout.map(checked_timeout).transpose()?;
        let mut desk = self.lock();
        let (mut now, instant) = desk.now();
        if timeout.is_some() && instant.is_none() {
            now = desk.clock.now().0;
        }
        let deadline = timeout.map_or(Moment::NEVER, |nanos| now.plus(nanos));
        let request = Request { cost, priority, deadline, location, on_own_thread };
        let mut effects = Effects::default();
        let mut outcome = desk.schedule.request(now, &request, waker, &mut effects);
        let mut driver = None;
        if let Ok(Outcome::Queued(key)) = outcome
            && !on_own_thread
        {
            match desk.recruit() {
                Ok(found) => driver = found,
                Err(error) => {
                    desk.schedule.abandon(now, key, &mut effects);
                    outcome = Err(error);
                }
            }
        }
        self.settle(desk, effects);
        self.start(driver);
        outcome.map(|outcome| match outcome {
            Outcome::Admitted(admission) => Begun::Permit(self.permit(admission, cost, instant)),
            Outcome::Queued(key) => Begun::Queued(key),
        })
    }

    /// The answer to a queued order, if there is one; then the key is spent.
    pub(crate) fn poll(self: &Arc<Self>, key: Key, order: &Order, waker: &Waker) -> Option<Result<Permit, AcquireError>> {
        let mut desk = self.lock();
        let mut effects = Effects::default();
        let mut answer = desk.schedule.poll(key, waker, &mut effects);
        let mut driver = None;
        if answer.is_none() && !order.on_own_thread {
            // The driver may have gone with its runtime, or the caller to another one.
            match desk.recruit() {
                Ok(found) => driver = found,
                Err(error) => {
                    let now = desk.now().0;
                    desk.schedule.abandon(now, key, &mut effects);
                    answer = Some(Err(error));
                }
            }
        }
        let follows_time = desk.schedule.gate().follows_time();
        let granted_at = match &answer {
            Some(Ok(admission)) if follows_time => Some(desk.clock.instant(admission.at)),
            _ => None,
        };
        self.settle(desk, effects);
        self.start(driver);
        answer.map(|answer| answer.map(|admission| self.permit(admission, order.cost, granted_at)))
    }

    /// The owner of a queued order gives it up.
    pub(crate) fn abandon(self: &Arc<Self>, key: Key) {
        self.act(|schedule, now, effects| schedule.abandon(now, key, effects));
    }

    pub(crate) fn release(self: &Arc<Self>, fence: u64, cost: u64, lease: Option<Key>) {
        let mut desk = self.lock();
        // Most often nobody waits: then time does not matter to a release.
        let now = if desk.schedule.is_idle() { Moment::START } else { desk.now().0 };
        let mut effects = Effects::default();
        desk.schedule.release(now, fence, cost, lease, &mut effects);
        self.settle(desk, effects);
    }

    pub(crate) fn close(self: &Arc<Self>) {
        self.act(Schedule::close);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().schedule.is_closed()
    }

    pub(crate) async fn drained(&self) {
        loop {
            let drained = self.drained.notified(); // before the look: a drain between the two would be missed
            if self.lock().schedule.is_drained() {
                return;
            }
            drained.await;
        }
    }

    pub(crate) fn renew(self: &Arc<Self>, key: Key, fence: u64) -> bool {
        self.act(|schedule, now, _| schedule.gate().renew(key, fence, now))
    }

    /// When a live permit expires; `None` when it is not live.
    pub(crate) fn expires_at(&self, key: Key, fence: u64) -> Option<Instant> {
        let mut desk = self.lock();
        let now = desk.now().0;
        let expires_at = desk.schedule.gate().live_lease(key, fence, now)?.expires_at;
        Some(desk.clock.instant(expires_at))
    }

    /// Completes when the permit is reclaimed; `None` when it is not live.
    pub(crate) fn watch(self: &Arc<Self>, key: Key, fence: u64) -> Option<OwnedNotified> {
        let mut desk = self.lock();
        let now = desk.now().0;
        let lease = desk.schedule.gate().live_lease(key, fence, now)?;
        // Made under the lock, so that no reclaim comes between.
        let notified = Arc::clone(lease.bell.get_or_insert_default()).notified_owned();
        let driver = desk.recruit().ok().flatten();
        drop(desk);
        self.start(driver);
        Some(notified)
    }

    pub(crate) fn check(&self, cost: u64) -> Decision {
        let mut desk = self.lock();
        let now = desk.now().0;
        desk.schedule.check(now, cost)
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut desk = self.lock();
        let now = desk.now().0;
        desk.schedule.snapshot(now)
    }

    pub(crate) fn permit_id(seed: u64, fence: u64) -> Uuid {
        let bytes = (u128::from(seed) << 64 | u128::from(fence)).to_be_bytes();
        uuid::Builder::from_custom_bytes(bytes).into_uuid()
    }

    /// A driver's turn: does what is due, and says until when the driver may sleep.
    pub(crate) fn turn(self: &Arc<Self>) -> Option<Instant> {
        self.act(Schedule::advance);
        let mut desk = self.lock();
        let next = desk.schedule.next_wake();
        let sooner = next < desk.armed && desk.drivers.len() > 1;
        desk.armed = next;
        let next = next.known().map(|next| desk.clock.instant(next));
        drop(desk);
        if sooner {
            self.bell.notify_waiters();
        }
        next
    }

    /// The turn of a caller who blocks his thread, for the time that he may do so.
    pub(crate) fn turn_on_own_thread(self: &Arc<Self>, key: Key) -> Option<Instant> {
        self.act(Schedule::advance);
        let desk = self.lock();
        desk.schedule.wake_of(key).known().map(|next| desk.clock.instant(next))
    }

    pub(crate) fn driver_gone(&self, runtime: runtime::Id, panicked: bool) {
        let mut desk = self.lock();
        desk.drivers.retain(|driver| *driver != runtime);
        if panicked {
            desk.unusable.push(runtime);
        }
        if desk.drivers.is_empty() {
            desk.armed = Moment::NEVER;
            // Those who wait in other runtimes find a new driver when they are polled.
            let wakers: Vec<Waker> = desk.schedule.wakers().cloned().collect();
            drop(desk);
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    fn act<R>(self: &Arc<Self>, input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R) -> R {
        let mut desk = self.lock();
        let now = desk.now().0;
        let mut effects = Effects::default();
        let result = input(&mut desk.schedule, now, &mut effects);
        self.settle(desk, effects);
        result
    }

    /// Lets go of the lock and acts on the effects, until all that is due is done.
    fn settle<'a>(self: &'a Arc<Self>, mut desk: MutexGuard<'a, Desk>, mut effects: Effects) {
        loop {
            let unfinished = effects.unfinished;
            let arm = if unfinished { Arm::Nothing } else { desk.arm() };
            let drained = desk.schedule.is_drained();
            drop(desk);
            match arm {
                Arm::Nothing => {}
                Arm::Ring => self.bell.notify_waiters(),
                Arm::Start(handle) => self.start(Some(handle)),
            }
            effects.take_reclaimed().iter().for_each(|lease| self.tell(lease));
            effects.wake_all();
            if drained {
                self.drained.notify_waiters();
            }
            if !unfinished {
                return;
            }
            desk = self.lock();
            let now = desk.now().0;
            desk.schedule.advance(now, &mut effects);
        }
    }

    /// Outside the lock: a runtime that is shutting down drops the driver, and with it its post, at once.
    fn start(self: &Arc<Self>, runtime: Option<Handle>) {
        if let Some(handle) = runtime {
            let post = Post::new(Arc::downgrade(self), handle.id());
            handle.spawn(drive(post, Arc::clone(&self.bell)));
        }
    }

    fn tell(&self, lease: &Lease) {
        if let Some(bell) = &lease.bell {
            bell.notify_waiters();
        }
        if self.observer.is_some() {
            self.observer.tell(&Event::Reclaimed {
                id: Self::permit_id(self.seed, lease.fence),
                fence: lease.fence,
                cost: lease.cost,
                held: lease.expires_at.duration_since(lease.granted_at),
                acquired_in: lease.location,
            });
        }
    }

    fn permit(self: &Arc<Self>, admission: Admission, cost: u64, acquired_at: Option<Instant>) -> Permit {
        let manager = self.holds_places.then(|| Arc::clone(self));
        Permit::new(manager, self.seed, admission, cost, acquired_at)
    }

    /// Nothing of ours panics under the lock, and nothing of others runs there; were it otherwise, going on beats a limiter
    /// that fails for ever.
    fn lock(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.bell.notify_waiters(); // the drivers find it gone
    }
}

fn checked_timeout(timeout: Duration) -> Result<u64, AcquireError> {
    let max = Duration::from_nanos(MAX_SPAN_NANOS);
    if timeout > max {
        return Err(AcquireError::TimeoutTooLong { timeout, max });
    }
    Ok(timeout.as_nanos() as u64)
}
