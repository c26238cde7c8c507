//! The *in* channel: how a request enters.
//!
//! The queue under the manager's lock is the channel. A request that need not wait is decided by its caller, in place, and never
//! enters it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;

use super::RequestOptions;
use super::out_channel::{FromGrant, TimedGrant};
use crate::contain_panic::contain_panic;
use crate::core::effects::Effects;
use crate::core::request::{Caller, Claim, Costs, Grant, Refused, Request};
use crate::core::schedule::Enqueued;
use crate::decision::Decision;
use crate::error::TryAcquireError;
use crate::manager::parts::{Locked, Manager, Registered};
use crate::manager::time::Reading;
use crate::manager::visit::Visit;
use crate::priority::Priority;
use crate::snapshot::LimitStatus;
use crate::strategy::{LimitReport, Moment};

manager_view!("How requests enter.", InChannel, in_channel);

impl<'a> InChannel<'a> {
    /// Grants in place, or charges nothing. A `reading` that was just taken is used.
    #[inline(always)]
    pub(crate) fn try_acquire<P: FromGrant>(
        self,
        cost: u64,
        caller: Caller,
        reading: Option<Reading>,
    ) -> Result<P, TryAcquireError> {
        if self.0.state.word.decides_rate() {
            let reading = reading.unwrap_or_else(|| self.0.common().time_source.now());
            match self.take_rate(reading, cost) {
                Some(granted) => Ok(P::spent(self.0.common().id_prefix(0), granted, cost)),
                None => self.try_acquire_past_word(cost, caller, Some(reading)),
            }
        } else {
            match self.take_place(cost) {
                Some(granted) => Ok(P::held(self.0, granted, cost)),
                None => self.try_acquire_past_word(cost, caller, reading),
            }
        }
    }

    /// Takes `cost` units of a rate without the lock, and makes no permit. Returns `false`, without a change, if the lock must
    /// decide or the policy is no rate.
    #[inline(always)]
    pub(crate) fn spend(self, cost: u64) -> bool {
        self.0.state.word.decides_rate()
            && self
                .take_rate(self.0.common().time_source.now(), cost)
                .is_some()
    }

    /// Grants a place without the lock. `None`, without a change, if the lock must decide or the policy is a rate.
    #[inline(always)]
    pub(crate) fn take_place(self, cost: u64) -> Option<TimedGrant> {
        self.0.state.word.take_place(cost).map(TimedGrant::of_place)
    }

    /// Grants by a rate without the lock. `None`, without a change, if the lock must decide.
    #[inline(always)]
    fn take_rate(self, reading: Reading, cost: u64) -> Option<TimedGrant> {
        let Registered { clock, rate, .. } = self.0.common().registered.as_ref()?;
        let at = clock.moment(reading)?;
        let (fence, reached) = self.0.state.word.take_rate(rate, at.nanos(), cost)?;
        let claim = Claim::of_rate(reached.get());
        Some(TimedGrant {
            grant: Grant { fence, claim, at },
            origin: *clock,
        })
    }

    /// The slow path of [`InChannel::try_acquire`].
    #[inline(always)]
    fn try_acquire_past_word<P: FromGrant>(
        self,
        cost: u64,
        caller: Caller,
        reading: Option<Reading>,
    ) -> Result<P, TryAcquireError> {
        if self.0.state.word.is_open() {
            self.deny_behind_word(cost, caller, reading)
        } else {
            self.try_acquire_under_lock(cost, caller, reading)
        }
    }

    /// Denies the request while the word stays open; if it is shut or admits the request, the lock decides.
    #[inline(never)]
    fn deny_behind_word<P: FromGrant>(
        self,
        cost: u64,
        caller: Caller,
        reading: Option<Reading>,
    ) -> Result<P, TryAcquireError> {
        if let Some(reading) = reading
            && let Some(denial) = self.deny_by_rate(cost, reading)
        {
            return Err(denial);
        }
        if self.0.state.is_only_a_word() {
            if let Some(denial) = self.deny_by_word(cost, caller) {
                return Err(denial);
            }
        } else if let Some((mut state, now)) = self.0.peek_at(reading)
            && let Some(denial) = state.schedule.deny_behind_word(now, cost)
        {
            return Err(denial);
        }
        self.try_acquire_under_lock(cost, caller, reading)
    }

