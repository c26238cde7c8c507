//! Changes of the usage without a request, and of the plan.

use std::sync::Arc;

use super::{Gate, Past, refundable_after};
use crate::carry_over::UsageCarryOver;
use crate::core::grant::Claim;
use crate::core::limit_state::LimitState;
use crate::core::measure::Measure;
use crate::core::migrate::{Former, Heir, carry_over};
use crate::core::plan::Plan;
use crate::policy::Limit;
use crate::strategy::{Counts, Moment};

impl Gate {
    /// Charges all limits of time that count no named unit, whether or not they admit the cost.
    pub(crate) fn charge(&mut self, now: Moment, units: u64) {
        if self.is_shared() {
            return self.charge_in_store(now, units);
        }
        self.unnamed_limits().filter(|state| state.places().is_none()).for_each(|state| state.charge(now, units));
        self.track.iter_mut().for_each(|track| track.charged());
    }

    /// Refunds up to `units`, whenever they were charged. After that, no earlier permit can be refunded.
    pub(crate) fn forgive(&mut self, now: Moment, units: u64) {
        self.void_refunds(is_unnamed);
        self.unnamed_limits().for_each(|state| state.forgive(now, units));
    }

    /// The limits that count no named unit.
    fn unnamed_limits(&mut self) -> impl Iterator<Item = &mut LimitState> {
        let (states, plan, _) = self.parts();
        states.zip(plan.limits()).filter(|(_, limit)| is_unnamed(limit)).map(|(state, _)| state)
    }

    /// Makes all earlier grants non-refundable by these limits.
    fn void_refunds(&mut self, of: impl Fn(&Limit) -> bool) {
        let last_fence = |((state, last), limit): ((&LimitState, u64), &Limit)| {
            if state.places().is_some() || !of(limit) { last } else { self.fence }
        };
        let earlier = self.limit_states().zip(refundable_after(&self.past));
        let refundable_after = earlier.zip(self.plan.limits()).map(last_fence).collect();
        self.past.get_or_insert_default().refundable_after = refundable_after;
    }

    /// Resets all limits of time.
    pub(crate) fn reset(&mut self, now: Moment) {
        self.void_refunds(|_| true);
        let plan = Arc::clone(&self.plan);
        for (state, rule) in self.limit_states_mut().zip(plan.rules()).filter(|(state, _)| state.places().is_none()) {
            *state = LimitState::new(rule, now);
        }
        self.draw_line(now);
    }

    /// Replaces the plan. The usage is carried over, see [`carry_over`]; permits in flight stay in flight, and leases continue
    /// with the new TTL.
    pub(crate) fn set_plan(&mut self, plan: impl Into<Arc<Plan>>, now: Moment, carry: UsageCarryOver) {
        let (former, leases) = (self.places_in_flight(), self.leases.take());
        let named = self.past.as_mut().map(|past| std::mem::take(&mut past.named)).unwrap_or_default();
        let new = Self { fence: self.fence, ..Self::new(plan, now, self.records_grant_time) };
        let prefers_line = self.prefers_line;
        let mut old = std::mem::replace(self, new);
        if let Some(mut leases) = leases.filter(|leases| !leases.is_empty()) {
            leases.set_ttl(self.plan.ttl(), now);
            self.leases = Some(leases);
            (self.follows_time, self.fits_word) = (true, false); // a renewal needs its moment, because a later plan may have a TTL
        }
        let states = std::iter::once(old.first).chain(old.rest.into_iter().map(|later| later.state));
        let formers = old.plan.limits().iter().zip(states).zip(refundable_after(&old.past));
        let formers = formers.map(|((limit, state), refundable_after)| Former { limit: *limit, state, refundable_after });
        let limits = self.plan.limits().to_vec();
        let mut refundable_after = vec![self.fence; limits.len()];
        let fence = self.fence;
        let mut measures: Vec<_> = limits.iter().map(|limit| former.taken_over_by(limit.counts(), fence).1).collect();
        let heirs = limits.iter().zip(self.limit_states_mut()).zip(&mut refundable_after);
        let heirs = heirs.map(|((limit, state), refundable_after)| Heir { limit: *limit, state, refundable_after });
        carry_over(formers.collect(), heirs.collect(), now, carry, |counts| former.taken_over_by(counts, fence).0);
        let counted: Vec<_> = limits.iter().filter(|limit| limit.counts_places()).map(Limit::counts).collect();
        let owed = former.left_over(&counted);
        if measures.iter().all(Measure::is_plain) {
            measures.clear();
        }
        if self.place == Claim::PLACE && !(measures.is_empty() && owed.is_empty()) {
            (self.place, self.fits_word) = (Claim::COUNTED_PLACE, false);
        }
        self.past = Some(Box::new(Past { measures, named, owed, refundable_after: refundable_after.into(), holdings: None }));
        if prefers_line && old.plan.limits() == self.plan.limits() {
            (self.prefers_line, self.track) = (true, old.track.take());
            self.fits_word |= self.track.is_some();
        } else {
            self.prefers_line = prefers_line;
            self.draw_line(now);
        }
    }
}

/// Whether it counts no named unit.
pub(super) fn is_unnamed(limit: &Limit) -> bool {
    !matches!(limit.counts(), Counts::Unit(_))
}
