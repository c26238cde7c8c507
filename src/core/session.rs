//! A process and the store that holds its limits.
//!
//! The queue, the priorities, deadlines and permits are those of any schedule; only the decision on the front comes from the store. One
//! call of a key is in flight at most. Requests that come meanwhile share the next one: the busier a key, the fewer calls a grant
//! takes.
//!
//! Work to be done outside is returned as an [`Errand`](crate::core::effects::Errand). A *carrier* asks for its [next
//! trip](SessionStep::next_trip), takes a call to the store, and brings the [answer](SessionStep::answered).

mod call;
mod debts;
mod denial;
mod outlook;
mod prefetch;
mod serve;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use crate::core::arena::Index;
use crate::core::effects::Effects;
use crate::core::gate::Gate;
use crate::core::gate::lease::Lease;
use crate::core::gate::plan::{BegunBan, Plan};
use crate::core::queue::Waiters;
use crate::core::request::{Actual, Caller, Claim, Costs, Grant, Refused, Request, WorkReport};
use crate::error::AcquireError;
use crate::exchange::{OnStoreDown, Scope, Settlement};
use crate::policy::Limit;
use crate::strategy::{Counts, Moment};

use call::{BackOff, Calls, Carrier, Random};
use debts::{Debts, translate};
use denial::{Denials, denied};
use prefetch::{Prefetch, UnusedUnits};

#[cfg(any(test, fuzzing, feature = "_simulation"))]
pub(crate) use call::Renewal;
pub(crate) use call::{CallAnswer, CallFailed, Trip};
pub(crate) use denial::Denied;
pub(crate) use prefetch::PrefetchOptions;

/// The most asks, returns, settlements, or renewals of one call. A store serves no other caller meanwhile.
const MAX_CALL: usize = 1_000;

/// The checked options of the sessions of a limiter. All times are nanoseconds.
#[derive(Debug, Clone)]
pub(crate) struct SessionOptions {
    /// A random number of this process and limiter.
    pub(crate) holder: u64,
    /// After how long a permit is reclaimed although its holder is alive.
    pub(crate) max_hold: Option<u64>,
    /// How long a reply is awaited.
    pub(crate) deadline: u64,
    /// After a failed call, the longest time until the store is asked again.
    pub(crate) longest_back_off: u64,
    pub(crate) on_down: OnStoreDown,
    /// The plan of [`OnStoreDown::Local`].
    pub(crate) fallback: Option<Arc<Plan>>,
    /// The name of the store, for errors.
    pub(crate) store: Arc<str>,
}

/// A policy of a limiter, and what follows from it. All times are nanoseconds.
#[derive(Debug)]
pub(crate) struct PolicyTerms {
    pub(crate) plan: Arc<Plan>,
    pub(crate) revision: u64,
    /// The TTL of leases.
    pub(crate) ttl: NonZeroU64,
    /// How often the store is asked again while a place is awaited, without a message.
    pub(crate) polls_every: u64,
    /// Whether the store reports that the turn of this process has come.
    pub(crate) hears_turns: bool,
    pub(crate) prefetch: PrefetchOptions,
}

#[derive(Debug)]
pub(crate) struct StoreSession {
    scope: Scope,
    options: SessionOptions,
    terms: Arc<PolicyTerms>,
    /// The places that the store has granted to this process.
    pub(crate) gate: Gate,
    grants: StoredGrants,
    debts: Debts,
    fallback: LocalFallback,
    calls: Calls,
    back_off: BackOff,
    denials: Denials,
    prefetch: Prefetch,
    /// For each limit, the end of the latest ban that was reported here, by the store's clock.
    bans: BTreeMap<usize, u64>,
    carrier: Carrier,
}

/// A session at one instant, with the requests that wait and the effects so far.
#[derive(Debug)]
pub(crate) struct SessionStep<'a> {
    pub(crate) now: Moment,
    pub(crate) session: &'a mut StoreSession,
    waiters: &'a mut Waiters,
    effects: &'a mut Effects,
}

impl StoreSession {
    /// `first_lease` is the number of the first lease. It is random for each session: a call of an earlier session of the key may reach
    /// the store late, and must not return a lease of a later one.
    pub(crate) fn new(
        scope: Scope,
        first_lease: u64,
        terms: Arc<PolicyTerms>,
        now: Moment,
        options: SessionOptions,
    ) -> Self {
        Self {
            scope,
            gate: Gate::of_store(Arc::clone(&terms.plan), now, terms.ttl),
            grants: StoredGrants::default(),
            debts: Debts::default(),
            fallback: LocalFallback::default(),
            calls: Calls::new(first_lease, options.deadline),
            back_off: BackOff::default(),
            denials: Denials::default(),
            prefetch: Prefetch::new(terms.prefetch),
            bans: BTreeMap::new(),
            carrier: Carrier {
                due: Moment::START,
                wakes_at: Moment::NEVER,
            },
            options,
            terms,
        }
    }

