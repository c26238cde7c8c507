//! When the store is called, and with what. How its replies are handled, and calls that failed.

use std::sync::Arc;
use std::time::Duration;

use super::call::{BackOff, CallAnswer, CallFailed, CallInFlight, Renewal, Trip};
use super::denial::{Denial, Denied, decision, denied};
use super::{GrantByStore, MAX_CALL, PolicyTerms, SessionStep, StoreSession};
use crate::core::effects::Errand;
use crate::core::gate::plan::BegunBan;
use crate::core::queue::WaiterId;
use crate::core::request::{Caller, Claim, Costs, Grant, RefusedRequest, Request};
use crate::decision::Decision;
use crate::error::{AcquireError, StoreError};
use crate::exchange::{Asks, Call, OnStoreDown, Reply};
use crate::snapshot::LimitStatus;
use crate::strategy::Moment;

/// Calls.
impl SessionStep<'_> {
    /// Grants requests that need no call. Sends a call if there is something to send now; sets when to check again.
    #[cold]
    pub(crate) fn serve(&mut self) {
        self.note_in_flight();
        self.serve_prefetched();
        let turn = self.serve_by_fallback();
        self.waiters.front_ready_at = self.send().min(turn);
    }

    /// Tells the flows of the requests that wait how many units are in flight.
    fn note_in_flight(&mut self) {
        if self.waiters.queue.has_flows() {
            let in_flight = self.session.in_flight();
            self.waiters.queue.set_in_flight(in_flight);
        }
    }

    /// Grants prefetched units to the requests that wait.
    fn serve_prefetched(&mut self) {
        while !self.waiters.refuses_waiters()
            && let Some(front) = self.waiters.queue.front()
            && let Some(grant) = self.grant_prefetched(front.cost, front.caller)
        {
            self.waiters
                .grant(self.now, front.id, (grant, 0), self.effects);
        }
    }

    /// Serves the requests that wait while the store does not answer. Returns when to do so again.
    fn serve_by_fallback(&mut self) -> Moment {
        while self.session.fallback.is_active
            && !self.waiters.refuses_waiters()
            && let Some(front) = self.waiters.queue.front()
        {
            if self.effects.is_full() {
                return self.now;
            }
            let details = self.waiters.queue.cost_details(front.id);
            let costs = Costs::new(front.cost, &details);
            match self.admit_by_fallback(costs, front.caller) {
                Ok(Ok(grant)) => {
                    self.waiters.grant(self.now, front.id, grant, self.effects);
                    self.note_in_flight();
                }
                Ok(Err(_)) if self.waiters.queue.is_try(front.id) => {
                    self.deny_try(front.id, None);
                }
                Ok(Err(until)) => {
                    self.deny_all_tries();
                    let is_held_back = self.waiters.resumes_at(self.now, costs.plain) > self.now;
                    let fallback = &self.session.fallback;
                    if !is_held_back && fallback.has_room_for_one(self.now, costs) {
                        self.waiters.queue.reserve(front.id);
                    }
                    return until;
                }
                Err(error) => self.refuse(front.id, error),
            }
        }
        Moment::NEVER
    }

    /// Sends a call if there is something to send now. Returns when to check again.
    fn send(&mut self) -> Moment {
        if let Some(due) = self.session.calls.reply_due() {
            if self.now < due {
                return due;
            }
            // Its carrier may be in a runtime that nothing polls.
            let options = &self.session.options;
            let deadline = Duration::from_nanos(options.deadline);
            let failed = CallFailed::unanswered(options.store.to_string(), Some(deadline));
            self.failed(self.session.calls.generation, &failed);
            self.serve();
            return self.waiters.front_ready_at;
        }
        if self.outlook().waits_to_ask() || self.outlook().asks_at() > self.now {
            self.deny_all_tries(); // they came during a call, and are not asked for
        }
        self.forget_past();
        let at = self.outlook().call_at();
        if at > self.now && !self.session.needs_keeper(self.now) {
            return at;
        }
        if self.session.carrier.due <= self.now {
            self.effects.run_errand(Errand::Carry);
            self.await_carrier();
        }
        if at > self.now {
            at
        } else {
            self.session.carrier.due
        }
    }

    /// Sets the deadline for a carrier that was started, or that brings a reply, to ask for its next trip.
    fn await_carrier(&mut self) {
        self.session.carrier.due = self.now.plus(self.session.options.deadline);
    }

    /// Handles the passing of time: prefetched units that were not used in time, or will not be, are returned, and returns of
    /// expired leases are forgotten.
    fn forget_past(&mut self) {
        let session = &mut *self.session;
        session.debts.forget_expired(self.now);
        let is_unneeded = self.waiters.closed && self.waiters.queue.is_empty();
        if is_unneeded || session.prefetch.ends_at() <= self.now {
            let unused = session.prefetch.empty();
            session.give_back_unused(unused);
        }
    }

    /// The next trip of a carrier that has brought a reply with this number of `granted` requests. Their callers often ask again,
    /// each when its task runs. So that these requests share a call, the carrier yields until as many wait as were granted, or
    /// until no more wait than had `come` before.
    pub(crate) fn next_trip(&mut self, come: u64, granted: u64) -> Trip {
        let waiting = self.waiters.queue.len() as u64;
        if waiting > come && waiting < granted {
            return Trip::Yield(waiting);
        }
        self.session.carrier.due = Moment::START;
        self.forget_past();
        if !self.session.calls.is_in_flight() && self.outlook().call_at() <= self.now {
            return self.next_call();
        }
        self.session
            .next_wait(self.now)
            .map_or(Trip::End, Trip::WaitUntil)
    }

    /// Takes the call that is to be sent now.
    fn next_call(&mut self) -> Trip {
        let now = self.now;
        let asks_at = self.outlook().asks_at();
        let session = &mut *self.session;
        let limits = session.gate.limits();
        let mut batch = session.calls.batch();
        let most = if asks_at <= now { MAX_CALL } else { 0 };
        let of_last = |costs: Costs<'_>| (costs.plain, costs.details.map(Arc::as_ptr));
        let mut last = None;
        let mut turns = self.waiters.queue.turns(None);
        for _ in 0..most {
            let Some(turn) = turns.next() else {
                break;
            };
            let costs = turn.costs;
            let is_same = last.replace(of_last(costs)) == Some(of_last(costs));
            let waits = !self.waiters.queue.is_try(turn.id);
            batch.push(turn.id, waits, is_same, || limits.costs_of_each(costs));
            session.prefetch.note_demand(costs.plain);
            turns.granted(&turn, limits.units_held_by(costs)); // asks are granted in order
        }
        let all_ask = batch.len() == self.waiters.queue.len() as u64;
        if all_ask && !self.waiters.closed {
            let units = session.prefetch.wanted();
            if units > 0 {
                batch.add_run(units, true, true, limits.costs_of_each(Costs::plain(1)));
            }
        }
        session.fallback.probes = false;
        let expires_at = now.plus(session.lease_ttl());
        let returns = session.debts.take_returns(MAX_CALL, expires_at);
        let call = Call {
            valid_until: session.calls.valid_until(now),
            returns: returns.iter().map(|(number, _)| *number).collect(),
            settlements: session.debts.take_settlements(MAX_CALL),
            asks: batch.runs.clone(),
            waits_no_more: batch.runs.is_empty() && session.denials.leave_line(),
            ..session.empty_call()
        };
        let generation = session.calls.begin(now, &call, batch, returns);
        // By the fallback, the front may have its turn before the reply.
        let turn = if session.fallback.is_active {
            self.waiters.front_ready_at
        } else {
            Moment::NEVER
        };
        let due = session.calls.reply_due().unwrap_or(Moment::NEVER);
        self.waiters.front_ready_at = due.min(turn);
        let call = Box::new(call);
        Trip::Call { call, generation }
    }
}

