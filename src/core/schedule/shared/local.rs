//! What a process decides alone while the store does not answer, by a policy of its own: see
//! [`OnStoreDown::Local`](crate::exchange::OnStoreDown::Local).
//!
//! Requests are in the same queue as ever. No ask is sent meanwhile: a call without asks finds out whether the store answers again,
//! after the pause that each failure makes longer. It is sent while somebody waits, or when a request comes.

use std::sync::Arc;

use crate::core::costs::Costs;
use crate::core::dialogue::OnDown;
use crate::core::effects::Effects;
use crate::core::gate::Gate;
use crate::core::grant::Grant;
use crate::core::plan::Plan;
use crate::core::queue::Front;
use crate::core::request::{Caller, Request};
use crate::core::schedule::shared::Asked;
use crate::core::schedule::{Refusal, Schedule};
use crate::core::waiter::WaiterId;
use crate::decision::Decision;
use crate::error::{AcquireError, Misfit};
use crate::priority::Priority;
use crate::strategy::Moment;

impl Schedule {
    /// Whether the store does not answer, and this process decides alone.
    pub(in crate::core::schedule) fn is_alone(&self) -> bool {
        self.dialogue.as_ref().is_some_and(|dialogue| dialogue.is_alone)
    }

    /// The store does not answer.
    pub(super) fn decide_alone(&mut self, now: Moment, plan: &Arc<Plan>) {
        self.gate.local(now, plan);
        self.dialogue.iter_mut().for_each(|dialogue| dialogue.is_alone = true);
    }

    /// Units in flight that were granted so.
    pub(in crate::core::schedule) fn in_flight_locally(&self) -> u64 {
        self.gate.known_local().map_or(0, Gate::in_flight)
    }

    /// Grants what needs no call: from units that were taken ahead, or because this process decides alone.
    pub(in crate::core::schedule) fn admit_without_call(
        &mut self,
        now: Moment,
        costs: Costs<'_>,
        caller: Caller,
        effects: &mut Effects,
    ) -> Option<Grant> {
        let ahead = self.take_ahead(now, costs.plain, caller, effects);
        if ahead.is_some() || !self.is_alone() {
            return ahead;
        }
        let grant = self.admit_alone(now, costs, caller).ok().and_then(Result::ok);
        self.sees_whether_it_answers(now, effects);
        grant
    }

    /// `Err`: it can never be granted so. Within: until when it must wait.
    fn admit_alone(&mut self, now: Moment, costs: Costs<'_>, caller: Caller) -> Result<Result<Grant, Moment>, Misfit> {
        self.gate.known_local().map_or(Ok(()), |local| local.fits(costs))?;
        let resumed_at = self.suspended().map_or(now, |suspension| suspension.ready_at(now, costs.plain));
        Ok(if resumed_at > now { Err(resumed_at) } else { self.gate.admit_locally(now, costs, caller) })
    }

    /// A request has come.
    fn sees_whether_it_answers(&mut self, now: Moment, effects: &mut Effects) {
        if let Some(dialogue) = &mut self.dialogue {
            dialogue.probes |= dialogue.retry_at <= now && dialogue.flight().is_none();
        }
        self.serve_by_store(now, effects);
    }

    /// When a call is to find out whether the store answers again.
    pub(super) fn probes_at(&self, now: Moment) -> Moment {
        let Some(dialogue) = self.dialogue.as_ref().filter(|dialogue| dialogue.is_alone) else { return Moment::NEVER };
        let is_awaited = dialogue.probes || !self.queue.is_empty() && !self.refuses_waiters();
        if is_awaited { dialogue.retry_at.max(now) } else { Moment::NEVER }
    }

