//! A policy with its state: admit, release, refund, reclaim; all limits or none. Pure: it is told the time.

use std::sync::Arc;

use crate::carry_over::UsageCarryOver;
use crate::core::arena::Index;
use crate::core::forecast::{Forecast, LimitForecast, LogForecast};
use crate::core::grant::{Admission, Claim};
use crate::core::lease::{Lease, Leases};
use crate::core::plan::{Compiled, Plan};
use crate::core::request::Caller;
use crate::core::suspension::Suspension;
use crate::decision::Decision;
use crate::policy::{Limit, Policy};
use crate::strategy::{
    Adapt, AdaptState, ConcurrencyRule, ConcurrencyState, LimitReport, Log, LogRule, Moment, Outcome, PaceRule, PaceState,
    RefundBound, Rule, Sample, StateWords, Strategy,
};

/// Until when a denied cost must wait: an instant, or [`Moment::NEVER`] where it takes a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Denied {
    pub(crate) until: Moment,
    /// Which limit of the policy denied: the one that takes longest.
    pub(crate) by: usize,
}

/// One limit with its state.
#[derive(Debug)]
pub(super) enum LimitState {
    /// What was granted lately is noted from the first grant on: few of many keys with a manager have one.
    Pace(PaceRule, PaceState, Option<RefundBound>),
    Rule(Rule, StateWords),
    Log(LogRule, Log),
    /// With what moves its limit, where it adapts.
    Places(ConcurrencyRule, ConcurrencyState, Option<Box<(Adapt, AdaptState)>>),
}

/// Asks the rule of a slot a question about its state.
macro_rules! with_rule {
    ($slot:expr, |$rule:ident, $state:ident| $answer:expr) => {
        match $slot {
            LimitState::Pace($rule, $state, _) => {
                let $state = *$state;
                $answer
            }
            LimitState::Rule($rule, $state) => {
                let $state = *$state;
                $answer
            }
            LimitState::Log($rule, $state) => $answer,
            LimitState::Places($rule, $state, _) => {
                let $state = *$state;
                $answer
            }
        }
    };
}

impl LimitState {
    fn new(limit: Compiled, now: Moment) -> Self {
        match limit {
            Compiled::Rule(Rule::Pace(rule)) => Self::Pace(rule, rule.initial(now), None),
            Compiled::Rule(rule) => Self::Rule(rule, rule.initial(now)),
            Compiled::Log(rule) => Self::Log(rule, Log::default()),
            Compiled::Places(rule, None) => Self::Places(rule, ConcurrencyState::default(), None),
            Compiled::Places(rule, Some(adapt)) => {
                let state = adapt.initial(rule.limit);
                let rule = ConcurrencyRule { limit: state.limit() };
                Self::Places(rule, ConcurrencyState::default(), Some(Box::new((adapt, state))))
            }
        }
    }

    /// Units out, where this is what counts them.
    fn places(&self) -> Option<u64> {
        match self {
            Self::Places(_, state, _) => Some(state.in_use),
            _ => None,
        }
    }

    /// Would the cost be admitted? If not, until when must it wait?
    #[inline(always)]
    pub(super) fn peek(&self, now: Moment, cost: u64) -> Result<(), Moment> {
        match self {
            Self::Pace(rule, state, _) => rule.decide(*state, now, cost).wait().map(drop),
            Self::Rule(rule, state) => rule.decide(*state, now, cost).wait().map(drop),
            Self::Log(rule, log) => rule.decide(log, now, cost),
            Self::Places(rule, state, _) => rule.decide(*state, now, cost).wait().map(drop),
        }
    }

