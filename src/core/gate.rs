//! A policy with its state and its permits: admit, release, settle, reclaim. All limits are charged or none. The caller passes the
//! time.

pub(crate) mod forecast;
pub(crate) mod lease;
pub(crate) mod limit_state;
pub(crate) mod limits;
pub(crate) mod plan;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use crate::carry_over::UsageCarryOver;
use crate::core::arena::Index;
use crate::core::gate::forecast::Reclaim;
use crate::core::gate::lease::{Lease, Leases};
use crate::core::gate::limit_state::{InFlight, LimitState, Measure};
use crate::core::gate::plan::Plan;
use crate::core::request::{Actual, Caller, Claim, CostDetails, Costs, Grant, WorkReport};
use crate::core::word::PackedRateHistory;
use crate::core::word::packed_rate::{MAX_PLACES, WordContents, WordValue};
use crate::strategy::{Counts, Moment, Sample, StateWords};

use limits::Limits;

/// The limits of a policy, and the permits that they have granted.
#[derive(Debug)]
pub(crate) struct Gate {
    limits: Limits,
    leases: Option<Box<Leases>>,
    // The next two follow from the plan; the fast path reads them here.
    place: Claim,
    follows_time: bool,
    /// Whether grants record their time although no limit needs it.
    records_grant_time: bool,
    /// The fence of the latest grant, which is the number of grants so far.
    fence: u64,
    /// Present wherever a limit counts anything but the plain cost.
    rare: Option<Box<RareState>>,
    /// Whether the state [fits into a word](Gate::opening), apart from its present numbers.
    fits_word: bool,
    /// Whether a policy of one rate is to be kept as a [line](crate::core::word::packed_rate).
    prefers_line: bool,
    /// The line of the one rate, where it is one.
    line: Option<Box<PackedRateHistory>>,
}

/// State that few gates need.
#[derive(Debug, Default)]
struct RareState {
    /// The units that permits were granted, by fence, until they are released.
    cost_details: BTreeMap<u64, Arc<CostDetails>>,
    /// The units in flight of things that former plans counted and the present one does not.
    legacy: InFlight,
}

impl Gate {
    /// A new gate. `records_grant_time`: grants have a time although the policy may need none.
    pub(crate) fn new(plan: impl Into<Arc<Plan>>, now: Moment, records_grant_time: bool) -> Self {
        let plan = plan.into();
        Self {
            leases: plan.ttl().map(|ttl| Box::new(Leases::new(ttl))),
            place: match (plan.holds_places(), plan.counts_by_unit()) {
                (false, _) => Claim::NONE,
                (true, false) => Claim::PLACE,
                (true, true) => Claim::COUNTED_PLACE,
            },
            follows_time: records_grant_time || plan.follows_time(),
            records_grant_time,
            fence: 0,
            rare: plan.counts_by_unit().then(Box::default),
            fits_word: plan.plain_places().is_some() && !records_grant_time,
            prefers_line: false,
            line: None,
            limits: Limits::new(plan, now),
        }
    }

    /// A gate whose limits are in a store: it counts the places that the store has granted to this process, and decides nothing.
    pub(crate) fn of_store(plan: Arc<Plan>, now: Moment, ttl: NonZeroU64) -> Self {
        let mut gate = Self::new(plan, now, true);
        gate.limits.decide_nothing_in_place();
        gate.rare.get_or_insert_default();
        if gate.holds_places() {
            gate.leases = Some(Box::new(Leases::new(ttl)));
            gate.place = Claim::COUNTED_PLACE;
        }
        gate
    }

    /// [`Gate::set_plan`] of a gate [of a store](Gate::of_store).
    pub(crate) fn set_stored_plan(&mut self, plan: Arc<Plan>, now: Moment, ttl: NonZeroU64) {
        self.set_plan(plan, now, UsageCarryOver::AsIs);
        self.limits.decide_nothing_in_place();
        if self.holds_places() {
            let leases = self
                .leases
                .get_or_insert_with(|| Box::new(Leases::new(ttl)));
            leases.set_ttl(Some(ttl), now);
            self.place = Claim::COUNTED_PLACE;
        }
    }

