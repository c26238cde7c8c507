//! The limits of a policy with their states: what they answer to a request, and what they are charged.

use std::sync::Arc;

use crate::carry_over::UsageCarryOver;
use crate::core::gate::forecast::{Forecast, Reclaim};
use crate::core::gate::limit_state::{CountedLimit, InFlight, LimitState, carry_over};
use crate::core::gate::plan::{BegunBan, Plan};
use crate::core::request::{Actual, Costs, Grant};
use crate::core::suspension::Suspension;
use crate::decision::Decision;
use crate::error::AcquireError;
use crate::policy::{Limit, Policy};
use crate::snapshot::LimitStatus;
use crate::strategy::{Counts, LimitReport, Moment, Sample, StateWords};

/// A policy with the state of each limit. It records no permits: a [`Gate`](crate::core::gate::Gate) counts the grants.
#[derive(Debug)]
pub(crate) struct Limits {
    plan: Arc<Plan>,
    /// The first limit of the policy, stored in place: most policies have only this one.
    first: CountedLimit,
    rest: Box<[LaterLimit]>,
    /// The largest plain cost that can ever be admitted; 0 if a limit counts anything else, because then nothing is decided in place.
    /// It follows from the plan; the fast path reads it here.
    max_cost: u64,
}

/// A limit of the policy after the first.
#[derive(Debug)]
struct LaterLimit {
    limit: CountedLimit,
    /// Its state if all limits admit the request that is being decided. Each limit decides once, and none is charged before all have
    /// admitted.
    next: StateWords,
}

impl Limits {
    pub(super) fn new(plan: Arc<Plan>, now: Moment) -> Self {
        let limits = plan.limits().iter().zip(plan.rules());
        let mut limits = limits.map(|(limit, rule)| CountedLimit::new(limit, rule, now));
        Self {
            first: limits.next().expect("a policy is never empty"),
            rest: limits
                .map(|limit| LaterLimit {
                    limit,
                    next: StateWords::default(),
                })
                .collect(),
            max_cost: if plan.counts_by_unit() {
                0
            } else {
                plan.max_cost()
            },
            plan,
        }
    }

    /// The states are in a store: these limits count the places that the store has granted, and decide nothing.
    pub(super) fn decide_nothing_in_place(&mut self) {
        self.max_cost = 0;
    }

    #[inline(always)]
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Whether the policy has one limit.
    #[inline(always)]
    pub(super) fn is_one(&self) -> bool {
        self.rest.is_empty()
    }

    /// The first limit: a policy that fits into a word has no other.
    #[inline(always)]
    pub(super) fn first(&self) -> &CountedLimit {
        &self.first
    }

    #[inline(always)]
    pub(super) fn first_mut(&mut self) -> &mut LimitState {
        &mut self.first.state
    }

    /// Each limit of the policy with its state.
    fn iter(&self) -> impl Iterator<Item = (&Limit, &CountedLimit)> {
        self.plan.limits().iter().zip(self.counted())
    }

    pub(super) fn counted(&self) -> impl Iterator<Item = &CountedLimit> {
        let later = self.rest.iter().map(|later| &later.limit);
        std::iter::once(&self.first).chain(later)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = (&Limit, &mut CountedLimit)> {
        let later = self.rest.iter_mut().map(|later| &mut later.limit);
        self.plan
            .limits()
            .iter()
            .zip(std::iter::once(&mut self.first).chain(later))
    }

    fn limit_states(&self) -> impl Iterator<Item = &LimitState> {
        self.counted().map(|limit| &limit.state)
    }

    fn counted_mut(&mut self) -> impl Iterator<Item = &mut CountedLimit> {
        let later = self.rest.iter_mut().map(|later| &mut later.limit);
        std::iter::once(&mut self.first).chain(later)
    }

    pub(super) fn states_mut(&mut self) -> impl Iterator<Item = &mut LimitState> {
        self.counted_mut().map(|limit| &mut limit.state)
    }
}

/// The policy, and what follows from it.
impl Limits {
    pub(crate) fn policy(&self) -> &Policy {
        self.plan.policy()
    }

