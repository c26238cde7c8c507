//! The limits of a policy with their states: what they answer to a request, and what they are charged.

use std::sync::Arc;

use crate::carry_over::UsageCarryOver;
use crate::core::gate::forecast::{Forecast, LimitForecast, Reclaim};
use crate::core::gate::limit_state::LimitState;
use crate::core::gate::measure::{InFlight, InFlightOf, Measure, Measures, charged, returned};
use crate::core::gate::migrate::{NewLimit, OldLimit, carry_over};
use crate::core::gate::plan::{BegunBan, Plan};
use crate::core::request::{Actual, Costs};
use crate::core::suspension::Suspension;
use crate::decision::Decision;
use crate::error::Misfit;
use crate::policy::{Limit, Policy};
use crate::snapshot::LimitStatus;
use crate::strategy::{Counts, LimitReport, Moment, Sample, StateWords};

/// A policy with the state of each limit. It knows no permits: a [`Gate`](crate::core::gate::Gate) counts the grants.
#[derive(Debug)]
pub(crate) struct Limits {
    plan: Arc<Plan>,
    /// The first limit of the policy, stored in place: most policies have only this one.
    first: LimitState,
    rest: Box<[LaterLimit]>,
    /// The largest plain cost that can ever be admitted; 0 if a limit counts anything else, because then nothing is decided in place.
    /// It follows from the plan; the fast path reads it here.
    max_cost: u64,
    /// What each limit counts; `None` if all count the plain cost, and have always done so.
    measures: Option<Box<Measures>>,
}

/// A limit of the policy after the first.
#[derive(Debug)]
struct LaterLimit {
    state: LimitState,
    /// Its state if all limits admit the request that is being decided. Each limit decides once, and none is charged before all have
    /// admitted.
    next: StateWords,
}

impl Limits {
    pub(super) fn new(plan: Arc<Plan>, now: Moment) -> Self {
        let mut states = plan.rules().iter().map(|rule| LimitState::new(rule, now));
        Self {
            first: states.next().expect("a policy is never empty"),
            rest: states
                .map(|state| LaterLimit {
                    state,
                    next: StateWords::default(),
                })
                .collect(),
            max_cost: if plan.counts_by_unit() {
                0
            } else {
                plan.max_cost()
            },
            measures: plan
                .counts_by_unit()
                .then(|| Box::new(Measures::new(plan.limits()))),
            plan,
        }
    }

    /// Limits whose states are in a store: here they count the places that the store has granted, and decide nothing.
    pub(super) fn of_store(plan: Arc<Plan>, now: Moment) -> Self {
        Self {
            max_cost: 0,
            measures: Some(Box::new(Measures::new(plan.limits()))),
            ..Self::new(plan, now)
        }
    }

