//! A policy with its state: admit, release, refund, reclaim; all limits or none. Pure: it is told the time.

use std::sync::Arc;

use crate::carry_over::UsageCarryOver;
use crate::core::arena::Index;
use crate::core::forecast::Forecast;
use crate::core::grant::{Admission, Claim};
use crate::core::lease::{Lease, Leases};
use crate::core::limit_state::LimitState;
use crate::core::migrate::{Former, Heir, carry_over};
use crate::core::plan::Plan;
use crate::core::request::Caller;
use crate::core::suspension::Suspension;
use crate::decision::Decision;
use crate::policy::Policy;
use crate::strategy::{Moment, Outcome, Sample, StateWords};

/// A policy with its state.
#[derive(Debug)]
pub(crate) struct Gate {
    plan: Arc<Plan>,
    /// The first limit of the policy, in line: most policies have but this one.
    first: LimitState,
    rest: Vec<LimitState>,
    leases: Option<Leases>,
    /// What follows from the plan, at hand.
    max_cost: u64,
    place: Claim,
    follows_time: bool,
    /// Whether permits are to know when they were granted, although no limit asks.
    records_grant_time: bool,
    /// The fence of the latest grant: as many as were ever given.
    fence: u64,
    /// Units out that a former plan counted, and this one does not.
    unowned_in_flight: u64,
    /// For each limit, the last fence that was granted without it, or whose units were let off since. Empty where none was.
    refundable_after: Vec<u64>,
}

impl Gate {
    /// As new at `now`; `records_grant_time` asks for the time of grants where the policy needs none.
    pub(crate) fn new(plan: impl Into<Arc<Plan>>, now: Moment, records_grant_time: bool) -> Self {
        let plan = plan.into();
        let mut states = plan.rules().iter().map(|limit| LimitState::new(*limit, now));
        Self {
            first: states.next().expect("a policy is never empty"),
            rest: states.collect(),
            leases: plan.ttl().map(Leases::new),
            max_cost: plan.max_cost(),
            place: if plan.holds_places() { Claim::Place } else { Claim::None },
            follows_time: records_grant_time || plan.follows_time(),
            records_grant_time,
            fence: 0,
            unowned_in_flight: 0,
            refundable_after: Vec::new(),
            plan,
        }
    }

    /// A gate that goes on from `fence` with states from elsewhere: one for each limit, all of rules whose state is words; or none,
    /// as new.
    pub(crate) fn resume(plan: Arc<Plan>, states: impl Iterator<Item = StateWords>, fence: u64, now: Moment) -> Self {
        let mut gate = Self { fence, ..Self::new(plan, now, false) };
        gate.limit_states_mut().zip(states).for_each(|(state, words)| state.set_words(words));
        gate
    }

    /// The states of all limits; `None` where one is more than words.
    pub(crate) fn states(&self) -> Option<Vec<StateWords>> {
        self.limit_states().map(LimitState::words).collect()
    }

    /// When it is as good as new, but for its count of grants, if nothing is out; [`Moment::NEVER`] where time does not make it so.
    pub(crate) fn reset_at(&self, now: Moment) -> Moment {
        self.limit_states().map(|state| state.reset_at(now)).max().unwrap_or(now)
    }

    pub(crate) fn policy(&self) -> &Policy {
        self.plan.policy()
    }

    /// The most units that stand against any of the limits.
    pub(crate) fn used(&self, now: Moment) -> u64 {
        self.limit_states().map(|state| state.used(now)).max().unwrap_or(0)
    }

    /// Charges all limits of time, whether or not they admit it.
    pub(crate) fn charge(&mut self, now: Moment, units: u64) {
        self.limit_states_mut().filter(|state| state.places().is_none()).for_each(|state| state.charge(now, units));
    }

    /// Lets off up to so many units, whenever they were charged. They do not come back a second time with their permits.
    pub(crate) fn forgive(&mut self, now: Moment, units: u64) {
        self.void_refunds();
        self.limit_states_mut().for_each(|state| state.forgive(now, units));
    }

    /// No grant so far has anything to refund.
    fn void_refunds(&mut self) {
        let former = self.refundable_after.iter().copied().chain(std::iter::repeat(0));
        let forget = |(state, last): (&LimitState, u64)| if state.places().is_some() { last } else { self.fence };
        self.refundable_after = self.limit_states().zip(former).map(forget).collect();
    }

    /// Makes all limits of time as good as new.
    pub(crate) fn reset(&mut self, now: Moment) {
        self.void_refunds();
        let compiled = self.plan.rules().to_vec();
        for (state, limit) in self.limit_states_mut().zip(compiled).filter(|(state, _)| state.places().is_none()) {
            *state = LimitState::new(limit, now);
        }
    }

