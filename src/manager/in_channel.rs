//! The *in* channel: how a request enters.
//!
//! The queue under the manager's lock is the channel. A request that need not wait is decided by its caller, in place, and never
//! enters it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;

use super::answer::{FromGrant, TimedGrant};
use super::apply::wake_all;
use super::clock::ClockOrigin;
use super::lock::{Locked, Manager};
use super::request_options::RequestOptions;
use super::time_source::Reading;
use super::word::Kind;
use crate::contain_panic::contain_panic;
use crate::core::costs::Costs;
use crate::core::effects::Effects;
use crate::core::grant::{Claim, Grant};
use crate::core::refused::Refused;
use crate::core::request::Caller;
use crate::core::schedule::{Enqueued, NotInPlace, Schedule};
use crate::core::waiter::WaiterId;
use crate::error::TryAcquireError;
use crate::snapshot::LimitStatus;
use crate::strategy::Moment;

/// Who asks: its waker, and a clone that goes into the queue.
struct Task<'a> {
    waker: &'a Waker,
    clone: Option<Waker>,
}

impl Manager {
    /// Grants in place, or charges nothing.
    #[inline(always)]
    pub(crate) fn try_acquire<P: FromGrant>(self: &Arc<Self>, cost: u64, caller: Caller) -> Result<P, TryAcquireError> {
        match self.state.kind() {
            Kind::Places => match self.state.take_place(cost) {
                Some(fence) => Ok(P::held(self, TimedGrant::of_place(fence), cost)),
                None => self.try_acquire_beside_word(cost, caller, None, None),
            },
            Kind::Rate => {
                let (reading, now) = self.read_first_clock();
                match self.take_rate(now, cost) {
                    Some(granted) => Ok(P::spent(self.common().id_prefix(0), granted, cost)),
                    None => self.try_acquire_beside_word(cost, caller, Some(reading), now),
                }
            }
        }
    }

    /// Takes `cost` units of a rate without the lock, for no permit. `false`, without a change: the lock must decide, or the policy
    /// is no rate.
    #[inline(always)]
    pub(crate) fn spend(&self, cost: u64) -> bool {
        matches!(self.state.kind(), Kind::Rate) && self.take_rate(self.read_first_clock().1, cost).is_some()
    }

    /// A reading, and its moment by the first clock.
    #[inline(always)]
    fn read_first_clock(&self) -> (Reading, Option<Moment>) {
        let reading = self.time_source().now();
        (reading, self.moment(reading))
    }

    /// Grants by a rate without the lock. `None`, without a change, if the lock must decide.
    #[inline(always)]
    fn take_rate(&self, now: Option<Moment>, cost: u64) -> Option<TimedGrant> {
        let (now, registered) = (now?, self.common().registered.as_ref()?);
        let (fence, reached) = self.state.take_rate(&registered.rate, now.nanos(), cost)?;
        let claim = Claim::of_rate(reached.get());
        Some(TimedGrant { grant: Grant { fence, claim, at: now }, origin: registered.clock.origin })
    }

    /// The rest of [`Manager::try_acquire`]. `now` is the moment of the `reading` by the first clock.
    #[inline(always)]
    fn try_acquire_beside_word<P: FromGrant>(
        self: &Arc<Self>,
        cost: u64,
        caller: Caller,
        reading: Option<Reading>,
        now: Option<Moment>,
    ) -> Result<P, TryAcquireError> {
        if self.state.is_open() {
            self.deny_behind_word(cost, caller, reading, now)
        } else {
            self.try_acquire_under_lock(cost, caller, reading)
        }
    }

    /// Denies the request while the word stays open; if it is shut or admits the request, the lock decides.
    #[inline(never)]
    fn deny_behind_word<P: FromGrant>(
        self: &Arc<Self>,
        cost: u64,
        caller: Caller,
        reading: Option<Reading>,
        now: Option<Moment>,
    ) -> Result<P, TryAcquireError> {
        if self.state.is_only_a_word() {
            if let Some(denial) = self.deny_by_word(cost, caller) {
                return Err(denial);
            }
        } else if let Some((mut state, now)) = self.look_at(now)
            && let Some(denial) = state.schedule.deny_behind_word(now, cost)
        {
            return Err(denial);
        }
        self.try_acquire_under_lock(cost, caller, reading)
    }

