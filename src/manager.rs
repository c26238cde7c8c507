//! The manager of one limiter: a schedule under a mutex, and whoever acts for it.
//!
//! Most is done in place, by the caller who brings the news: an `acquire` that need not wait is decided by its caller, a
//! release serves those who wait. That is the *in* and the *release* channel with no task switch between: the queue is the
//! first, the lock is what a message would go through. What nobody brings, the passing of time, is the business of the
//! [driver], a task in the runtime of those who wait.

mod acquire_all;
mod clock;
mod control;
mod driver;
mod keyed;
pub(crate) mod registry;
mod shared_driver;
mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::Instant;

pub(crate) use self::acquire_all::try_acquire_all;
pub(crate) use self::clock::Clock;
use self::driver::{ExitGuard, drive};
pub(crate) use self::keyed::Resting;
pub(crate) use self::shared_driver::SharedDriver;
use self::state::{Now, State, TimerAction};
use crate::contain_panic::contain_panic;
use crate::core::arena::Index;
use crate::core::grant::{Admission, Claim};
use crate::core::lease::Lease;
use crate::core::request::Caller;
use crate::core::request::Request;
use crate::core::schedule::{Effects, Notice, Outcome, Schedule};
use crate::decision::Decision;
use crate::error::{AcquireError, TryAcquireError};
use crate::event::{LimiterEvent, permit_id};
use crate::observe::Observer;
use crate::priority::Priority;
use crate::snapshot::LimiterSnapshot;
use crate::strategy::{MAX_SPAN_NANOS, Moment};

/// What a caller asks for, before it is known when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    pub(crate) cost: u64,
    pub(crate) timeout: Option<Duration>,
    pub(crate) priority: Priority,
    pub(crate) caller: Caller,
    /// The caller blocks his own thread, and keeps the time there when he is at the front.
    pub(crate) blocking: bool,
}

impl Order {
    /// What is asked for when nothing else is said.
    #[inline]
    pub(crate) fn new(cost: u64, caller: Caller) -> Self {
        Self { cost, timeout: None, priority: Priority::NORMAL, caller, blocking: false }
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
        let &Self { cost, priority, caller, blocking, .. } = self;
        Request { cost, priority, deadline, caller, blocking }
    }
}

/// What became of an order.
#[derive(Debug)]
pub(crate) enum Enqueued {
    Granted,
    Queued(Index),
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
    state: Mutex<State>,
    timer_host: TimerHost,
    drained: Notify,
    /// The random part of permit ids.
    id_prefix: u64,
    name: Option<Arc<str>>,
    observer: Observer,
    /// The wall clock at [`Moment::START`].
    since_epoch: Duration,
}

/// What is left to do when the lock is let go of.
struct Unlocked {
    timer_action: TimerAction,
    drained: bool,
}

/// Who takes a manager's turns when time matters.
#[derive(Debug)]
pub(crate) enum TimerHost {
    /// A driver of its own in each runtime; the bell wakes them before their timers do.
    Own(Arc<Notify>),
    SharedDriver(Arc<SharedDriver>),
}

impl Granted {
    pub(crate) const NOTHING: Self = Self { fence: 0, claim: Claim::None, at: None };