/// Carriers.
impl StoreSession {
    /// Whether a carrier must hold the limiter although no handle may be left: something is owed to the store, or grants still
    /// count that were made while the store did not answer. Called while no call is in flight.
    fn needs_keeper(&self, now: Moment) -> bool {
        let counts = || self.fallback.counts_until(now) != Moment::NEVER;
        self.carrier.wakes_at == Moment::NEVER && (!self.debts.is_empty() || counts())
    }

    /// The moment until which a carrier waits and holds the limiter: something is or will be owed to the store, or grants still
    /// count that were made while it did not answer. `None` if there is nothing to wait for, or if a carrier that waits already
    /// wakes by then.
    fn next_wait(&mut self, now: Moment) -> Option<Moment> {
        let at = if self.debts.is_empty() {
            let counts_until = self.fallback.counts_until(now);
            self.prefetch.ends_at().min(counts_until)
        } else {
            self.back_off.settles_from
        };
        if self.calls.is_in_flight() || self.carrier.wakes_at <= at {
            return None;
        }
        self.carrier.wakes_at = at;
        Some(at)
    }

    /// Records that the carrier that waited has woken, or was dropped.
    pub(crate) fn carrier_woke(&mut self) {
        self.carrier.wakes_at = Moment::NEVER;
    }
}