    /// The slow path of [`InChannel::try_acquire`], where the word does not decide.
    #[inline(never)]
    fn try_acquire_under_lock<P: FromGrant>(
        self,
        cost: u64,
        caller: Caller,
        reading: Option<Reading>,
    ) -> Result<P, TryAcquireError> {
        let reading = self.0.read_before_lock(reading);
        let mut state = self.0.lock();
        let now = self.0.now_since(reading, &mut state);
        match state.schedule.admit_in_place(now, cost, caller) {
            Some(Ok(grant)) => {
                let origin = state.clock.origin();
                Visit::end_after_grant(self.0, state, &grant);
                Ok(P::held(self.0, TimedGrant { grant, origin }, cost))
            }
            Some(Err(_)) if !state.schedule.waiters.options.observed => {
                Err(Self::deny(state, now, cost))
            }
            _ => self
                .try_acquire_or_deny(
                    Visit::new(self.0, state, now),
                    Costs::plain(cost),
                    caller,
                    None,
                )
                .map(|granted| P::held(self.0, granted, cost)),
        }
    }

    /// [`InChannel::deny_behind_word`] of a rate, without the lock.
    #[inline(always)]
    fn deny_by_rate(self, cost: u64, reading: Reading) -> Option<TryAcquireError> {
        let common = self.0.common();
        let Registered {
            clock,
            rate,
            denied,
        } = common.registered.as_ref().filter(|_| !common.observed)?;
        let read = clock.moment(reading)?.nanos();
        let denial = self.0.state.word.deny_rate(rate, read, cost)?;
        denied.fetch_add(1, Relaxed);
        let (policy, until) = (common.plan.policy(), Moment::from_nanos(denial.until));
        let report = LimitReport {
            denied_until: Some(until),
            remaining: denial.remaining,
            ready_at: until,
            reset_at: Moment::from_nanos(denial.reset_at),
        };
        Some(TryAcquireError::Denied(Decision::of_one(
            policy,
            false,
            report,
            Moment::from_nanos(denial.now),
            0,
            policy.limits()[0].capacity(),
        )))
    }

    /// [`InChannel::deny_behind_word`], as long as no call has needed the state and there is room to count the denial.
    fn deny_by_word(self, cost: u64, caller: Caller) -> Option<TryAcquireError> {
        let mut copy = self.0.state.copy_of_word()?;
        let (now, costs) = (copy.clock.latest(), Costs::plain(cost));
        let asked = copy
            .schedule
            .would_acquire(now, costs, true, caller, &mut Effects::default());
        let denial = asked.err()?;
        if matches!(denial, TryAcquireError::Denied(_)) {
            self.0
                .denied
                .fetch_update(Relaxed, Relaxed, |denied| denied.checked_add(1))
                .ok()?;
        }
        Some(denial)
    }

    /// Denies a request that was not admitted in place, while nothing is observed. It drops the guard and is not inlined, so that the
    /// denial is made where it stays: a copy of what was just written stalls the processor.
    #[inline(never)]
    fn deny(mut state: Locked<'_>, now: Moment, cost: u64) -> TryAcquireError {
        state.schedule.deny_in_place(now, cost)
    }

    /// The slow path of [`InChannel::try_acquire`], where the request is not decided in place.
    #[cold]
    fn try_acquire_or_deny(
        self,
        visit: Visit<'_>,
        costs: Costs<'_>,
        caller: Caller,
        limits: Option<&mut Vec<LimitStatus>>,
    ) -> Result<TimedGrant, TryAcquireError> {
        let visit = visit.after_due();
        let origin = visit.state.clock.origin();
        let answer = visit.give(|schedule, now, effects| {
            let answer = schedule.try_acquire(now, costs, caller, effects);
            if let Some(limits) = limits {
                *limits = schedule.outlook().limits().statuses(now);
            }
            answer
        });
        answer.map(|grant| TimedGrant { grant, origin })
    }