    /// The largest plain cost that can be admitted in place.
    #[inline(always)]
    pub(crate) fn max_cost_in_place(&self) -> u64 {
        self.max_cost
    }

    /// Whether a limit counts anything but the plain cost.
    #[inline(always)]
    pub(crate) fn counts_by_unit(&self) -> bool {
        self.max_cost == 0
    }

    /// Whether a denied request raises a limit.
    pub(crate) fn counts_denials(&self) -> bool {
        self.plan.counts_denials()
    }

    /// See [`Plan::fits`].
    pub(crate) fn fits(&self, costs: Costs<'_>) -> Result<(), AcquireError> {
        self.plan.fits(costs)
    }

    /// The cost of a request for each limit.
    pub(crate) fn costs_of_each(&self, costs: Costs<'_>) -> Box<[u64]> {
        self.counted().map(|limit| limit.charged(costs)).collect()
    }
}

/// Answers, which change nothing.
impl Limits {
    /// The states of all limits; `None` if one of them does not fit into words.
    pub(crate) fn states(&self) -> Option<Vec<StateWords>> {
        self.limit_states().map(LimitState::words).collect()
    }

    /// When they can be forgotten, if nothing is in flight and nothing more is admitted: from then on they equal new ones.
    pub(crate) fn reset_at(&self, now: Moment) -> Moment {
        self.limit_states()
            .map(|state| state.forgettable_at(now))
            .max()
            .unwrap_or(now)
    }

    /// The highest usage of any limit, in units.
    pub(crate) fn used(&self, now: Moment) -> u64 {
        self.limit_states()
            .map(|state| state.usage(now).round_up())
            .max()
            .unwrap_or(0)
    }

    /// The units that may be in flight at the same time, now: the least of all concurrency limits.
    pub(crate) fn concurrency(&self, now: Moment) -> Option<u64> {
        self.concurrencies(now).flatten().min()
    }

    /// For each limit: the units that may be in flight at the same time, now, if it counts them.
    pub(crate) fn concurrencies(&self, now: Moment) -> impl Iterator<Item = Option<u64>> {
        self.limit_states().map(move |state| state.concurrency(now))
    }

    /// For each limit: the end of its ban, if it bans.
    pub(crate) fn bans(&self, now: Moment) -> impl Iterator<Item = Option<Moment>> {
        self.limit_states()
            .map(move |state| state.banned_until(now))
    }

    /// The status of each limit.
    pub(crate) fn statuses(&self, now: Moment) -> Vec<LimitStatus> {
        let status = |(limit, CountedLimit { state, .. }): (&Limit, &CountedLimit)| {
            let report = state.report(now, 0, 1);
            LimitStatus::new(*limit, state.capacity(limit, now), report, now)
        };
        self.iter().map(status).collect()
    }

    /// The largest plain cost that is admitted now, if a cost of 1 is.
    pub(crate) fn available(&self, now: Moment) -> u64 {
        let plain = self
            .iter()
            .filter(|(limit, _)| limit.counts() == Counts::Cost);
        plain
            .map(|(_, limit)| limit.state.report(now, 0, 1).remaining)
            .fold(self.plan.max_cost(), u64::min)
    }

    /// The earliest instant at which the costs can be admitted when `ahead` units go first: a lower bound, as in the strategies.
    pub(crate) fn ready_at(&self, now: Moment, ahead: u64, costs: Costs<'_>) -> Moment {
        let ready_at = |(limit, counted): (&Limit, &CountedLimit)| match counted.charged(costs) {
            0 => now,
            cost => counted.state.ready_at(now, ahead_of(limit, ahead), cost),
        };
        self.iter().map(ready_at).max().unwrap_or(now)
    }

    /// A forecast of the grants from `now` on. `reclaims` yields the reclaims of places.
    pub(crate) fn forecast<'a, R: Iterator<Item = Reclaim<'a>>>(
        &'a self,
        now: Moment,
        suspension: Option<Suspension>,
        reclaims: R,
    ) -> Forecast<'a, R> {
        Forecast::new(self.counted(), suspension, reclaims, now)
    }