    /// The revision of its policy.
    pub(crate) fn revision(&self) -> u64 {
        self.terms.revision
    }

    /// Replaces its policy by a later revision. What the store has replied to calls under the former one no longer holds, except
    /// its grants. The store refunds nothing that it granted under the former policy, so prefetched units are lost.
    pub(crate) fn adopt(&mut self, terms: &Arc<PolicyTerms>, now: Moment) {
        let former = self.gate.limits().policy().clone();
        let (former, limits) = (former.limits(), terms.plan.limits());
        self.debts.translate(former, limits);
        if let Some(call) = &mut self.calls.in_flight {
            translate(&mut call.settlements, former, limits);
        }
        self.gate
            .set_stored_plan(Arc::clone(&terms.plan), now, terms.ttl);
        self.denials = Denials::default();
        self.bans.clear();
        self.prefetch = Prefetch::new(terms.prefetch);
        self.terms = Arc::clone(terms);
    }

    /// The session at this instant, to give it an input.
    pub(crate) fn step<'a>(
        &'a mut self,
        now: Moment,
        waiters: &'a mut Waiters,
        effects: &'a mut Effects,
    ) -> SessionStep<'a> {
        SessionStep {
            now,
            session: self,
            waiters,
            effects,
        }
    }

    /// Begins to decide without the store, because it does not answer. Nothing happens if another rule applies then.
    fn begin_fallback(&mut self, now: Moment) {
        if let Some(plan) = &self.options.fallback {
            self.fallback.is_active = true;
            self.fallback
                .gate
                .get_or_insert_with(|| Box::new(Gate::new(Arc::clone(plan), now, true)));
        }
    }

    /// The gate of the local fallback, if it was needed so far.
    pub(crate) fn fallback_gate(&self) -> Option<&Gate> {
        self.fallback.gate.as_deref()
    }

    /// The units in flight of the store's grants and of the local fallback.
    pub(crate) fn in_flight(&self) -> u64 {
        self.gate.in_flight() + self.fallback_gate().map_or(0, Gate::in_flight)
    }

    fn random(&self) -> Random {
        Random(self.options.holder ^ self.calls.generation)
    }

    /// The TTL of leases in the store, in nanoseconds. There may be some from a former policy.
    pub(crate) fn lease_ttl(&self) -> u64 {
        self.terms.ttl.get()
    }
}

