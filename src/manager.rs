//! The manager of one limiter: a schedule under a mutex, and whoever acts for it.
//!
//! Most is done in place, by the caller who brings the news: an `acquire` that need not wait is decided by its caller, a
//! release serves those who wait. That is the *in* and the *release* channel with no task switch between: the queue is the
//! first, the lock is what a message would go through. What nobody brings, the passing of time, is the business of the
//! [driver], a task in the runtime of those who wait.

mod clock;
mod desk;
mod driver;
mod line;
pub(crate) mod registry;
mod rota;
mod steering;
mod together;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::Instant;

pub(crate) use self::clock::Clock;
use self::desk::{Arm, Desk, Now};
use self::driver::{Post, drive};
pub(crate) use self::line::Rest;
pub(crate) use self::rota::Rota;
pub(crate) use self::together::try_acquire_all;
use crate::arena::Key;
use crate::decision::Decision;
use crate::error::{AcquireError, TryAcquireError};
use crate::lease::{Admission, Caller, Claim, Lease};
use crate::observe::{Event, Observer, contain_panic, permit_id};
use crate::queue::{Priority, Request};
use crate::schedule::{Effects, Outcome, Schedule, Told};
use crate::snapshot::Snapshot;
use crate::strategy::{MAX_SPAN_NANOS, Moment};

/// What a caller asks for, before it is known when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    pub(crate) cost: u64,
    pub(crate) timeout: Option<Duration>,
    pub(crate) priority: Priority,
    pub(crate) caller: Caller,
    /// The caller blocks his own thread, and keeps the time there when he is at the front.
    pub(crate) on_own_thread: bool,
}

impl Order {
    /// What is asked for when nothing else is said.
    #[inline]
    pub(crate) fn new(cost: u64, caller: Caller) -> Self {
        Self { cost, timeout: None, priority: Priority::NORMAL, caller, on_own_thread: false }
    }

    /// The timeout in nanoseconds.
    pub(crate) fn checked_timeout(&self) -> Result<Option<u64>, AcquireError> {
        let max = Duration::from_nanos(MAX_SPAN_NANOS);
        match self.timeout {
            Some(timeout) if timeout > max => Err(AcquireError::TimeoutTooLong { timeout, max }),
            timeout => Ok(timeout.map(|timeout| timeout.as_nanos() as u64)),
        }
    }

    /// The same for the queue. The timeout has become a deadline, or [`Moment::NEVER`].
    fn request(&self, deadline: Moment) -> Request {
        let &Self { cost, priority, caller, on_own_thread, .. } = self;
        Request { cost, priority, deadline, caller, on_own_thread }
    }
}

/// What became of an order.
#[derive(Debug)]
pub(crate) enum Begun {
    Granted,
    Queued(Key),
}

/// Boxed, so that what became of an order fits into two registers: a refusal can bear the allocation.
pub(crate) type Refused = Box<AcquireError>;

/// What a permit is made of, besides its manager and its cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Granted {
    pub(crate) fence: u64,
    pub(crate) claim: Claim,
    pub(crate) at: Option<Instant>,
}

#[derive(Debug)]
pub(crate) struct Manager {
    desk: Mutex<Desk>,
    timekeeping: Timekeeping,
    drained: Notify,
    /// The random part of permit ids.
    seed: u64,
    name: Option<Arc<str>>,
    observer: Observer,
    /// The wall clock at [`Moment::START`].
    since_epoch: Duration,
}

/// What is left to do when the lock is let go of.
struct After {
    arm: Arm,
    drained: bool,
}

/// Who takes a manager's turns when time matters.
#[derive(Debug)]
pub(crate) enum Timekeeping {
    /// A driver of its own in each runtime; the bell wakes them before their timers do.
    Own(Arc<Notify>),
    Rota(Arc<Rota>),
}

impl Granted {
    pub(crate) const NOTHING: Self = Self { fence: 0, claim: Claim::Nothing, at: None };

    /// Word by word, and only what there is: see `Permit::new`.
    #[inline(always)]
    fn fill_in(&mut self, admission: Admission, at: Option<Instant>) {
        self.fence = admission.fence;
        if admission.claim != Claim::Nothing {
            self.claim = admission.claim;
        }
        if at.is_some() {
            self.at = at;
        }
    }
}