    /// [`InChannel::try_acquire`] for a request that may name units, or have a TTL. Sets `limits` to the status of each limit
    /// right after it.
    pub(crate) fn try_request<P: FromGrant>(
        self,
        options: &RequestOptions,
        limits: Option<&mut Vec<LimitStatus>>,
        reading: Option<Reading>,
    ) -> Result<P, TryAcquireError> {
        let &RequestOptions { cost, caller, .. } = options;
        if options.details.is_none() && options.rare.is_none() {
            return match limits {
                Some(limits) => self.try_explained(cost, caller, limits, reading),
                None => self.try_acquire(cost, caller, reading),
            };
        }
        let checked = self.0.release_channel().check_ttl(options);
        if let Err(error) = checked.and_then(|()| options.check_weights()) {
            if let Some(limits) = limits {
                *limits = self.0.limits();
            }
            return Err(TryAcquireError::without_decision(error));
        }
        let granted = self.try_acquire_or_deny(self.0.visit(), options.costs(), caller, limits)?;
        self.0.release_channel().limit_ttl(granted.grant, options);
        Ok(P::held(self.0, granted, cost))
    }

    /// [`InChannel::try_acquire`] under the lock, which also sets `limits` to the status of each limit right after it.
    fn try_explained<P: FromGrant>(
        self,
        cost: u64,
        caller: Caller,
        limits: &mut Vec<LimitStatus>,
        reading: Option<Reading>,
    ) -> Result<P, TryAcquireError> {
        let reading = reading.unwrap_or_else(|| self.0.common().time_source.now());
        let mut state = self.0.lock();
        let now = state.clock.now_since(reading);
        let granted = match state.schedule.admit_in_place(now, cost, caller) {
            Some(Ok(grant)) => {
                *limits = state.schedule.outlook().limits().statuses(now);
                let origin = state.clock.origin();
                Visit::end_after_grant(self.0, state, &grant);
                TimedGrant { grant, origin }
            }
            _ => self.try_acquire_or_deny(
                Visit::new(self.0, state, now),
                Costs::plain(cost),
                caller,
                Some(limits),
            )?,
        };
        Ok(P::held(self.0, granted, cost))
    }

    /// [`InChannel::acquire`] for a request that no word may grant: it has a flow, or asks for an explanation.
    pub(crate) fn acquire_under_lock(
        self,
        options: &RequestOptions,
        timeout: Option<u64>,
        waker: &Waker,
        granted: &mut TimedGrant,
    ) -> Result<Enqueued<()>, Refused> {
        let queued = Some(waker.clone());
        let request = options.request(Moment::NEVER);
        self.enqueue(self.0.visit(), request, timeout, queued, granted)
    }

    /// Grants in place, or enqueues the request: `waker` is woken when [`OutChannel::poll`](super::out_channel::OutChannel::poll) has
    /// the answer. `timeout` is in nanoseconds.
    #[inline(always)]
    pub(crate) fn acquire(
        self,
        options: &RequestOptions,
        timeout: Option<u64>,
        waker: &Waker,
        granted: &mut TimedGrant,
    ) -> Result<Enqueued<()>, Refused> {
        let &RequestOptions { cost, caller, .. } = options;
        if let Some(TimedGrant { grant, origin }) = self.take_place(cost) {
            granted.fill_in(grant, origin);
            return Ok(Enqueued::Granted(()));
        }
        let mut reading = None;
        if self.grant_at_once(cost, caller, &mut reading, granted) {
            return Ok(Enqueued::Granted(()));
        }
        self.acquire_or_wait(
            options.request(Moment::NEVER),
            timeout,
            waker,
            granted,
            reading,
        )
    }

    /// [`InChannel::acquire`] of a request with default options, after [`InChannel::take_place`] has taken nothing.
    #[inline(always)]
    pub(crate) fn acquire_plain(
        self,
        cost: u64,
        caller: Caller,
        waker: &Waker,
        granted: &mut TimedGrant,
    ) -> Result<Enqueued<()>, Refused> {
        let mut reading = None;
        if self.grant_at_once(cost, caller, &mut reading, granted) {
            return Ok(Enqueued::Granted(()));
        }
        self.acquire_plain_or_wait(cost, caller, waker, granted, reading)
    }