/// Calls beside those of the carrier.
impl StoreSession {
    /// A call of this key without anything to do.
    fn empty_call(&self) -> Call {
        let scope = self.scope.clone();
        let policy = self.gate.limits().policy().clone();
        let PolicyTerms {
            hears_turns,
            polls_every,
            revision,
            ..
        } = *self.terms;
        Call {
            ttl: self.lease_ttl(),
            polls_every: if hears_turns { 0 } else { polls_every },
            revision,
            keeps_policy: revision > 0 && scope.key.is_empty(),
            ..Call::new(scope, policy, self.options.holder)
        }
    }

    /// A call that changes nothing: it asks whether a request would be granted, or else for the status of each limit.
    pub(crate) fn peek(&self, costs: Option<Costs<'_>>) -> Call {
        Call {
            peek: costs.map(|costs| self.gate.limits().costs_of_each(costs)),
            ..self.empty_call()
        }
    }

    /// The calls that renew the leases, each of a bounded size. If there are none, the task that renews leases ends: a grant begins
    /// another one.
    pub(crate) fn renewals(&mut self, now: Moment) -> Vec<Renewal> {
        let leases = self.grants.next_renewals(now);
        let call = |leases: &[(u64, u64)]| {
            let (fences, renewals) = leases.iter().copied().unzip();
            let call = Call {
                renewals,
                ..self.empty_call()
            };
            Renewal { call, fences }
        };
        leases.chunks(MAX_CALL).map(call).collect()
    }

    /// Records that the task that renews the leases has ended, although some may be left.
    pub(crate) fn renewals_stopped(&mut self) {
        self.grants.is_renewed = false;
    }
}