impl Manager {
    pub(crate) fn new(
        schedule: Schedule,
        clock: Clock,
        timekeeping: Timekeeping,
        since_epoch: Duration,
        seed: u64,
        name: Option<Arc<str>>,
        observer: Observer,
    ) -> Self {
        Self {
            desk: Mutex::new(Desk::new(schedule, clock)),
            timekeeping,
            drained: Notify::new(),
            seed,
            name,
            observer,
            since_epoch,
        }
    }

    /// The random part of permit ids.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether a permit that holds nothing finds it by its seed. A key's line is not entered: it may have to be remade soon.
    pub(crate) fn is_registered(&self) -> bool {
        matches!(self.timekeeping, Timekeeping::Own(_))
    }

    pub(crate) fn name(&self) -> Option<&Arc<str>> {
        self.name.as_ref()
    }

    pub(crate) fn try_acquire(self: &Arc<Self>, cost: u64, caller: Caller) -> Result<Granted, TryAcquireError> {
        let mut desk = self.lock();
        let (now, instant) = desk.now();
        if let Some(admission) = desk.schedule.admit_in_place(now, cost, caller) {
            self.hand_out(desk, &admission);
            return Ok(Granted { fence: admission.fence, claim: admission.claim, at: instant });
        }
        self.deny(desk, (now, instant), cost, caller)
    }