    /// Goes by another plan from `now` on. What has been used stays used; a limit that is the same stays as it is.
    ///
    /// Each new limit takes over from an old one: from one like it, or else of its kind, or else from any that is left. Where
    /// none is left it is new. What is out stays out, and what was leased stays leased, for the new TTL.
    pub(crate) fn set_plan(&mut self, plan: impl Into<Arc<Plan>>, now: Moment, carry: UsageCarryOver) {
        let (in_flight, leases) = (self.in_flight(), self.leases.take());
        let new = Self { fence: self.fence, ..Self::new(plan, now, self.records_grant_time) };
        let old = std::mem::replace(self, new);
        if let Some(mut leases) = leases.filter(|leases| !leases.is_empty()) {
            leases.set_ttl(self.plan.ttl());
            self.leases = Some(leases);
            self.follows_time = true; // a renewal has its instant, even while there is no TTL to count from it
        }
        self.unowned_in_flight = if self.place == Claim::Place { 0 } else { in_flight };
        let refundable_after = old.refundable_after.into_iter().chain(std::iter::repeat(0));
        let formers = old.plan.limits().iter().zip(std::iter::once(old.first).chain(old.rest)).zip(refundable_after);
        let formers = formers.map(|((limit, state), refundable_after)| Former { limit: *limit, state, refundable_after });
        let limits = self.plan.limits().to_vec();
        let mut refundable_after = vec![self.fence; limits.len()];
        let heirs = limits.iter().zip(self.limit_states_mut()).zip(&mut refundable_after);
        let heirs = heirs.map(|((limit, state), refundable_after)| Heir { limit: *limit, state, refundable_after });
        carry_over(formers.collect(), heirs.collect(), now, carry, in_flight);
        self.refundable_after = refundable_after;
    }

    /// The largest cost that can ever be admitted.
    pub(crate) fn max_cost(&self) -> u64 {
        self.max_cost
    }

    /// Whether permits have a TTL.
    pub(crate) fn leases_permits(&self) -> bool {
        self.leases.is_some()
    }

    /// Whether `now` matters; where it does not, any will do.
    pub(crate) fn follows_time(&self) -> bool {
        self.follows_time
    }

    /// Units out that must come back.
    pub(crate) fn in_flight(&self) -> u64 {
        self.limit_states().find_map(LimitState::places).unwrap_or(self.unowned_in_flight)
    }

    /// How many grants were ever given.
    pub(crate) fn granted(&self) -> u64 {
        self.fence
    }

    /// Charges all limits, or none. `Err`: until when the cost must wait, [`Moment::NEVER`] where that takes a release.
    #[inline(always)]
    pub(crate) fn admit(&mut self, now: Moment, cost: u64, caller: Caller) -> Result<Admission, Moment> {
        if self.rest.is_empty() {
            self.first.take(now, cost)?;
        } else {
            self.take_all(now, cost)?;
        }
        self.fence += 1;
        let fence = self.fence;
        let claim = match &mut self.leases {
            Some(leases) if self.place == Claim::Place && leases.has_ttl() => Claim::Lease(leases.open(fence, cost, now, caller)),
            _ => self.place,
        };
        Ok(Admission { fence, at: now, claim })
    }

    /// What a permit holds comes back. `None` when it was reclaimed before: nothing changes.
    #[inline(always)]
    pub(crate) fn release(&mut self, fence: u64, cost: u64, claim: Claim) -> Option<()> {
        match (&mut self.leases, claim) {
            (_, Claim::None) => return Some(()),
            (Some(leases), Claim::Lease(index)) => leases.close(index, fence)?,
            (None, Claim::Lease(_)) => return None, // of all leases of a former plan none was left
            (_, Claim::Place) => {}
        }
        self.return_places(cost);
        Some(())
    }

    /// A permit of `cost` comes back, and its holder says how its work went. `None` when it was reclaimed before: nothing changes.
    ///
    /// A limit that the permit was granted without learns nothing from it. `rtt_nanos` is the time since the grant, if both were
    /// read from the same clock.
    pub(crate) fn report(
        &mut self,
        now: Moment,
        admission: Admission,
        cost: u64,
        rtt_nanos: Option<u64>,
        outcome: Outcome,
    ) -> Option<()> {
        let in_flight = self.in_flight();
        self.release_live(now, admission, cost)?;
        let Admission { fence, .. } = admission;
        let sample = Sample { outcome, rtt_nanos, cost, in_flight, fence, latest_fence: self.fence };
        self.granted_by(fence).filter(|(_, granted)| *granted).for_each(|(state, _)| state.learn(now, sample));
        Some(())
    }

    /// The units that may be out at once, as it is now: the least of all its concurrencies.
    pub(crate) fn concurrency(&self, now: Moment) -> Option<u64> {
        self.limit_states().filter_map(|state| state.concurrency(now)).map(|rule| rule.limit).min()
    }

    /// Somebody who does not wait was denied `cost`. Tells whether that changed anything.
    pub(crate) fn note_denial(&mut self, now: Moment, cost: u64) -> bool {
        // All of them: no short cut at the first that changes.
        self.limit_states_mut().fold(false, |changed, state| state.note_denial(now, cost) | changed)
    }