    /// Sets the state of each limit, all of which are words.
    pub(super) fn set_states(&mut self, states: impl Iterator<Item = StateWords>) {
        self.iter_mut()
            .zip(states)
            .for_each(|(state, words)| state.set_words(words));
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
    pub(super) fn first(&self) -> &LimitState {
        &self.first
    }

    #[inline(always)]
    pub(super) fn first_mut(&mut self) -> &mut LimitState {
        &mut self.first
    }

    /// What each limit counts; empty if it is the plain cost.
    fn measures(&self) -> &[Measure] {
        self.measures.as_ref().map_or(&[], |measures| &measures.0)
    }

    fn iter(&self) -> impl Iterator<Item = &LimitState> {
        std::iter::once(&self.first).chain(self.rest.iter().map(|later| &later.state))
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut LimitState> {
        self.parts().0
    }

    /// The states, the plan and what each limit counts.
    fn parts(&mut self) -> (impl Iterator<Item = &mut LimitState>, &Plan, &[Measure]) {
        let states = std::iter::once(&mut self.first)
            .chain(self.rest.iter_mut().map(|later| &mut later.state));
        let measures = self.measures.as_ref().map_or(&[][..], |all| &all.0);
        (states, &self.plan, measures)
    }
}

/// What the limits are.
impl Limits {
    pub(crate) fn policy(&self) -> &Policy {
        self.plan.policy()
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

    /// Whether a denied request raises a limit.
    pub(crate) fn counts_denials(&self) -> bool {
        self.plan.counts_denials()
    }

    /// See [`Plan::fits`].
    pub(crate) fn fits(&self, costs: Costs<'_>) -> Result<(), Misfit> {
        self.plan.fits(costs)
    }

    /// What a request costs of each limit.
    pub(crate) fn costs_of_each(&self, costs: Costs<'_>) -> Box<[u64]> {
        (0..self.plan.limits().len())
            .map(|index| charged(self.measures(), index, costs))
            .collect()
    }
}

/// What the limits say. Nothing changes.
impl Limits {
    /// The states of all limits; `None` if one of them does not fit into words.
    pub(crate) fn states(&self) -> Option<Vec<StateWords>> {
        self.iter().map(LimitState::words).collect()
    }

    /// When they can be forgotten, if nothing is in flight and nothing more is admitted: then they equal new ones.
    pub(crate) fn reset_at(&self, now: Moment) -> Moment {
        self.iter()
            .map(|state| state.forgettable_at(now))
            .max()
            .unwrap_or(now)
    }

    /// The highest usage of any limit, in units.
    pub(crate) fn used(&self, now: Moment) -> u64 {
        self.iter().map(|state| state.used(now)).max().unwrap_or(0)
    }

    /// The units in flight of each concurrency limit.
    pub(super) fn places(&self) -> impl Iterator<Item = u64> {
        self.iter().filter_map(LimitState::places)
    }

    /// What is in flight, by the measure of each concurrency limit.
    pub(super) fn in_flight_of_each(&self) -> impl Iterator<Item = InFlightOf> {
        let limits = self.iter().zip(self.plan.limits()).enumerate();
        limits.filter_map(|(index, (state, limit))| {
            let measure = self.measures().get(index).cloned();
            Some(InFlightOf {
                counts: limit.counts(),
                units: state.places()?,
                measure: measure.unwrap_or(Measure::PLAIN),
            })
        })
    }

    /// The units that may be in flight at the same time, now: the least of all concurrency limits.
    pub(crate) fn concurrency(&self, now: Moment) -> Option<u64> {
        self.iter().filter_map(|state| state.concurrency(now)).min()
    }

    /// What each concurrency limit is now, by index.
    #[cfg(test)]
    pub(crate) fn concurrencies(&self, now: Moment) -> Vec<Option<u64>> {
        self.iter().map(|state| state.concurrency(now)).collect()
    }

    /// For each limit: until when it bans, if it does.
    pub(crate) fn bans(&self, now: Moment) -> impl Iterator<Item = Option<Moment>> {
        self.iter().map(move |state| state.banned_until(now))
    }

    /// What each limit says.
    pub(crate) fn statuses(&self, now: Moment) -> Vec<LimitStatus> {
        let status = |(state, limit): (&LimitState, &Limit)| {
            LimitStatus::new(
                *limit,
                state.capacity(limit, now),
                state.report(now, 0, 1),
                now,
            )
        };
        self.iter().zip(self.plan.limits()).map(status).collect()
    }

    /// The largest plain cost that is admitted now, if a cost of 1 is.
    pub(crate) fn available(&self, now: Moment) -> u64 {
        let plain = self
            .iter()
            .zip(self.plan.limits())
            .filter(|(_, limit)| limit.counts() == Counts::Cost);
        plain
            .map(|(state, _)| state.report(now, 0, 1).remaining)
            .fold(self.plan.max_cost(), u64::min)
    }

    /// The earliest instant at which the costs can be admitted when `ahead` units go first: a lower bound, as in the strategies.
    pub(crate) fn ready_at(&self, now: Moment, ahead: u64, costs: Costs<'_>) -> Moment {
        if self.counts_by_unit() {
            return self.ready_at_by_unit(now, ahead, costs);
        }
        self.iter()
            .map(|state| state.ready_at(now, ahead, costs.plain))
            .max()
            .unwrap_or(now)
    }

    /// [`Limits::ready_at`]. How much is `ahead` is known of the plain cost only.
    fn ready_at_by_unit(&self, now: Moment, ahead: u64, costs: Costs<'_>) -> Moment {
        let ready_at =
            |(index, state): (usize, &LimitState)| match charged(self.measures(), index, costs) {
                0 => now,
                cost => state.ready_at(now, self.ahead_of(index, ahead), cost),
            };
        self.iter().enumerate().map(ready_at).max().unwrap_or(now)
    }

    fn ahead_of(&self, index: usize, ahead: u64) -> u64 {
        if self.plan.limits()[index].counts() == Counts::Cost {
            ahead
        } else {
            0
        }
    }

    /// A forecast of the grants from `now` on. Places are reclaimed as `reclaims` says.
    pub(crate) fn forecast<'a, R: Iterator<Item = Reclaim<'a>>>(
        &'a self,
        now: Moment,
        suspension: Option<Suspension>,
        reclaims: R,
    ) -> Forecast<'a, R> {
        let limits = self.iter().map(|state| LimitForecast::new(state, now));
        Forecast::new(limits, self.measures(), suspension, reclaims, now)
    }

    /// Whether the costs are admitted now.
    pub(crate) fn would_admit(&self, now: Moment, costs: Costs<'_>) -> bool {
        let measures = self.measures();
        let admits = |(index, state): (usize, &LimitState)| match charged(measures, index, costs) {
            0 => true,
            cost => state.decide(now, cost).is_ok(),
        };
        self.iter().enumerate().all(admits)
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
        let report = self.first.report(now, ahead, cost);
        let capacity = |_| self.first.capacity(&policy.limits()[0], now);
        // A decision that is changed after it was made is copied, which takes as long as to make it.
        Decision::summarize(
            policy,
            self.plan.misfit(cost),
            std::iter::once(report),
            now,
            ahead,
            capacity,
        )
    }

    /// [`Limits::decide_plain`] of a policy of several limits.
    #[inline(never)]
    fn decide_by_all(&self, now: Moment, ahead: u64, cost: u64) -> Decision {
        Decision::summarize(
            self.plan.policy(),
            self.plan.misfit(cost),
            self.iter().map(|state| state.report(now, ahead, cost)),
            now,
            ahead,
            |by| self.capacity(by, now),
        )
    }

    /// [`Limits::decide`]. The scarcest limit is the one that admits the fewest requests like this one.
    #[cold]
    fn decide_by_unit(&self, now: Moment, ahead: u64, costs: Costs<'_>) -> Decision {
        let report = |(index, state): (usize, &LimitState)| {
            // A limit is not asked for more than it ever admits.
            let cost =
                charged(self.measures(), index, costs).min(self.plan.limits()[index].capacity());
            if cost == 0 {
                return (
                    LimitReport {
                        reset_at: state.reset_at(now),
                        ..LimitReport::unasked(now)
                    },
                    u64::MAX,
                );
            }
            let report = state.report(now, self.ahead_of(index, ahead), cost);
            (
                LimitReport {
                    remaining: report.remaining / cost,
                    ..report
                },
                report.remaining,
            )
        };
        let (reports, remaining): (Vec<_>, Vec<_>) = self.iter().enumerate().map(report).unzip();
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
        // It waits for those ahead, and they for the end of the pause.
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
            decision.behind_others()
        } else {
            decision
        }
    }

    /// The capacity of the limit of this index, at present.
    fn capacity(&self, index: usize, now: Moment) -> u64 {
        let limit = &self.plan.limits()[index];
        self.iter()
            .nth(index)
            .map_or(limit.capacity(), |state| state.capacity(limit, now))
    }
}

/// What the limits are charged.
impl Limits {
    /// Charges the only limit, which counts the plain cost. `Err`: until when the cost must wait.
    #[inline(always)]
    pub(super) fn admit_by_one(&mut self, now: Moment, cost: u64) -> Result<(), Moment> {
        let next = self.first.decide(now, cost)?;
        self.first.proceed(now, cost, next);
        Ok(())
    }