    /// Word by word, and only what there is: see `Permit::new`.
    #[inline(always)]
    fn fill_in(&mut self, admission: Admission, at: Option<Instant>) {
        self.fence = admission.fence;
        if admission.claim != Claim::None {
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
        timer_host: TimerHost,
        since_epoch: Duration,
        id_prefix: u64,
        name: Option<Arc<str>>,
        observer: Observer,
    ) -> Self {
        Self {
            state: Mutex::new(State::new(schedule, clock)),
            timer_host,
            drained: Notify::new(),
            id_prefix,
            name,
            observer,
            since_epoch,
        }
    }

    /// The random part of permit ids.
    pub(crate) fn id_prefix(&self) -> u64 {
        self.id_prefix
    }

    /// Whether a permit that holds nothing finds it by its seed. A key's line is not entered: it may have to be remade soon.
    pub(crate) fn is_registered(&self) -> bool {
        matches!(self.timer_host, TimerHost::Own(_))
    }

    pub(crate) fn name(&self) -> Option<&Arc<str>> {
        self.name.as_ref()
    }

    pub(crate) fn try_acquire(self: &Arc<Self>, cost: u64, caller: Caller) -> Result<Granted, TryAcquireError> {
        let mut state = self.lock();
        let (now, instant) = state.now();
        if let Some(admission) = state.schedule.admit_in_place(now, cost, caller) {
            self.unlock_after_grant(state, &admission);
            return Ok(Granted { fence: admission.fence, claim: admission.claim, at: instant });
        }
        self.deny(state, (now, instant), cost, caller)
    }

    /// The rest of [`Manager::try_acquire`], when it is not admitted in place: most often a denial.
    #[cold]
    fn deny<'a>(
        self: &'a Arc<Self>,
        state: MutexGuard<'a, State>,
        now: Now,
        cost: u64,
        caller: Caller,
    ) -> Result<Granted, TryAcquireError> {
        let (mut state, (now, instant)) = self.advance_if_due(state, now);
        let mut effects = Effects::default();
        let answer = state.schedule.try_acquire(now, cost, caller, &mut effects);
        self.unlock_and_apply(state, &mut effects);
        answer.map(|Admission { fence, claim, .. }| Granted { fence, claim, at: instant })
    }

    /// Takes a permit, or a place in the queue: `waker` is woken when [`Manager::poll`] has the answer.
    #[inline(never)]
    pub(crate) fn begin(self: &Arc<Self>, order: &Order, waker: &Waker, granted: &mut Granted) -> Result<Enqueued, Refused> {
        let timeout = order.checked_timeout()?;
        let mut state = self.lock();
        let (now, instant) = state.now();
        match state.schedule.admit_in_place(now, order.cost, order.caller) {
            Some(admission) => {
                granted.fill_in(admission, instant);
                self.unlock_after_grant(state, &admission);
                Ok(Enqueued::Granted)
            }
            None => {
                if timeout.is_none()
                    && state.has_driver(order.blocking)
                    && let Some(index) = state.schedule.enqueue_behind(now, &order.request(Moment::NEVER), waker)
                {
                    return Ok(Enqueued::Queued(index));
                }
                self.enqueue(state, (now, instant), order, timeout, waker, granted)
            }
        }
    }