    /// A gate that continues from `fence` with the state of each limit, all of which are words.
    pub(crate) fn resume(
        plan: Arc<Plan>,
        states: impl Iterator<Item = StateWords>,
        fence: u64,
        now: Moment,
    ) -> Self {
        let mut gate = Self::new(plan, now, false);
        gate.fence = fence;
        for (state, words) in gate.limits.states_mut().zip(states) {
            state.set_words(words);
        }
        gate
    }

    /// The policy, with the state of each limit.
    #[inline(always)]
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    #[inline(always)]
    pub(crate) fn limits_mut(&mut self) -> &mut Limits {
        &mut self.limits
    }

    /// Whether permits have a TTL.
    pub(crate) fn leases_permits(&self) -> bool {
        self.leases.is_some()
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

    /// Units in flight, as the first concurrency limit counts them.
    pub(crate) fn in_flight(&self) -> u64 {
        self.units_in_flight().next().unwrap_or(0)
    }

    /// Whether any unit is in flight.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.units_in_flight().any(|units| units > 0)
    }

    /// The units in flight as each concurrency limit counts them, then as only former plans counted them.
    fn units_in_flight(&self) -> impl Iterator<Item = u64> {
        let counted = self.limits.counted();
        let counted = counted.filter_map(|limit| limit.state.places());
        counted.chain(self.legacy().map(|(_, units)| *units))
    }

    /// The units in flight that only former plans counted.
    fn legacy(&self) -> impl Iterator<Item = &(Measure, u64)> {
        self.rare.iter().flat_map(|rare| rare.legacy.iter())
    }

    /// Sets the fence of the latest grant, because other grants use the same sequence.
    #[inline(always)]
    pub(crate) fn set_granted(&mut self, fence: u64) {
        self.fence = fence;
    }
}

getters!(Gate {
    /// Whether `now` matters. If it does not, any value may be passed.
    pub(crate) follows_time: follows_time -> bool,

    /// The number of grants so far.
    pub(crate) granted: fence -> u64,

    /// Whether the policy fits into a word.
    #[inline(always)]
    pub(crate) fits_word: fits_word -> bool,
});

/// Grants.
impl Gate {
    /// Charges all limits, or none. `Err`: until when the costs must wait, [`Moment::NEVER`] if only a release helps.
    #[inline(always)]
    pub(crate) fn admit(
        &mut self,
        now: Moment,
        costs: Costs<'_>,
        caller: Caller,
    ) -> Result<Grant, Moment> {
        if self.limits.counts_by_unit() {
            return self.admit_by_unit(now, costs, caller);
        }
        self.admit_plain(now, costs.plain, caller)
    }

    /// [`Gate::admit`] where all limits count the plain cost.
    #[inline(always)]
    pub(crate) fn admit_plain(
        &mut self,
        now: Moment,
        cost: u64,
        caller: Caller,
    ) -> Result<Grant, Moment> {
        if self.limits.is_one() {
            self.limits.admit_by_one(now, cost)?;
        } else {
            self.limits.admit_by_all(now, cost)?;
        }
        Ok(self.grant(now, Costs::plain(cost), caller, true))
    }

    /// [`Gate::admit`] where a limit counts anything but the plain cost.
    #[inline(never)]
    fn admit_by_unit(
        &mut self,
        now: Moment,
        costs: Costs<'_>,
        caller: Caller,
    ) -> Result<Grant, Moment> {
        if let Some(until) = self.limits.denied_until(now, costs) {
            return Err(until);
        }
        let is_counted = self.limits.charge_costs(now, costs, |_| true);
        let grant = self.grant(now, costs, caller, is_counted);
        self.record_units(grant.fence, costs);
        Ok(grant)
    }