    /// Charges all limits, which count the plain cost, or none. `Err`: until when the cost must wait.
    #[inline(always)]
    pub(super) fn admit_by_all(&mut self, now: Moment, cost: u64) -> Result<(), Moment> {
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
        Ok(())
    }

    /// Charges all limits that count anything of the costs, or none. It decides a limit again before it charges it; only policies of
    /// this kind do. `Ok`: whether a place was taken. `Err`: until when the costs must wait.
    pub(super) fn admit_by_unit(&mut self, now: Moment, costs: Costs<'_>) -> Result<bool, Moment> {
        let (states, _, measures) = self.parts();
        let mut asked: Vec<_> = states
            .enumerate()
            .map(|(index, state)| (charged(measures, index, costs), state))
            .collect();
        asked.retain(|(cost, _)| *cost > 0);
        if let Some(until) = asked
            .iter()
            .filter_map(|(cost, state)| state.decide(now, *cost).err())
            .max()
        {
            return Err(until);
        }
        let mut holds = false;
        for (cost, state) in asked {
            let next = state.decide(now, cost)?;
            state.proceed(now, cost, next);
            holds |= state.places().is_some();
        }
        Ok(holds)
    }

    /// Charges the concurrency limits a grant that a store has made. Returns whether it takes a place.
    pub(super) fn charge_places(&mut self, now: Moment, costs: Costs<'_>) -> bool {
        let (states, _, measures) = self.parts();
        let mut holds = false;
        for (index, state) in states.enumerate() {
            let cost = charged(measures, index, costs);
            if state.places().is_some() && cost > 0 {
                state.charge(now, cost);
                holds = true;
            }
        }
        holds
    }

