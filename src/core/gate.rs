//! A policy with its state: admit, release, settle, reclaim. All limits are charged or none. The caller passes the time.

mod in_word;
mod settle;

use std::sync::Arc;

use crate::carry_over::UsageCarryOver;
use crate::core::arena::Index;
use crate::core::forecast::{Forecast, LimitForecast};
use crate::core::grant::{Claim, Grant};
use crate::core::lease::{Lease, Leases};
use crate::core::limit_state::LimitState;
use crate::core::migrate::{Former, Heir, carry_over};
use crate::core::plan::Plan;
use crate::core::request::Caller;
use crate::core::suspension::Suspension;
use crate::core::track::Track;
use crate::decision::Decision;
use crate::policy::{Limit, Policy};
use crate::strategy::{Moment, StateWords};

/// A policy with its state.
#[derive(Debug)]
pub(crate) struct Gate {
    plan: Arc<Plan>,
    /// The first limit of the policy, stored in place: most policies have only this one.
    first: LimitState,
    rest: Box<[LaterLimit]>,
    leases: Option<Box<Leases>>,
    // The next three follow from the plan; the fast path reads them here.
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

/// What is left of a former plan, or of units that were reset.
#[derive(Debug, Default)]
struct Past {
    /// Units in flight that a former plan counted and this one does not.
    unowned_in_flight: u64,
    /// For each limit, the last fence whose grant it cannot refund: it was granted before the limit was added, or its units were
    /// reset since.
    refundable_after: Box<[u64]>,
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
            max_cost: plan.max_cost(),
            place: if plan.holds_places() { Claim::PLACE } else { Claim::NONE },
            follows_time: records_grant_time || plan.follows_time(),
            records_grant_time,
            fence: 0,
            past: None,
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

    /// Charges all limits of time, whether or not they admit the cost.
    pub(crate) fn charge(&mut self, now: Moment, units: u64) {
        self.limit_states_mut().filter(|state| state.places().is_none()).for_each(|state| state.charge(now, units));
        self.track.iter_mut().for_each(|track| track.charged());
    }

    /// Refunds up to `units`, whenever they were charged. After that, no earlier permit can be refunded.
    pub(crate) fn forgive(&mut self, now: Moment, units: u64) {
        self.void_refunds();
        self.limit_states_mut().for_each(|state| state.forgive(now, units));
    }

    /// Makes all earlier grants non-refundable.
    fn void_refunds(&mut self) {
        let last_fence = |(state, last): (&LimitState, u64)| if state.places().is_some() { last } else { self.fence };
        let refundable_after = self.limit_states().zip(refundable_after(&self.past)).map(last_fence).collect();
        self.past.get_or_insert_default().refundable_after = refundable_after;
    }

    /// Resets all limits of time.
    pub(crate) fn reset(&mut self, now: Moment) {
        self.void_refunds();
        let plan = Arc::clone(&self.plan);
        for (state, rule) in self.limit_states_mut().zip(plan.rules()).filter(|(state, _)| state.places().is_none()) {
            *state = LimitState::new(rule, now);
        }
        self.draw_line(now);
    }

    /// Replaces the plan. The usage is carried over, see [`carry_over`]; permits in flight stay in flight, and leases continue
    /// with the new TTL.
    pub(crate) fn set_plan(&mut self, plan: impl Into<Arc<Plan>>, now: Moment, carry: UsageCarryOver) {
        let (in_flight, leases) = (self.in_flight(), self.leases.take());
        let new = Self { fence: self.fence, ..Self::new(plan, now, self.records_grant_time) };
        let prefers_line = self.prefers_line;
        let mut old = std::mem::replace(self, new);
        if let Some(mut leases) = leases.filter(|leases| !leases.is_empty()) {
            leases.set_ttl(self.plan.ttl(), now);
            self.leases = Some(leases);
            (self.follows_time, self.fits_word) = (true, false); // a renewal needs its moment, because a later plan may have a TTL
        }
        let unowned_in_flight = if self.place == Claim::PLACE { 0 } else { in_flight };
        let states = std::iter::once(old.first).chain(old.rest.into_iter().map(|later| later.state));
        let formers = old.plan.limits().iter().zip(states).zip(refundable_after(&old.past));
        let formers = formers.map(|((limit, state), refundable_after)| Former { limit: *limit, state, refundable_after });
        let limits = self.plan.limits().to_vec();
        let mut refundable_after = vec![self.fence; limits.len()];
        let heirs = limits.iter().zip(self.limit_states_mut()).zip(&mut refundable_after);
        let heirs = heirs.map(|((limit, state), refundable_after)| Heir { limit: *limit, state, refundable_after });
        carry_over(formers.collect(), heirs.collect(), now, carry, in_flight);
        self.past = Some(Box::new(Past { unowned_in_flight, refundable_after: refundable_after.into() }));
        if prefers_line && old.plan.limits() == self.plan.limits() {
            (self.prefers_line, self.track) = (true, old.track.take());
            self.fits_word |= self.track.is_some();
        } else {
            self.prefers_line = prefers_line;
            self.draw_line(now);
        }
    }

    /// The largest cost that can ever be admitted.
    pub(crate) fn max_cost(&self) -> u64 {
        self.max_cost
    }