    /// Serves those who wait. Returns when to do so again.
    pub(super) fn serve_alone(&mut self, now: Moment, effects: &mut Effects) -> Moment {
        while self.is_alone()
            && !self.refuses_waiters()
            && let Some(front) = self.queue.front()
        {
            if effects.is_full() {
                return now;
            }
            let by_unit = self.queue.unit_costs(front.id);
            let costs = Costs::new(front.cost, &by_unit);
            match self.admit_alone(now, costs, front.caller) {
                Ok(Ok(grant)) => self.hand_over(now, front, grant, effects),
                Ok(Err(_)) if self.is_impatient(front.id) => self.deny_alone(now, front.id, effects),
                Ok(Err(until)) => {
                    self.deny_all_behind(now, front, effects);
                    return until;
                }
                Err(misfit) => {
                    self.asks_no_more(front.id);
                    self.refuse_waiter(now, front.id, misfit.into(), effects);
                }
            }
        }
        Moment::NEVER
    }

    pub(super) fn is_impatient(&self, id: WaiterId) -> bool {
        self.dialogue.as_ref().is_some_and(|dialogue| dialogue.impatient.contains(&id))
    }

    /// Those who do not wait for their turn are denied when the front has to.
    fn deny_all_behind(&mut self, now: Moment, front: Front, effects: &mut Effects) {
        let impatient = self.dialogue.as_ref().map(|dialogue| dialogue.impatient.clone()).unwrap_or_default();
        for id in impatient.into_iter().filter(|id| *id != front.id) {
            self.deny_alone(now, id, effects);
        }
    }

    fn deny_alone(&mut self, now: Moment, id: WaiterId, effects: &mut Effects) {
        let by_unit = self.queue.unit_costs(id);
        let Some(Request { costs, .. }) = self.queue.request(id, &by_unit) else { return };
        let ahead = if self.queue.is_front(id) { 0 } else { self.queue.units_ahead_of(Priority::LOWEST).max(1) };
        let bans = self.gate.note_local_denial(now, costs);
        let decision = self.decide_locally(now, ahead, costs);
        if let Some(caller) = self.deny_waiter(id, |_, _| decision.into(), effects) {
            bans.into_iter().for_each(|ban| self.tell_ban(ban, caller, effects));
        }
    }

    /// What this process alone says to a request behind as many waiting units.
    pub(in crate::core::schedule) fn decide_locally(&self, now: Moment, ahead: u64, costs: Costs<'_>) -> Decision {
        let unknown = || self.gate.unknown_decision(now);
        self.gate.known_local().map_or_else(unknown, |local| self.decide_behind(local, now, ahead, costs))
    }

    /// [`Schedule::ask_once`] where this process decides alone.
    pub(super) fn ask_alone(&mut self, now: Moment, request: &Request<'_>, effects: &mut Effects) -> Result<Asked, AcquireError> {
        let &Request { costs, caller, .. } = request;
        let asked = self.admit(now, costs, caller, effects);
        match asked {
            Ok(grant) => return Ok(Asked::Granted(grant)),
            Err(Refusal::Closed) => return Err(AcquireError::Closed),
            Err(Refusal::Misfit(misfit)) => return Err(misfit.into()),
            Err(Refusal::Blocked | Refusal::MustWait) => {}
        }
        if let Some(local) = self.gate.known_local() {
            local.fits(costs).map_err(AcquireError::from)?;
        }
        self.sees_whether_it_answers(now, effects);
        let bans = self.gate.note_local_denial(now, costs);
        self.counts().denied += 1;
        let decision = self.check_alone(now, costs);
        self.tell_denial(costs.plain, &decision, caller, effects);
        bans.into_iter().for_each(|ban| self.tell_ban(ban, caller, effects));
        Ok(Asked::Denied(decision.into()))
    }

    pub(super) fn check_alone(&self, now: Moment, costs: Costs<'_>) -> Decision {
        let ahead = if self.queue.is_empty() { 0 } else { self.queue.units_ahead_of(Priority::LOWEST).max(1) };
        self.decide_locally(now, ahead, costs)
    }

    /// What this process decides alone, because the store has not answered a peek.
    pub(crate) fn peek_failed(&mut self, now: Moment, costs: Costs<'_>) -> Option<Decision> {
        let dialogue = self.dialogue.as_mut()?;
        let OnDown::Local(plan) = &dialogue.terms.on_down else { return None };
        let plan = Arc::clone(plan);
        if !dialogue.is_alone {
            dialogue.back_off(now);
        }
        self.decide_alone(now, &plan);
        Some(self.check_alone(now, costs))
    }