    /// Releases the places of a plain cost.
    #[inline(always)]
    pub(super) fn release(&mut self, cost: u64) {
        self.first.release(cost);
        self.rest
            .iter_mut()
            .for_each(|later| later.state.release(cost));
    }

    /// Releases the places of the permit of this fence, by what each limit was charged.
    pub(super) fn release_measured(&mut self, fence: u64, costs: Costs<'_>) {
        let (states, _, measures) = self.parts();
        states
            .enumerate()
            .for_each(|(index, state)| state.release(returned(measures, index, fence, costs)));
    }

    /// All permits that were granted by another measure have come back: each limit counts the plain cost.
    pub(super) fn forget_measures(&mut self) {
        self.measures = None;
    }

    /// Replaces the costs of a grant by the actual ones. `refunds`: for each limit, whether it can refund the grant.
    pub(super) fn settle(
        &mut self,
        now: Moment,
        granted_at: Option<Moment>,
        costs: Costs<'_>,
        actual: Actual<'_>,
        refunds: impl Iterator<Item = bool>,
    ) {
        let (states, plan, _) = self.parts();
        for ((limit, state), refunds) in plan.limits().iter().zip(states).zip(refunds) {
            let cost = costs.of(limit.counts()).unwrap_or(0);
            let actual = actual.of(limit.counts(), cost);
            state.settle(now, granted_at.filter(|_| refunds), cost, actual);
        }
    }

    /// Passes a report to each concurrency limit that `granted` it. The sample comes without the numbers that differ between limits.
    pub(super) fn learn(
        &mut self,
        now: Moment,
        costs: Costs<'_>,
        granted: impl Iterator<Item = bool>,
        sample: impl Fn(u64, u64) -> Sample,
    ) {
        let (states, plan, _) = self.parts();
        for ((limit, state), granted) in plan.limits().iter().zip(states).zip(granted) {
            if granted && let Some(in_flight) = state.places() {
                let cost = costs.of(limit.counts()).unwrap_or(0);
                let in_flight = in_flight.saturating_add(cost); // at the report, its permit was
                state.learn(now, sample(cost, in_flight));
            }
        }
    }

    /// Records that a request that does not wait was denied. Returns whether that changed a state.
    pub(crate) fn note_denial(&mut self, now: Moment, costs: Costs<'_>) -> bool {
        if !self.counts_by_unit() {
            // Not `any`, which stops at the first change.
            return self.iter_mut().fold(false, |changed, state| {
                state.note_denial(now, costs.plain) | changed
            });
        }
        let (states, _, measures) = self.parts();
        let note = |(index, state): (usize, &mut LimitState)| match charged(measures, index, costs)
        {
            0 => false,
            cost => state.note_denial(now, cost),
        };
        states
            .enumerate()
            .map(note)
            .fold(false, |changed, change| changed | change)
    }

