//! What decides whether the front of the queue is admitted: the limits of this process, or the store that holds them.
//!
//! These are all the points at which the two differ.

use std::sync::Arc;
use std::time::Duration;

use crate::core::arena::Index;
use crate::core::effects::{Effects, Errand};
use crate::core::gate::Gate;
use crate::core::gate::lease::Lease;
use crate::core::queue::{Front, Waiters};
use crate::core::request::{Actual, Caller, Claim, Costs, Grant, WorkReport};
use crate::core::session::{Denied, PolicyTerms, StoreSession};
use crate::strategy::Moment;

#[derive(Debug)]
pub(super) enum Authority {
    Local(Gate),
    Store(Box<StoreSession>),
}

impl Authority {
    /// The permits in flight, and the limits if this process holds them.
    #[inline(always)]
    pub(super) fn gate(&self) -> &Gate {
        match self {
            Self::Local(gate) => gate,
            Self::Store(session) => gate_of(session),
        }
    }

    #[inline(always)]
    pub(super) fn gate_mut(&mut self) -> &mut Gate {
        match self {
            Self::Local(gate) => gate,
            Self::Store(session) => &mut session.gate,
        }
    }

    /// The gates of all permits: the second one is that of the local fallback.
    pub(super) fn gates(&self) -> (&Gate, Option<&Gate>) {
        match self {
            Self::Local(gate) => (gate, None),
            Self::Store(session) => (&session.gate, session.fallback_gate()),
        }
    }

    /// Units in flight, as the first concurrency limit counts them.
    pub(super) fn in_flight(&self) -> u64 {
        match self {
            Self::Local(gate) => gate.in_flight(),
            Self::Store(session) => session.in_flight(),
        }
    }

    /// Whether most timers are set for a timeout that does not happen: that of a lease, or of a call to a store.
    pub(super) fn has_timeouts(&self) -> bool {
        match self {
            Self::Local(gate) => gate.leases_permits(),
            Self::Store(_) => true,
        }
    }

    /// Admits a request that goes first, if that can be decided at once.
    #[inline(always)]
    pub(super) fn admit(
        &mut self,
        now: Moment,
        costs: Costs<'_>,
        caller: Caller,
        waiters: &mut Waiters,
        effects: &mut Effects,
    ) -> Option<Grant> {
        match self {
            Self::Local(gate) => {
                let grant = admit_front(gate, waiters, now, costs, caller).ok()?;
                if costs.details.is_some() {
                    let (grant, held) = note_details(gate, waiters, now, costs, grant);
                    waiters.note_held(costs, grant, held);
                    return Some(grant);
                }
                Some(grant)
            }
            Self::Store(session) => session.step(now, waiters, effects).admit(costs, caller),
        }
    }

    /// Grants to the waiters, in order, as far as they are admitted. Only the front is checked: requests behind it wait, however small
    /// their cost, because otherwise a large one would starve.
    #[inline(always)]
    pub(super) fn serve(&mut self, now: Moment, waiters: &mut Waiters, effects: &mut Effects) {
        match self {
            Self::Local(gate) => serve_by_gate(gate, waiters, now, effects),
            Self::Store(session) => session.step(now, waiters, effects).serve(),
        }
    }

    /// Decides that the front is not passed by another flow, if a unit of what it requests is free. Called before anything that may
    /// change how the flows share.
    #[cold]
    pub(super) fn reserve_front(&self, now: Moment, waiters: &mut Waiters) {
        if let Self::Local(gate) = self {
            reserve_front(gate, waiters, now);
        }
    }

    /// Until when the store surely denies requests of these costs. `reported`: the instant is for a caller, not for a lower bound.
    pub(super) fn denied_until(
        &self,
        now: Moment,
        costs: Costs<'_>,
        reported: bool,
        waiters: &Waiters,
    ) -> Moment {
        match self {
            Self::Local(_) => now,
            Self::Store(session) => session.outlook(now, waiters).denied_until(costs, reported),
        }
    }

    /// The instant that is reported to a request that times out: its `turn`. For limits in a store, the turn is only a lower
    /// bound, so `ready_at` is reported instead.
    pub(super) fn reported_turn(&self, turn: Moment, ready_at: impl FnOnce() -> Moment) -> Moment {
        match self {
            Self::Local(_) => turn,
            Self::Store(_) => ready_at(),
        }
    }