    /// Until when the costs must wait, [`Moment::NEVER`] if only a release helps. `None`: they are admitted now.
    pub(crate) fn denied_until(&self, now: Moment, costs: Costs<'_>) -> Option<Moment> {
        let denied_until = |limit: &CountedLimit| match limit.charged(costs) {
            0 => None,
            cost => limit.state.decide(now, cost).err(),
        };
        self.counted().filter_map(denied_until).max()
    }

    /// Whether a unit of all that a request charges is free, although the request may not be admitted.
    pub(crate) fn have_room_for_one(&self, now: Moment, costs: Costs<'_>) -> bool {
        let has_room =
            |limit: &CountedLimit| limit.charged(costs) == 0 || limit.state.decide(now, 1).is_ok();
        self.counted().all(has_room)
    }

    /// The units of these costs that are in flight once they are granted, as the first concurrency limit counts them.
    pub(crate) fn units_held_by(&self, costs: Costs<'_>) -> u64 {
        let mut counted = self.counted();
        let first = counted.find(|limit| limit.state.places().is_some());
        first.map_or(0, |limit| limit.charged(costs))
    }

    /// The answer to a caller that does not wait, when `ahead` units wait before it.
    #[inline(always)]
    pub(crate) fn decide(&self, now: Moment, ahead: u64, costs: Costs<'_>) -> Decision {
        if self.counts_by_unit() {
            self.decide_by_unit(now, ahead, costs)
        } else {
            self.decide_plain(now, ahead, costs.plain)
        }
    }

    /// [`Limits::decide`] where all limits count the plain cost.
    pub(crate) fn decide_plain(&self, now: Moment, ahead: u64, cost: u64) -> Decision {
        if !self.rest.is_empty() {
            return self.decide_by_all(now, ahead, cost);
        }
        let policy = self.plan.policy();
        let report = self.first.state.report(now, ahead, cost);
        let capacity = self.first.state.capacity(&policy.limits()[0], now);
        let misfit = self.plan.misfit(cost).is_some();
        // A decision that is changed after it was made is copied, which takes as long as to make it.
        Decision::of_one(policy, misfit, report, now, ahead, capacity)
    }

    /// [`Limits::decide_plain`] of a policy of several limits.
    #[inline(never)]
    fn decide_by_all(&self, now: Moment, ahead: u64, cost: u64) -> Decision {
        let (policy, misfit) = (self.plan.policy(), self.plan.misfit(cost));
        let reports = self
            .limit_states()
            .map(|state| state.report(now, ahead, cost));
        let capacity = |by| self.capacity(by, now);
        Decision::summarize(policy, misfit, reports, now, ahead, capacity)
    }

    /// [`Limits::decide`]. The scarcest limit is the one that admits the fewest requests like this one.
    #[cold]
    fn decide_by_unit(&self, now: Moment, ahead: u64, costs: Costs<'_>) -> Decision {
        let report = |(limit, counted): (&Limit, &CountedLimit)| {
            // A limit is not asked for more than it ever admits.
            let (state, cost) = (&counted.state, counted.charged(costs).min(limit.capacity()));
            if cost == 0 {
                return (
                    LimitReport {
                        denied_until: None,
                        remaining: u64::MAX,
                        ready_at: now,
                        reset_at: state.reset_at(now),
                    },
                    u64::MAX,
                );
            }
            let report = state.report(now, ahead_of(limit, ahead), cost);
            (
                LimitReport {
                    remaining: report.remaining / cost,
                    ..report
                },
                report.remaining,
            )
        };
        let (reports, remaining): (Vec<_>, Vec<_>) = self.iter().map(report).unzip();
        let too_small = |limit: &Limit| {
            costs
                .of(limit.counts())
                .is_none_or(|cost| cost > limit.capacity())
        };
        let misfit = self.plan.limits().iter().position(too_small);
        let capacity = |by| self.capacity(by, now);
        let mut decision = Decision::summarize(
            self.plan.policy(),
            misfit,
            reports.into_iter(),
            now,
            ahead,
            capacity,
        );
        decision.remaining = remaining[decision.binding_index as usize];
        decision
    }