    /// [`Limits::note_denial`]. Returns the bans that begin with it.
    pub(crate) fn note_denial_and_bans(&mut self, now: Moment, costs: Costs<'_>) -> Vec<BegunBan> {
        if !self.plan.counts_denials() {
            return Vec::new();
        }
        let before: Vec<_> = self.bans(now).collect();
        self.note_denial(now, costs);
        let begun = |(limit_index, bans): (usize, (Option<Moment>, Option<Moment>))| match bans {
            (None, Some(until)) => Some(BegunBan {
                limit_index,
                length: until.since(now),
            }),
            _ => None,
        };
        before
            .into_iter()
            .zip(self.bans(now))
            .enumerate()
            .filter_map(begun)
            .collect()
    }

    /// Charges all limits of time that count no named unit, whether or not they admit the cost.
    pub(super) fn charge(&mut self, now: Moment, units: u64) {
        self.unnamed()
            .filter(|state| state.places().is_none())
            .for_each(|state| state.charge(now, units));
    }

    /// Refunds up to `units` to all limits that count no named unit, whenever the units were charged.
    pub(super) fn forgive(&mut self, now: Moment, units: u64) {
        self.unnamed().for_each(|state| state.forgive(now, units));
    }

    /// The limits that count no named unit.
    fn unnamed(&mut self) -> impl Iterator<Item = &mut LimitState> {
        let (states, plan, _) = self.parts();
        states
            .zip(plan.limits())
            .filter(|(_, limit)| is_unnamed(limit))
            .map(|(state, _)| state)
    }

    /// Resets all limits of time.
    pub(super) fn reset(&mut self, now: Moment) {
        let (states, plan, _) = self.parts();
        for (state, rule) in states
            .zip(plan.rules())
            .filter(|(state, _)| state.places().is_none())
        {
            *state = LimitState::new(rule, now);
        }
    }

    /// Records the grants of a pace from now on, if it did not before.
    pub(super) fn record_grants(&mut self, now: Moment) {
        self.iter_mut().for_each(|state| state.records_grants(now));
    }

    /// Starts these limits, which are new, with the usage of former ones, as [`carry_over`] says. `in_flight` after the grant of this
    /// fence goes on. `refundable_after`: for each former limit, the last fence whose grant it cannot refund; returns it for each new
    /// one.
    pub(super) fn take_over(
        &mut self,
        former: Self,
        refundable_after: impl Iterator<Item = u64>,
        in_flight: &InFlight,
        fence: u64,
        now: Moment,
        carry: UsageCarryOver,
    ) -> Box<[u64]> {
        let states =
            std::iter::once(former.first).chain(former.rest.into_iter().map(|later| later.state));
        let formers = former.plan.limits().iter().zip(states);
        let formers = formers
            .zip(refundable_after)
            .map(|((limit, state), refundable_after)| OldLimit {
                limit: *limit,
                state,
                refundable_after,
            });
        let (states, plan, _) = self.parts();
        let mut refundable_after: Box<[u64]> = plan.limits().iter().map(|_| fence).collect();
        let heirs = plan.limits().iter().zip(states).zip(&mut refundable_after);
        let heirs = heirs.map(|((limit, state), refundable_after)| NewLimit {
            limit: *limit,
            state,
            refundable_after,
        });
        carry_over(formers.collect(), heirs.collect(), now, carry, |counts| {
            in_flight.taken_over_by(counts, fence).0
        });
        self.measures = Measures::taking_over(self.plan.limits(), in_flight, fence).map(Box::new);
        refundable_after
    }

    /// Whether a limit counts anything but the plain cost, or has done so.
    pub(super) fn is_measured(&self) -> bool {
        self.measures.is_some()
    }
}

/// Whether it counts no named unit.
pub(super) fn is_unnamed(limit: &Limit) -> bool {
    !matches!(limit.counts(), Counts::Unit(_))
}