/// Replies.
impl SessionStep<'_> {
    /// Handles the answer that a carrier brings to the call of this generation. Nothing else happens if that call was given up
    /// before.
    pub(crate) fn answered(&mut self, generation: u64, answer: &CallAnswer) {
        self.await_carrier();
        match answer {
            Ok(reply) => self.replied(generation, reply),
            Err(failed) => self.failed(generation, failed),
        }
    }

    /// What its carrier does next, after the waiters have been served.
    pub(crate) fn trip_after(&mut self, answer: &CallAnswer) -> Trip {
        match answer {
            // The carrier does not wait for a single request: when the request comes again, it starts a carrier.
            Ok(reply) if reply.granted > 1 || !self.waiters.queue.is_empty() => Trip::Yield(0),
            _ => self.next_trip(0, 0),
        }
    }

    fn replied(&mut self, generation: u64, reply: &Reply) {
        let now = self.now;
        let Some(call) = self.session.calls.complete(generation) else {
            return;
        };
        // Of a call under a former policy, only the grants still mean something.
        let is_present = call.revision == self.session.terms.revision;
        self.grant_asks(&call, reply, is_present);
        if is_present {
            self.keep_prefetched(&call, reply);
        }
        let random = self.session.random();
        let session = &mut *self.session;
        session.debts.unsent_since = None;
        session.fallback.end();
        session.back_off = BackOff::default();
        session.calls.clocks = Some((now, reply.now));
        let mut denied = call.asks.denied(reply.granted).peekable();
        let costs = denied.peek().map(|run| run.costs.clone());
        let waits = denied.any(|run| run.waits && !run.ahead);
        let denied = costs.map(|costs| (costs, waits));
        let polls_every = session.terms.polls_every;
        // A call that asks for nothing and brings nothing changes no denial.
        if call.changes_limits() && is_present {
            session
                .denials
                .note_reply(now, denied, reply, call.turn_came, polls_every, random);
        }
        if reply.stop.is_some() && is_present {
            self.deny_tries(&call, reply);
            self.reserve_denied(&call, reply);
        }
        if call.was_reset {
            self.session.drop_what_was_before_reset();
        }
        self.run_errands();
    }

    /// Decides that the request that was denied first is not passed by another flow, if its costs may not have fitted although a unit
    /// was free.
    fn reserve_denied(&mut self, call: &CallInFlight, reply: &Reply) {
        if let Some((id, _, run)) = call.asks.iter().nth(reply.granted as usize)
            && run.costs.iter().any(|cost| *cost > 1)
        {
            self.waiters.queue.reserve(id);
        }
    }

    /// Starts other tasks, if the reply makes that necessary.
    fn run_errands(&mut self) {
        let StoreSession {
            grants,
            denials,
            gate,
            ..
        } = &mut *self.session;
        if grants.begin_renewals(self.now) {
            self.effects.run_errand(Errand::RenewLeases);
        }
        if let Some(end) = denials.latest.as_ref().and_then(Denial::known_end)
            && self.now < end
            && !gate.limits().counts_denials()
        {
            let denied_for = end.duration_since(self.now);
            self.effects.run_errand(Errand::KeepDenied(denied_for));
        }
    }

    /// Gives the requests that were granted their permits.
    fn grant_asks(&mut self, call: &CallInFlight, reply: &Reply, is_present: bool) {
        // The leases of a call that took longer than the TTL have expired.
        let is_live = self.now < call.sent_at.plus(self.session.lease_ttl());
        let came_too_late = self.session.gate.holds_places() && !is_live;
        let granted = call.asks.iter().take(reply.granted as usize);
        let granted_at = reply.now;
        for (nth, (id, number, run)) in granted.enumerate() {
            let by_store = GrantByStore {
                fence: reply.first_fence + nth as u64,
                number,
                granted_at,
                sent_at: call.sent_at,
            };
            let reply = is_present.then_some(reply);
            if came_too_late || !self.deliver(id, by_store, reply) {
                let charged = is_present.then(|| run.costs.clone());
                self.session.decline(number, charged, granted_at);
            }
        }
    }

    /// Gives a waiter its grant, with the state of each limit in the reply. Returns `false` if the waiter has left.
    fn deliver(&mut self, id: WaiterId, by_store: GrantByStore, reply: Option<&Reply>) -> bool {
        let details = self.waiters.queue.cost_details(id);
        let Some(Request { costs, caller, .. }) = self.waiters.queue.request(id, &details) else {
            return false;
        };
        let grant = self.session.record(self.now, costs, by_store, caller);
        let grant = grant.counted_if_in_flow(costs);
        let held = self.session.gate.limits().units_held_by(costs);
        if costs.explained()
            && let Some(reply) = reply
        {
            let limits = self.outlook().peeked_limits(reply);
            self.waiters.untaken.explain(grant.fence, limits);
        }
        self.waiters
            .grant(self.now, id, (grant, held), self.effects);
        true
    }

    /// Keeps the units that were granted beyond what requests asked for.
    fn keep_prefetched(&mut self, call: &CallInFlight, reply: &Reply) {
        let units = reply.granted.saturating_sub(call.asks.len());
        if units > 0 {
            let first_fence = reply.first_fence + call.asks.len();
            let prefetch = &mut self.session.prefetch;
            let left = prefetch.fill(self.now, units, first_fence, reply.now);
            self.session.give_back_unused(left);
        }
    }
}

