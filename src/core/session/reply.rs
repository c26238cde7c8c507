//! How a session handles the store's replies, and calls that failed.

use super::back_off::BackOff;
use super::call::{CallAnswer, CallFailed, CallInFlight, Renewal, Trip};
use super::denial::{Denial, Denied, decision, denied};
use super::grants::GrantByStore;
use super::{SessionStep, StoreSession};
use crate::core::effects::Errand;
use crate::core::gate::plan::BegunBan;
use crate::core::queue::WaiterId;
use crate::core::request::{Caller, Claim, Costs, Grant, RefusedRequest, Request};
use crate::decision::Decision;
use crate::error::{AcquireError, StoreError};
use crate::exchange::{Asks, OnStoreDown, Reply};
use crate::snapshot::LimitStatus;
use crate::strategy::Moment;

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
        self.tell_replaced(call.replaces_policy);
        self.grant_asks(&call, reply);
        self.keep_prefetched(&call, reply);
        let random = self.session.random();
        let session = &mut *self.session;
        session.debts.unsent_since = None;
        session.fallback.end();
        session.back_off = BackOff::default();
        session.calls.clocks = Some((now, reply.now));
        let denied = call.asks.denied(reply.granted).next();
        let costs = denied.map(|run| run.costs.clone());
        // The store also sends a message of the places that this call gives back.
        let released = call.releases > u32::from(!call.returns.is_empty());
        let polls_every = session.options.polls_every;
        session
            .denials
            .note_reply(now, costs, reply, released, polls_every, random);
        if reply.stop.is_some() {
            self.deny_tries(&call, reply);
        }
        if call.was_reset {
            self.session.drop_what_was_before_reset();
        }
        self.run_errands();
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
    fn grant_asks(&mut self, call: &CallInFlight, reply: &Reply) {
        // The leases of a call that took longer than the TTL have expired.
        let is_live = self.now < call.sent_at.plus(self.session.lease_ttl().max(1));
        let came_too_late = self.session.gate.holds_places() && !is_live;
        let granted = call.asks.iter().take(reply.granted as usize);
        for (nth, (id, number, run)) in granted.enumerate() {
            let by_store = GrantByStore {
                fence: reply.first_fence + nth as u64,
                number,
                granted_at: reply.now,
                sent_at: call.sent_at,
            };
            if came_too_late || !self.deliver(id, by_store, reply) {
                self.session.decline(number, run.costs.clone(), reply.now);
            }
        }
    }

    /// Gives a waiter its grant. Returns `false` if the waiter has left.
    fn deliver(&mut self, id: WaiterId, by_store: GrantByStore, reply: &Reply) -> bool {
        let by_unit = self.waiters.queue.unit_costs(id);
        let Some(Request { costs, caller, .. }) = self.waiters.queue.request(id, &by_unit) else {
            return false;
        };
        let grant = self.session.record(self.now, costs, by_store, caller);
        if costs.explained() {
            let limits = self.outlook().peeked_limits(reply);
            self.waiters.untaken.explain(grant.fence, limits);
        }
        self.waiters.grant(self.now, id, grant, self.effects);
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
    pub(super) fn deny_all_tries(&mut self) {
        let tries: Vec<_> = self.waiters.queue.tries().collect();
        for id in tries {
            self.deny_try(id, None);
        }
    }

    /// Denies a request, if it does not wait. With `None`, it is denied by
    /// [`known_denial`](super::outlook::StoreOutlook::known_denial). Returns its caller if it was denied.
    pub(super) fn deny_try(&mut self, id: WaiterId, denial: Option<Denied>) -> Option<Caller> {
        let by_unit = self.waiters.queue.unit_costs(id);
        let Request { costs, caller, .. } = self.waiters.queue.request(id, &by_unit)?;
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
            .note_denial(costs.plain, &denial.0, caller, self.effects);
        self.waiters.tell_bans(bans, caller, self.effects);
        self.waiters.refuse(id, denied(denial), self.effects);
        Some(caller)
    }

    /// Refuses a waiter for this reason.
    pub(super) fn refuse(&mut self, id: WaiterId, error: AcquireError) {
        let by_unit = self.waiters.queue.unit_costs(id);
        let costs = Costs::new(0, &by_unit);
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
        let rule = self
            .session
            .rule_after(self.now, error, call.replaces_policy);
        self.session.fallback.end();
        if let Some(rule) = rule {
            if let OnStoreDown::Local(_) = rule {
                self.session.fallback.begin(self.now);
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
                self.waiters.grant(self.now, id, grant, self.effects);
            }
            OnStoreDown::Deny => {
                let denial = self.outlook().unknown_denial(true);
                self.deny_try(id, Some(denial));
            }
            OnStoreDown::Allow | OnStoreDown::Local(_) => {} // it has left, or is served with the others
        }
    }

    /// Reports that a call has replaced another policy in the store.
    fn tell_replaced(&mut self, replaced: bool) {
        if replaced
            && let Some(former) = self.session.replaced.take()
            && let Ok(former) = former.parse()
        {
            let policy = self.session.gate.limits().policy();
            self.waiters.tell_policy(former, policy, self.effects);
        }
    }

    /// Handles the reply to renewals that were sent at `sent_at`: these leases continue, or were lost.
    pub(crate) fn renewed(&mut self, sent_at: Moment, renewal: &Renewal, reply: &Reply) {
        let Renewal { call, fences } = renewal;
        self.tell_replaced(call.replaces_policy);
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
        self.session.fallback.begin(self.now);
        let ahead = self.waiters.queue.units_ahead();
        Some(self.outlook().known_denial(ahead, costs).0)
    }
}

/// Changes that concern no waiter.
impl StoreSession {
    fn back_off(&mut self, now: Moment) {
        let random = self.random();
        let longest = self.options.longest_back_off;
        self.back_off.note_failure(now, longest, random);
    }

    /// The rule for the requests of a call that has failed. `None` if they are asked for again.
    fn rule_after(
        &mut self,
        now: Moment,
        error: &StoreError,
        replaced_policy: bool,
    ) -> Option<OnStoreDown> {
        self.back_off(now);
        if let StoreError::TooLate { .. } = error {
            self.calls.clocks = None; // the store's clock is not what it seemed
        } else if !self.replaces_next(error, replaced_policy) {
            let is_down = error.is_down();
            return Some(if is_down {
                self.options.on_down.clone()
            } else {
                OnStoreDown::Error
            });
        }
        self.back_off.end_wait(now); // the call has not run
        None
    }

    /// Handles a refused call or renewal. Returns whether the next call replaces the policy in the store, because it differs.
    pub(crate) fn replaces_next(&mut self, error: &StoreError, replaced_policy: bool) -> bool {
        let StoreError::PolicyDiffers { stored, .. } = error else {
            return false;
        };
        let replaces = self.options.replaces_policy && !replaced_policy;
        if replaces {
            self.replaced = Some(stored.clone());
        }
        replaces
    }

    /// Records that places of the store were released somewhere: a denial that waits for one ends soon.
    pub(crate) fn released_elsewhere(&mut self, now: Moment) {
        let random = self.random();
        if let Some(call) = &mut self.calls.in_flight {
            call.releases = call.releases.saturating_add(1);
        }
        self.denials.note_release(now, random);
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
