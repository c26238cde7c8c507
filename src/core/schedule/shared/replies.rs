//! What a schedule makes of the store's replies, and of calls that failed.

use crate::core::costs::Costs;
use crate::core::dialogue::{Denied, Flight, OnDown, statuses};
use crate::core::effects::{Effects, Happening};
use crate::core::gate::{BegunBan, GrantByStore};
use crate::core::grant::Grant;
use crate::core::queue::Front;
use crate::core::request::{Caller, Request};
use crate::core::schedule::Schedule;
use crate::core::waiter::WaiterId;
use crate::decision::Decision;
use crate::error::{AcquireError, StoreError};
use crate::event::EventKind;
use crate::exchange::{Asks, Call, Reply};
use crate::strategy::Moment;

impl Schedule {
    /// The store has answered the call of this generation. Nothing happens if it was given up before.
    pub(crate) fn replied(&mut self, now: Moment, generation: u64, reply: &Reply, effects: &mut Effects) {
        let Some(flight) = self.dialogue.as_mut().and_then(|dialogue| dialogue.land(generation)) else { return };
        self.tell_replaced(flight.replaces, effects);
        let is_live = self.dialogue.as_ref().is_some_and(|dialogue| now < flight.sent_at.plus(dialogue.terms.ttl.max(1)));
        let holds_places = self.gate.holds_places();
        let mut of_each = each(&flight);
        for (nth, (id, number, run)) in of_each.by_ref().take(reply.granted as usize).enumerate() {
            let by_store =
                GrantByStore { fence: reply.first_fence + nth as u64, number, granted_at: reply.now, sent_at: flight.sent_at };
            let came_too_late = holds_places && !is_live;
            if came_too_late || !self.deliver(now, id, by_store, reply, effects) {
                self.gate.decline(number, run.costs.clone(), reply.now);
            }
        }
        let stopped: Vec<(WaiterId, &Asks)> = of_each.map(|(id, _, run)| (id, run)).collect();
        let ahead = reply.granted.saturating_sub(flight.asked.len() as u64);
        if ahead > 0 {
            let first = reply.first_fence + flight.asked.len() as u64;
            let block = self.dialogue.as_mut().and_then(|dialogue| dialogue.block.as_mut());
            let left = block.and_then(|block| block.fill(now, ahead, first, reply.now));
            self.give_back_unused(left);
        }
        let mut asked = 0;
        let denied = flight.runs.iter().find(|run| {
            asked += run.count;
            asked > reply.granted
        });
        let denied = denied.map(|run| run.costs.clone());
        if let Some(dialogue) = &mut self.dialogue {
            dialogue.note_reply(now, denied, reply, flight.heard_of_others());
        }
        if reply.stop.is_some() {
            let mut bans = self.bans_begun(&flight, reply);
            for (id, run) in stopped {
                let Some(caller) = self.deny_impatient(now, id, run, effects) else { continue };
                for ban in bans.extract_if(.., |ban| run.costs[ban.limit_index] > 0) {
                    self.tell_ban(ban, caller, effects);
                }
            }
        }
        if flight.was_reset {
            self.drop_what_was_before_reset();
        }
        self.reevaluate_front(now, effects);
    }

    /// Gives a waiter its grant. `false`: it has left.
    fn deliver(&mut self, now: Moment, id: WaiterId, by_store: GrantByStore, reply: &Reply, effects: &mut Effects) -> bool {
        let by_unit = self.queue.unit_costs(id);
        let Some(Request { costs, caller, .. }) = self.queue.request(id, &by_unit) else { return false };
        let grant = self.gate.record(now, costs, by_store, caller);
        if costs.explained() {
            let limits = statuses(now, self.gate.policy(), reply, now);
            self.queue.explain(grant.fence, limits);
        }
        self.hand_over(now, Front { id, cost: costs.plain, caller }, grant, effects);
        true
    }

    pub(super) fn hand_over(&mut self, now: Moment, front: Front, grant: Grant, effects: &mut Effects) {
        if let Some(dialogue) = &mut self.dialogue {
            dialogue.forget(front.id);
        }
        self.undelivered += u32::from(!grant.claim.holds_place());
        if self.queue.knows_arrivals() {
            self.tell_grant(now, front, grant.fence, effects);
        }
        effects.wake(self.queue.grant(front.id, grant));
    }

    /// The bans that begin with the attempts that a call has brought and the store has denied. For who observes them.
    fn bans_begun(&mut self, flight: &Flight, reply: &Reply) -> Vec<BegunBan> {
        if !self.is_observed() || !self.gate.counts_denials() {
            return Vec::new();
        }
        let mut asked = 0;
        let is_denied = |run: &&Asks| {
            asked += run.count;
            asked > reply.granted && !run.waits
        };
        let denied: Vec<_> = flight.runs.iter().filter(is_denied).collect();
        let mut bans: Vec<_> = self.gate.bans_begun_in_store(reply).collect();
        bans.retain(|ban| denied.iter().any(|run| run.costs[ban.limit_index] > 0));
        if let Some(dialogue) = &mut self.dialogue {
            bans.retain(|ban| dialogue.news.is_new_ban(ban.limit_index, reply.now.saturating_add(ban.length)));
        }
        bans
    }