    /// [`Limits::decide`], with all requests held back until an instant.
    pub(crate) fn decide_held_back(
        &self,
        until: Moment,
        now: Moment,
        ahead: u64,
        costs: Costs<'_>,
    ) -> Decision {
        let decision = self.decide(now, ahead, costs);
        if until <= now {
            return decision;
        }
        // The request waits for those ahead, and they wait for the end of the pause.
        let limits_admit =
            self.decide(now, 0, costs).is_allowed() && self.ready_at(now, ahead, costs) <= now;
        if limits_admit {
            decision.paused(until, now)
        } else {
            decision.held_back(until, now)
        }
    }

    /// [`Limits::decide_held_back`], as it is reported to a request that cannot wait for those ahead.
    pub(crate) fn decide_behind(
        &self,
        now: Moment,
        ahead: u64,
        costs: Costs<'_>,
        resumes_at: Moment,
    ) -> Decision {
        let decision = self.decide_held_back(resumes_at, now, ahead, costs);
        if ahead > 0 {
            decision.behind_others(None, now)
        } else {
            decision
        }
    }

    /// The capacity of the limit of this index, at present.
    fn capacity(&self, index: usize, now: Moment) -> u64 {
        let limit = &self.plan.limits()[index];
        self.limit_states()
            .nth(index)
            .map_or(limit.capacity(), |state| state.capacity(limit, now))
    }
}

/// Charges, releases and refunds.
impl Limits {
    /// Charges the only limit, which counts the plain cost. `Err`: until when the cost must wait.
    #[inline(always)]
    pub(super) fn admit_by_one(&mut self, now: Moment, cost: u64) -> Result<(), Moment> {
        let next = self.first.state.decide(now, cost)?;
        self.first.state.proceed(now, cost, next);
        Ok(())
    }

    /// Charges all limits, which count the plain cost, or none. `Err`: until when the cost must wait.
    #[inline(never)]
    pub(super) fn admit_by_all(&mut self, now: Moment, cost: u64) -> Result<(), Moment> {
        let first = self.first.state.decide(now, cost);
        let mut denied_until = first.err();
        for LaterLimit { limit, next } in &mut self.rest {
            match limit.state.decide(now, cost) {
                Ok(decided) => *next = decided,
                Err(until) => denied_until = denied_until.max(Some(until)),
            }
        }
        if let Some(until) = denied_until {
            return Err(until);
        }
        self.first.state.proceed(now, cost, first?);
        for LaterLimit { limit, next } in &mut self.rest {
            limit.state.proceed(now, cost, *next);
        }
        Ok(())
    }

    /// Charges each limit that `is_charged` the units that it counts. Returns whether a concurrency limit was among them.
    pub(super) fn charge_costs(
        &mut self,
        now: Moment,
        costs: Costs<'_>,
        is_charged: impl Fn(&LimitState) -> bool,
    ) -> bool {
        let mut takes_place = false;
        for limit in self.counted_mut() {
            let cost = limit.charged(costs);
            if cost > 0 && is_charged(&limit.state) {
                limit.state.charge(now, cost);
                takes_place |= limit.state.places().is_some();
            }
        }
        takes_place
    }

    /// Releases the places of a plain cost.
    #[inline(always)]
    pub(super) fn release(&mut self, cost: u64) {
        self.first.state.release(cost);
        self.rest
            .iter_mut()
            .for_each(|later| later.limit.state.release(cost));
    }

    /// Releases the places of the permit of this fence, by what each limit was charged.
    pub(super) fn release_measured(&mut self, fence: u64, costs: Costs<'_>) {
        for limit in self.counted_mut() {
            limit.state.release(limit.returned(fence, costs));
        }
    }

    /// Forgets former measures, because all permits that were granted by one were released.
    pub(super) fn forget_former_measures(&mut self) {
        self.counted_mut()
            .for_each(CountedLimit::forget_former_measures);
    }

    /// Replaces the costs of a grant with the actual ones.
    pub(super) fn settle(
        &mut self,
        now: Moment,
        grant: Grant,
        costs: Costs<'_>,
        actual: Actual<'_>,
    ) {
        for (limit, counted) in self.iter_mut() {
            let cost = costs.of(limit.counts()).unwrap_or(0);
            let actual = actual.of(limit.counts(), cost);
            let granted_at = grant
                .at
                .known()
                .filter(|_| counted.has_granted(grant.fence));
            counted.state.settle(now, granted_at, cost, actual);
        }
    }