    /// Records a grant that all limits have admitted. `is_counted`: see [`Gate::claim`].
    #[inline(always)]
    fn grant(&mut self, now: Moment, costs: Costs<'_>, caller: Caller, is_counted: bool) -> Grant {
        if is_counted
            && self.place == Claim::COUNTED_PLACE
            && let Some(rare) = &mut self.rare
        {
            rare.legacy.charge(costs);
        }
        self.fence += 1;
        let fence = self.fence;
        Grant {
            fence,
            claim: self.claim(now, fence, costs, caller, is_counted),
            at: if self.follows_time {
                now
            } else {
                Moment::NEVER
            },
        }
    }

    /// What the permit of a grant holds. `is_counted`: its claim is that of the policy. Otherwise, no concurrency limit counts any
    /// of its costs, and it holds at most the record of its units.
    #[inline(always)]
    fn claim(
        &mut self,
        now: Moment,
        fence: u64,
        costs: Costs<'_>,
        caller: Caller,
        is_counted: bool,
    ) -> Claim {
        match &mut self.leases {
            _ if !is_counted && costs.details.is_some() => Claim::NAMED_UNITS,
            _ if !is_counted => Claim::NONE,
            Some(leases) if leases.has_ttl() => {
                Claim::of_lease(leases.open(fence, costs.plain, now, caller))
            }
            _ => self.reached_on_line(now).map_or(self.place, Claim::of_rate),
        }
    }

    fn record_units(&mut self, fence: u64, costs: Costs<'_>) {
        if let (Some(details), Some(rare)) = (costs.details, &mut self.rare) {
            rare.cost_details.insert(fence, Arc::clone(details));
        }
    }

    /// Records a grant that a store has made with this fence: the places that it takes, and the units that it names.
    pub(crate) fn record(
        &mut self,
        now: Moment,
        costs: Costs<'_>,
        fence: u64,
        caller: Caller,
    ) -> Claim {
        self.fence += 1;
        let counts_places = |state: &LimitState| state.places().is_some();
        let is_counted = self.limits.charge_costs(now, costs, counts_places);
        self.record_units(fence, costs);
        self.claim(now, fence, costs, caller, is_counted)
    }
}

/// Ends of permits.
impl Gate {
    /// Releases a permit. `None`, without a change, if it was reclaimed before.
    #[inline(always)]
    pub(crate) fn release(&mut self, fence: u64, cost: u64, claim: Claim) -> Option<()> {
        if !claim.holds() {
            return Some(());
        }
        if claim == Claim::NAMED_UNITS {
            self.forget(fence, claim);
            return Some(());
        }
        if let Some(index) = claim.lease() {
            self.leases.as_mut()?.close(index, fence)?; // without leases, it was reclaimed under a former plan
        }
        self.return_places(fence, cost);
        Some(())
    }

    /// [`Gate::release`], except that a permit whose TTL has passed is left to be reclaimed.
    pub(crate) fn release_live(
        &mut self,
        now: Moment,
        Grant { fence, claim, .. }: Grant,
        cost: u64,
    ) -> Option<()> {
        if let Some(index) = claim.lease() {
            self.live_lease(index, fence, now)?;
        }
        self.release(fence, cost, claim)
    }

    /// Releases what the permit of this fence held.
    #[inline(always)]
    fn return_places(&mut self, fence: u64, cost: u64) {
        if self.rare.is_some() {
            return self.return_measured(fence, cost);
        }
        self.limits.release(cost);
    }

    /// [`Gate::return_places`], by what each limit was charged.
    #[inline(never)]
    fn return_measured(&mut self, fence: u64, cost: u64) {
        let Some(rare) = &mut self.rare else {
            return;
        };
        let details = rare.cost_details.remove(&fence);
        let costs = Costs::new(cost, &details);
        self.limits.release_measured(fence, costs);
        rare.legacy.release(fence, costs);
        let may_be_plain = !self.limits.counts_by_unit() && self.place == Claim::COUNTED_PLACE;
        if may_be_plain && !self.is_in_flight() {
            // All permits that were granted by another measure were released: from now on, places are plain ones.
            self.limits.forget_former_measures();
            self.place = Claim::PLACE;
            self.note_word_form();
        }
    }