/// Requests.
impl SessionStep<'_> {
    /// Grants what needs no call: from prefetched units, or because this process decides while the store does not answer.
    pub(crate) fn admit(&mut self, costs: Costs<'_>, caller: Caller) -> Option<Grant> {
        let prefetched = self.grant_prefetched(costs.plain, caller);
        if prefetched.is_some() && self.session.prefetch.runs_low() {
            self.serve(); // asks for more in time
        }
        if prefetched.is_some() || !self.session.fallback.is_active {
            return prefetched;
        }
        let admitted = self.admit_by_fallback(costs, caller);
        self.probe_store();
        let (grant, held) = admitted.ok()?.ok()?;
        self.waiters.note_held(costs, grant, held);
        Some(grant)
    }

    /// Grants from prefetched units, which exist only for a policy that counts the plain cost alone. `None` if there are too few.
    fn grant_prefetched(&mut self, cost: u64, caller: Caller) -> Option<Grant> {
        if self.waiters.suspension.is_some() {
            return None;
        }
        let (fence, granted_at) = self.session.prefetch.take(self.now, cost)?;
        let by_store = GrantByStore {
            fence,
            number: 0,
            granted_at,
            sent_at: self.now,
        };
        let costs = Costs::plain(cost);
        Some(self.session.record(self.now, costs, by_store, caller))
    }

    /// Grants while the store does not answer. The outer `Err` means that the policy of the fallback can never grant the request.
    /// The inner one holds the end of the wait.
    fn admit_by_fallback(
        &mut self,
        costs: Costs<'_>,
        caller: Caller,
    ) -> Result<Result<(Grant, u64), Moment>, AcquireError> {
        let StoreSession { fallback, gate, .. } = &mut *self.session;
        fallback.fits(costs)?;
        let resumes_at = self.waiters.resumes_at(self.now, costs.plain);
        if resumes_at > self.now {
            return Ok(Err(resumes_at));
        }
        let admitted = fallback.admit(self.now, costs, caller, gate);
        Ok(admitted.map(|grant| {
            let gate = fallback.gate.as_ref();
            let held = gate.map_or(0, |gate| gate.limits().units_held_by(costs));
            (grant.counted_if_in_flow(costs), held)
        }))
    }

    /// Called when a request is decided without the store, to find out whether the store answers again.
    fn probe_store(&mut self) {
        if self.session.back_off.asks_from <= self.now && !self.session.calls.is_in_flight() {
            self.session.fallback.probes = true;
        }
        self.serve();
    }

    /// Grants or denies a request without a call. `Ok(None)`: a call decides, so the request is to be queued as a
    /// [try](crate::core::queue::Queue::add_try).
    pub(crate) fn try_acquire(&mut self, request: &Request<'_>) -> Result<Option<Grant>, Refused> {
        let &Request { costs, caller, .. } = request;
        if self.waiters.queue.is_empty()
            && let Some(grant) = self.admit(costs, caller)
        {
            return Ok(Some(grant)); // even if the store has denied requests since it granted the units
        }
        let mut bans = Vec::new();
        let denial = if self.session.fallback.is_active {
            self.session.fallback.fits(costs)?;
            self.probe_store();
            bans = self.session.fallback.note_denial(self.now, costs);
            let ahead = self.waiters.queue.units_ahead();
            self.outlook().known_denial(ahead, costs)
        } else if self.outlook().waits_to_ask() {
            self.outlook().unknown_denial(true)
        } else if self.outlook().is_known_denied(costs) {
            self.outlook().latest_denial(costs)
        } else {
            return Ok(None);
        };
        self.waiters
            .note_denial(costs, &denial.0, caller, self.effects);
        self.waiters.tell_bans(bans, caller, self.effects);
        Err(denied(denial))
    }
}

/// Permits, and what is owed to the store for them.
impl StoreSession {
    /// Records a grant of the store.
    fn record(
        &mut self,
        now: Moment,
        costs: Costs<'_>,
        by_store: GrantByStore,
        caller: Caller,
    ) -> Grant {
        let fence = self.grants.free_fence(by_store.fence);
        let mut claim = self.gate.record(now, costs, fence, caller);
        if claim == Claim::NONE {
            claim = Claim::of_rate(by_store.granted_at);
        } else {
            let max_hold = self.options.max_hold;
            let stored = StoredGrant {
                lease: claim.lease().map(|index| (index, by_store.number)),
                granted_at: by_store.granted_at,
                renewed_until: max_hold.map_or(Moment::NEVER, |max| now.plus(max)),
            };
            self.grants.by_fence.insert(fence, stored);
            self.note_renewal(now, fence, by_store.sent_at, false);
        }
        Grant {
            fence,
            claim,
            at: now,
        }
    }

    /// Records that a renewal that was sent at `sent_at` has reached the store: the lease in the gate continues, or was `lost`.
    fn note_renewal(&mut self, now: Moment, fence: u64, sent_at: Moment, lost: bool) {
        let Some(&StoredGrant {
            lease: Some((index, _)),
            renewed_until,
            ..
        }) = self.grants.by_fence.get(&fence)
        else {
            return;
        };
        if lost {
            self.gate
                .set_own_ttl(index, fence, now, NonZeroU64::MIN, true);
        } else if let Some(left) = NonZeroU64::new(renewed_until.since(sent_at)) {
            let ttl = left.min(self.terms.ttl);
            self.gate.set_own_ttl(index, fence, sent_at, ttl, true);
        }
    }

    /// Gives a grant that no request takes back to the store. `charged`: `None` for a grant under a former policy, of which the store
    /// refunds nothing.
    fn decline(&mut self, number: u64, charged: Option<Box<[u64]>>, granted_at: u64) {
        if self.gate.holds_places() {
            self.debts.returns.push(number);
        }
        if let Some(charged) = charged {
            self.decline_units(charged, granted_at);
        }
    }

    /// Gives prefetched units that are not needed back to the store.
    fn give_back_unused(&mut self, unused: Option<UnusedUnits>) {
        if let Some((units, granted_at)) = unused {
            let charged = self.gate.limits().costs_of_each(Costs::plain(units));
            self.decline_units(charged, granted_at);
        }
    }

    /// Gives units that no request takes back to the store.
    fn decline_units(&mut self, charged: Box<[u64]>, granted_at: u64) {
        let actual = vec![0; charged.len()];
        let settlement = Settlement::new(granted_at, charged, actual);
        self.debts.settlements.push(settlement);
    }