    /// The rest of [`Manager::try_acquire`], when it is not admitted in place: most often a denial.
    #[cold]
    fn deny<'a>(
        self: &'a Arc<Self>,
        desk: MutexGuard<'a, Desk>,
        now: Now,
        cost: u64,
        caller: Caller,
    ) -> Result<Granted, TryAcquireError> {
        let (mut desk, (now, instant)) = self.catch_up(desk, now);
        let mut effects = Effects::default();
        let answer = desk.schedule.try_acquire(now, cost, caller, &mut effects);
        self.finish(desk, &mut effects);
        answer.map(|Admission { fence, claim, .. }| Granted { fence, claim, at: instant })
    }

    /// Takes a permit, or a place in the queue: `waker` is woken when [`Manager::poll`] has the answer.
    #[inline(never)]
    pub(crate) fn begin(self: &Arc<Self>, order: &Order, waker: &Waker, granted: &mut Granted) -> Result<Begun, Refused> {
        let timeout = order.checked_timeout()?;
        let mut desk = self.lock();
        let (now, instant) = desk.now();
        match desk.schedule.admit_in_place(now, order.cost, order.caller) {
            Some(admission) => {
                granted.fill_in(admission, instant);
                self.hand_out(desk, &admission);
                Ok(Begun::Granted)
            }
            None => {
                if timeout.is_none()
                    && desk.is_served(order.on_own_thread)
                    && let Some(key) = desk.schedule.join(now, &order.request(Moment::NEVER), waker)
                {
                    return Ok(Begun::Queued(key));
                }
                self.enqueue(desk, (now, instant), order, timeout, waker, granted)
            }
        }
    }

    /// The rest of [`Manager::begin`], when it is not decided in place. `timeout` in nanoseconds.
    #[inline(never)]
    fn enqueue<'a>(
        self: &'a Arc<Self>,
        desk: MutexGuard<'a, Desk>,
        now: Now,
        order: &Order,
        timeout: Option<u64>,
        waker: &Waker,
        granted: &mut Granted,
    ) -> Result<Begun, Refused> {
        let (mut desk, (mut now, instant)) = self.catch_up(desk, now);
        if timeout.is_some() && instant.is_none() {
            now = desk.clock.now().0;
        }
        let deadline = timeout.map_or(Moment::NEVER, |nanos| now.plus(nanos));
        let mut effects = Effects::default();
        let outcome = desk.schedule.request(now, &order.request(deadline), waker, &mut effects);
        match outcome {
            Ok(Outcome::Queued(key)) if desk.is_served(order.on_own_thread) && effects.is_empty() => {
                drop(desk);
                Ok(Begun::Queued(key))
            }
            Ok(Outcome::Queued(key)) => self.wait_on(desk, key, order, &mut effects),
            Ok(Outcome::Admitted(admission)) => {
                granted.fill_in(admission, instant);
                self.finish(desk, &mut effects);
                Ok(Begun::Granted)
            }
            Err(error) => {
                self.finish(desk, &mut effects);
                Err(error.into())
            }
        }
    }

    /// The answer to a queued order, if there is one; then the key is spent.
    #[inline(never)]
    pub(crate) fn poll(
        self: &Arc<Self>,
        key: Key,
        order: &Order,
        waker: &Waker,
        granted: &mut Granted,
    ) -> Result<Begun, Refused> {
        let mut desk = self.lock();
        match desk.schedule.poll(key, waker) {
            Ok(Ok(admission)) => {
                let follows_time = desk.schedule.gate().follows_time();
                granted.fill_in(admission, follows_time.then(|| desk.clock.instant(admission.at)));
                self.leave(desk);
                Ok(Begun::Granted)
            }
            Ok(Err(error)) => {
                self.leave(desk);
                Err(error.into())
            }
            Err(replaced) => {
                let mut effects = Effects::default();
                effects.discard(replaced);
                self.wait_on(desk, key, order, &mut effects)
            }
        }
    }

    /// Somebody has taken his answer: no time moves, and nobody is to be woken, but who waits for the last to be gone.
    fn leave(&self, desk: MutexGuard<'_, Desk>) {
        let drained = desk.schedule.is_drained();
        drop(desk);
        if drained {
            self.drained.notify_waiters();
        }
    }

    /// The rest of [`Manager::poll`], when there is no answer yet: the driver may have gone with its runtime, or the caller to
    /// another one.
    fn wait_on<'a>(
        self: &'a Arc<Self>,
        mut desk: MutexGuard<'a, Desk>,
        key: Key,
        order: &Order,
        effects: &mut Effects,
    ) -> Result<Begun, Refused> {
        let recruit = if order.on_own_thread { Ok(None) } else { desk.recruit() };
        if recruit.is_err() {
            let now = desk.now().0;
            desk.schedule.abandon(now, key, effects);
        }
        self.finish(desk, effects);
        if let Some(runtime) = recruit? {
            self.start(runtime);
        }
        Ok(Begun::Queued(key))
    }

    /// The owner of a queued order gives it up.
    pub(crate) fn abandon(self: &Arc<Self>, key: Key) {
        self.act(|schedule, now, effects| schedule.abandon(now, key, effects));
    }

    pub(crate) fn release(self: &Arc<Self>, fence: u64, cost: u64, claim: Claim) {
        let mut desk = self.lock();
        if desk.schedule.release(fence, cost, claim) {
            self.hand_over(desk);
        }
    }

    /// The rest of [`Manager::release`], when somebody waits for it.
    #[inline(never)]
    fn hand_over<'a>(self: &'a Arc<Self>, mut desk: MutexGuard<'a, Desk>) {
        let (now, mut effects) = (desk.now().0, Effects::default());
        desk.schedule.advance(now, &mut effects);
        self.finish(desk, &mut effects);
    }

    pub(crate) fn close(self: &Arc<Self>) {
        self.act(Schedule::close);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().schedule.is_closed()
    }

    pub(crate) async fn drained(self: &Arc<Self>) {
        loop {
            let drained = self.drained.notified(); // before the look: a drain between the two would be missed
            if self.is_drained() {
                return;
            }
            drained.await;
        }
    }

    fn is_drained(self: &Arc<Self>) -> bool {
        let (mut desk, _) = self.lock_caught_up();
        let is_drained = desk.schedule.is_drained();
        // What is leaked comes back with time only, and who kept it may be gone.
        let driver = if is_drained || !desk.schedule.gate().leases_permits() { None } else { desk.recruit().ok().flatten() };
        drop(desk);
        if let Some(runtime) = driver {
            self.start(runtime);
        }
        is_drained
    }

    pub(crate) fn renew(self: &Arc<Self>, key: Key, fence: u64) -> bool {
        self.act(|schedule, now, _| schedule.gate().renew(key, fence, now))
    }

    /// Whether a leased permit is live.
    pub(crate) fn is_live(&self, key: Key, fence: u64) -> bool {
        let mut desk = self.lock();
        let now = desk.now().0;
        desk.schedule.gate().live_lease(key, fence, now).is_some()
    }

    /// When a live permit expires; `None` when it is not live, or has no TTL any more.
    pub(crate) fn expires_at(&self, key: Key, fence: u64) -> Option<Instant> {
        let mut desk = self.lock();
        let now = desk.now().0;
        let expires_at = desk.schedule.gate().live_lease(key, fence, now)?.expires_at.known()?;
        Some(desk.clock.instant(expires_at))
    }

    /// Completes when the permit is reclaimed, or somebody else must keep the time: watch again. `None` when it is not live.
    pub(crate) fn watch(self: &Arc<Self>, key: Key, fence: u64) -> Option<OwnedNotified> {
        let mut desk = self.lock();
        let now = desk.now().0;
        let lease = desk.schedule.gate().live_lease(key, fence, now)?;
        // Made under the lock, so that no reclaim comes between.
        let notified = Arc::clone(lease.bell.get_or_insert_default()).notified_owned();
        let driver = desk.recruit().ok().flatten();
        drop(desk);
        if let Some(runtime) = driver {
            self.start(runtime);
        }
        Some(notified)
    }

    pub(crate) fn check(self: &Arc<Self>, cost: u64) -> Decision {
        let (desk, (now, _)) = self.lock_caught_up();
        desk.schedule.check(now, cost)
    }

    pub(crate) fn snapshot(self: &Arc<Self>) -> Snapshot {
        let (desk, (now, _)) = self.lock_caught_up();
        desk.schedule.snapshot(now)
    }

    /// A driver's turn: does what is due, and says until when the driver may sleep.
    pub(crate) fn turn(self: &Arc<Self>) -> Option<Instant> {
        self.act(Schedule::advance);
        let mut desk = self.lock();
        let others_sleep_too_long = desk.rearm();
        let next = desk.schedule.next_wake().known().map(|next| desk.clock.instant(next));
        drop(desk);
        if others_sleep_too_long {
            self.ring();
        }
        next
    }

    /// The turn of a caller who blocks his thread, for the time that he may do so.
    pub(crate) fn turn_on_own_thread(self: &Arc<Self>, key: Key) -> Option<Instant> {
        self.act(Schedule::advance);
        let desk = self.lock();
        desk.schedule.wake_of(key).known().map(|next| desk.clock.instant(next))
    }

    /// A driver leaves before its manager only when its runtime ends, or has no timers and tokio panics: no other is to be
    /// started there.
    pub(crate) fn driver_gone(&self, runtime: runtime::Id) {
        let mut desk = self.lock();
        if !desk.dismiss(runtime) {
            return;
        }
        // Those who wait in other runtimes find a new driver when they are polled.
        let wakers: Vec<Waker> = desk.schedule.wakers().cloned().collect();
        let bells: Vec<Arc<Notify>> = desk.schedule.gate().bells().cloned().collect();
        drop(desk);
        wakers.into_iter().for_each(|waker| contain_panic(|| waker.wake()));
        bells.iter().for_each(|bell| bell.notify_waiters());
        self.drained.notify_waiters();
    }

    fn act<R>(self: &Arc<Self>, input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R) -> R {
        self.act_on_desk(|desk, now, effects| input(&mut desk.schedule, now, effects))
    }

    fn act_on_desk<R>(self: &Arc<Self>, input: impl FnOnce(&mut Desk, Moment, &mut Effects) -> R) -> R {
        let mut desk = self.lock();
        let now = desk.now().0;
        let mut effects = Effects::default();
        let result = input(&mut desk, now, &mut effects);
        self.finish(desk, &mut effects);
        result
    }

    /// [`Manager::act`] for what makes time matter where it did not before. Whoever waits may rely until then on a driver in a
    /// runtime that is not run; where this runs, another one will be.
    fn act_timed<R>(self: &Arc<Self>, input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R) -> R {
        let mut desk = self.lock();
        let (now, mut effects) = (desk.clock.now().0, Effects::default());
        let result = input(&mut desk.schedule, now, &mut effects);
        let is_awaited = desk.schedule.next_wake() != Moment::NEVER;
        let driver = if is_awaited { desk.recruit().ok().flatten() } else { None };
        self.finish(desk, &mut effects);
        if let Some(runtime) = driver {
            self.start(runtime);
        }
        result
    }

    /// Does all that is due: the timer may be late, or nobody may keep the time. That may take a while, so the time is told.
    #[inline]
    fn catch_up<'a>(self: &'a Arc<Self>, mut desk: MutexGuard<'a, Desk>, now: Now) -> (MutexGuard<'a, Desk>, Now) {
        if desk.schedule.next_wake() > now.0 {
            return (desk, now);
        }
        let mut effects = Effects::default();
        desk.schedule.advance(now.0, &mut effects);
        self.finish(desk, &mut effects);
        self.lock_now()
    }

    fn lock_now(&self) -> (MutexGuard<'_, Desk>, Now) {
        let mut desk = self.lock();
        let now = desk.now();
        (desk, now)
    }

    /// The lock, with all done that is due.
    fn lock_caught_up(self: &Arc<Self>) -> (MutexGuard<'_, Desk>, Now) {
        let (desk, now) = self.lock_now();
        self.catch_up(desk, now)
    }

    /// Lets go of the lock and acts on the effects, until all that is due is done.
    #[inline]
    fn finish<'a>(self: &'a Arc<Self>, desk: MutexGuard<'a, Desk>, effects: &mut Effects) {
        let after = Self::let_go(desk);
        self.follow_up(after, effects);
    }

    /// Lets go of the lock; what is left to do is to be done when no other is held.
    #[inline]
    fn let_go(mut desk: MutexGuard<'_, Desk>) -> After {
        After { arm: desk.arm(), drained: desk.schedule.is_drained() }
    }

    fn follow_up(self: &Arc<Self>, mut after: After, effects: &mut Effects) {
        loop {
            match after.arm {
                Arm::Nothing => {}
                Arm::Ring => self.ring(),
                Arm::Start(handle) => self.start(handle),
            }
            let unfinished = effects.act(|told| self.tell(told));
            if after.drained {
                self.drained.notify_waiters();
            }
            if !unfinished {
                return;
            }
            let mut desk = self.lock();
            let now = desk.now().0;
            desk.schedule.advance(now, effects);
            after = Self::let_go(desk);
        }
    }

    /// Outside the lock: a runtime that is shutting down drops the driver, and with it its post, at once.
    #[cold]
    fn start(self: &Arc<Self>, runtime: Handle) {
        match &self.timekeeping {
            Timekeeping::Own(bell) => {
                let post = Post::new(Arc::downgrade(self), runtime.id());
                runtime.spawn(drive(post, Arc::clone(bell)));
            }
            Timekeeping::Rota(rota) => rota.enlist(self, &runtime),
        }
    }

    /// Wakes whoever takes the turns, before the time that he knows of.
    fn ring(&self) {
        match &self.timekeeping {
            Timekeeping::Own(bell) => bell.notify_waiters(),
            Timekeeping::Rota(rota) => rota.call(self),
        }
    }

    fn tell(&self, told: Told<'_>) {
        match told {
            Told::Reclaimed(lease) => self.tell_of_reclaim(lease),
            Told::Shed(&Request { cost, priority, caller, .. }, reason) => {
                self.observer.tell(&Event::Shed { cost, priority, reason, requested_in: caller });
            }
        }
    }

    fn tell_of_reclaim(&self, lease: &Lease) {
        if let Some(bell) = &lease.bell {
            bell.notify_waiters();
        }
        if self.observer.is_some() {
            self.observer.tell(&Event::Reclaimed {
                id: permit_id(self.seed, lease.fence),
                fence: lease.fence,
                cost: lease.cost,
                held: lease.expires_at.duration_since(lease.granted_at),
                acquired_in: lease.caller,
            });
        }
    }

    /// Lets go of the lock after an admission in place: it moves time for nobody, but its own TTL may be the first to end.
    #[inline(always)]
    fn hand_out<'a>(self: &'a Arc<Self>, desk: MutexGuard<'a, Desk>, admission: &Admission) {
        if admission.claim.lease().is_some() && desk.schedule.next_wake() < desk.armed {
            self.finish(desk, &mut Effects::default());
        }
    }

    /// Nothing of ours panics under the lock, and nothing of others runs there but the clone of a waker; were one to panic,
    /// going on beats a limiter that fails for ever.
    #[inline(always)]
    fn lock(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        match &self.timekeeping {
            Timekeeping::Own(bell) => {
                registry::leave(self);
                bell.notify_waiters(); // the drivers find it gone
            }
            Timekeeping::Rota(rota) => rota.dismiss(self),
        }
    }
}