    /// Grants by a rate without the lock, or in place if the latest request did not have to wait. Returns whether it did. Sets
    /// `reading` if it reads the clock.
    #[inline(always)]
    fn grant_at_once(
        self,
        cost: u64,
        caller: Caller,
        reading: &mut Option<Reading>,
        granted: &mut TimedGrant,
    ) -> bool {
        if self.0.state.word.decides_rate() {
            let now = *reading.insert(self.0.common().time_source.now());
            if let Some(TimedGrant { grant, origin }) = self.take_rate(now, cost) {
                granted.fill_in(grant, origin);
                return true;
            }
        }
        !self.0.common().has_waited.load(Relaxed)
            && self.acquire_in_place(cost, caller, *reading, granted)
    }

    /// [`InChannel::acquire_or_wait`], compiled for default options: that takes 50 instructions less.
    #[inline(never)]
    fn acquire_plain_or_wait(
        self,
        cost: u64,
        caller: Caller,
        waker: &Waker,
        granted: &mut TimedGrant,
        reading: Option<Reading>,
    ) -> Result<Enqueued<()>, Refused> {
        let request = Request {
            costs: Costs::plain(cost),
            priority: Priority::NORMAL,
            deadline: Moment::NEVER,
            caller,
            blocking: false,
        };
        self.acquire_or_wait(request, None, waker, granted, reading)
    }

    /// The rest of [`InChannel::acquire`], where no word grants, for a request that is likely to be granted in place, because the
    /// latest one was. It does not clone the waker in advance. Returns whether the request is granted.
    #[inline(never)]
    fn acquire_in_place(
        self,
        cost: u64,
        caller: Caller,
        reading: Option<Reading>,
        granted: &mut TimedGrant,
    ) -> bool {
        let reading = self.0.read_before_lock(reading);
        let mut state = self.0.lock();
        let now = self.0.now_since(reading, &mut state);
        let Some(Ok(grant)) = state.schedule.admit_in_place(now, cost, caller) else {
            self.0.common().has_waited.store(true, Relaxed);
            return false;
        };
        granted.fill_in(grant, state.clock.origin());
        Visit::end_after_grant(self.0, state, &grant);
        true
    }

    /// [`InChannel::acquire_in_place`] for a request that is likely to wait, because the latest one did.
    ///
    /// Cloning a waker runs foreign code, so the clone is made before locking.
    #[inline(always)]
    fn acquire_or_wait(
        self,
        request: Request<'_>,
        timeout: Option<u64>,
        waker: &Waker,
        granted: &mut TimedGrant,
        reading: Option<Reading>,
    ) -> Result<Enqueued<()>, Refused> {
        let mut queued = Some(waker.clone());
        let reading = self.0.read_before_lock(reading);
        let mut state = self.0.lock();
        let now = self.0.now_since(reading, &mut state);
        let admitted = (state.schedule).admit_in_place(now, request.costs.plain, request.caller);
        if let Some(Ok(grant)) = admitted {
            granted.fill_in(grant, state.clock.origin());
            Visit::end_after_grant(self.0, state, &grant);
            self.0.common().has_waited.store(false, Relaxed);
            contain_panic(|| drop(queued)); // an escaping panic would lose the grant
            return Ok(Enqueued::Granted(()));
        }
        if timeout.is_none()
            && let Some(id) = state.enqueue_behind(now, &request, &mut queued)
        {
            return Ok(Enqueued::Queued(id));
        }
        let visit = Visit::new(self.0, state, now);
        self.enqueue(visit, request, timeout, queued, granted)
    }

