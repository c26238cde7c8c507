//! A policy with its state: admit, release, settle, reclaim. All limits are charged or none. The caller passes the time.

mod bans;
mod by_unit;
mod change;
mod decide;
mod in_word;
mod local;
mod settle;
mod shared;

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use crate::core::arena::Index;
use crate::core::costs::{Costs, UnitCosts};
use crate::core::grant::{Claim, Grant};
use crate::core::lease::{Lease, Leases};
use crate::core::limit_state::LimitState;
use crate::core::measure::{Account, Measure, charged};
use crate::core::plan::Plan;
use crate::core::request::Caller;
use crate::core::track::Track;
use crate::policy::Policy;
use crate::strategy::{Moment, StateWords};

pub(crate) use bans::BegunBan;
pub(crate) use shared::{GrantByStore, Holdings};

/// A policy with its state.
#[derive(Debug)]
pub(crate) struct Gate {
    plan: Arc<Plan>,
    /// The first limit of the policy, stored in place: most policies have only this one.
    first: LimitState,
    rest: Box<[LaterLimit]>,
    leases: Option<Box<Leases>>,
    // The next three follow from the plan; the fast path reads them here.
    /// The largest plain cost that can ever be admitted; 0 if a limit counts anything else, because then nothing is decided in place.
    max_cost: u64,
    place: Claim,
    follows_time: bool,
    /// Whether grants have a time although no limit needs it.
    records_grant_time: bool,
    /// The fence of the latest grant, which is the number of grants so far.
    fence: u64,
    past: Option<Box<Past>>,
    /// Whether the state fits into a word, apart from its present numbers. It follows from the plan.
    fits_word: bool,
    /// Whether a policy of one rate is to be a line.
    prefers_line: bool,
    /// The line of the one rate, where it is.
    track: Option<Box<Track>>,
}

/// A limit of the policy after the first.
#[derive(Debug)]
struct LaterLimit {
    state: LimitState,
    /// Its state if all limits admit the request that they are asked about: so each decides once, and none is charged before all
    /// have.
    next: StateWords,
}

/// What few gates have: limits that count by unit or that are in a store, what is left of a former plan, or of units that were reset.
#[derive(Debug, Default)]
struct Past {
    /// What each limit counts; empty if all count the plain cost, and have always done so.
    measures: Vec<Measure>,
    /// The units that permits were granted, by fence, until they come back.
    named: BTreeMap<u64, Arc<UnitCosts>>,
    /// What is in flight of things that former plans counted and this one does not.
    owed: Vec<Account>,
    /// For each limit, the last fence whose grant it cannot refund: it was granted before the limit was added, or its units were
    /// reset since.
    refundable_after: Box<[u64]>,
    /// Where the limits are in a store that processes share.
    holdings: Option<Box<Holdings>>,
}

impl Gate {
    /// A new gate. `records_grant_time`: grants have a time although the policy may need none.
    pub(crate) fn new(plan: impl Into<Arc<Plan>>, now: Moment, records_grant_time: bool) -> Self {
        let plan = plan.into();
        let mut states = plan.rules().iter().map(|rule| LimitState::new(rule, now));
        Self {
            first: states.next().expect("a policy is never empty"),
            rest: states.map(|state| LaterLimit { state, next: StateWords::default() }).collect(),
            leases: plan.ttl().map(|ttl| Box::new(Leases::new(ttl))),
            max_cost: if plan.counts_by_unit() { 0 } else { plan.max_cost() },
            place: match (plan.holds_places(), plan.counts_by_unit()) {
                (false, _) => Claim::NONE,
                (true, false) => Claim::PLACE,
                (true, true) => Claim::COUNTED_PLACE,
            },
            follows_time: records_grant_time || plan.follows_time(),
            records_grant_time,
            fence: 0,
            past: plan.counts_by_unit().then(|| Box::new(Past::of(plan.limits()))),
            fits_word: plan.plain_places().is_some() && !records_grant_time,
            prefers_line: false,
            track: None,
            plan,
        }
    }

    /// A gate that continues from `fence` with the state of each limit, all of which are words; without states, a new one.
    pub(crate) fn resume(plan: Arc<Plan>, states: impl Iterator<Item = StateWords>, fence: u64, now: Moment) -> Self {
        let mut gate = Self { fence, ..Self::new(plan, now, false) };
        gate.limit_states_mut().zip(states).for_each(|(state, words)| state.set_words(words));
        gate
    }

    /// The states of all limits; `None` if one of them does not fit into words.
    pub(crate) fn states(&self) -> Option<Vec<StateWords>> {
        self.limit_states().map(LimitState::words).collect()
    }

    /// When it can be forgotten, if nothing is in flight and nothing more is admitted: then it equals a new gate apart from its
    /// count of grants.
    pub(crate) fn reset_at(&self, now: Moment) -> Moment {
        self.limit_states().map(|state| state.forgettable_at(now)).max().unwrap_or(now)
    }

    pub(crate) fn policy(&self) -> &Policy {
        self.plan.policy()
    }

