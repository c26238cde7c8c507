//! A policy with its state and its permits: admit, release, settle, reclaim. All limits are charged or none. The caller passes the
//! time.

mod counted_limit;
pub(crate) mod forecast;
pub(crate) mod lease;
pub(crate) mod limit_state;
pub(crate) mod limits;
mod measure;
pub(crate) mod plan;
mod word_form;

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use crate::carry_over::UsageCarryOver;
use crate::core::arena::Index;
use crate::core::gate::forecast::Reclaim;
use crate::core::gate::lease::{Lease, Leases};
use crate::core::gate::measure::InFlight;
use crate::core::gate::plan::Plan;
use crate::core::request::{Actual, Caller, Claim, Costs, Grant, UnitCosts};
use crate::core::word::packed_rate::{WordContents, WordValue};
use crate::strategy::{Counts, Moment, Outcome, Sample, StateWords};

use limits::{Limits, is_unnamed};
use word_form::WordForm;

/// The limits of a policy, and the permits that they have granted.
#[derive(Debug)]
pub(crate) struct Gate {
    limits: Limits,
    leases: Option<Box<Leases>>,
    // The next two follow from the plan; the fast path reads them here.
    place: Claim,
    follows_time: bool,
    /// Whether grants have a time although no limit needs it.
    records_grant_time: bool,
    /// The fence of the latest grant, which is the number of grants so far.
    fence: u64,
    /// Present wherever a limit counts anything but the plain cost.
    rare: Option<Box<RareState>>,
    word: WordForm,
}