/// Denials.
impl SessionStep<'_> {
    /// Denies the requests of a call that do not wait, and were not granted.
    fn deny_tries(&mut self, call: &CallInFlight, reply: &Reply) {
        let mut bans = self.bans_begun(call, reply);
        for (id, _, run) in call.asks.iter().skip(reply.granted as usize) {
            if self.ends_with_denial(run)
                && let Some(caller) = self.deny_try(id, None)
            {
                let begun = bans.extract_if(.., |ban| run.costs[ban.limit_index] > 0);
                self.waiters.tell_bans(begun, caller, self.effects);
            }
        }
    }

    /// Whether a request that does not wait is denied by the latest denial of the store.
    ///
    /// That denial is of the first ask that was not granted. A request of other costs asks again, unless another one waits before it, or
    /// its attempt has been counted.
    fn ends_with_denial(&self, run: &Asks) -> bool {
        let Some(denial) = &self.session.denials.latest else {
            return false;
        };
        let front = self.waiters.queue.front();
        let front_waits = front.is_some_and(|front| !self.waiters.queue.is_try(front.id));
        denial.is_of(&run.costs) || front_waits || self.session.gate.limits().counts_denials()
    }

    /// The bans that began with this call, and are reported now.
    fn bans_begun(&mut self, call: &CallInFlight, reply: &Reply) -> Vec<BegunBan> {
        let StoreSession { gate, bans, .. } = &mut *self.session;
        if !self.waiters.options.observed || !gate.limits().counts_denials() {
            return Vec::new();
        }
        let denied = call.asks.denied(reply.granted);
        let tries: Vec<_> = denied.filter(|run| !run.waits).collect();
        let begun = gate.limits().plan().bans_begun(reply).filter(|ban| {
            let is_asked = tries.iter().any(|run| run.costs[ban.limit_index] > 0);
            let until = reply.now.saturating_add(ban.length);
            // While the store's clock stands still, each denial looks as if it had begun the ban.
            is_asked && bans.insert(ban.limit_index, until) != Some(until)
        });
        begun.collect()
    }

    /// Denies all requests that do not wait, because the front has to wait.
    fn deny_all_tries(&mut self) {
        let tries: Vec<_> = self.waiters.queue.tries().collect();
        for id in tries {
            self.deny_try(id, None);
        }
    }

    /// Denies a request, if it does not wait. With `None`, it is denied by
    /// [`known_denial`](super::outlook::StoreOutlook::known_denial). Returns its caller if it was denied.
    fn deny_try(&mut self, id: WaiterId, denial: Option<Denied>) -> Option<Caller> {
        let details = self.waiters.queue.cost_details(id);
        let Request { costs, caller, .. } = self.waiters.queue.request(id, &details)?;
        if !self.waiters.queue.is_try(id) {
            return None;
        }
        let ahead = if self.waiters.queue.is_front(id) {
            0
        } else {
            self.waiters.queue.units_ahead()
        };
        let bans = self.session.fallback.note_denial(self.now, costs);
        let denial = denial.unwrap_or_else(|| self.outlook().known_denial(ahead, costs));
        self.waiters
            .note_denial(costs, &denial.0, caller, self.effects);
        self.waiters.tell_bans(bans, caller, self.effects);
        self.waiters.refuse(id, denied(denial), self.effects);
        Some(caller)
    }

    /// Refuses a waiter for this reason.
    fn refuse(&mut self, id: WaiterId, error: AcquireError) {
        let details = self.waiters.queue.cost_details(id);
        let costs = Costs::new(0, &details);
        let (_, limits) = self.outlook().known_denial(0, costs);
        let refused = Box::new(RefusedRequest { error, limits });
        self.waiters.refuse(id, refused, self.effects);
    }
}