    /// Takes the cost if it is admitted.
    #[inline(always)]
    fn take(&mut self, now: Moment, cost: u64) -> Result<(), Moment> {
        match self {
            Self::Pace(rule, state, refund_bound) => {
                let next = rule.decide(*state, now, cost).wait()?;
                refund_bound.get_or_insert_with(|| RefundBound::new(now)).note(rule, *state, now);
                *state = next;
            }
            Self::Rule(rule, state) => *state = rule.decide(*state, now, cost).wait()?,
            Self::Log(rule, log) => {
                rule.decide(log, now, cost)?;
                rule.charge(log, now, cost);
            }
            Self::Places(rule, state, adaptation) => {
                restart_if_idle(rule, *state, adaptation, now);
                *state = rule.decide(*state, now, cost).wait()?;
            }
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn release(&mut self, cost: u64) {
        if let Self::Places(_, state, _) = self {
            *state = state.release(cost);
        }
    }

    /// Takes the cost whether or not it is admitted: a debt, for which those who come later wait.
    #[inline]
    pub(super) fn charge(&mut self, now: Moment, cost: u64) {
        match self {
            Self::Pace(rule, state, refund_bound) => {
                refund_bound.get_or_insert_with(|| RefundBound::new(now)).note(rule, *state, now);
                *state = rule.charge(*state, now, cost);
            }
            Self::Rule(rule, state) => *state = rule.charge(*state, now, cost),
            Self::Log(rule, log) => rule.charge(log, now, cost),
            Self::Places(rule, state, adaptation) => {
                restart_if_idle(rule, *state, adaptation, now);
                *state = rule.charge(*state, now, cost);
            }
        }
    }

    /// Makes nothing of what a rate lacks when new.
    fn fill(&mut self) {
        match self {
            Self::Pace(_, state, _) => *state = PaceState::default(),
            Self::Rule(_, state) => *state = StateWords::default(),
            _ => {}
        }
    }

    /// Takes back what was charged at `at` and never used.
    fn refund(&mut self, now: Moment, at: Moment, cost: u64) {
        match self {
            Self::Pace(rule, state, Some(refund_bound)) => *state = rule.refund(*state, refund_bound, at, cost),
            Self::Pace(_, _, None) => {} // nothing was granted that it could be
            Self::Rule(rule, state) => *state = rule.refund(*state, now, at, cost),
            Self::Log(rule, log) => rule.refund(log, at, cost),
            Self::Places(_, state, _) => *state = state.release(cost),
        }
    }

    /// When it is as good as new, if nothing is out.
    fn reset_at(&self, now: Moment) -> Moment {
        match self {
            Self::Places(_, _, Some(adaptation)) => adaptation.0.reset_at(&adaptation.1, now),
            slot => with_rule!(slot, |rule, state| rule.reset_at(state, now)),
        }
    }

    fn forecast(&self, now: Moment) -> LimitForecast<'_> {
        LimitForecast::Copied(match self {
            Self::Log(rule, log) => return LimitForecast::Log(LogForecast::new(rule, log)),
            Self::Pace(rule, state, _) => Self::Pace(*rule, *state, None),
            Self::Rule(rule, state) => Self::Rule(*rule, *state),
            Self::Places(rule, state, _) => Self::Places(self.concurrency(now).unwrap_or(*rule), *state, None),
        })
    }

    /// The rule of a concurrency, with the limit that it has at `now`.
    fn concurrency(&self, now: Moment) -> Option<ConcurrencyRule> {
        let Self::Places(rule, state, adaptation) = self else { return None };
        Some(match adaptation.as_deref() {
            Some((adapt, learnt)) if state.in_use == 0 => ConcurrencyRule { limit: adapt.while_idle(*learnt, now).limit() },
            _ => *rule,
        })
    }
}

/// Starts an idle limit again where that is due: with the first grant, since nobody can tell before.
#[inline(always)]
fn restart_if_idle(
    rule: &mut ConcurrencyRule,
    state: ConcurrencyState,
    adaptation: &mut Option<Box<(Adapt, AdaptState)>>,
    now: Moment,
) {
    if let (0, Some(adaptation)) = (state.in_use, adaptation) {
        let (adapt, learnt) = &mut **adaptation;
        *learnt = adapt.while_idle(*learnt, now);
        rule.limit = learnt.limit();
    }
}

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
        let mut slots = plan.compiled().iter().map(|limit| LimitState::new(*limit, now));
        Self {
            first: slots.next().expect("a policy is never empty"),
            rest: slots.collect(),
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
        for (slot, words) in gate.slots_mut().zip(states) {
            match slot {
                LimitState::Pace(_, state, _) => *state = words.into(),
                LimitState::Rule(_, state) => *state = words,
                LimitState::Log(..) | LimitState::Places(..) => {}
            }
        }
        gate
    }

    /// The states of all limits; `None` where one is more than words.
    pub(crate) fn states(&self) -> Option<Vec<StateWords>> {
        let words = |slot: &LimitState| match slot {
            LimitState::Pace(_, state, _) => Some((*state).into()),
            LimitState::Rule(_, state) => Some(*state),
            LimitState::Log(..) | LimitState::Places(..) => None,
        };
        self.slots().map(words).collect()
    }

    /// When it is as good as new, but for its count of grants, if nothing is out; [`Moment::NEVER`] where time does not make it so.
    pub(crate) fn reset_at(&self, now: Moment) -> Moment {
        self.slots().map(|slot| slot.reset_at(now)).max().unwrap_or(now)
    }

    pub(crate) fn policy(&self) -> &Policy {
        self.plan.policy()
    }

    /// The most units that stand against any of the limits.
    pub(crate) fn used(&self, now: Moment) -> u64 {
        self.slots().map(|slot| with_rule!(slot, |rule, state| rule.used(state, now))).max().unwrap_or(0)
    }