    /// Releases this many units of places without a lease, whose holders a word has counted.
    pub(crate) fn return_units(&mut self, units: u64) {
        self.limits.release(units);
        if let Some(rare) = &mut self.rare {
            rare.legacy.release_units(units);
        }
    }

    /// The units that a permit was granted, if they are recorded.
    pub(crate) fn cost_details(&self, fence: u64) -> Option<&Arc<CostDetails>> {
        self.rare.as_ref()?.cost_details.get(&fence)
    }

    /// Removes the record of the units of a permit that will never be released. What a lease holds is released when its TTL has
    /// passed.
    pub(crate) fn forget(&mut self, fence: u64, claim: Claim) {
        if claim.names_units()
            && let Some(rare) = &mut self.rare
        {
            rare.cost_details.remove(&fence);
        }
    }

    /// Releases a permit of `cost` whose work really cost `actual`: the difference is refunded, or charged as a debt. `None`, without
    /// a change, if it was reclaimed before or is about to be.
    ///
    /// A limit that was added after the grant is charged the debt but refunds nothing: the usage that it took over was charged to
    /// another limit, by another measure.
    pub(crate) fn settle(
        &mut self,
        now: Moment,
        grant: Grant,
        cost: u64,
        actual: Actual<'_>,
        report: Option<WorkReport>,
    ) -> Option<()> {
        let details = self.cost_details(grant.fence).cloned();
        self.release_live(now, grant, cost)?;
        if let Some(report) = report {
            self.learn(now, grant, Costs::new(cost, &details), report);
        }
        let settled = actual.of(Counts::Cost, cost);
        if settled < cost && self.refund_on_line(now, grant, cost - settled).is_some() {
            return Some(());
        }
        let costs = Costs::new(cost, &details);
        self.limits.settle(now, grant, costs, actual);
        if settled > cost {
            self.note_charge_on_line();
        }
        Some(())
    }

    /// Releases a permit of `cost` with a report on its work. `None`, without a change, if it was reclaimed before.
    ///
    /// A limit that was added after the grant ignores the report.
    pub(crate) fn report(
        &mut self,
        now: Moment,
        grant: Grant,
        cost: u64,
        report: WorkReport,
    ) -> Option<()> {
        let details = self.cost_details(grant.fence).cloned();
        self.release_live(now, grant, cost)?;
        self.learn(now, grant, Costs::new(cost, &details), report);
        Some(())
    }

    fn learn(&mut self, now: Moment, grant: Grant, costs: Costs<'_>, report: WorkReport) {
        let WorkReport { outcome, rtt_nanos } = report;
        let latest_fence = self.fence;
        let sample = |cost, in_flight| Sample {
            outcome,
            rtt_nanos,
            cost,
            in_flight,
            fence: grant.fence,
            latest_fence,
        };
        self.limits.learn(now, grant.fence, costs, sample);
    }
}

/// Leases.
impl Gate {
    /// Reclaims the permit whose TTL passed first, if any has passed.
    pub(crate) fn reclaim_one(&mut self, now: Moment) -> Option<Lease> {
        let lease = self.leases.as_mut()?.pop_expired(now)?;
        self.return_places(lease.fence, lease.cost);
        Some(lease)
    }