/// Calls that failed.
impl SessionStep<'_> {
    /// Handles the failure of the call of this generation.
    pub(crate) fn failed(&mut self, generation: u64, failed: &CallFailed) {
        let CallFailed {
            error,
            may_have_run,
        } = failed;
        let Some(call) = self.session.calls.complete(generation) else {
            return;
        };
        let debts = &mut self.session.debts;
        debts.unconfirmed.extend(call.returns);
        if !call.settlements.is_empty() && !call.was_reset {
            debts.send_again(self.now, call.settlements, *may_have_run);
        }
        if *may_have_run && self.session.gate.holds_places() {
            // Its asks may have been granted. Their rates count as spent, and their places are returned.
            let expires_at = self.now.plus(self.session.lease_ttl());
            let numbers = call.asks.iter().map(|(_, number, _)| (number, expires_at));
            self.session.debts.unconfirmed.extend(numbers);
        }
        let rule = self.session.rule_after(self.now, error, call.revision);
        self.session.fallback.end();
        if let Some(rule) = rule {
            if let OnStoreDown::Local(_) = rule {
                self.session.begin_fallback(self.now);
            }
            for (id, ..) in call.asks.iter() {
                self.answer_without_store(id, &rule, error);
            }
        }
    }

    fn answer_without_store(&mut self, id: WaiterId, rule: &OnStoreDown, error: &StoreError) {
        match rule {
            OnStoreDown::Error => self.refuse(id, AcquireError::Store(Box::new(error.clone()))),
            OnStoreDown::Allow if self.waiters.queue.waiter(id).is_some() => {
                // The store has no record of this grant. Its fences are microseconds since 1970, or more.
                let fence = self.session.gate.granted() + 1;
                self.session.gate.set_granted(fence);
                let grant = Grant {
                    fence,
                    claim: Claim::NONE,
                    at: self.now,
                };
                self.waiters.grant(self.now, id, (grant, 0), self.effects);
            }
            OnStoreDown::Deny => {
                let denial = self.outlook().unknown_denial(true);
                self.deny_try(id, Some(denial));
            }
            OnStoreDown::Allow | OnStoreDown::Local(_) => {} // it has left, or is served with the others
        }
    }

    /// Handles the reply to renewals that were sent at `sent_at`: these leases continue, or were lost.
    pub(crate) fn renewed(&mut self, sent_at: Moment, renewal: &Renewal, reply: &Reply) {
        let Renewal { call, fences } = renewal;
        for (fence, number) in fences.iter().zip(&call.renewals) {
            let lost = reply.lost.contains(number);
            self.session.note_renewal(self.now, *fence, sent_at, lost);
        }
    }
}