    /// The store has answered a peek.
    pub(crate) fn answers_again(&mut self, now: Moment, effects: &mut Effects) {
        if let Some(dialogue) = self.dialogue.as_mut().filter(|dialogue| dialogue.is_alone) {
            dialogue.is_alone = false;
            dialogue.retry_from(Moment::START);
            self.reevaluate_front(now, effects);
        }
    }

    /// Until when what was granted alone counts, if nothing is in flight: a key that comes and goes must not be granted it anew.
    /// [`Moment::NEVER`] if nothing counts.
    pub(super) fn counts_alone_until(&self, now: Moment) -> Moment {
        self.gate.known_local().map(|local| local.reset_at(now)).filter(|at| *at > now).unwrap_or(Moment::NEVER)
    }

    /// Whether a carrier is to come that keeps what counts, or is owed, although nobody may hold the limiter any more.
    pub(super) fn needs_keeper(&self, now: Moment) -> bool {
        let Some(dialogue) = &self.dialogue else { return false };
        let has_none = dialogue.retrier_at == Moment::NEVER && dialogue.flight().is_none();
        has_none && (self.gate.owes() || dialogue.owes() || self.counts_alone_until(now) != Moment::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::panic::Location;
    use std::task::Waker;
    use std::time::Duration;

    use super::*;
    use crate::core::dialogue::{Dialogue, Terms};
    use crate::core::gate::Holdings;
    use crate::core::schedule::{Enqueued, Options};
    use crate::error::StoreError;
    use crate::exchange::Scope;

    const MS: u64 = 1_000_000;

    fn plan(text: &str) -> Arc<Plan> {
        Arc::new(Plan::new(text.parse().unwrap(), Duration::ZERO).unwrap())
    }

    /// While it is found out whether the store answers again, the front has its turn all the same.
    #[test]
    fn a_call_under_way_delays_nobody() {
        let now = Moment::from_nanos(1_000 * MS);
        let terms = Terms {
            scope: Scope { limiter: "alone".into(), key: Arc::default() },
            holder: 1,
            first_number: 0,
            ttl: 0,
            deadline: 500 * MS,
            polls_every: 1_000_000_000,
            longest_back_off: 500 * MS,
            on_down: OnDown::Local(plan("throttle every 100ms")),
            replaces_policy: false,
            store: "down".into(),
            ahead: None,
        };
        let gate = Gate::shared(plan("1000/s"), now, Holdings::new(NonZeroU64::MIN, None));
        let mut schedule = Schedule::new(gate, Options::default()).with_dialogue(Dialogue::new(terms));
        let mut effects = Effects::default();
        let (costs, priority, caller) = (Costs::plain(1), Priority::NORMAL, Location::caller());
        let request = Request { costs, priority, deadline: Moment::NEVER, caller, blocking: false };
        let ids = [(); 2].map(|()| match schedule.request(now, &request, &mut Some(Waker::noop().clone()), &mut effects) {
            Ok(Enqueued::Queued(id)) => id,
            other => panic!("{other:?}"),
        });
        let asked = schedule.next_call(now, true).unwrap();
        assert_eq!(asked.call.asks[0].count, 2);
        let error = StoreError::Unanswered { store: String::new(), after: None, source: None };
        schedule.failed(now, asked.generation, &error, true, &mut effects);
        assert!(schedule.poll(ids[0], Waker::noop()).is_ok_and(|answer| answer.is_ok()), "the first one is granted");
        let turn = now.plus(100 * MS);
        let probe_at = (1..100).map(|ms| now.plus(ms * MS)).find(|at| *at >= schedule.probes_at(now)).unwrap();
        schedule.run_due(probe_at, &mut effects);
        let probe = schedule.next_call(probe_at, true).unwrap();
        assert!(probe.call.asks.is_empty(), "nothing is asked for");
        assert_eq!(schedule.next_wake(), turn);
        schedule.run_due(turn, &mut effects);
        assert!(schedule.poll(ids[1], Waker::noop()).is_ok_and(|answer| answer.is_ok()));
    }
}