    /// How a request is denied behind this number of waiting units, as far as is known without a call.
    pub(super) fn known_denial(
        &self,
        now: Moment,
        ahead: u64,
        costs: Costs<'_>,
        waiters: &Waiters,
    ) -> Denied {
        match self {
            Self::Local(gate) => {
                let resumes_at = waiters.resumes_at(now, costs.plain);
                let limits = gate.limits();
                let decision = limits.decide_behind(now, ahead, costs, resumes_at);
                (decision, limits.statuses(now))
            }
            Self::Store(session) => session.outlook(now, waiters).known_denial(ahead, costs),
        }
    }

    /// Whether a request of these costs can join the waiters without a further check, since the turn of the front is watched already:
    /// `Some` with whether its grant will be a place and nothing more.
    #[inline(always)]
    pub(super) fn admits_behind(&self, costs: Costs<'_>, waiters: &Waiters) -> Option<bool> {
        match self {
            Self::Local(gate) => (costs.plain.wrapping_sub(1) < gate.limits().max_cost_in_place())
                .then(|| gate.grants_bare_places()),
            Self::Store(session) => (waiters.front_ready_at != Moment::NEVER
                && session.gate.limits().fits(costs).is_ok())
            .then_some(false),
        }
    }

    /// Records that requests are held back in this process for this long, or with `None` no longer. Meanwhile, a limiter with a
    /// store must not be dropped.
    pub(super) fn note_hold(&self, held_for: Option<Duration>, effects: &mut Effects) {
        if let Self::Store(_) = self {
            effects.run_errand(held_for.map_or(Errand::EndKeep, Errand::KeepHeldBack));
        }
    }
}

/// Permits.
impl Authority {
    /// Releases a permit to the gate that granted it. `None`, without a change, if it was reclaimed before.
    #[inline(always)]
    pub(super) fn end(
        &mut self,
        fence: u64,
        claim: Claim,
        end: impl FnOnce(&mut Gate) -> Option<()>,
    ) -> Option<()> {
        match self {
            Self::Local(gate) => end(gate),
            Self::Store(session) => session.end(fence, claim, end),
        }
    }

    pub(super) fn reclaim_one(&mut self, now: Moment) -> Option<Lease> {
        match self {
            Self::Local(gate) => gate.reclaim_one(now),
            Self::Store(session) => session.reclaim_one(now),
        }
    }

    pub(super) fn settle(
        &mut self,
        now: Moment,
        grant: Grant,
        cost: u64,
        actual: Actual<'_>,
        report: Option<WorkReport>,
    ) -> Option<()> {
        match self {
            Self::Local(gate) => gate.settle(now, grant, cost, actual, report),
            Self::Store(session) => session.settle(now, grant, cost, actual, report),
        }
    }

    /// Moves the expiry of a lease of this process. Only a renewal moves the expiry of a lease in a store. Returns whether the
    /// permit is live.
    pub(super) fn change_lease(
        &mut self,
        now: Moment,
        (index, fence): (Index, u64),
        change: impl FnOnce(&mut Gate) -> bool,
    ) -> bool {
        match self {
            Self::Local(gate) => change(gate),
            Self::Store(session) => session.gate.live_lease(index, fence, now).is_some(),
        }
    }

    pub(super) fn forget(&mut self, fence: u64, claim: Claim) {
        match self {
            Self::Local(gate) => gate.forget(fence, claim),
            Self::Store(session) => session.forget(fence, claim),
        }
    }

    /// Replaces the policy of limits in a store, if the revision of these terms is later.
    pub(super) fn adopt(&mut self, now: Moment, terms: &Arc<PolicyTerms>) -> bool {
        let Self::Store(session) = self else {
            return false;
        };
        let is_later = terms.revision > session.revision();
        if is_later {
            session.adopt(terms, now);
        }
        is_later
    }

    pub(super) fn charge(&mut self, now: Moment, units: u64) {
        match self {
            Self::Local(gate) => gate.charge(now, units),
            Self::Store(session) => session.charge(now, units),
        }
    }
}

/// Not inlined: a choice between two addresses would slow down each grant of a local limiter.
#[cold]
fn gate_of(session: &StoreSession) -> &Gate {
    &session.gate
}