    /// The reclaims to come, first to last.
    pub(crate) fn reclaims(&self) -> impl Iterator<Item = Reclaim<'_>> {
        let leases = self.leases.iter().flat_map(|leases| leases.iter());
        leases.map(|lease| {
            let details = self.cost_details(lease.fence);
            let plain = lease.cost;
            (lease, Costs { plain, details })
        })
    }

    /// See [`Leases::renew`].
    pub(crate) fn renew(&mut self, index: Index, fence: u64, now: Moment) -> bool {
        self.leases
            .as_mut()
            .is_some_and(|leases| leases.renew(index, fence, now))
    }

    /// See [`Leases::set_own_ttl`].
    pub(crate) fn set_own_ttl(
        &mut self,
        index: Index,
        fence: u64,
        now: Moment,
        own: NonZeroU64,
        renews: bool,
    ) -> bool {
        self.leases
            .as_mut()
            .is_some_and(|leases| leases.set_own_ttl(index, fence, now, own, renews))
    }

    /// The lease of a permit, while it is live.
    pub(crate) fn live_lease(
        &mut self,
        index: Index,
        fence: u64,
        now: Moment,
    ) -> Option<&mut Lease> {
        self.leases.as_mut()?.live(index, fence, now)
    }

    #[inline(always)]
    pub(crate) fn next_expiry(&self) -> Moment {
        self.leases
            .as_ref()
            .map_or(Moment::NEVER, |leases| leases.next_expiry())
    }
}

/// Changes of the usage without a request, and of the plan.
impl Gate {
    /// Charges all limits of time that count no named unit, whether or not they admit the cost.
    pub(crate) fn charge(&mut self, now: Moment, units: u64) {
        self.limits.charge(now, units);
        self.note_charge_on_line();
    }

    /// Refunds up to `units`, whenever they were charged. After that, no earlier permit can be refunded.
    pub(crate) fn forgive(&mut self, now: Moment, units: u64) {
        self.limits.forgive(now, units, self.fence);
    }

    /// Resets all limits of time. After that, no earlier permit can be refunded.
    pub(crate) fn reset(&mut self, now: Moment) {
        self.limits.reset(now, self.fence);
        self.draw_line(now);
    }

    /// Replaces the plan. The usage is carried over, see [`carry_over`](crate::core::gate::limit_state::carry_over); permits in flight
    /// stay in flight, and leases continue with the new TTL.
    pub(crate) fn set_plan(
        &mut self,
        plan: impl Into<Arc<Plan>>,
        now: Moment,
        carry: UsageCarryOver,
    ) {
        let in_flight = self.limits.counted();
        let in_flight =
            in_flight.filter_map(|limit| Some((limit.measure(), limit.state.places()?)));
        let in_flight = InFlight::new(in_flight.chain(self.legacy().cloned()));
        let new = Self {
            fence: self.fence,
            ..Self::new(plan, now, self.records_grant_time)
        };
        let old = std::mem::replace(self, new);
        if let Some(mut leases) = old.leases.filter(|leases| !leases.is_empty()) {
            leases.set_ttl(self.limits.plan().ttl(), now);
            self.leases = Some(leases);
            self.follows_time = true; // a renewal needs its moment, because a later plan may have a TTL
        }
        let same_limits = old.limits.policy().limits() == self.limits.policy().limits();
        self.limits
            .take_over(old.limits, &in_flight, self.fence, now, carry);
        let is_measured = self.limits.counted().any(|limit| !limit.is_plain());
        let legacy = in_flight.left_over(self.limits.policy().limits());
        if self.place == Claim::PLACE && (is_measured || legacy.iter().next().is_some()) {
            self.place = Claim::COUNTED_PLACE;
        }
        let cost_details = old.rare.map(|rare| rare.cost_details).unwrap_or_default();
        self.rare = Some(Box::new(RareState {
            cost_details,
            legacy,
        }));
        self.prefers_line = old.prefers_line;
        self.line = old.line;
        if !same_limits {
            self.draw_line(now);
        }
        self.note_word_form();
    }
}

/// A state that fits into a word: a plain concurrency, or one rate that is a [line](crate::core::word::packed_rate).
impl Gate {
    /// Keeps a policy of one rate as a line if it fits, now and after each change of the policy. Then its grants need no record, and
    /// [`Gate::settle`] refunds each by the value that it has reached.
    pub(crate) fn prefer_line(mut self, now: Moment) -> Self {
        self.prefers_line = true;
        self.draw_line(now);
        self
    }