    /// Passes a report on a grant to each concurrency limit that made it. The sample comes without the numbers that differ between limits.
    pub(super) fn learn(
        &mut self,
        now: Moment,
        fence: u64,
        costs: Costs<'_>,
        sample: impl Fn(u64, u64) -> Sample,
    ) {
        for (limit, counted) in self.iter_mut() {
            if counted.has_granted(fence)
                && let LimitState::Places(places) = &mut counted.state
            {
                let cost = costs.of(limit.counts()).unwrap_or(0);
                let in_flight = places.in_use.saturating_add(cost); // its permit was in flight at the report
                places.learn(now, sample(cost, in_flight));
            }
        }
    }

    /// Records that a request that does not wait was denied. Returns whether that changed a state.
    pub(crate) fn note_denial(&mut self, now: Moment, costs: Costs<'_>) -> bool {
        // Not `any`, which stops at the first change.
        self.counted_mut().fold(false, |changed, limit| {
            let cost = limit.charged(costs);
            (cost > 0 && limit.state.note_denial(now, cost)) | changed
        })
    }

    /// [`Limits::note_denial`]. Returns the bans that begin with it.
    pub(crate) fn note_denial_and_bans(&mut self, now: Moment, costs: Costs<'_>) -> Vec<BegunBan> {
        let before: Vec<_> = self.bans(now).collect();
        self.note_denial(now, costs);
        let mut begun = Vec::new();
        for (limit_index, (before, ban)) in before.into_iter().zip(self.bans(now)).enumerate() {
            if let (None, Some(until)) = (before, ban) {
                let length = until.since(now);
                begun.push(BegunBan {
                    limit_index,
                    length,
                });
            }
        }
        begun
    }

    /// Charges all limits of time that count no named unit, whether or not they admit the cost.
    pub(super) fn charge(&mut self, now: Moment, units: u64) {
        self.unnamed()
            .for_each(|limit| limit.state.charge(now, units));
    }

    /// Refunds up to `units` to all limits of time that count no named unit, whenever the units were charged. After that, they refund
    /// no grant up to this fence.
    pub(super) fn forgive(&mut self, now: Moment, units: u64, fence: u64) {
        for limit in self.unnamed() {
            limit.void_refunds(fence);
            limit.state.forgive(now, units);
        }
    }

    /// The limits of time that count no named unit.
    fn unnamed(&mut self) -> impl Iterator<Item = &mut CountedLimit> {
        let names_none = |limit: &Limit| !matches!(limit.counts(), Counts::Unit(_));
        self.iter_mut()
            .filter(move |(limit, _)| names_none(limit) && !limit.counts_places())
            .map(|(_, counted)| counted)
    }

    /// Resets all limits of time. After that, they refund no grant up to this fence.
    pub(super) fn reset(&mut self, now: Moment, fence: u64) {
        let plan = Arc::clone(&self.plan);
        for ((limit, counted), rule) in self.iter_mut().zip(plan.rules()) {
            if !limit.counts_places() {
                counted.state = LimitState::new(rule, now);
                counted.void_refunds(fence);
            }
        }
    }

    /// Starts these limits, which are new, with the usage of former ones, as [`carry_over`] defines. The units `in_flight` after
    /// the grant of this fence stay in flight.
    pub(super) fn take_over(
        &mut self,
        former: Self,
        in_flight: &InFlight,
        fence: u64,
        now: Moment,
        carry: UsageCarryOver,
    ) {
        let later = former.rest.into_iter().map(|later| later.limit);
        let old_limits = std::iter::once(former.first).chain(later);
        let old_limits = former
            .plan
            .limits()
            .iter()
            .copied()
            .zip(old_limits)
            .collect();
        carry_over(
            old_limits,
            self.iter_mut().collect(),
            now,
            carry,
            in_flight,
            fence,
        );
    }
}

/// The units ahead that count for this limit. They are known for the plain cost only.
fn ahead_of(limit: &Limit, ahead: u64) -> u64 {
    if limit.counts() == Counts::Cost {
        ahead
    } else {
        0
    }
}
