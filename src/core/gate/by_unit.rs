//! A policy whose limits count different things. A limit that a request takes nothing of is not asked.

use std::sync::Arc;

use super::{Gate, Past};
use crate::core::costs::{Costs, UnitCosts};
use crate::core::grant::{Claim, Grant};
use crate::core::limit_state::LimitState;
use crate::core::measure::{Account, InFlight, Measure, charged, returned};
use crate::core::request::Caller;
use crate::decision::Decision;
use crate::error::Misfit;
use crate::policy::Limit;
use crate::strategy::{Counts, LimitReport, Moment};

impl Past {
    /// Of a new gate with these limits.
    pub(super) fn of(limits: &[Limit]) -> Self {
        Self { measures: limits.iter().map(|limit| Measure::new(limit.counts())).collect(), ..Self::default() }
    }
}

impl Gate {
    /// See [`Plan::fits`](crate::core::plan::Plan::fits).
    pub(crate) fn fits(&self, costs: Costs<'_>) -> Result<(), Misfit> {
        self.plan.fits(costs)
    }

    /// [`Gate::admit`]. It decides a limit again before it charges it; only policies of this kind do.
    #[inline(never)]
    pub(super) fn admit_by_unit(&mut self, now: Moment, costs: Costs<'_>, caller: Caller) -> Result<Grant, Moment> {
        let (states, _, measures) = self.parts();
        let mut asked: Vec<_> = states.enumerate().map(|(index, state)| (charged(measures, index, costs), state)).collect();
        asked.retain(|(cost, _)| *cost > 0);
        if let Some(until) = asked.iter().filter_map(|(cost, state)| state.decide(now, *cost).err()).max() {
            return Err(until);
        }
        let mut holds = false;
        for (cost, state) in asked {
            let next = state.decide(now, cost)?;
            state.proceed(now, cost, next);
            holds |= state.places().is_some();
        }
        let grant = if holds {
            self.charge_owed(costs);
            self.open_grant(now, costs.plain, caller)
        } else {
            self.fence += 1;
            let claim = if costs.by_unit.is_some() { Claim::NAMED_UNITS } else { Claim::NONE };
            Grant { fence: self.fence, claim, at: self.time_of_grant(now) }
        };
        if let (Some(by_unit), Some(past)) = (costs.by_unit, &mut self.past) {
            past.named.insert(grant.fence, Arc::clone(by_unit));
        }
        Ok(grant)
    }

    /// [`Gate::ready_at`]. Only of the plain cost it is known how much is `ahead`.
    pub(super) fn ready_at_by_unit(&self, now: Moment, ahead: u64, costs: Costs<'_>) -> Moment {
        let ready_at = |(index, state): (usize, &LimitState)| match charged(self.measures(), index, costs) {
            0 => now,
            cost => state.ready_at(now, self.ahead_of(index, ahead), cost),
        };
        self.limit_states().enumerate().map(ready_at).max().unwrap_or(now)
    }

    fn ahead_of(&self, index: usize, ahead: u64) -> u64 {
        if self.plan.limits()[index].counts() == Counts::Cost { ahead } else { 0 }
    }

    /// [`Gate::decide`]. The scarcest limit is the one that admits the fewest requests like this one.
    #[cold]
    pub(super) fn decide_by_unit(&self, now: Moment, ahead: u64, costs: Costs<'_>) -> Decision {
        let report = |(index, state): (usize, &LimitState)| {
            // A limit is not asked for more than it ever admits.
            let cost = charged(self.measures(), index, costs).min(self.plan.limits()[index].capacity());
            if cost == 0 {
                return (LimitReport { reset_at: state.reset_at(now), ..LimitReport::unasked(now) }, u64::MAX);
            }
            let report = state.report(now, self.ahead_of(index, ahead), cost);
            (LimitReport { remaining: report.remaining / cost, ..report }, report.remaining)
        };
        let (reports, remaining): (Vec<_>, Vec<_>) = self.limit_states().enumerate().map(report).unzip();
        let too_small = |limit: &Limit| costs.of(limit.counts()).is_none_or(|cost| cost > limit.capacity());
        let misfit = self.plan.limits().iter().position(too_small);
        let capacity = |by| self.capacity(by, now);
        let mut decision = Decision::summarize(self.plan.policy(), misfit, reports.into_iter(), now, ahead, capacity);
        decision.remaining = remaining[decision.binding_index as usize];
        decision
    }

    /// [`Gate::return_places`], by what each limit was charged.
    #[inline(never)]
    pub(super) fn return_measured(&mut self, fence: u64, cost: u64) {
        if let Some(local) = self.take_held_locally(fence) {
            return local.return_places(fence, cost);
        }
        let by_unit = self.past.as_mut().and_then(|past| past.named.remove(&fence));
        self.give_back(fence);
        let costs = Costs::new(cost, &by_unit);
        let (states, _, measures) = self.parts();
        states.enumerate().for_each(|(index, state)| state.release(returned(measures, index, fence, costs)));
        if let Some(past) = &mut self.past {
            past.owed.iter_mut().for_each(|account| account.release(fence, costs));
        }
        if !self.counts_by_unit() && self.place == Claim::COUNTED_PLACE && !self.is_in_flight() {
            self.forget_measures();
        }
    }

    /// The units that a permit was granted, if they are recorded.
    pub(crate) fn unit_costs(&self, fence: u64) -> Option<&Arc<UnitCosts>> {
        let past = self.past.as_ref()?;
        past.named.get(&fence).or_else(|| self.known_local()?.unit_costs(fence))
    }

    /// The permit of this fence will never come back.
    pub(crate) fn forget_units(&mut self, fence: u64) {
        if let Some(local) = self.take_held_locally(fence) {
            return local.forget_units(fence);
        }
        if let Some(past) = &mut self.past {
            past.named.remove(&fence);
        }
        self.give_back(fence);
    }

    /// The permit of this fence will never come back. What a lease holds comes back when its TTL has passed.
    pub(crate) fn forget(&mut self, fence: u64, claim: Claim) {
        if claim.names_units() {
            self.forget_units(fence);
        }
        self.stop_renewing(fence);
    }

    /// Counts a grant in what only former plans counted.
    #[cold]
    pub(super) fn charge_owed(&mut self, costs: Costs<'_>) {
        if let Some(past) = &mut self.past {
            past.owed.iter_mut().for_each(|account| account.charge(costs));
        }
    }

    /// All permits that were granted by another measure have come back: from now on, places are plain ones.
    fn forget_measures(&mut self) {
        if let Some(past) = &mut self.past {
            (past.measures, past.owed) = (Vec::new(), Vec::new());
        }
        self.place = Claim::PLACE;
        self.fits_word = self.plan.plain_places().is_some() && !self.records_grant_time && self.leases.is_none();
    }

    /// What is in flight, by the measure of each concurrency limit, and of former ones.
    pub(super) fn places_in_flight(&self) -> InFlight {
        let measures = self.measures();
        let limits = self.limit_states().zip(self.plan.limits()).enumerate();
        let accounts = limits.filter_map(|(index, (state, limit))| {
            let measure = measures.get(index).cloned().unwrap_or(Measure::PLAIN);
            Some(Account { counts: limit.counts(), units: state.places()?, measure })
        });
        InFlight::new(accounts.chain(self.owed().iter().filter(|account| account.units > 0).cloned()))
    }
}