/// Admits the next request, or sets when to check again.
#[inline(always)]
fn admit_front(
    gate: &mut Gate,
    waiters: &mut Waiters,
    now: Moment,
    costs: Costs<'_>,
    caller: Caller,
) -> Result<Grant, Moment> {
    let resumes_at = waiters.resumes_at(now, costs.plain);
    if resumes_at > now {
        return Err(resumes_at);
    }
    let grant = gate.admit(now, costs, caller)?;
    waiters.note_grant(now, costs.plain);
    Ok(grant)
}

/// Keeps what the request asked for besides the grant. Returns the grant, and the units that it holds for its flow.
#[cold]
fn note_details(
    gate: &Gate,
    waiters: &mut Waiters,
    now: Moment,
    costs: Costs<'_>,
    grant: Grant,
) -> (Grant, u64) {
    if costs.explained() {
        let limits = gate.limits().statuses(now);
        waiters.untaken.explain(grant.fence, limits);
    }
    (
        grant.counted_if_in_flow(costs),
        gate.limits().units_held_by(costs),
    )
}

fn reserve_front(gate: &Gate, waiters: &mut Waiters, now: Moment) {
    waiters.queue.set_in_flight(gate.in_flight());
    if !gate.limits().have_room_for_one(now, Costs::plain(1)) {
        return; // whichever request is the front
    }
    if let Some(front) = waiters.queue.front() {
        let details = waiters.queue.cost_details(front.id);
        let costs = Costs::new(front.cost, &details);
        let is_held_back = waiters.resumes_at(now, costs.plain) > now;
        if !is_held_back && gate.limits().have_room_for_one(now, costs) {
            waiters.queue.reserve(front.id);
        }
    }
}

#[inline(always)]
fn serve_by_gate(gate: &mut Gate, waiters: &mut Waiters, now: Moment, effects: &mut Effects) {
    if waiters.queue.has_flows() {
        serve_flows(gate, waiters, now, effects);
    } else {
        serve_waiters::<false>(gate, waiters, now, effects);
    }
}

#[cold]
fn serve_flows(gate: &mut Gate, waiters: &mut Waiters, now: Moment, effects: &mut Effects) {
    serve_waiters::<true>(gate, waiters, now, effects);
}

/// `SHARES`: flows are known. Without them, nothing is checked for them.
#[inline(always)]
fn serve_waiters<const SHARES: bool>(
    gate: &mut Gate,
    waiters: &mut Waiters,
    now: Moment,
    effects: &mut Effects,
) {
    let before = waiters.begin_serving();
    let mut moved = false;
    while let Some(front) = next_waiter::<SHARES>(gate, waiters) {
        if effects.is_full() {
            waiters.pause_serving(now);
            return;
        }
        let admitted = if front.id.has_details() {
            admit_with_details(gate, waiters, now, front)
        } else {
            admit_front(gate, waiters, now, Costs::plain(front.cost), front.caller)
                .map(|grant| (grant, 0))
        };
        match admitted {
            Ok(grant) => {
                moved = true;
                waiters.grant(now, front.id, grant, effects);
            }
            Err(until) => {
                waiters.front_ready_at = until;
                let mut changed = moved || before != until;
                if SHARES {
                    reserve_front(gate, waiters, now);
                    changed |= waiters.queue.note_front(front.id);
                }
                if front.id.is_blocking() && changed {
                    // Its thread runs the timer for all waiters, and needs the new instant.
                    effects.wake(waiters.queue.take_waker(front.id));
                }
                return;
            }
        }
    }
}

#[inline(always)]
fn next_waiter<const SHARES: bool>(gate: &Gate, waiters: &mut Waiters) -> Option<Front> {
    if SHARES {
        waiters.queue.set_in_flight(gate.in_flight());
    }
    waiters.queue.front()
}

/// Admits the front, whose cost has details.
#[cold]
fn admit_with_details(
    gate: &mut Gate,
    waiters: &mut Waiters,
    now: Moment,
    front: Front,
) -> Result<(Grant, u64), Moment> {
    let details = waiters.queue.cost_details(front.id);
    let costs = Costs::new(front.cost, &details);
    let grant = admit_front(gate, waiters, now, costs, front.caller)?;
    Ok(note_details(gate, waiters, now, costs, grant))
}