    /// The highest usage of any limit, in units.
    pub(crate) fn used(&self, now: Moment) -> u64 {
        self.limit_states().map(|state| state.used(now)).max().unwrap_or(0)
    }

    /// The largest plain cost that can be admitted in place.
    #[inline(always)]
    pub(crate) fn max_cost_in_place(&self) -> u64 {
        self.max_cost
    }

    /// The largest plain cost that can ever be admitted.
    pub(crate) fn max_cost(&self) -> u64 {
        self.plan.max_cost()
    }

    /// Whether a limit counts anything but the plain cost.
    #[inline(always)]
    pub(crate) fn counts_by_unit(&self) -> bool {
        self.max_cost == 0
    }

    /// Whether permits have a TTL.
    pub(crate) fn leases_permits(&self) -> bool {
        self.leases.is_some()
    }

    /// Whether `now` matters. If it does not, any value may be passed.
    pub(crate) fn follows_time(&self) -> bool {
        self.follows_time
    }

    /// Whether a grant is a place and nothing more.
    #[inline(always)]
    pub(crate) fn grants_bare_places(&self) -> bool {
        self.place == Claim::PLACE && !self.follows_time
    }

    /// Whether permits hold a place.
    pub(crate) fn holds_places(&self) -> bool {
        self.place.holds_place()
    }

    /// Units in flight; of several concurrency limits, as the first counts them.
    pub(crate) fn in_flight(&self) -> u64 {
        self.limit_states()
            .find_map(LimitState::places)
            .unwrap_or_else(|| self.owed().iter().map(|account| account.units).find(|units| *units > 0).unwrap_or(0))
    }

    /// Whether any unit is in flight.
    pub(crate) fn is_in_flight(&self) -> bool {
        let owed = self.owed().iter().map(|account| account.units);
        self.limit_states().filter_map(LimitState::places).chain(owed).any(|units| units > 0)
    }

    /// The number of grants so far.
    pub(crate) fn granted(&self) -> u64 {
        self.fence
    }

    /// Charges all limits, or none. `Err`: until when the costs must wait, [`Moment::NEVER`] if only a release helps.
    #[inline(always)]
    pub(crate) fn admit(&mut self, now: Moment, costs: Costs<'_>, caller: Caller) -> Result<Grant, Moment> {
        if self.counts_by_unit() {
            return self.admit_by_unit(now, costs, caller);
        }
        self.admit_plain(now, costs.plain, caller)
    }

    /// [`Gate::admit`] where all limits count the plain cost.
    #[inline(always)]
    pub(crate) fn admit_plain(&mut self, now: Moment, cost: u64, caller: Caller) -> Result<Grant, Moment> {
        if !self.rest.is_empty() {
            return self.admit_by_all(now, cost, caller);
        }
        let next = self.first.decide(now, cost)?;
        self.first.proceed(now, cost, next);
        Ok(self.grant(now, cost, caller))
    }

    /// [`Gate::admit_plain`] of a policy of several limits.
    #[inline(never)]
    fn admit_by_all(&mut self, now: Moment, cost: u64, caller: Caller) -> Result<Grant, Moment> {
        let first = self.first.decide(now, cost);
        let mut denied_until = first.err();
        for LaterLimit { state, next } in &mut self.rest {
            match state.decide(now, cost) {
                Ok(decided) => *next = decided,
                Err(until) => denied_until = denied_until.max(Some(until)),
            }
        }
        if let Some(until) = denied_until {
            return Err(until);
        }
        self.first.proceed(now, cost, first?);
        for LaterLimit { state, next } in &mut self.rest {
            state.proceed(now, cost, *next);
        }
        Ok(self.grant(now, cost, caller))
    }

    /// Records a grant that all limits have admitted.
    #[inline(always)]
    fn grant(&mut self, now: Moment, cost: u64, caller: Caller) -> Grant {
        if self.place == Claim::COUNTED_PLACE {
            self.charge_owed(Costs::plain(cost));
        }
        self.open_grant(now, cost, caller)
    }

    #[inline(always)]
    fn open_grant(&mut self, now: Moment, cost: u64, caller: Caller) -> Grant {
        self.fence += 1;
        let fence = self.fence;
        let claim = match &mut self.leases {
            Some(leases) if leases.has_ttl() => Claim::of_lease(leases.open(fence, cost, now, caller)),
            _ => self.reached(now).map_or(self.place, Claim::of_rate),
        };
        Grant { fence, at: self.time_of_grant(now), claim }
    }

    #[inline(always)]
    fn time_of_grant(&self, now: Moment) -> Moment {
        if self.follows_time { now } else { Moment::NEVER }
    }

    /// Releases a permit. `None`, without a change, if it was reclaimed before.
    #[inline(always)]
    pub(crate) fn release(&mut self, fence: u64, cost: u64, claim: Claim) -> Option<()> {
        if !claim.holds() {
            return Some(());
        }
        if claim == Claim::NAMED_UNITS {
            self.forget_units(fence);
            return Some(());
        }
        if let Some(index) = claim.lease() {
            self.leases.as_mut()?.close(index, fence)?; // without leases, it was reclaimed under a former plan
        }
        self.return_places(fence, cost);
        Some(())
    }