/// Peeks.
impl SessionStep<'_> {
    /// The decision on a request by the reply to a peek. This process may have prefetched units for the request.
    pub(crate) fn peeked(&mut self, costs: Costs<'_>, mut reply: Reply) -> Decision {
        self.answers_again();
        if let Some(decision) = self.outlook().check_here(costs) {
            return decision; // it has changed meanwhile
        }
        let in_hand = if self.waiters.queue.is_empty() {
            self.session.prefetch.left(self.now)
        } else {
            0
        };
        if costs.plain <= in_hand {
            reply.stop = None;
        }
        for limit in &mut reply.limits {
            limit.remaining = limit.remaining.max(in_hand);
        }
        let policy = self.session.gate.limits().policy();
        decision(self.now, policy, &reply, self.now)
    }

    /// The status of each limit by the reply to a peek.
    pub(crate) fn peeked_limits(&mut self, reply: &Reply) -> Vec<LimitStatus> {
        self.answers_again();
        self.outlook().peeked_limits(reply)
    }

    fn answers_again(&mut self) {
        if self.session.fallback.end() {
            self.session.back_off.end_wait(Moment::START);
        }
    }

    /// What this process decides, because the store has not answered a peek. `None`: it has no policy for that.
    pub(crate) fn peek_failed(&mut self, costs: Costs<'_>) -> Option<Decision> {
        self.session.options.fallback.as_ref()?;
        if !self.session.fallback.is_active {
            self.session.back_off(self.now);
        }
        self.session.begin_fallback(self.now);
        let ahead = self.waiters.queue.units_ahead();
        Some(self.outlook().known_denial(ahead, costs).0)
    }
}

/// Changes that concern no waiter.
impl StoreSession {
    fn back_off(&mut self, now: Moment) {
        let random = self.random();
        self.back_off
            .note_failure(now, self.options.longest_back_off, random);
    }

    /// The rule for the requests of a call that has failed. `None` if they are asked for again.
    fn rule_after(
        &mut self,
        now: Moment,
        error: &StoreError,
        revision: u64,
    ) -> Option<OnStoreDown> {
        self.back_off(now);
        match error {
            StoreError::TooLate { .. } => self.calls.clocks = None, // the store's clock is not what it seemed
            // The policy of the store was adopted meanwhile.
            StoreError::PolicyDiffers { .. } if revision < self.terms.revision => {}
            error if error.is_down() => return Some(self.options.on_down.clone()),
            _ => return Some(OnStoreDown::Error),
        }
        self.back_off.end_wait(now); // the call has not run
        None
    }

    /// Records that it is the turn of this process to take places, or that this may be so.
    pub(crate) fn turn_came(&mut self, now: Moment) {
        if let Some(call) = &mut self.calls.in_flight {
            call.turn_came = true;
        }
        self.denials.note_turn(now);
    }

    /// Records that it is the turn of another process, and whether that of this one is `next`.
    pub(crate) fn other_turn_came(&mut self, now: Moment, next: bool) {
        self.denials.note_other_turn(now, next);
    }
}

/// A reset of the limits in the store. What was charged before it must not change the limits after it.
impl StoreSession {
    /// Begins a reset. Settlements and charges that were not sent are withheld until it has ended. Returns the call in flight, if
    /// it carries any: they must arrive before the reset.
    pub(crate) fn reset_begins(&mut self) -> Option<u64> {
        self.debts.reset_begins();
        let call = self.calls.in_flight.as_ref()?;
        (!call.settlements.is_empty()).then_some(self.calls.generation)
    }

    /// Whether the call of this generation is in flight.
    pub(crate) fn awaits_reply(&self, generation: u64) -> bool {
        self.calls.is_in_flight() && self.calls.generation == generation
    }

    /// Records that the limits in the store were reset.
    pub(crate) fn was_reset(&mut self) {
        self.debts.note_reset();
        if let Some(call) = &mut self.calls.in_flight {
            call.was_reset = true;
        }
        self.drop_what_was_before_reset();
    }

    /// Ends a reset. If it has failed or was given up, as have all other resets of the key, withheld settlements are owed again.
    pub(crate) fn reset_ended(&mut self) {
        self.debts.reset_ended();
    }

    /// Drops a denial, and gives prefetched units back to the store. Only units that were granted after the reset are refunded.
    fn drop_what_was_before_reset(&mut self) {
        self.denials.latest = None;
        let unused = self.prefetch.empty();
        self.give_back_unused(unused);
    }
}