    /// The rest of [`Manager::begin`], when it is not decided in place. `timeout` in nanoseconds.
    #[inline(never)]
    fn enqueue<'a>(
        self: &'a Arc<Self>,
        state: MutexGuard<'a, State>,
        now: Now,
        order: &Order,
        timeout: Option<u64>,
        waker: &Waker,
        granted: &mut Granted,
    ) -> Result<Enqueued, Refused> {
        let (mut state, (mut now, instant)) = self.advance_if_due(state, now);
        if timeout.is_some() && instant.is_none() {
            now = state.clock.now().0;
        }
        let deadline = timeout.map_or(Moment::NEVER, |nanos| now.plus(nanos));
        let mut effects = Effects::default();
        let outcome = state.schedule.request(now, &order.request(deadline), waker, &mut effects);
        match outcome {
            Ok(Outcome::Queued(index)) if state.has_driver(order.blocking) && effects.is_empty() => {
                drop(state);
                Ok(Enqueued::Queued(index))
            }
            Ok(Outcome::Queued(index)) => self.ensure_driver(state, index, order, &mut effects),
            Ok(Outcome::Admitted(admission)) => {
                granted.fill_in(admission, instant);
                self.unlock_and_apply(state, &mut effects);
                Ok(Enqueued::Granted)
            }
            Err(error) => {
                self.unlock_and_apply(state, &mut effects);
                Err(error.into())
            }
        }
    }

    /// The answer to a queued order, if there is one; then the key is spent.
    #[inline(never)]
    pub(crate) fn poll(
        self: &Arc<Self>,
        index: Index,
        order: &Order,
        waker: &Waker,
        granted: &mut Granted,
    ) -> Result<Enqueued, Refused> {
        let mut state = self.lock();
        match state.schedule.poll(index, waker) {
            Ok(Ok(admission)) => {
                let follows_time = state.schedule.gate().follows_time();
                granted.fill_in(admission, follows_time.then(|| state.clock.instant(admission.at)));
                self.unlock_after_answer(state);
                Ok(Enqueued::Granted)
            }
            Ok(Err(error)) => {
                self.unlock_after_answer(state);
                Err(error.into())
            }
            Err(replaced) => {
                let mut effects = Effects::default();
                effects.discard(replaced);
                self.ensure_driver(state, index, order, &mut effects)
            }
        }
    }

    /// Somebody has taken his answer: no time moves, and nobody is to be woken, but who waits for the last to be gone.
    fn unlock_after_answer(&self, state: MutexGuard<'_, State>) {
        let drained = state.schedule.is_drained();
        drop(state);
        if drained {
            self.drained.notify_waiters();
        }
    }

    /// The rest of [`Manager::poll`], when there is no answer yet: the driver may have gone with its runtime, or the caller to
    /// another one.
    fn ensure_driver<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
        index: Index,
        order: &Order,
        effects: &mut Effects,
    ) -> Result<Enqueued, Refused> {
        let ensure_driver_here = if order.blocking { Ok(None) } else { state.ensure_driver_here() };
        if ensure_driver_here.is_err() {
            let now = state.now().0;
            state.schedule.abandon(now, index, effects);
        }
        self.unlock_and_apply(state, effects);
        if let Some(runtime) = ensure_driver_here? {
            self.start(runtime);
        }
        Ok(Enqueued::Queued(index))
    }

    /// The owner of a queued order gives it up.
    pub(crate) fn abandon(self: &Arc<Self>, index: Index) {
        self.with_schedule(|schedule, now, effects| schedule.abandon(now, index, effects));
    }

    pub(crate) fn release(self: &Arc<Self>, fence: u64, cost: u64, claim: Claim) {
        let mut state = self.lock();
        if state.schedule.release(fence, cost, claim) {
            self.serve_and_unlock(state);
        }
    }

    /// The rest of [`Manager::release`], when somebody waits for it.
    #[inline(never)]
    fn serve_and_unlock<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State>) {
        let (now, mut effects) = (state.now().0, Effects::default());
        state.schedule.run_due(now, &mut effects);
        self.unlock_and_apply(state, &mut effects);
    }

    pub(crate) fn close(self: &Arc<Self>) {
        self.with_schedule(Schedule::close);
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
        let (mut state, _) = self.lock_and_advance();
        let is_drained = state.schedule.is_drained();
        // What is leaked comes back with time only, and who kept it may be gone.
        let driver =
            if is_drained || !state.schedule.gate().leases_permits() { None } else { state.ensure_driver_here().ok().flatten() };
        drop(state);
        if let Some(runtime) = driver {
            self.start(runtime);
        }
        is_drained
    }

    pub(crate) fn renew(self: &Arc<Self>, index: Index, fence: u64) -> bool {
        self.with_schedule(|schedule, now, _| schedule.gate().renew(index, fence, now))
    }

    /// Whether a leased permit is live.
    pub(crate) fn is_live(&self, index: Index, fence: u64) -> bool {
        let mut state = self.lock();
        let now = state.now().0;
        state.schedule.gate().live_lease(index, fence, now).is_some()
    }

    /// When a live permit expires; `None` when it is not live, or has no TTL any more.
    pub(crate) fn expires_at(&self, index: Index, fence: u64) -> Option<Instant> {
        let mut state = self.lock();
        let now = state.now().0;
        let expires_at = state.schedule.gate().live_lease(index, fence, now)?.expires_at.known()?;
        Some(state.clock.instant(expires_at))
    }

    /// Completes when the permit is reclaimed, or somebody else must keep the time: watch again. `None` when it is not live.
    pub(crate) fn reclaim_signal(self: &Arc<Self>, index: Index, fence: u64) -> Option<OwnedNotified> {
        let mut state = self.lock();
        let now = state.now().0;
        let lease = state.schedule.gate().live_lease(index, fence, now)?;
        // Made under the lock, so that no reclaim comes between.
        let notified = Arc::clone(lease.reclaimed.get_or_insert_default()).notified_owned();
        let driver = state.ensure_driver_here().ok().flatten();
        drop(state);
        if let Some(runtime) = driver {
            self.start(runtime);
        }
        Some(notified)
    }

    pub(crate) fn check(self: &Arc<Self>, cost: u64) -> Decision {
        let (state, (now, _)) = self.lock_and_advance();
        state.schedule.check(now, cost)
    }

    pub(crate) fn snapshot(self: &Arc<Self>) -> LimiterSnapshot {
        let (state, (now, _)) = self.lock_and_advance();
        state.schedule.snapshot(now)
    }

    /// A driver's turn: does what is due, and says until when the driver may sleep.
    pub(crate) fn run_due(self: &Arc<Self>) -> Option<Instant> {
        self.with_schedule(Schedule::run_due);
        let mut state = self.lock();
        let others_sleep_too_long = state.rearm();
        let next = state.schedule.next_wake().known().map(|next| state.clock.instant(next));
        drop(state);
        if others_sleep_too_long {
            self.wake_driver();
        }
        next
    }

    /// The turn of a caller who blocks his thread, for the time that he may do so.
    pub(crate) fn run_due_on_blocked_thread(self: &Arc<Self>, index: Index) -> Option<Instant> {
        self.with_schedule(Schedule::run_due);
        let state = self.lock();
        state.schedule.wake_of(index).known().map(|next| state.clock.instant(next))
    }

    /// A driver leaves before its manager only when its runtime ends, or has no timers and tokio panics: no other is to be
    /// started there.
    pub(crate) fn driver_gone(&self, runtime: runtime::Id) {
        let mut state = self.lock();
        if !state.driver_left(runtime) {
            return;
        }
        // Those who wait in other runtimes find a new driver when they are polled.
        let wakers: Vec<Waker> = state.schedule.wakers().cloned().collect();
        let reclaimed_signals: Vec<Arc<Notify>> = state.schedule.gate().reclaimed_signals().cloned().collect();
        drop(state);
        wakers.into_iter().for_each(|waker| contain_panic(|| waker.wake()));
        reclaimed_signals.iter().for_each(|wakeup| wakeup.notify_waiters());
        self.drained.notify_waiters();
    }

    fn with_schedule<R>(self: &Arc<Self>, input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R) -> R {
        self.with_state(|state, now, effects| input(&mut state.schedule, now, effects))
    }

    fn with_state<R>(self: &Arc<Self>, input: impl FnOnce(&mut State, Moment, &mut Effects) -> R) -> R {
        let mut state = self.lock();
        let now = state.now().0;
        let mut effects = Effects::default();
        let result = input(&mut state, now, &mut effects);
        self.unlock_and_apply(state, &mut effects);
        result
    }

    /// [`Manager::with_schedule`] for what makes time matter where it did not before. Whoever waits may rely until then on a driver in a
    /// runtime that is not run; where this runs, another one will be.
    fn with_timer<R>(self: &Arc<Self>, input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R) -> R {
        let mut state = self.lock();
        let (now, mut effects) = (state.clock.now().0, Effects::default());
        let result = input(&mut state.schedule, now, &mut effects);
        let is_awaited = state.schedule.next_wake() != Moment::NEVER;
        let driver = if is_awaited { state.ensure_driver_here().ok().flatten() } else { None };
        self.unlock_and_apply(state, &mut effects);
        if let Some(runtime) = driver {
            self.start(runtime);
        }
        result
    }

    /// Does all that is due: the timer may be late, or nobody may keep the time. That may take a while, so the time is told.
    #[inline]
    fn advance_if_due<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State>, now: Now) -> (MutexGuard<'a, State>, Now) {
        if state.schedule.next_wake() > now.0 {
            return (state, now);
        }
        let mut effects = Effects::default();
        state.schedule.run_due(now.0, &mut effects);
        self.unlock_and_apply(state, &mut effects);
        self.lock_now()
    }

    fn lock_now(&self) -> (MutexGuard<'_, State>, Now) {
        let mut state = self.lock();
        let now = state.now();
        (state, now)
    }

    /// The lock, with all done that is due.
    fn lock_and_advance(self: &Arc<Self>) -> (MutexGuard<'_, State>, Now) {
        let (state, now) = self.lock_now();
        self.advance_if_due(state, now)
    }

    /// Lets go of the lock and acts on the effects, until all that is due is done.
    #[inline]
    fn unlock_and_apply<'a>(self: &'a Arc<Self>, state: MutexGuard<'a, State>, effects: &mut Effects) {
        let unlocked = Self::unlock(state);
        self.apply(unlocked, effects);
    }

    /// Lets go of the lock; what is left to do is to be done when no other is held.
    #[inline]
    fn unlock(mut state: MutexGuard<'_, State>) -> Unlocked {
        Unlocked { timer_action: state.timer_action(), drained: state.schedule.is_drained() }
    }

    fn apply(self: &Arc<Self>, mut unlocked: Unlocked, effects: &mut Effects) {
        loop {
            match unlocked.timer_action {
                TimerAction::Nothing => {}
                TimerAction::WakeDriver => self.wake_driver(),
                TimerAction::StartDriver(handle) => self.start(handle),
            }
            let unfinished = effects.apply(|notice| self.emit(notice));
            if unlocked.drained {
                self.drained.notify_waiters();
            }
            if !unfinished {
                return;
            }
            let mut state = self.lock();
            let now = state.now().0;
            state.schedule.run_due(now, effects);
            unlocked = Self::unlock(state);
        }
    }

    /// Outside the lock: a runtime that is shutting down drops the driver, and with it its post, at once.
    #[cold]
    fn start(self: &Arc<Self>, runtime: Handle) {
        match &self.timer_host {
            TimerHost::Own(wakeup) => {
                let exit_guard = ExitGuard::new(Arc::downgrade(self), runtime.id());
                runtime.spawn(drive(exit_guard, Arc::clone(wakeup)));
            }
            TimerHost::SharedDriver(shared_driver) => shared_driver.enlist(self, &runtime),
        }
    }

    /// Wakes whoever takes the turns, before the time that he knows of.
    fn wake_driver(&self) {
        match &self.timer_host {
            TimerHost::Own(wakeup) => wakeup.notify_waiters(),
            TimerHost::SharedDriver(shared_driver) => shared_driver.call(self),
        }
    }

    fn emit(&self, notice: Notice<'_>) {
        match notice {
            Notice::Reclaimed(lease) => self.emit_reclaim(lease),
            Notice::Shed(&Request { cost, priority, caller, .. }, reason) => {
                self.observer.emit(&LimiterEvent::Shed { cost, priority, reason, requested_in: caller });
            }
        }
    }

    fn emit_reclaim(&self, lease: &Lease) {
        if let Some(reclaimed) = &lease.reclaimed {
            reclaimed.notify_waiters();
        }
        if self.observer.is_some() {
            self.observer.emit(&LimiterEvent::Reclaimed {
                id: permit_id(self.id_prefix, lease.fence),
                fence: lease.fence,
                cost: lease.cost,
                held: lease.expires_at.duration_since(lease.granted_at),
                acquired_in: lease.caller,
            });
        }
    }

    /// Lets go of the lock after an admission in place: it moves time for nobody, but its own TTL may be the first to end.
    #[inline(always)]
    fn unlock_after_grant<'a>(self: &'a Arc<Self>, state: MutexGuard<'a, State>, admission: &Admission) {
        if admission.claim.lease().is_some() && state.schedule.next_wake() < state.armed {
            self.unlock_and_apply(state, &mut Effects::default());
        }
    }

    /// Nothing of ours panics under the lock, and nothing of others runs there but the clone of a waker; were one to panic,
    /// going on beats a limiter that fails for ever.
    #[inline(always)]
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        match &self.timer_host {
            TimerHost::Own(wakeup) => {
                registry::leave(self);
                wakeup.notify_waiters(); // the drivers find it gone
            }
            TimerHost::SharedDriver(shared_driver) => shared_driver.dismiss(self),
        }
    }
}