    /// Denies a waiter that asked once, by the latest denial of the store. Returns who it was.
    ///
    /// That denial is of the first ask that was not granted. A request of other costs asks again, unless another one waits before it, or
    /// its attempt has been counted.
    fn deny_impatient(&mut self, now: Moment, id: WaiterId, run: &Asks, effects: &mut Effects) -> Option<Caller> {
        let is_of_these = self.dialogue.as_ref()?.denial.as_ref()?.is_of(&run.costs);
        let front_waits = self.queue.front().is_some_and(|front| !self.is_impatient(front.id));
        if !(is_of_these || front_waits || self.gate.counts_denials()) {
            return None;
        }
        self.deny_waiter(id, |schedule, costs| schedule.latest_denial(now, costs), effects)
    }

    /// Denies all waiters that asked once: the front must wait, and they must not.
    pub(super) fn deny_all_impatient(&mut self, now: Moment, effects: &mut Effects) {
        for id in self.dialogue.as_mut().map(|dialogue| dialogue.impatient.clone()).unwrap_or_default() {
            self.deny_waiter(id, |schedule, costs| schedule.latest_denial(now, costs), effects);
        }
    }

    /// A denial of these costs, as the store has denied last; if that is not known or long past, a denial that says nothing more. It says
    /// when these costs are admitted only if the store has denied exactly these. A pause is known.
    pub(in crate::core::schedule) fn latest_denial(&self, now: Moment, costs: Costs<'_>) -> Denied {
        let denial = self.dialogue.as_ref().and_then(|dialogue| dialogue.latest_denial(now));
        let Some(denial) = denial else {
            return self.unknown_denial(now, self.dialogue.as_ref().is_some_and(|dialogue| dialogue.waits_to_ask(now)));
        };
        let mut denied = denial.tell(now, self.gate.policy(), costs.explained());
        if !denial.is_of(&self.gate.costs_of_each(costs)) {
            denied.decision = denied.decision.refused();
        }
        match self.paused_until(now) {
            Some(until) => Denied { decision: denied.decision.held_back(until, now), ..denied },
            None => denied,
        }
    }

    /// The denial of a request of which no limit says anything. A pause is known.
    pub(super) fn unknown_denial(&self, now: Moment, is_store_down: bool) -> Denied {
        let unknown = self.gate.unknown_decision(now);
        let decision = match self.paused_until(now) {
            Some(until) => unknown.paused(until, now),
            None if is_store_down => unknown.without_store(),
            None => unknown,
        };
        decision.into()
    }

    fn paused_until(&self, now: Moment) -> Option<Moment> {
        self.suspended().map(|suspension| suspension.ready_at(now, 1)).filter(|until| *until > now)
    }