    /// The units that may be in flight at the same time, now: the least of all concurrency limits.
    pub(crate) fn concurrency(&self, now: Moment) -> Option<u64> {
        self.limit_states().filter_map(|state| state.concurrency(now)).map(|rule| rule.limit).min()
    }

    /// What each concurrency limit is now, by index.
    #[cfg(test)]
    pub(crate) fn concurrencies(&self, now: Moment) -> Vec<Option<u64>> {
        self.limit_states().map(|state| state.concurrency(now).map(|rule| rule.limit)).collect()
    }

    /// Records that a request that does not wait was denied. Returns whether that changed a state.
    pub(crate) fn note_denial(&mut self, now: Moment, costs: Costs<'_>) -> bool {
        if !self.counts_by_unit() {
            // Not `any`, which stops at the first change.
            return self.limit_states_mut().fold(false, |changed, state| state.note_denial(now, costs.plain) | changed);
        }
        let (states, _, measures) = self.parts();
        let note = |(index, state): (usize, &mut LimitState)| match charged(measures, index, costs) {
            0 => false,
            cost => state.note_denial(now, cost),
        };
        states.enumerate().map(note).fold(false, |changed, change| changed | change)
    }

    /// For each limit: until when it bans, if it does.
    pub(crate) fn bans(&self, now: Moment) -> impl Iterator<Item = Option<Moment>> {
        self.limit_states().map(move |state| state.banned_until(now))
    }

    /// Reclaims the permit whose TTL passed first, if any has passed.
    pub(crate) fn reclaim_one(&mut self, now: Moment) -> Option<Lease> {
        let lease = self.leases.as_mut()?.pop_expired(now)?;
        self.return_places(lease.fence, lease.cost);
        Some(lease)
    }

    /// Of a lease in a store, only a [renewal there](Gate::renewed) moves the end.
    pub(crate) fn renew(&mut self, index: Index, fence: u64, now: Moment) -> bool {
        if self.is_shared() {
            return self.live_lease(index, fence, now).is_some();
        }
        self.leases.as_mut().is_some_and(|leases| leases.renew(index, fence, now))
    }

    /// See [`Leases::set_own_ttl`] and [`Gate::renew`].
    pub(crate) fn set_own_ttl(&mut self, index: Index, fence: u64, now: Moment, own: NonZeroU64, renews: bool) -> bool {
        if self.is_shared() {
            return self.live_lease(index, fence, now).is_some();
        }
        self.leases.as_mut().is_some_and(|leases| leases.set_own_ttl(index, fence, now, own, renews))
    }

    /// The lease of a permit, while it is live.
    pub(crate) fn live_lease(&mut self, index: Index, fence: u64, now: Moment) -> Option<&mut Lease> {
        self.leases.as_mut()?.get_mut(index, fence).filter(|lease| now < lease.expires_at)
    }

    #[inline(always)]
    pub(crate) fn next_expiry(&self) -> Moment {
        self.leases.as_ref().map_or(Moment::NEVER, |leases| leases.next_expiry())
    }

    /// Releases what the permit of this fence held.
    #[inline(always)]
    fn return_places(&mut self, fence: u64, cost: u64) {
        if self.past.is_some() {
            return self.return_measured(fence, cost);
        }
        self.first.release(cost);
        self.rest.iter_mut().for_each(|later| later.state.release(cost));
    }

    /// Releases this many units of places without a lease, whose holders a word has counted.
    pub(crate) fn return_units(&mut self, units: u64) {
        self.limit_states_mut().for_each(|state| state.release(units));
        if let Some(past) = &mut self.past {
            past.owed.iter_mut().for_each(|account| account.units = account.units.saturating_sub(units));
        }
    }

    /// What is in flight of things that only former plans counted.
    fn owed(&self) -> &[Account] {
        self.past.as_ref().map_or(&[], |past| &past.owed)
    }

    /// What each limit counts; empty if it is the plain cost.
    fn measures(&self) -> &[Measure] {
        self.past.as_ref().map_or(&[], |past| &past.measures)
    }

    fn limit_states(&self) -> impl Iterator<Item = &LimitState> {
        std::iter::once(&self.first).chain(self.rest.iter().map(|later| &later.state))
    }

    /// The states, the plan and what each limit counts.
    fn parts(&mut self) -> (impl Iterator<Item = &mut LimitState>, &Plan, &[Measure]) {
        let Self { plan, first, rest, past, .. } = self;
        let states = std::iter::once(first).chain(rest.iter_mut().map(|later| &mut later.state));
        (states, plan, past.as_ref().map_or(&[], |past| &past.measures))
    }

    fn limit_states_mut(&mut self) -> impl Iterator<Item = &mut LimitState> {
        std::iter::once(&mut self.first).chain(self.rest.iter_mut().map(|later| &mut later.state))
    }
}

/// For each limit, the last fence whose grant it cannot refund, or 0.
fn refundable_after(past: &Option<Box<Past>>) -> impl Iterator<Item = u64> {
    past.iter().flat_map(|past| &past.refundable_after).copied().chain(std::iter::repeat(0))
}