    /// Gives the lease of a released or reclaimed permit back to the store.
    fn give_back(&mut self, fence: u64) {
        let grant = self.grants.by_fence.remove(&fence);
        if let Some((_, number)) = grant.and_then(|grant| grant.lease) {
            self.debts.returns.push(number);
        }
    }

    /// The gate of the local fallback, if it granted this permit. Places that the store has granted are leases, and its permits
    /// of rates have the time of the grant.
    fn fallback_of(&mut self, fence: u64, claim: Claim) -> Option<&mut Gate> {
        match claim {
            Claim::NONE | Claim::COUNTED_PLACE => self.fallback.gate.as_deref_mut(),
            Claim::NAMED_UNITS if !self.grants.by_fence.contains_key(&fence) => {
                self.fallback.gate.as_deref_mut()
            }
            _ => None,
        }
    }

    /// Releases a permit to the gate that granted it: that of the local fallback, or that of the store's grants.
    pub(crate) fn end(
        &mut self,
        fence: u64,
        claim: Claim,
        end: impl FnOnce(&mut Gate) -> Option<()>,
    ) -> Option<()> {
        if let Some(gate) = self.fallback_of(fence, claim) {
            return end(gate);
        }
        end(&mut self.gate)?;
        if claim.holds() {
            self.give_back(fence);
        }
        Some(())
    }

    /// See [`Gate::reclaim_one`].
    pub(crate) fn reclaim_one(&mut self, now: Moment) -> Option<Lease> {
        let lease = self.gate.reclaim_one(now)?;
        self.give_back(lease.fence);
        Some(lease)
    }

    /// See [`Gate::settle`]. The difference is sent to the store.
    pub(crate) fn settle(
        &mut self,
        now: Moment,
        grant: Grant,
        cost: u64,
        actual: Actual<'_>,
        report: Option<WorkReport>,
    ) -> Option<()> {
        let Grant { fence, claim, .. } = grant;
        if let Some(gate) = self.fallback_of(fence, claim) {
            return gate.settle(now, grant, cost, actual, report);
        }
        let is_held = claim.holds(); // else another permit may have this fence
        let details = self.gate.cost_details(fence).filter(|_| is_held).cloned();
        let recorded = self.grants.by_fence.get(&fence).filter(|_| is_held);
        let granted_at = recorded.map(|grant| grant.granted_at);
        let granted_at = granted_at.or(claim.reached());
        self.end(fence, claim, |gate| gate.release_live(now, grant, cost))?;
        let limits = self.gate.limits();
        let charged = limits.costs_of_each(Costs::new(cost, &details));
        let counts = limits.policy().limits().iter().map(Limit::counts);
        let actual: Box<[u64]> = counts
            .zip(&charged)
            .map(|(counts, charged)| actual.of(counts, *charged))
            .collect();
        if actual != charged {
            let settlement = Settlement::new(granted_at?, charged, actual);
            self.debts.settlements.push(settlement);
        }
        Some(())
    }

    /// See [`Gate::forget`]. A permit that is never released is not renewed any more.
    pub(crate) fn forget(&mut self, fence: u64, claim: Claim) {
        if claim.names_units() {
            self.end(fence, claim, |gate| {
                gate.forget(fence, claim);
                Some(())
            });
        }
        if let Some(grant) = self.grants.by_fence.get_mut(&fence) {
            grant.renewed_until = Moment::START;
        }
    }

    /// See [`Gate::charge`]. The charge is sent to the store.
    pub(crate) fn charge(&mut self, now: Moment, units: u64) {
        if let Some(gate) = self.fallback.gate.as_deref_mut() {
            gate.charge(now, units);
        }
        if units > 0 {
            let charged = |limit: &Limit| match limit.counts() {
                Counts::Unit(_) => 0,
                _ => units,
            };
            let limits = self.gate.limits().policy().limits().iter();
            let charge = Settlement::charge(limits.map(charged).collect::<Box<[u64]>>());
            self.debts.add_charge(charge);
        }
    }
}

/// A grant by the store.
#[derive(Debug, Clone, Copy)]
struct GrantByStore {
    fence: u64,
    /// The number of its lease, if it is one.
    number: u64,
    /// By the store's clock.
    granted_at: u64,
    /// When the call was sent. The TTL counts from here: in the store it began later.
    sent_at: Moment,
}

/// The permits whose grants the store has recorded, by fence.
#[derive(Debug, Default)]
struct StoredGrants {
    by_fence: BTreeMap<u64, StoredGrant>,
    /// Whether a task renews the leases.
    is_renewed: bool,
}