    /// Denies a waiter, if it asked once, by what is said of its costs. Returns who it was.
    pub(super) fn deny_waiter(
        &mut self,
        id: WaiterId,
        denial: impl FnOnce(&Self, Costs<'_>) -> Denied,
        effects: &mut Effects,
    ) -> Option<Caller> {
        if !self.dialogue.as_mut()?.impatient.remove(&id) {
            return None;
        }
        let by_unit = self.queue.unit_costs(id);
        let Request { costs, caller, .. } = self.queue.request(id, &by_unit)?;
        let denied = denial(self, costs);
        self.tell_denial(costs.plain, &denied.decision, caller, effects);
        let retry_after = denied.decision.retry_after();
        if let Some(dialogue) = &mut self.dialogue {
            dialogue.deny(id, denied);
        }
        self.counts().denied += 1;
        effects.wake(self.queue.refuse(id, AcquireError::TimedOut { retry_after, decision: None }.into()));
        Some(caller)
    }

    pub(super) fn tell_denial(&self, cost: u64, decision: &Decision, caller: Caller, effects: &mut Effects) {
        if self.is_observed() {
            let denied = EventKind::Denied { cost, decision: decision.clone(), requested_in: caller };
            effects.tell(Happening::Other(denied));
        }
    }

    pub(super) fn tell_ban(&self, ban: BegunBan, caller: Caller, effects: &mut Effects) {
        if self.is_observed() {
            let (limit_index, banned_for) = (ban.limit_index, ban.banned_for());
            effects.tell(Happening::Other(EventKind::Banned { limit_index, banned_for, requested_in: caller }));
        }
    }

    /// The call of this generation has failed, and `may_have_run` all the same.
    pub(crate) fn failed(&mut self, now: Moment, generation: u64, error: &StoreError, may_have_run: bool, effects: &mut Effects) {
        let holds_places = self.gate.holds_places();
        let Some(dialogue) = &mut self.dialogue else { return };
        let Some(mut flight) = dialogue.land(generation) else { return };
        dialogue.unconfirmed.extend(&flight.returns);
        let settlements = std::mem::take(&mut flight.settlements);
        if !settlements.is_empty() && !flight.was_reset && dialogue.tells_again(now, may_have_run) {
            match self.gate.outbox().filter(|_| dialogue.resets == 0) {
                Some(outbox) => outbox.put_back(settlements),
                None => dialogue.withheld.extend(settlements),
            }
        }
        if may_have_run && holds_places {
            // It may have been granted. Its rates count as spent, and its places come back.
            let expires_at = now.plus(dialogue.terms.ttl);
            dialogue.unconfirmed.extend(each(&flight).map(|(_, number, _)| (number, expires_at)));
        }
        dialogue.back_off(now);
        let rule = match error {
            StoreError::TooLate { .. } => {
                dialogue.retry_from(now); // it has not run: the same are asked again
                dialogue.forget_clock();
                None
            }
            StoreError::PolicyDiffers { stored, .. } if dialogue.terms.replaces_policy && !flight.replaces => {
                dialogue.retry_from(now); // as above
                dialogue.news.replaces_next(stored);
                None
            }
            error if error.is_down() => Some(dialogue.terms.on_down.clone()),
            _ => Some(OnDown::Error),
        };
        dialogue.is_alone = false;
        if let Some(OnDown::Local(plan)) = &rule {
            self.decide_alone(now, plan);
        }
        for (rule, (id, ..)) in rule.iter().flat_map(|rule| each(&flight).map(move |ask| (rule, ask))) {
            self.answer_without_store(now, id, rule, error, effects);
        }
        self.reevaluate_front(now, effects);
    }

    fn answer_without_store(&mut self, now: Moment, id: WaiterId, rule: &OnDown, error: &StoreError, effects: &mut Effects) {
        let by_unit = self.queue.unit_costs(id);
        let Some(Request { costs, caller, .. }) = self.queue.request(id, &by_unit) else { return };
        match rule {
            OnDown::Error => {
                if let Some(dialogue) = &mut self.dialogue {
                    dialogue.forget(id);
                }
                self.refuse_waiter(now, id, AcquireError::Store(Box::new(error.clone())), effects);
            }
            OnDown::Allow => {
                let grant = self.gate.grant_without_store(now);
                self.hand_over(now, Front { id, cost: costs.plain, caller }, grant, effects);
            }
            OnDown::Deny => {
                self.deny_waiter(id, |schedule, _| schedule.unknown_denial(now, true), effects);
            }
            OnDown::Local(_) => {} // it is served with the others
        }
    }

    /// Places of the store came back somewhere: a denial that waits for one is over.
    pub(crate) fn released_elsewhere(&mut self, now: Moment, effects: &mut Effects) {
        let Some(dialogue) = &mut self.dialogue else { return };
        dialogue.released_elsewhere(now);
        self.reevaluate_front(now, effects);
    }

    /// A call that was to replace another policy in the store has done so.
    fn tell_replaced(&mut self, replaced: bool, effects: &mut Effects) {
        if let Some(former) = self.dialogue.as_mut().filter(|_| replaced).and_then(|dialogue| dialogue.news.take_replaced()) {
            self.tell_policy(former, effects);
        }
    }

    /// The store has refused renewals. The next ones may be other ones.
    pub(crate) fn renewals_failed(&mut self, call: &Call, error: &StoreError) {
        let replacing = self.dialogue.as_mut().filter(|dialogue| dialogue.terms.replaces_policy && !call.replaces_policy);
        if let (StoreError::PolicyDiffers { stored, .. }, Some(dialogue)) = (error, replacing) {
            dialogue.news.replaces_next(stored);
        }
    }

    /// The store has answered renewals that were sent at `sent_at`: these leases live on, or were lost.
    pub(crate) fn renewed(
        &mut self,
        now: Moment,
        sent_at: Moment,
        fences: &[u64],
        call: &Call,
        reply: &Reply,
        effects: &mut Effects,
    ) {
        self.tell_replaced(call.replaces_policy, effects);
        for (fence, number) in fences.iter().zip(&call.renewals) {
            self.gate.renewed(now, *fence, sent_at, reply.lost.contains(number));
        }
        self.reevaluate_front(now, effects);
    }
}

/// Each ask of a call, in order: the waiter, the number of its lease, and its run.
fn each(flight: &Flight) -> impl Iterator<Item = (WaiterId, u64, &Asks)> {
    let numbers = flight.runs.iter().flat_map(|run| (run.first..run.first + run.count).map(move |number| (number, run)));
    flight.asked.iter().zip(numbers).map(|(id, (number, run))| (*id, number, run))
}