    /// Charges all limits of time, whether or not they admit it.
    pub(crate) fn charge(&mut self, now: Moment, units: u64) {
        self.slots_mut().filter(|slot| slot.places().is_none()).for_each(|slot| slot.charge(now, units));
    }

    /// Lets off up to so many units, whenever they were charged. They do not come back a second time with their permits.
    pub(crate) fn forgive(&mut self, now: Moment, units: u64) {
        self.void_refunds();
        for slot in self.slots_mut() {
            match slot {
                LimitState::Pace(rule, state, refund_bound) => {
                    *state = rule.forgive(*state, now, units);
                    *refund_bound = None;
                }
                LimitState::Rule(rule, state) => *state = rule.forgive(*state, now, units),
                LimitState::Log(rule, log) => rule.forgive(log, units),
                LimitState::Places(..) => {}
            }
        }
    }

    /// No grant so far has anything to refund.
    fn void_refunds(&mut self) {
        let former = self.refundable_after.iter().copied().chain(std::iter::repeat(0));
        let forget = |(slot, last): (&LimitState, u64)| if slot.places().is_some() { last } else { self.fence };
        self.refundable_after = self.slots().zip(former).map(forget).collect();
    }

    /// Makes all limits of time as good as new.
    pub(crate) fn reset(&mut self, now: Moment) {
        self.void_refunds();
        let compiled = self.plan.compiled().to_vec();
        for (slot, limit) in self.slots_mut().zip(compiled).filter(|(slot, _)| slot.places().is_none()) {
            *slot = LimitState::new(limit, now);
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
        let limits = self.plan.limits().to_vec();
        let mut refundable_after = vec![self.fence; limits.len()];
        let old_slots =
            std::iter::once(old.first).chain(old.rest).zip(old.refundable_after.into_iter().chain(std::iter::repeat(0)));
        let mut left: Vec<_> = old.plan.limits().iter().zip(old_slots).collect();
        let mut heirs: Vec<_> = limits.iter().zip(self.slots_mut().zip(&mut refundable_after)).collect();
        let alike: [fn(&Limit, &Limit) -> bool; 3] =
            [|old, new| old == new, |old, new| std::mem::discriminant(old) == std::mem::discriminant(new), |_, _| true];
        for alike in alike {
            heirs.retain_mut(|(limit, (slot, refundable_after))| {
                let fits = |(old, (old_slot, _)): &(&Limit, (LimitState, u64))| {
                    alike(old, limit) && old_slot.places().is_some() == slot.places().is_some()
                };
                let Some(found) = left.iter().position(fits) else { return true };
                let (old, (old_slot, old_predates)) = left.remove(found);
                if old == *limit {
                    (**slot, **refundable_after) = (old_slot, old_predates);
                } else if let (LimitState::Rule(Rule::Penalty(_), heir), LimitState::Rule(Rule::Penalty(rule), state)) =
                    (&mut **slot, &old_slot)
                {
                    // A ban is more than units.
                    *heir =
                        rule.carry_over((*state).into(), now, |units| carry.over(units, old.capacity(), limit.capacity())).into();
                } else if slot.places().is_none() {
                    let used = with_rule!(&old_slot, |rule, state| rule.used(state, now));
                    slot.fill();
                    slot.charge(now, carry.over(used, old.capacity(), limit.capacity()));
                } else {
                    slot.charge(now, in_flight);
                }
                false
            });
        }
        for (_, (slot, _)) in heirs.iter_mut().filter(|(_, (slot, _))| slot.places().is_some()) {
            slot.charge(now, in_flight);
        }
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
        self.slots().find_map(LimitState::places).unwrap_or(self.unowned_in_flight)
    }

    /// How many grants were ever given.
    pub(crate) fn granted(&self) -> u64 {
        self.fence
    }

    /// Charges all limits, or none.
    #[inline(always)]
    pub(crate) fn admit(&mut self, now: Moment, cost: u64, caller: Caller) -> Result<Admission, Denied> {
        if self.rest.is_empty() {
            self.first.take(now, cost).map_err(|until| Denied { until, by: 0 })?;
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
        for (slot, granted) in self.slots_of(admission.fence) {
            if let (true, LimitState::Places(rule, _, Some(adaptation))) = (granted, slot) {
                let (adapt, state) = &mut **adaptation;
                *state = adapt.update(*state, now, sample);
                rule.limit = state.limit();
            }
        }
        Some(())
    }

    /// The units that may be out at once, as it is now: the least of all its concurrencies.
    pub(crate) fn concurrency(&self, now: Moment) -> Option<u64> {
        self.slots().filter_map(|slot| slot.concurrency(now)).map(|rule| rule.limit).min()
    }

    /// Somebody who does not wait was denied `cost`. Tells whether that changed anything.
    pub(crate) fn note_denial(&mut self, now: Moment, cost: u64) -> bool {
        let mut changed = false;
        for slot in self.slots_mut() {
            if let LimitState::Rule(rule, state) = slot {
                let before = std::mem::replace(state, rule.note_denial(*state, now, cost));
                changed |= before != *state;
            }
        }
        changed
    }

    /// What a permit of `cost` holds comes back, and it turns out that `actual` units were used: the difference is refunded, or
    /// charged as a debt. `None` when it was reclaimed before, or is about to be: nothing changes.
    ///
    /// A limit that the permit was granted without gets the debt, but has nothing to refund: what it carried was charged to
    /// another one, by another measure.
    pub(crate) fn settle(&mut self, now: Moment, admission: Admission, cost: u64, actual: u64) -> Option<()> {
        self.release_live(now, admission, cost)?;
        for (slot, granted) in self.slots_of(admission.fence).filter(|(slot, _)| slot.places().is_none()) {
            if actual > cost {
                slot.charge(now, actual - cost);
            } else if actual < cost && granted {
                slot.refund(now, admission.at, cost - actual);
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
        self.slots().map(|slot| with_rule!(slot, |rule, state| rule.ready_at(state, now, ahead, cost))).max().unwrap_or(now)
    }

    /// What would be granted from `now` on. Places come back as `reclaims` says.
    pub(crate) fn forecast<R: Iterator<Item = (Moment, u64)>>(
        &self,
        now: Moment,
        suspension: Option<Suspension>,
        reclaims: R,
    ) -> Forecast<'_, R> {
        Forecast::new(self.slots().map(|slot| slot.forecast(now)), suspension, reclaims, now)
    }

    /// When each lease expires, first to last, with the units that come back.
    pub(crate) fn expiries(&self) -> impl Iterator<Item = (Moment, u64)> {
        self.leases.iter().flat_map(Leases::expiries)
    }

    /// What a caller who does not wait is told, when `ahead` units wait before him.
    pub(crate) fn decide(&self, now: Moment, ahead: u64, cost: u64) -> Decision {
        let asked = self.slots().map(|slot| match (slot, slot.concurrency(now)) {
            (LimitState::Places(_, state, _), Some(rule)) => {
                LimitReport { reset_at: slot.reset_at(now), ..rule.report(*state, now, ahead, cost) }
            }
            _ => with_rule!(slot, |rule, state| rule.report(state, now, ahead, cost)),
        });
        let decision = Decision::summarize(self.plan.policy(), asked, now, ahead, cost);
        match self.slots().nth(decision.binding).and_then(|slot| slot.concurrency(now)) {
            Some(rule) => Decision { limit: rule.limit, ..decision },
            None => decision,
        }
    }

    /// Whether [`Gate::admit`] would.
    pub(crate) fn would_admit(&self, now: Moment, cost: u64) -> bool {
        self.peek(now, cost).is_ok()
    }

    fn take_all(&mut self, now: Moment, cost: u64) -> Result<(), Denied> {
        if !self.slots().all(|slot| slot.peek(now, cost).is_ok()) {
            self.peek(now, cost)?;
        }
        for slot in self.slots_mut() {
            slot.charge(now, cost);
        }
        Ok(())
    }

    #[cold]
    fn peek(&self, now: Moment, cost: u64) -> Result<(), Denied> {
        let denials =
            self.slots().enumerate().filter_map(|(by, slot)| slot.peek(now, cost).err().map(|until| Denied { until, by }));
        // The first of the latest, so that the name does not depend on what else denies at the same instant.
        match denials.reduce(|first, other| if other.until > first.until { other } else { first }) {
            Some(denied) => Err(denied),
            None => Ok(()),
        }
    }

    #[inline(always)]
    fn return_places(&mut self, cost: u64) {
        self.first.release(cost);
        self.rest.iter_mut().for_each(|slot| slot.release(cost));
        self.unowned_in_flight = self.unowned_in_flight.saturating_sub(cost);
    }

    /// The limits, each with whether it is among those that granted the permit of this fence.
    fn slots_of(&mut self, fence: u64) -> impl Iterator<Item = (&mut LimitState, bool)> {
        let refundable_after = self.refundable_after.iter().copied().chain(std::iter::repeat(0));
        let slots = std::iter::once(&mut self.first).chain(&mut self.rest);
        slots.zip(refundable_after).map(move |(slot, last)| (slot, fence > last))
    }

    fn slots(&self) -> impl Iterator<Item = &LimitState> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    fn slots_mut(&mut self) -> impl Iterator<Item = &mut LimitState> {
        std::iter::once(&mut self.first).chain(&mut self.rest)
    }
}