    /// Begins a line where one is preferred and fits; otherwise begins to record grants.
    fn draw_line(&mut self, now: Moment) {
        let may_fit = self.prefers_line && self.limits.is_one() && !self.limits.counts_by_unit();
        let parts_per_nano = if may_fit {
            self.limits.first_mut().becomes_line(now)
        } else {
            None
        };
        self.line = parts_per_nano.map(|parts_per_nano| {
            Box::new(PackedRateHistory::new(parts_per_nano, now, self.fence))
        });
        if self.line.is_none() {
            self.limits
                .states_mut()
                .for_each(|state| state.records_grants(now));
        }
        self.note_word_form();
    }

    /// Updates `fits_word` after the limits, the units in flight, or the line may have changed.
    fn note_word_form(&mut self) {
        let is_plain_concurrency = self.grants_bare_places() && self.limits.is_one();
        self.fits_word = is_plain_concurrency || self.line.is_some();
    }

    /// Updates the line after units were charged without a grant.
    fn note_charge_on_line(&mut self) {
        if let Some(line) = &mut self.line {
            line.charged();
        }
    }

    /// The value that the latest grant has reached, if it was made now by a pace that is a line.
    #[inline(always)]
    fn reached_on_line(&mut self, now: Moment) -> Option<u64> {
        let line = self.line.as_deref_mut()?;
        Some(line.reached(now, self.limits.first().state.used_on_line(now)?))
    }

    /// Refunds `cost` of a grant, as far as its line allows. `None` if the policy is no pace that is a line, or did not charge the
    /// grant.
    fn refund_on_line(&mut self, now: Moment, grant: Grant, cost: u64) -> Option<()> {
        let line = self.line.as_deref_mut()?;
        if !self.limits.first().has_granted(grant.fence) {
            return None;
        }
        let reached = grant.claim.reached();
        let most = reached.map_or(0, |reached| line.refundable(now, grant.fence, reached));
        line.refund(self.limits.first_mut().refund_on_line(cost, most)?);
        Some(())
    }

    /// The fence of a grant that passes places on from their holder to a waiter, if all places are in use: then no count changes, and
    /// the caller only [sets the fence](Self::set_granted).
    #[inline(always)]
    pub(crate) fn passed_on(&self) -> Option<u64> {
        match &self.limits.first().state {
            LimitState::Places(places) if places.in_use == places.limit && self.fits_word => {
                Some(self.fence + 1)
            }
            _ => None,
        }
    }

    /// What a word is to hold, at `now` or later, so that it can decide; `None` if the present numbers do not fit. The policy must
    /// [fit](Gate::fits_word).
    pub(crate) fn opening(&mut self, now: Moment) -> Option<WordContents> {
        if let LimitState::Places(places) = &self.limits.first().state {
            let units = places
                .limit
                .checked_sub(places.in_use)
                .filter(|_| places.limit <= MAX_PLACES)?;
            return Some(WordContents::Places { units });
        }
        let has_legacy = self.legacy().next().is_some();
        let slope = self.limits.first().state.slope(now)?;
        let (line, value) = self.line.as_mut()?.draw(slope, now, self.fence)?;
        // A word of a rate counts no places.
        (!has_legacy).then_some(WordContents::Rate { line, value })
    }

    /// Takes over what a word held since its [opening](Gate::opening).
    #[inline(always)]
    pub(crate) fn take_over(&mut self, content: WordValue, fence: u64) {
        self.fence = fence;
        match content {
            WordValue::Places { units } => {
                if let LimitState::Places(places) = self.limits.first_mut() {
                    places.in_use = places.limit - units;
                }
            }
            WordValue::Rate { value } => {
                if let Some((base, used)) =
                    self.line.as_mut().and_then(|line| line.take_over(value))
                {
                    self.limits.first_mut().set_used(base, used);
                }
            }
        }
    }
}