    /// See [`Plan::tightest`].
    pub(crate) fn tightest(&self) -> Limit {
        self.plan.tightest()
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

    /// Units in flight.
    pub(crate) fn in_flight(&self) -> u64 {
        self.limit_states()
            .find_map(LimitState::places)
            .unwrap_or_else(|| self.past.as_ref().map_or(0, |past| past.unowned_in_flight))
    }

    /// The number of grants so far.
    pub(crate) fn granted(&self) -> u64 {
        self.fence
    }

    /// Charges all limits, or none. `Err`: until when the cost must wait, [`Moment::NEVER`] if only a release helps.
    #[inline(always)]
    pub(crate) fn admit(&mut self, now: Moment, cost: u64, caller: Caller) -> Result<Grant, Moment> {
        if !self.rest.is_empty() {
            return self.admit_by_all(now, cost, caller);
        }
        let next = self.first.decide(now, cost)?;
        self.first.proceed(now, cost, next);
        Ok(self.grant(now, cost, caller))
    }

    /// [`Gate::admit`] of a policy of several limits.
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
        self.fence += 1;
        let fence = self.fence;
        let claim = match &mut self.leases {
            Some(leases) if leases.has_ttl() => Claim::of_lease(leases.open(fence, cost, now, caller)),
            _ => self.reached(now).map_or(self.place, Claim::of_rate),
        };
        Grant { fence, at: if self.follows_time { now } else { Moment::NEVER }, claim }
    }

    /// Releases a permit. `None`, without a change, if it was reclaimed before.
    #[inline(always)]
    pub(crate) fn release(&mut self, fence: u64, cost: u64, claim: Claim) -> Option<()> {
        if !claim.holds() {
            return Some(());
        }
        if let Some(index) = claim.lease() {
            self.leases.as_mut()?.close(index, fence)?; // without leases, it was reclaimed under a former plan
        }
        self.return_places(cost);
        Some(())
    }

    /// The units that may be in flight at the same time, now: the least of all concurrency limits.
    pub(crate) fn concurrency(&self, now: Moment) -> Option<u64> {
        self.limit_states().filter_map(|state| state.concurrency(now)).map(|rule| rule.limit).min()
    }

    /// Records that a request that does not wait was denied `cost`. Returns whether that changed a state.
    pub(crate) fn note_denial(&mut self, now: Moment, cost: u64) -> bool {
        // Not `any`, which stops at the first change.
        self.limit_states_mut().fold(false, |changed, state| state.note_denial(now, cost) | changed)
    }

    /// Reclaims the permit whose TTL passed first, if any has passed.
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
        self.leases.as_ref().map_or(Moment::NEVER, |leases| leases.next_expiry())
    }

    /// The earliest instant at which `cost` can be admitted when `ahead` units go first: a lower bound, as in the strategies.
    pub(crate) fn ready_at(&self, now: Moment, ahead: u64, cost: u64) -> Moment {
        self.limit_states().map(|state| state.ready_at(now, ahead, cost)).max().unwrap_or(now)
    }

    /// A forecast of the grants from `now` on. Places are reclaimed as `reclaims` says.
    pub(crate) fn forecast<R: Iterator<Item = (Moment, u64)>>(
        &self,
        now: Moment,
        suspension: Option<Suspension>,
        reclaims: R,
    ) -> Forecast<'_, R> {
        Forecast::new(self.limit_states().map(|state| LimitForecast::new(state, now)), suspension, reclaims, now)
    }

    /// When each lease expires, first to last, with its units.
    pub(crate) fn expiries(&self) -> impl Iterator<Item = (Moment, u64)> {
        self.leases.iter().flat_map(|leases| leases.expiries())
    }

    /// The answer to a caller that does not wait, when `ahead` units wait before it.
    pub(crate) fn decide(&self, now: Moment, ahead: u64, cost: u64) -> Decision {
        let (policy, max_cost) = (self.plan.policy(), self.max_cost);
        let report = |state: &LimitState| state.report(now, ahead, cost);
        let mut decision = if self.rest.is_empty() {
            Decision::summarize(policy, max_cost, std::iter::once(report(&self.first)), now, ahead, cost)
        } else {
            Decision::summarize(policy, max_cost, self.limit_states().map(report), now, ahead, cost)
        };
        if let Some(rule) = self.limit_states().nth(decision.binding_index as usize).and_then(|state| state.concurrency(now)) {
            decision.limit = rule.limit;
        }
        decision
    }

    /// Whether [`Gate::admit`] would admit.
    pub(crate) fn would_admit(&self, now: Moment, cost: u64) -> bool {
        self.limit_states().all(|state| state.decide(now, cost).is_ok())
    }

    /// Releases this many units that permits held.
    #[inline(always)]
    pub(crate) fn return_places(&mut self, cost: u64) {
        self.first.release(cost);
        self.rest.iter_mut().for_each(|later| later.state.release(cost));
        if let Some(past) = &mut self.past {
            past.unowned_in_flight = past.unowned_in_flight.saturating_sub(cost);
        }
    }

    fn limit_states(&self) -> impl Iterator<Item = &LimitState> {
        std::iter::once(&self.first).chain(self.rest.iter().map(|later| &later.state))
    }

    fn limit_states_mut(&mut self) -> impl Iterator<Item = &mut LimitState> {
        std::iter::once(&mut self.first).chain(self.rest.iter_mut().map(|later| &mut later.state))
    }
}

/// For each limit, the last fence whose grant it cannot refund, or 0.
fn refundable_after(past: &Option<Box<Past>>) -> impl Iterator<Item = u64> {
    past.iter().flat_map(|past| &past.refundable_after).copied().chain(std::iter::repeat(0))
}