    /// The rest of [`Manager::try_acquire`] where the word does not decide.
    #[inline(never)]
    fn try_acquire_under_lock<P: FromGrant>(
        self: &Arc<Self>,
        cost: u64,
        caller: Caller,
        reading: Option<Reading>,
    ) -> Result<P, TryAcquireError> {
        let reading = reading.or_else(|| self.read_clock());
        let mut state = self.lock();
        let now = self.now_at(&mut state, reading);
        match state.schedule.admit_in_place(now, cost, caller) {
            Ok(grant) => {
                let origin = state.clock.origin();
                self.unlock_after_grant(state, &grant);
                Ok(P::held(self, TimedGrant { grant, origin }, cost))
            }
            Err(NotInPlace::Denied) if !state.schedule.is_observed() => Err(self.deny(state, now, cost)),
            Err(NotInPlace::Denied | NotInPlace::Undecided) => {
                self.try_acquire_or_deny(state, now, Costs::plain(cost), caller).map(|granted| P::held(self, granted, cost))
            }
        }
    }

    /// [`Manager::deny_behind_word`], as long as nobody has needed the state and there is room to count the denial.
    fn deny_by_word(&self, cost: u64, caller: Caller) -> Option<TryAcquireError> {
        let mut copy = self.state.copy_of_word()?;
        let now = copy.clock.latest();
        let denial = copy.schedule.would_acquire(now, Costs::plain(cost), true, caller, &mut Effects::default()).err()?;
        if matches!(denial, TryAcquireError::Denied(_)) {
            self.denied.fetch_update(Relaxed, Relaxed, |denied| denied.checked_add(1)).ok()?;
        }
        Some(denial)
    }