/// What few gates have.
#[derive(Debug, Default)]
struct RareState {
    /// The units that permits were granted, by fence, until they come back.
    unit_costs: BTreeMap<u64, Arc<UnitCosts>>,
    /// What is in flight of things that former plans counted and the present one does not.
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
            word: WordForm::new(plan.plain_places().is_some() && !records_grant_time),
            limits: Limits::new(plan, now),
        }
    }

    /// A gate whose limits are in a store: it counts the places that the store has granted to this process, and decides nothing.
    pub(crate) fn of_store(plan: Arc<Plan>, now: Moment, ttl: NonZeroU64) -> Self {
        let holds_places = plan.holds_places();
        Self {
            leases: holds_places.then(|| Box::new(Leases::new(ttl))),
            place: if holds_places {
                Claim::COUNTED_PLACE
            } else {
                Claim::NONE
            },
            follows_time: true,
            records_grant_time: true,
            fence: 0,
            rare: Some(Box::default()),
            word: WordForm::new(false),
            limits: Limits::of_store(plan, now),
        }
    }

    /// A gate that continues from `fence` with the state of each limit, all of which are words.
    pub(crate) fn resume(
        plan: Arc<Plan>,
        states: impl Iterator<Item = StateWords>,
        fence: u64,
        now: Moment,
    ) -> Self {
        let mut gate = Self {
            fence,
            ..Self::new(plan, now, false)
        };
        gate.limits.set_states(states);
        gate
    }

    /// The policy, and what its limits say.
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
        let legacy = || Some(self.rare.as_ref()?.legacy.iter().next()?.1);
        self.limits.places().next().or_else(legacy).unwrap_or(0)
    }

    /// Whether any unit is in flight.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.limits.places().any(|units| units > 0) || self.has_legacy_in_flight()
    }

    /// Whether anything is in flight that only former plans counted.
    fn has_legacy_in_flight(&self) -> bool {
        let rare = self.rare.as_ref();
        rare.is_some_and(|rare| rare.legacy.iter().next().is_some())
    }

    /// The number of grants so far.
    pub(crate) fn granted(&self) -> u64 {
        self.fence
    }

    /// Sets the fence of the latest grant: other grants have a part in the same sequence.
    pub(crate) fn set_granted(&mut self, fence: u64) {
        self.fence = fence;
    }
}

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
        if !self.limits.is_one() {
            return self.admit_by_all(now, cost, caller);
        }
        self.limits.admit_by_one(now, cost)?;
        Ok(self.grant(now, cost, caller))
    }

    /// [`Gate::admit_plain`] of a policy of several limits.
    #[inline(never)]
    fn admit_by_all(&mut self, now: Moment, cost: u64, caller: Caller) -> Result<Grant, Moment> {
        self.limits.admit_by_all(now, cost)?;
        Ok(self.grant(now, cost, caller))
    }

    /// [`Gate::admit`] where a limit counts anything but the plain cost.
    #[inline(never)]
    fn admit_by_unit(
        &mut self,
        now: Moment,
        costs: Costs<'_>,
        caller: Caller,
    ) -> Result<Grant, Moment> {
        let grant = if self.limits.admit_by_unit(now, costs)? {
            self.charge_legacy(costs);
            self.open_grant(now, costs.plain, caller)
        } else {
            self.fence += 1;
            let claim = if costs.by_unit.is_some() {
                Claim::NAMED_UNITS
            } else {
                Claim::NONE
            };
            Grant {
                fence: self.fence,
                claim,
                at: self.time_of_grant(now),
            }
        };
        self.record_units(grant.fence, costs);
        Ok(grant)
    }

    /// Records a grant of a plain cost that all limits have admitted.
    #[inline(always)]
    fn grant(&mut self, now: Moment, cost: u64, caller: Caller) -> Grant {
        if self.place == Claim::COUNTED_PLACE {
            self.charge_legacy(Costs::plain(cost));
        }
        self.open_grant(now, cost, caller)
    }

    #[inline(always)]
    fn open_grant(&mut self, now: Moment, cost: u64, caller: Caller) -> Grant {
        self.fence += 1;
        let fence = self.fence;
        let claim = match &mut self.leases {
            Some(leases) if leases.has_ttl() => {
                Claim::of_lease(leases.open(fence, cost, now, caller))
            }
            _ => self
                .word
                .reached(&self.limits, now)
                .map_or(self.place, Claim::of_rate),
        };
        Grant {
            fence,
            at: self.time_of_grant(now),
            claim,
        }
    }

    #[inline(always)]
    fn time_of_grant(&self, now: Moment) -> Moment {
        if self.follows_time {
            now
        } else {
            Moment::NEVER
        }
    }

    /// Counts a grant in what only former plans counted.
    #[cold]
    fn charge_legacy(&mut self, costs: Costs<'_>) {
        if let Some(rare) = &mut self.rare {
            rare.legacy.charge(costs);
        }
    }

    fn record_units(&mut self, fence: u64, costs: Costs<'_>) {
        if let (Some(by_unit), Some(rare)) = (costs.by_unit, &mut self.rare) {
            rare.unit_costs.insert(fence, Arc::clone(by_unit));
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
        let holds = self.limits.charge_places(now, costs);
        self.record_units(fence, costs);
        match &mut self.leases {
            Some(leases) if holds => Claim::of_lease(leases.open(fence, costs.plain, now, caller)),
            _ if costs.by_unit.is_some() => Claim::NAMED_UNITS,
            _ => Claim::NONE,
        }
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
            self.forget_units(fence);
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
        let by_unit = rare.unit_costs.remove(&fence);
        let costs = Costs::new(cost, &by_unit);
        self.limits.release_measured(fence, costs);
        rare.legacy.release(fence, costs);
        let may_be_plain = !self.limits.counts_by_unit() && self.place == Claim::COUNTED_PLACE;
        if may_be_plain && !self.is_in_flight() {
            self.forget_measures();
        }
    }

    /// All permits that were granted by another measure have come back: from now on, places are plain ones.
    fn forget_measures(&mut self) {
        self.limits.forget_measures();
        if let Some(rare) = &mut self.rare {
            rare.legacy = InFlight::default();
        }
        self.place = Claim::PLACE;
        let is_plain = self.limits.plan().plain_places().is_some();
        self.word
            .set_fits(is_plain && !self.records_grant_time && self.leases.is_none());
    }

    /// Releases this many units of places without a lease, whose holders a word has counted.
    pub(crate) fn return_units(&mut self, units: u64) {
        self.limits.release(units);
        if let Some(rare) = &mut self.rare {
            rare.legacy.release_units(units);
        }
    }

    /// The units that a permit was granted, if they are recorded.
    pub(crate) fn unit_costs(&self, fence: u64) -> Option<&Arc<UnitCosts>> {
        self.rare.as_ref()?.unit_costs.get(&fence)
    }

    /// Removes the record of the units of a permit that ends.
    fn forget_units(&mut self, fence: u64) {
        if let Some(rare) = &mut self.rare {
            rare.unit_costs.remove(&fence);
        }
    }

    /// The permit of this fence will never come back. What a lease holds comes back when its TTL has passed.
    pub(crate) fn forget(&mut self, fence: u64, claim: Claim) {
        if claim.names_units() {
            self.forget_units(fence);
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
    ) -> Option<()> {
        let by_unit = self.unit_costs(grant.fence).cloned();
        self.release_live(now, grant, cost)?;
        let settled = actual.of(Counts::Cost, cost);
        if settled < cost && self.refund_on_line(now, grant, cost - settled).is_some() {
            return Some(());
        }
        let costs = Costs::new(cost, &by_unit);
        self.limits.settle(now, grant, costs, actual);
        if settled > cost {
            self.word.charged();
        }
        Some(())
    }

    /// Refunds `cost` of a grant of one pace that is a line. `None` if the policy is another one.
    fn refund_on_line(&mut self, now: Moment, grant: Grant, cost: u64) -> Option<()> {
        if !self.limits.first_has_granted(grant.fence) {
            return None;
        }
        self.word.refund(
            &mut self.limits,
            now,
            grant.fence,
            grant.claim.reached(),
            cost,
        )
    }

    /// Releases a permit of `cost` with a report on its work. `None`, without a change, if it was reclaimed before.
    ///
    /// A limit that was added after the grant learns nothing from it. `rtt_nanos` is the time since the grant, if both were read
    /// from the same clock.
    pub(crate) fn report(
        &mut self,
        now: Moment,
        grant: Grant,
        cost: u64,
        rtt_nanos: Option<u64>,
        outcome: Outcome,
    ) -> Option<()> {
        let by_unit = self.unit_costs(grant.fence).cloned();
        let costs = Costs::new(cost, &by_unit);
        self.release_live(now, grant, cost)?;
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
        Some(())
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
        self.leases
            .iter()
            .flat_map(|leases| leases.iter())
            .map(|lease| Reclaim {
                at: lease.expires_at,
                fence: lease.fence,
                costs: Costs {
                    plain: lease.cost,
                    by_unit: self.unit_costs(lease.fence),
                },
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
        self.leases
            .as_mut()?
            .get_mut(index, fence)
            .filter(|lease| now < lease.expires_at)
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
        self.word.charged();
    }

    /// Refunds up to `units`, whenever they were charged. After that, no earlier permit can be refunded.
    pub(crate) fn forgive(&mut self, now: Moment, units: u64) {
        self.limits.void_refunds(self.fence, is_unnamed);
        self.limits.forgive(now, units);
    }

    /// Resets all limits of time. After that, no earlier permit can be refunded.
    pub(crate) fn reset(&mut self, now: Moment) {
        self.limits.void_refunds(self.fence, |_| true);
        self.limits.reset(now);
        self.word.draw_line(&mut self.limits, now, self.fence);
    }

    /// Replaces the plan. The usage is carried over, see [`carry_over`](crate::core::gate::counted_limit::carry_over); permits in flight stay in
    /// flight, and leases continue with the new TTL.
    pub(crate) fn set_plan(
        &mut self,
        plan: impl Into<Arc<Plan>>,
        now: Moment,
        carry: UsageCarryOver,
    ) {
        let in_flight = self.places_in_flight();
        let new = Self {
            fence: self.fence,
            ..Self::new(plan, now, self.records_grant_time)
        };
        let old = std::mem::replace(self, new);
        if let Some(mut leases) = old.leases.filter(|leases| !leases.is_empty()) {
            leases.set_ttl(self.limits.plan().ttl(), now);
            self.leases = Some(leases);
            self.follows_time = true; // a renewal needs its moment, because a later plan may have a TTL
            self.word.set_fits(false);
        }
        let same_limits = old.limits.policy().limits() == self.limits.policy().limits();
        self.limits
            .take_over(old.limits, &in_flight, self.fence, now, carry);
        let legacy = in_flight.left_over(self.limits.policy().limits());
        if self.place == Claim::PLACE
            && (self.limits.is_measured() || legacy.iter().next().is_some())
        {
            self.place = Claim::COUNTED_PLACE;
            self.word.set_fits(false);
        }
        let unit_costs = old.rare.map(|rare| rare.unit_costs).unwrap_or_default();
        self.rare = Some(Box::new(RareState { unit_costs, legacy }));
        self.word
            .go_on_from(old.word, same_limits, &mut self.limits, now, self.fence);
    }

    /// What is in flight, by the measure of each concurrency limit, and of former ones.
    fn places_in_flight(&self) -> InFlight {
        let legacy = self.rare.iter().flat_map(|rare| rare.legacy.iter());
        InFlight::new(self.limits.in_flight_of_each().chain(legacy.cloned()))
    }
}

/// A state that fits into a word.
impl Gate {
    /// Keeps a policy of one rate as a line if it fits, now and after each change of the policy. Then its grants need no record, and
    /// [`Gate::settle`] refunds by what each has reached.
    pub(crate) fn prefer_line(mut self, now: Moment) -> Self {
        self.word.prefer_line(&mut self.limits, now, self.fence);
        self
    }

    /// Whether the policy fits into a word.
    #[inline(always)]
    pub(crate) fn fits_word(&self) -> bool {
        self.word.fits()
    }

    /// Passes places on from their holder to a waiter, if all are out: then no unit moves. Returns the fence of the grant.
    #[inline(always)]
    pub(crate) fn pass_on(&mut self) -> Option<u64> {
        if !self.word.has_all_places_out(&self.limits) {
            return None;
        }
        self.fence += 1;
        Some(self.fence)
    }

    /// What a word is to hold, at `now` or later, so that it can decide; `None` if the present numbers do not fit. The policy must
    /// [fit](Gate::fits_word).
    pub(crate) fn opening(&mut self, now: Moment) -> Option<WordContents> {
        let owes_places = self.has_legacy_in_flight();
        self.word
            .opening(&self.limits, now, self.fence, owes_places)
    }

    /// Takes over what a word held since its [opening](Gate::opening).
    #[inline(always)]
    pub(crate) fn take_over(&mut self, content: WordValue, fence: u64) {
        self.fence = fence;
        self.word.take_over(&mut self.limits, content);
    }
}