    /// What a permit of `cost` holds comes back, and it turns out that `actual` units were used: the difference is refunded, or
    /// charged as a debt. `None` when it was reclaimed before, or is about to be: nothing changes.
    ///
    /// A limit that the permit was granted without gets the debt, but has nothing to refund: what it carried was charged to
    /// another one, by another measure.
    pub(crate) fn settle(&mut self, now: Moment, admission: Admission, cost: u64, actual: u64) -> Option<()> {
        self.release_live(now, admission, cost)?;
        for (state, granted) in self.granted_by(admission.fence).filter(|(state, _)| state.places().is_none()) {
            if actual > cost {
                state.charge(now, actual - cost);
            } else if actual < cost && granted {
                state.refund(now, admission.at, cost - actual);
            }
        }
        Some(())
    }

    /// [`Gate::release`], but a permit whose TTL has passed is left to be reclaimed.
    fn release_live(&mut self, now: Moment, Admission { fence, claim, .. }: Admission, cost: u64) -> Option<()> {
        if let Claim::Lease(index) = claim {
            self.live_lease(index, fence, now)?;
        }
        self.release(fence, cost, claim)
    }

    /// Takes back the permit whose TTL passed first, if one has.
    pub(crate) fn reclaim_one(&mut self, now: Moment) -> Option<Lease> {
        let lease = self.leases.as_mut()?.pop_expired(now)?;
        self.return_places(lease.cost);
        Some(lease)
    }

    pub(crate) fn renew(&mut self, index: Index, fence: u64, now: Moment) -> bool {
        self.leases.as_mut().is_some_and(|leases| leases.renew(index, fence, now))
    }

    /// The lease of a permit, while it is live.
    pub(crate) fn live_lease(&mut self, index: Index, fence: u64, now: Moment) -> Option<&mut Lease> {
        self.leases.as_mut()?.get_mut(index, fence).filter(|lease| now < lease.expires_at)
    }

    #[inline(always)]
    pub(crate) fn next_expiry(&self) -> Moment {
        self.leases.as_ref().map_or(Moment::NEVER, Leases::next_expiry)
    }

    /// The earliest that `cost` can be admitted when `ahead` units go first; a lower bound, see [`Strategy::ready_at`].
    pub(crate) fn ready_at(&self, now: Moment, ahead: u64, cost: u64) -> Moment {
        self.limit_states().map(|state| state.ready_at(now, ahead, cost)).max().unwrap_or(now)
    }

    /// What would be granted from `now` on. Places come back as `reclaims` says.
    pub(crate) fn forecast<R: Iterator<Item = (Moment, u64)>>(
        &self,
        now: Moment,
        suspension: Option<Suspension>,
        reclaims: R,
    ) -> Forecast<'_, R> {
        Forecast::new(self.limit_states().map(|state| state.forecast(now)), suspension, reclaims, now)
    }

    /// When each lease expires, first to last, with the units that come back.
    pub(crate) fn expiries(&self) -> impl Iterator<Item = (Moment, u64)> {
        self.leases.iter().flat_map(Leases::expiries)
    }

    /// What a caller who does not wait is told, when `ahead` units wait before him.
    pub(crate) fn decide(&self, now: Moment, ahead: u64, cost: u64) -> Decision {
        let asked = self.limit_states().map(|state| state.report(now, ahead, cost));
        let decision = Decision::summarize(self.plan.policy(), asked, now, ahead, cost);
        match self.limit_states().nth(decision.binding).and_then(|state| state.concurrency(now)) {
            Some(rule) => Decision { limit: rule.limit, ..decision },
            None => decision,
        }
    }

    /// Whether [`Gate::admit`] would.
    pub(crate) fn would_admit(&self, now: Moment, cost: u64) -> bool {
        self.peek(now, cost).is_ok()
    }

    fn take_all(&mut self, now: Moment, cost: u64) -> Result<(), Moment> {
        if !self.limit_states().all(|state| state.peek(now, cost).is_ok()) {
            self.peek(now, cost)?;
        }
        for state in self.limit_states_mut() {
            state.charge(now, cost);
        }
        Ok(())
    }

    #[cold]
    fn peek(&self, now: Moment, cost: u64) -> Result<(), Moment> {
        self.limit_states().filter_map(|state| state.peek(now, cost).err()).max().map_or(Ok(()), Err)
    }

    #[inline(always)]
    fn return_places(&mut self, cost: u64) {
        self.first.release(cost);
        self.rest.iter_mut().for_each(|state| state.release(cost));
        self.unowned_in_flight = self.unowned_in_flight.saturating_sub(cost);
    }

    /// The limits, each with whether it is among those that granted the permit of this fence.
    fn granted_by(&mut self, fence: u64) -> impl Iterator<Item = (&mut LimitState, bool)> {
        let refundable_after = self.refundable_after.iter().copied().chain(std::iter::repeat(0));
        let states = std::iter::once(&mut self.first).chain(&mut self.rest);
        states.zip(refundable_after).map(move |(state, last)| (state, fence > last))
    }

    fn limit_states(&self) -> impl Iterator<Item = &LimitState> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    fn limit_states_mut(&mut self) -> impl Iterator<Item = &mut LimitState> {
        std::iter::once(&mut self.first).chain(&mut self.rest)
    }
}