    #[cold]
    fn deny<'a>(self: &'a Arc<Self>, mut state: Locked<'a>, now: Moment, cost: u64) -> TryAcquireError {
        let mut effects = Effects::default();
        let denial = state.schedule.deny_in_place(now, cost, &mut effects);
        if effects.is_empty() {
            drop(state); // nobody waits, so no timer runs for them
        } else {
            self.unlock_and_apply(state, &mut effects);
        }
        denial
    }

    /// The rest of [`Manager::try_acquire`], where it is not decided in place.
    #[cold]
    fn try_acquire_or_deny<'a>(
        self: &'a Arc<Self>,
        state: Locked<'a>,
        now: Moment,
        costs: Costs<'_>,
        caller: Caller,
    ) -> Result<TimedGrant, TryAcquireError> {
        let (state, now) = self.advance_if_due(state, now);
        self.try_acquire_then(state, now, costs, caller, |_| ())
    }

    /// Tries to acquire where nothing is due, and looks at the schedule under the same lock.
    fn try_acquire_then<'a>(
        self: &'a Arc<Self>,
        mut state: Locked<'a>,
        now: Moment,
        costs: Costs<'_>,
        caller: Caller,
        then: impl FnOnce(&Schedule),
    ) -> Result<TimedGrant, TryAcquireError> {
        let mut effects = Effects::default();
        let answer = state.schedule.try_acquire(now, costs, caller, &mut effects);
        then(&state.schedule);
        let origin = state.clock.origin();
        self.unlock_and_apply(state, &mut effects);
        answer.map(|grant| TimedGrant { grant, origin })
    }

    /// [`Manager::try_acquire`] for a request that may name units, or have a TTL.
    pub(crate) fn try_request<P: FromGrant>(self: &Arc<Self>, options: &RequestOptions) -> Result<P, TryAcquireError> {
        let &RequestOptions { cost, caller, .. } = options;
        if options.by_unit.is_none() && options.ttl().is_none() {
            return self.try_acquire(cost, caller);
        }
        self.check_ttl(options)?;
        let (state, now) = self.lock_now();
        let granted = self.try_acquire_or_deny(state, now, options.costs(), caller)?;
        self.limit_ttl(granted.grant, options);
        Ok(P::held(self, granted, cost))
    }

    /// [`Manager::try_request`], with what each limit says right after it.
    pub(crate) fn try_request_explained<P: FromGrant>(
        self: &Arc<Self>,
        options: &RequestOptions,
    ) -> (Result<P, TryAcquireError>, Vec<LimitStatus>) {
        if let Err(misfit) = self.check_ttl(options) {
            return (Err(misfit.into()), self.limits());
        }
        let (state, now) = self.lock_and_advance();
        let mut limits = Vec::new();
        let granted =
            self.try_acquire_then(state, now, options.costs(), options.caller, |schedule| limits = schedule.limits(now));
        let granted = granted.inspect(|granted| self.limit_ttl(granted.grant, options));
        (granted.map(|granted| P::held(self, granted, options.cost)), limits)
    }

    /// [`Manager::acquire`] for a request that asks for an explanation: no word can give one.
    pub(crate) fn acquire_explained(
        self: &Arc<Self>,
        options: &RequestOptions,
        timeout: Option<u64>,
        waker: &Waker,
        granted: &mut TimedGrant,
    ) -> Result<Enqueued<()>, Refused> {
        let mut task = Task { waker, clone: Some(waker.clone()) };
        let (state, now) = self.lock_now();
        let answer = self.enqueue(state, now, options, timeout, &mut task, granted);
        contain_panic(|| drop(task.clone)); // or the grant would be lost
        answer
    }

    /// Grants in place, or enqueues the request: `waker` is woken when [`Manager::poll`] has the answer. `timeout` in nanoseconds.
    /// The `options` are asked for where more than the cost matters.
    #[inline(always)]
    pub(crate) fn acquire(
        self: &Arc<Self>,
        cost: u64,
        timeout: Option<u64>,
        options: impl Fn() -> RequestOptions,
        waker: &Waker,
        granted: &mut TimedGrant,
    ) -> Result<Enqueued<()>, Refused> {
        let reading = match self.state.kind() {
            Kind::Places => {
                if let Some(fence) = self.state.take_place(cost) {
                    granted.fill_in(Grant::of_place(fence), ClockOrigin::NONE);
                    return Ok(Enqueued::Granted(()));
                }
                None
            }
            Kind::Rate => {
                let (reading, now) = self.read_first_clock();
                if let Some(taken) = self.take_rate(now, cost) {
                    granted.fill_in(taken.grant, taken.origin);
                    return Ok(Enqueued::Granted(()));
                }
                Some(reading)
            }
        };
        if self.common().has_waited.load(Relaxed) {
            self.acquire_or_wait(&options(), timeout, waker, granted, reading)
        } else {
            self.acquire_in_place(&options(), timeout, waker, granted, reading)
        }
    }

    /// [`Manager::acquire`] where the request is likely to be granted in place: that costs no clone of the waker.
    #[inline(never)]
    fn acquire_in_place(
        self: &Arc<Self>,
        options: &RequestOptions,
        timeout: Option<u64>,
        waker: &Waker,
        granted: &mut TimedGrant,
        reading: Option<Reading>,
    ) -> Result<Enqueued<()>, Refused> {
        let reading = reading.or_else(|| self.read_clock());
        let mut state = self.lock();
        let now = self.now_at(&mut state, reading);
        if let Ok(grant) = state.schedule.admit_in_place(now, options.cost, options.caller) {
            granted.fill_in(grant, state.clock.origin());
            self.unlock_after_grant(state, &grant);
            return Ok(Enqueued::Granted(()));
        }
        drop(state);
        self.common().has_waited.store(true, Relaxed);
        self.acquire_or_wait(options, timeout, waker, granted, None)
    }

    /// [`Manager::acquire`] for a request that probably waits, because the latest one did.
    ///
    /// Cloning a waker runs foreign code, so the clone is made before locking, in case the request must wait. After a grant in
    /// place, the next request clones none beforehand.
    #[inline(never)]
    fn acquire_or_wait(
        self: &Arc<Self>,
        options: &RequestOptions,
        timeout: Option<u64>,
        waker: &Waker,
        granted: &mut TimedGrant,
        reading: Option<Reading>,
    ) -> Result<Enqueued<()>, Refused> {
        let mut task = Task { waker, clone: Some(waker.clone()) };
        let reading = reading.or_else(|| self.read_clock());
        let mut state = self.lock();
        let now = self.now_at(&mut state, reading);
        if let Ok(grant) = state.schedule.admit_in_place(now, options.cost, options.caller) {
            granted.fill_in(grant, state.clock.origin());
            self.unlock_after_grant(state, &grant);
            self.common().has_waited.store(false, Relaxed);
            contain_panic(|| drop(task.clone)); // or the grant would be lost
            return Ok(Enqueued::Granted(()));
        }
        if timeout.is_none()
            && state.has_driver(options.blocking)
            && let Some(id) = state.schedule.enqueue_behind(now, &options.request(Moment::NEVER), &mut task.clone)
        {
            return Ok(Enqueued::Queued(id));
        }
        let answer = self.enqueue(state, now, options, timeout, &mut task, granted);
        contain_panic(|| drop(task.clone)); // as above
        answer
    }

    /// The rest of [`Manager::acquire`], where it is neither granted in place nor queued behind others. `timeout` in nanoseconds.
    #[inline(never)]
    fn enqueue<'a>(
        self: &'a Arc<Self>,
        state: Locked<'a>,
        now: Moment,
        options: &RequestOptions,
        timeout: Option<u64>,
        task: &mut Task<'_>,
        granted: &mut TimedGrant,
    ) -> Result<Enqueued<()>, Refused> {
        let (mut state, mut now) = self.advance_if_due(state, now);
        if (timeout.is_some() || state.schedule.is_observed()) && !state.schedule.follows_time() {
            now = state.clock.now();
        }
        let deadline = timeout.map_or(Moment::NEVER, |nanos| now.plus(nanos));
        state.forget_time_if_queue_is_empty();
        let mut effects = Effects::default();
        state.schedule.offer_lead();
        let outcome = state.schedule.request(now, &options.request(deadline), &mut task.clone, &mut effects);
        let queued = if let Ok(Enqueued::Queued(id)) = outcome { Some(id) } else { None };
        let leads = state.let_lead(queued, &mut effects);
        match outcome {
            Ok(Enqueued::Queued(id)) => {
                let waiting = state.time_begins_to_matter(Some(id));
                let answer = if state.has_driver(options.blocking) && effects.is_empty() {
                    drop(state);
                    Ok(Enqueued::Queued(id))
                } else {
                    self.ensure_driver(state, id, options.cost, &mut effects)
                };
                wake_all(waiting);
                if leads && answer.is_ok() { self.poll_under_lock(id, options.cost, task.waker, granted) } else { answer }
            }
            Ok(Enqueued::Granted(grant)) => {
                granted.fill_in(grant, state.clock.origin());
                self.unlock_and_apply(state, &mut effects);
                Ok(Enqueued::Granted(()))
            }
            Err(error) => {
                self.unlock_and_apply(state, &mut effects);
                Err(error)
            }
        }
    }

    /// The last step of a request that waits. Its driver may have ended with its runtime, or its task may have moved to another
    /// runtime.
    pub(super) fn ensure_driver<'a>(
        self: &'a Arc<Self>,
        mut state: Locked<'a>,
        id: WaiterId,
        cost: u64,
        effects: &mut Effects,
    ) -> Result<Enqueued<()>, Refused> {
        let driver = if id.is_blocking() { Ok(None) } else { state.ensure_driver_here() };
        if driver.is_err() {
            let now = state.now();
            state.schedule.abandon(now, id, cost, effects);
            if state.take_leader(id).is_some() {
                effects.send_for_carrier();
            }
        }
        self.unlock_and_apply(state, effects);
        if let Some(runtime) = driver? {
            self.timer_host().start(self, runtime);
        }
        Ok(Enqueued::Queued(id))
    }
}