#[derive(Debug)]
struct StoredGrant {
    /// Its lease, if it is one: the index in the gate, and the number in the store.
    lease: Option<(Index, u64)>,
    /// By the store's clock.
    granted_at: u64,
    /// Until when the lease may be renewed.
    renewed_until: Moment,
}

impl StoredGrants {
    /// The next fence that no permit has. After a reset, the store may give a fence again that an earlier permit still has.
    fn free_fence(&self, mut fence: u64) -> u64 {
        while self.by_fence.contains_key(&fence) {
            fence += 1;
        }
        fence
    }

    /// The leases that may be renewed, by fence and number.
    fn renewable(&self, now: Moment) -> impl Iterator<Item = (u64, u64)> {
        self.by_fence
            .iter()
            .filter(move |(_, grant)| now < grant.renewed_until)
            .filter_map(|(fence, grant)| Some((*fence, grant.lease?.1)))
    }

    /// Whether a task must begin to renew the leases. If so, it is taken to have begun.
    fn begin_renewals(&mut self, now: Moment) -> bool {
        let begins = !self.is_renewed && self.renewable(now).next().is_some();
        self.is_renewed |= begins;
        begins
    }

    /// The leases to renew. If there are none, no task renews leases any more, until a grant begins it again.
    fn next_renewals(&mut self, now: Moment) -> Vec<(u64, u64)> {
        let leases: Vec<_> = self.renewable(now).collect();
        self.is_renewed = !leases.is_empty();
        leases
    }
}

/// What a process decides by itself while the store does not answer, by a policy of its own: see [`OnStoreDown::Local`].
///
/// Requests wait in the same queue. No ask is sent meanwhile: a call without asks finds out whether the store answers again,
/// after the pause that each failure makes longer. It is sent while a request waits, or when one comes.
#[derive(Debug, Default)]
struct LocalFallback {
    /// Whether this process decides.
    is_active: bool,
    /// Whether it is time to find out whether the store answers again, although no request waits for it.
    probes: bool,
    /// The gate. Made when it is first needed, and kept: a store that comes and goes must not reset it each time.
    gate: Option<Box<Gate>>,
}

impl LocalFallback {
    /// Stops deciding, because the store answers or another rule applies. Returns whether this process decided until now.
    fn end(&mut self) -> bool {
        std::mem::take(&mut self.is_active)
    }

    /// The gate, if it decides.
    fn deciding(&self) -> Option<&Gate> {
        self.gate.as_deref().filter(|_| self.is_active)
    }

    /// Whether its policy can ever admit the costs.
    fn fits(&self, costs: Costs<'_>) -> Result<(), AcquireError> {
        self.gate
            .as_deref()
            .map_or(Ok(()), |gate| gate.limits().fits(costs))
    }

    /// Whether a unit of all that a request charges is free, although the request may not be admitted.
    fn has_room_for_one(&self, now: Moment, costs: Costs<'_>) -> bool {
        let gate = self.gate.as_deref();
        gate.is_some_and(|gate| gate.limits().have_room_for_one(now, costs))
    }

    /// [`Gate::admit`], after the latest fence of the `store`: the fences of its grants and of these are one sequence.
    fn admit(
        &mut self,
        now: Moment,
        costs: Costs<'_>,
        caller: Caller,
        store: &mut Gate,
    ) -> Result<Grant, Moment> {
        let gate = self.gate.as_deref_mut().ok_or(Moment::NEVER)?;
        gate.set_granted(store.granted());
        let mut grant = gate.admit(now, costs, caller)?;
        store.set_granted(grant.fence);
        if grant.claim == Claim::PLACE {
            grant.claim = Claim::COUNTED_PLACE; // under the lock, it is released where it was granted
        }
        Ok(grant)
    }

    /// Records that a request that does not wait is denied, if this process decides. Returns the bans that begin with it.
    fn note_denial(&mut self, now: Moment, costs: Costs<'_>) -> Vec<BegunBan> {
        match self.gate.as_deref_mut() {
            Some(gate) if self.is_active => gate.limits_mut().note_denial_and_bans(now, costs),
            _ => Vec::new(),
        }
    }

    /// Until when its grants count, if nothing is in flight: a key that is dropped and opened again must not be granted them twice.
    /// [`Moment::NEVER`] if none counts.
    fn counts_until(&self, now: Moment) -> Moment {
        self.gate
            .as_deref()
            .map(|gate| gate.limits().reset_at(now))
            .filter(|at| *at > now)
            .unwrap_or(Moment::NEVER)
    }
}
