//! When the store is called, and with what.

use std::sync::Arc;
use std::time::Duration;

use super::call::{CallFailed, Renewal, Trip};
use super::{MAX_CALL, SessionStep, StoreSession};
use crate::core::effects::Errand;
use crate::core::request::Costs;
use crate::exchange::Call;
use crate::strategy::Moment;

impl SessionStep<'_> {
    /// Grants requests that need no call. Sends a call if there is something to send now; sets when to check again.
    #[cold]
    pub(crate) fn serve(&mut self) {
        self.waiters.front_ready_at = Moment::NEVER;
        self.serve_prefetched();
        let turn = self.serve_by_fallback();
        self.send();
        let ready_at = self.waiters.front_ready_at;
        self.waiters.front_ready_at = ready_at.min(turn);
    }

    /// Grants prefetched units to the requests that wait.
    fn serve_prefetched(&mut self) {
        while !self.waiters.refuses_waiters()
            && let Some(front) = self.waiters.queue.front()
            && let Some(grant) = self.grant_prefetched(front.cost, front.caller)
        {
            self.waiters.grant(self.now, front.id, grant, self.effects);
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
            let by_unit = self.waiters.queue.unit_costs(front.id);
            let costs = Costs::new(front.cost, &by_unit);
            match self.admit_by_fallback(costs, front.caller) {
                Ok(Ok(grant)) => {
                    self.waiters.grant(self.now, front.id, grant, self.effects);
                }
                Ok(Err(_)) if self.waiters.queue.is_try(front.id) => {
                    self.deny_try(front.id, None);
                }
                Ok(Err(until)) => {
                    self.deny_all_tries();
                    return until;
                }
                Err(error) => self.refuse(front.id, error),
            }
        }
        Moment::NEVER
    }

    /// Sends a call if there is something to send now; sets when to check again.
    fn send(&mut self) {
        if let Some(due) = self.session.calls.reply_due() {
            if self.now < due {
                self.waiters.front_ready_at = due;
            } else {
                // Its carrier may be in a runtime that nothing polls.
                let options = &self.session.options;
                let deadline = Duration::from_nanos(options.deadline);
                let failed = CallFailed::unanswered(options.store.to_string(), Some(deadline));
                self.failed(self.session.calls.generation, &failed);
                self.serve();
            }
            return;
        }
        if self.outlook().waits_to_ask() || self.outlook().asks_at() > self.now {
            self.deny_all_tries(); // they came during a call, and are not asked for
        }
        self.forget_past();
        let at = self.outlook().call_at();
        if at > self.now && !self.session.needs_keeper(self.now) {
            self.waiters.front_ready_at = at;
            return;
        }
        if self.session.carrier.due <= self.now {
            self.effects.run_errand(Errand::Carry);
            self.await_carrier();
        }
        let due = self.session.carrier.due;
        self.waiters.front_ready_at = if at > self.now { at } else { due };
    }

    /// Sets the deadline for a carrier that was started, or that brings a reply, to ask for its next trip.
    pub(super) fn await_carrier(&mut self) {
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
        let of_last = |costs: Costs<'_>| (costs.plain, costs.by_unit.map(Arc::as_ptr));
        let mut last = None;
        for (id, costs, _) in self.waiters.queue.waiting().take(most) {
            let is_same = last.replace(of_last(costs)) == Some(of_last(costs));
            let waits = !self.waiters.queue.is_try(id);
            batch.push(id, waits, is_same, || limits.costs_of_each(costs));
            session.prefetch.note_demand(costs.plain);
        }
        let all_ask = batch.len() == self.waiters.queue.len() as u64;
        if all_ask && !self.waiters.closed {
            let units = session.prefetch.wanted();
            if units > 0 {
                batch.add_run(units, true, limits.costs_of_each(Costs::plain(1))); // no request waits for them yet
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
        let scope = self.options.scope.clone();
        let policy = self.gate.limits().policy().clone();
        Call {
            ttl: self.lease_ttl(),
            replaces_policy: self.replaced.is_some(),
            ..Call::new(scope, policy, self.options.holder)
        }
    }

    /// A call that changes nothing: it asks whether a request would be granted, or else for the status of each limit.
    pub(crate) fn peek(&self, costs: Option<Costs<'_>>) -> Call {
        Call {
            peek: costs.map(|costs| self.gate.limits().costs_of_each(costs)),
            replaces_policy: false,
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

    /// See [`StoredGrants::renewals_stopped`](super::grants::StoredGrants::renewals_stopped).
    pub(crate) fn renewals_stopped(&mut self) {
        self.grants.renewals_stopped();
    }
}
