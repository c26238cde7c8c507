//! What a gate would answer. Nothing changes.

use super::Gate;
use crate::core::costs::Costs;
use crate::core::forecast::{Forecast, LimitForecast, Reclaim};
use crate::core::limit_state::LimitState;
use crate::core::measure::charged;
use crate::core::suspension::Suspension;
use crate::decision::Decision;
use crate::policy::Limit;
use crate::snapshot::LimitStatus;
use crate::strategy::{Counts, Moment};

impl Gate {
    /// What each limit says.
    pub(crate) fn statuses(&self, now: Moment) -> Vec<LimitStatus> {
        let status = |(state, limit): (&LimitState, &Limit)| {
            LimitStatus::new(*limit, state.capacity(limit, now), state.report(now, 0, 1), now)
        };
        self.limit_states().zip(self.plan.limits()).map(status).collect()
    }

    /// The largest plain cost that is admitted now, if a cost of 1 is.
    pub(crate) fn available(&self, now: Moment) -> u64 {
        let plain = self.limit_states().zip(self.plan.limits()).filter(|(_, limit)| limit.counts() == Counts::Cost);
        plain.map(|(state, _)| state.report(now, 0, 1).remaining).fold(self.plan.max_cost(), u64::min)
    }

    /// The earliest instant at which the costs can be admitted when `ahead` units go first: a lower bound, as in the strategies.
    pub(crate) fn ready_at(&self, now: Moment, ahead: u64, costs: Costs<'_>) -> Moment {
        if self.counts_by_unit() {
            return self.ready_at_by_unit(now, ahead, costs);
        }
        self.limit_states().map(|state| state.ready_at(now, ahead, costs.plain)).max().unwrap_or(now)
    }

    /// A forecast of the grants from `now` on. Places are reclaimed as `reclaims` says.
    pub(crate) fn forecast<'a, R: Iterator<Item = Reclaim<'a>>>(
        &'a self,
        now: Moment,
        suspension: Option<Suspension>,
        reclaims: R,
    ) -> Forecast<'a, R> {
        let limits = self.limit_states().map(|state| LimitForecast::new(state, now));
        Forecast::new(limits, self.measures(), suspension, reclaims, now)
    }

    /// The reclaims to come, first to last.
    pub(crate) fn reclaims(&self) -> impl Iterator<Item = Reclaim<'_>> {
        self.leases.iter().flat_map(|leases| leases.iter()).map(|lease| Reclaim {
            at: lease.expires_at,
            fence: lease.fence,
            costs: Costs { plain: lease.cost, by_unit: self.unit_costs(lease.fence) },
        })
    }

    /// The answer to a caller that does not wait, when `ahead` units wait before it.
    #[inline(always)]
    pub(crate) fn decide(&self, now: Moment, ahead: u64, costs: Costs<'_>) -> Decision {
        if self.counts_by_unit() { self.decide_by_unit(now, ahead, costs) } else { self.decide_plain(now, ahead, costs.plain) }
    }

    /// [`Gate::decide`] where all limits count the plain cost.
    pub(crate) fn decide_plain(&self, now: Moment, ahead: u64, cost: u64) -> Decision {
        let (policy, misfit) = (self.plan.policy(), self.plan.misfit(cost));
        let report = |state: &LimitState| state.report(now, ahead, cost);
        // A decision that is changed after it was made is copied, which takes as long as to make it.
        if self.rest.is_empty() {
            let capacity = |_| self.first.capacity(&policy.limits()[0], now);
            return Decision::summarize(policy, misfit, std::iter::once(report(&self.first)), now, ahead, capacity);
        }
        Decision::summarize(policy, misfit, self.limit_states().map(report), now, ahead, |by| self.capacity(by, now))
    }

    /// The capacity of the limit of this index, at present.
    pub(super) fn capacity(&self, index: usize, now: Moment) -> u64 {
        let limit = &self.plan.limits()[index];
        self.limit_states().nth(index).map_or(limit.capacity(), |state| state.capacity(limit, now))
    }

    /// Whether [`Gate::admit`] would admit.
    pub(crate) fn would_admit(&self, now: Moment, costs: Costs<'_>) -> bool {
        let measures = self.measures();
        let admits = |(index, state): (usize, &LimitState)| match charged(measures, index, costs) {
            0 => true,
            cost => state.decide(now, cost).is_ok(),
        };
        self.limit_states().enumerate().all(admits)
    }
}