    /// The slow path of [`InChannel::acquire`], where the request is neither granted in place nor queued behind others. `timeout`
    /// is in nanoseconds.
    #[inline(never)]
    fn enqueue(
        self,
        visit: Visit<'_>,
        request: Request<'_>,
        timeout: Option<u64>,
        mut queued: Option<Waker>,
        granted: &mut TimedGrant,
    ) -> Result<Enqueued<()>, Refused> {
        let mut visit = visit.after_due();
        let Visit {
            state,
            now,
            unapplied,
            ..
        } = &mut visit;
        let effects = &mut unapplied.effects;
        if (timeout.is_some() || state.schedule.waiters.options.observed)
            && !state.schedule.follows_time()
        {
            *now = state.clock.now();
        }
        let deadline = timeout.map_or(Moment::NEVER, |nanos| now.plus(nanos));
        state.forget_time_if_queue_is_empty();
        let request = Request {
            deadline,
            ..request
        };
        let answer = state.schedule.request(*now, &request, &mut queued, effects);
        if let Ok(Enqueued::Queued(id)) = answer {
            state.time_begins_to_matter(Some(id), effects);
            if state.has_driver(request.blocking) && effects.is_empty() {
                return Ok(Enqueued::Queued(id));
            }
        }
        let answer = end_request(visit, answer, request.costs.plain, granted);
        contain_panic(|| drop(queued)); // an escaping panic would lose the grant
        answer
    }
}

/// Ends the visit of a request of `cost`: fills in its grant, or makes sure that a driver serves it while it waits.
pub(in crate::manager) fn end_request(
    visit: Visit<'_>,
    answer: Result<Enqueued<Grant>, Refused>,
    cost: u64,
    granted: &mut TimedGrant,
) -> Result<Enqueued<()>, Refused> {
    let answer = match answer {
        Ok(Enqueued::Queued(id)) => return visit.await_turn(id, cost),
        Ok(Enqueued::Granted(grant)) => {
            granted.fill_in(grant, visit.state.clock.origin());
            Ok(Enqueued::Granted(()))
        }
        Err(refused) => Err(refused),
    };
    visit.end();
    answer
}

/// Charges the costs to each manager, or to none. The error names the first that denies; if the caller `waits` next, that is not
/// counted as a denial.
///
/// All are locked at once, in the order of their addresses, so that two such calls never wait for each other. No manager may be
/// listed twice.
pub(crate) fn try_acquire_all(
    managers: &[&Arc<Manager>],
    costs: Costs<'_>,
    waits: bool,
    caller: Caller,
) -> Result<Vec<TimedGrant>, (usize, TryAcquireError)> {
    let mut visits = visit_all(managers);
    if visits.iter().any(Visit::is_due) {
        drop(visits);
        // Due work may take several batches, and wakers run between them, so no other lock may be held.
        for manager in managers {
            drop(manager.visit().after_due());
        }
        visits = visit_all(managers);
    }
    let denial = visits.iter_mut().enumerate().find_map(|(index, visit)| {
        let Visit {
            state,
            now,
            unapplied,
            ..
        } = visit;
        let asked =
            state
                .schedule
                .would_acquire(*now, costs, waits, caller, &mut unapplied.effects);
        Some((index, asked.err()?))
    });
    let granted = match denial {
        Some(denial) => Err(denial),
        None => (visits.iter_mut().enumerate())
            .map(|(index, visit)| {
                let Visit {
                    state,
                    now,
                    unapplied,
                    ..
                } = visit;
                let origin = state.clock.origin();
                let effects = &mut unapplied.effects;
                let taken = state.schedule.try_acquire(*now, costs, caller, effects);
                taken
                    .map(|grant| TimedGrant { grant, origin })
                    .map_err(|error| (index, error))
            })
            .collect(),
    };
    // Wakers run foreign code, so they are woken after the last lock is released.
    let unapplied: Vec<_> = visits.into_iter().map(Visit::leave).collect();
    for (manager, unapplied) in managers.iter().zip(unapplied) {
        unapplied.apply(manager);
    }
    granted
}

/// A visit to each manager. The locks are taken in the order of the managers' addresses.
fn visit_all<'a>(managers: &[&'a Arc<Manager>]) -> Vec<Visit<'a>> {
    let mut order: Vec<usize> = (0..managers.len()).collect();
    order.sort_unstable_by_key(|&index| Arc::as_ptr(managers[index]));
    let mut visits: Vec<_> = managers.iter().map(|_| None).collect();
    for index in order {
        visits[index] = Some(managers[index].visit());
    }
    visits.into_iter().flatten().collect()
}
