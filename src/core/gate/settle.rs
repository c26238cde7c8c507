//! How a permit ends otherwise than by its drop: with the cost that its work had, or with a report.

use std::sync::Arc;

use super::{Gate, refundable_after};
use crate::core::costs::{Actual, Costs};
use crate::core::grant::Grant;
use crate::core::limit_state::LimitState;
use crate::strategy::{Counts, Moment, Outcome, Sample};

impl Gate {
    /// Releases a permit of `cost` whose work really cost `actual`: the difference is refunded, or charged as a debt. `None`, without a change,
    /// if it was reclaimed before or is about to be.
    ///
    /// A limit that was added after the grant is charged the debt but refunds nothing: the usage that it took over was charged to
    /// another limit, by another measure.
    pub(crate) fn settle(&mut self, now: Moment, grant: Grant, cost: u64, actual: Actual<'_>) -> Option<()> {
        if self.is_shared() {
            return self.settle_with_store(now, grant, cost, actual);
        }
        let by_unit = self.unit_costs(grant.fence).cloned();
        self.release_live(now, grant, cost)?;
        let (costs, settled) = (Costs::new(cost, &by_unit), actual.of(Counts::Cost, cost));
        // A policy of one pace that is a line.
        let is_refundable = self.granted_by(grant.fence).all(|(_, granted)| granted);
        if settled < cost
            && is_refundable
            && self.refund_on_line(now, grant.fence, grant.claim.reached(), cost - settled).is_some()
        {
            return Some(());
        }
        let plan = Arc::clone(&self.plan);
        for (limit, (state, granted)) in plan.limits().iter().zip(self.granted_by(grant.fence)) {
            let cost = costs.of(limit.counts()).unwrap_or(0);
            state.settle(now, grant.at.known().filter(|_| granted), cost, actual.of(limit.counts(), cost));
        }
        if settled > cost {
            self.track.iter_mut().for_each(|track| track.charged());
        }
        Some(())
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
        if self.is_shared()
            && let Some(local) = self.take_granted_locally(grant)
        {
            return local.report(now, grant, cost, rtt_nanos, outcome);
        }
        let by_unit = self.unit_costs(grant.fence).cloned();
        let costs = Costs::new(cost, &by_unit);
        self.release_live(now, grant, cost)?;
        let (Grant { fence, .. }, latest_fence, plan) = (grant, self.fence, Arc::clone(&self.plan));
        for (limit, (state, granted)) in plan.limits().iter().zip(self.granted_by(fence)) {
            if granted && let Some(in_flight) = state.places() {
                let cost = costs.of(limit.counts()).unwrap_or(0);
                let in_flight = in_flight.saturating_add(cost); // at the report, its permit was
                state.learn(now, Sample { outcome, rtt_nanos, cost, in_flight, fence, latest_fence });
            }
        }
        Some(())
    }

    /// [`Gate::release`], except that a permit whose TTL has passed is left to be reclaimed.
    pub(super) fn release_live(&mut self, now: Moment, Grant { fence, claim, .. }: Grant, cost: u64) -> Option<()> {
        if let Some(index) = claim.lease() {
            self.live_lease(index, fence, now)?;
        }
        self.release(fence, cost, claim)
    }

    /// The limits, each with whether it charged the grant of this fence and can refund it.
    fn granted_by(&mut self, fence: u64) -> impl Iterator<Item = (&mut LimitState, bool)> {
        let later = self.rest.iter_mut().map(|later| &mut later.state);
        let states = std::iter::once(&mut self.first).chain(later);
        states.zip(refundable_after(&self.past)).map(move |(state, last)| (state, fence > last))
    }
}
