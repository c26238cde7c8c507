//! A schedule whose limits are in a store: what it asks of the store, and what it makes of the replies.
//!
//! The queue, the priorities, deadlines and permits are the same. Only the front is not decided here: the schedule sends for a carrier
//! ([`Effects::send_for_carrier`]), who takes a [call](Schedule::next_call) out to the store and brings the [reply](Schedule::replied) or a
//! [failure](Schedule::failed) in.

mod ahead;
mod local;
mod peek;
mod replies;
mod reset;
#[cfg(any(test, feature = "_simulation"))]
pub(crate) mod simulation;

use std::task::Waker;
use std::time::Duration;

use super::{Enqueued, Schedule};
use crate::core::costs::Costs;
use crate::core::dialogue::{Block, Denial, Denied, Dialogue, Runs};
use crate::core::effects::Effects;
use crate::core::grant::Grant;
use crate::core::request::Request;
use crate::core::waiter::WaiterId;
use crate::error::{AcquireError, StoreError};
use crate::exchange::Call;
use crate::strategy::Moment;

/// What became of a request that does not wait.
#[derive(Debug)]
pub(crate) enum Asked {
    /// The store is asked: [`Schedule::poll`] has the answer.
    Queued(WaiterId),
    /// The store has denied as much before.
    Denied(Denied),
    /// The store had granted it ahead.
    Granted(Grant),
}

/// A call with what its carrier must bring back.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) call: Call,
    pub(crate) generation: u64,
}

impl Schedule {
    /// A request that is granted by the next call to the store, or denied.
    pub(crate) fn ask_once(
        &mut self,
        now: Moment,
        request: &Request<'_>,
        waker: &mut Option<Waker>,
        effects: &mut Effects,
    ) -> Result<Asked, AcquireError> {
        if self.closed {
            return Err(AcquireError::Closed);
        }
        self.gate.fits(request.costs).map_err(AcquireError::from)?;
        if self.is_alone() {
            return self.ask_alone(now, request, effects);
        }
        self.catch_up(now, effects);
        if self.queue.is_empty()
            && let Some(grant) = self.take_ahead(now, request.costs.plain, request.caller, effects)
        {
            return Ok(Asked::Granted(grant)); // whatever the store has denied since
        }
        let is_down = self.dialogue.as_ref().is_some_and(|dialogue| dialogue.waits_to_ask(now));
        if is_down || self.is_known_denied(now, request.costs) {
            let denied = if is_down { self.unknown_denial(now, true) } else { self.latest_denial(now, request.costs) };
            self.tell_denial(request.costs.plain, &denied.decision, request.caller, effects);
            self.counts().denied += 1;
            return Ok(Asked::Denied(denied));
        }
        let id = match self.request(now, request, waker, effects).map_err(|refused| refused.error)? {
            Enqueued::Queued(id) => id,
            Enqueued::Granted(grant) => return Ok(Asked::Granted(grant)),
        };
        if let Some(dialogue) = &mut self.dialogue {
            dialogue.impatient.insert(id);
        }
        let _arrival = self.queue.take_arrival(id); // it waits for no permit: its grant is no event
        self.reevaluate_front(now, effects); // it is asked for where a request that waits would not be
        Ok(Asked::Queued(id))
    }

    /// Whether the store has denied exactly these costs, still would, and need not be told of the attempt: a penalty is to count
    /// each.
    fn is_known_denied(&self, now: Moment, costs: Costs<'_>) -> bool {
        let is_known = |denial: &Denial| now < denial.ready_at && denial.is_of(&self.gate.costs_of_each(costs));
        !self.gate.counts_denials() && self.known_denial(now, costs).is_some_and(is_known)
    }

    /// The latest denial of the store, if it is of these costs or less and holds. What this process gives back may end it.
    pub(super) fn known_denial(&self, now: Moment, costs: Costs<'_>) -> Option<&Denial> {
        let dialogue =
            self.dialogue.as_ref().filter(|dialogue| dialogue.denial.is_some() && !self.gate.owes() && !dialogue.is_alone)?;
        dialogue.known_denial(now, &self.gate.costs_of_each(costs))
    }

    /// For how long requests are denied without a call. `None`: not at all, or nobody knows.
    pub(crate) fn denied_for(&self, now: Moment) -> Option<Duration> {
        let denial = self.dialogue.as_ref()?.denial.as_ref()?;
        let is_known = !denial.ends_by_release && now < denial.ready_at && !self.gate.counts_denials();
        is_known.then(|| denial.ready_at.duration_since(now))
    }

    /// A waiter was refused.
    pub(super) fn asks_no_more(&mut self, id: WaiterId) {
        if let Some(dialogue) = &mut self.dialogue {
            dialogue.forget(id);
        }
    }

    /// [`Dialogue::take_denied`].
    pub(crate) fn take_denied(&mut self, id: WaiterId) -> Option<Denied> {
        self.dialogue.as_mut()?.take_denied(id)
    }

    /// Grants what needs no call. Sends for a carrier if there is something to tell the store now; sets when there will be.
    #[cold]
    pub(super) fn serve_by_store(&mut self, now: Moment, effects: &mut Effects) {
        self.front_ready_at = Moment::NEVER;
        self.serve_ahead(now, effects);
        let alone_at = self.serve_alone(now, effects);
        self.send_calls(now, effects);
        self.front_ready_at = self.front_ready_at.min(alone_at);
    }

    fn send_calls(&mut self, now: Moment, effects: &mut Effects) {
        if let Some(due) = self.dialogue.as_ref().and_then(|dialogue| dialogue.reply_due()) {
            if now < due {
                self.front_ready_at = due;
                return;
            }
            // Its carrier may be in a runtime that nothing polls.
            let (generation, error) = self.unanswered();
            self.failed(now, generation, &error, true, effects);
            return;
        }
        let is_down = self.dialogue.as_ref().is_some_and(|dialogue| dialogue.waits_to_ask(now));
        if is_down || self.asks_at(now) > now {
            self.deny_all_impatient(now, effects); // they came while a call was under way, and are not asked for
        }
        let at = self.call_at(now);
        let only_waiter = self.queue.front().filter(|_| self.queue.len() == 1);
        let keeps = self.needs_keeper(now);
        let Some(dialogue) = &mut self.dialogue else { return };
        if at > now && !keeps {
            self.front_ready_at = at;
            return;
        }
        let due = match dialogue.carrier_due {
            Some(due) if now < due => due,
            _ => now.plus(dialogue.terms.deadline),
        };
        let is_new = dialogue.carrier_due.replace(due) != Some(due);
        // Whoever only keeps what counts does not lead.
        if is_new && at <= now && only_waiter.is_some_and(|front| dialogue.let_lead(front.id)) {
            return; // it comes at once, and watches the deadline
        }
        if is_new {
            effects.send_for_carrier();
        }
        self.front_ready_at = if at > now { at } else { due };
    }

    fn unanswered(&self) -> (u64, StoreError) {
        let known = self.dialogue.as_ref().map(|dialogue| (dialogue.generation(), &dialogue.terms));
        let (generation, store, after) = known.map_or((0, String::new(), None), |(generation, terms)| {
            (generation, terms.store.to_string(), Some(Duration::from_nanos(terms.deadline)))
        });
        (generation, StoreError::Unanswered { store, after, source: None })
    }

    /// When the store is to be told something.
    fn call_at(&mut self, now: Moment) -> Moment {
        self.give_unused_back(now);
        let asks_at = self.asks_at(now);
        let owes = self.gate.owes();
        let Some(dialogue) = &mut self.dialogue else { return Moment::NEVER };
        dialogue.forget_expired(now);
        let tells_at = if owes || dialogue.owes() { dialogue.tells_at.max(now) } else { Moment::NEVER };
        // Whoever does not wait for the store has an answer at once.
        let asks_at =
            if dialogue.waits_for_store() && asks_at != Moment::NEVER { asks_at.max(dialogue.retry_at) } else { asks_at };
        asks_at.min(tells_at).min(self.refill_at(now)).min(self.probes_at(now))
    }

    pub(crate) fn waiting(&self) -> u64 {
        self.queue.len() as u64
    }

    /// Whether such a request can join a queue whose front waits for the store, and somebody watches it.
    pub(super) fn asks_for(&self, costs: Costs<'_>) -> bool {
        self.dialogue.is_some() && self.front_ready_at != Moment::NEVER && self.gate.fits(costs).is_ok()
    }

    /// Somebody waits behind a request that carries its own call, and must not wait for ever if that one is not polled any more.
    pub(super) fn watch_leader(&mut self) {
        if let Some(dialogue) = self.dialogue.as_ref().filter(|_| self.queue.len() > 1) {
            let due = dialogue.reply_due().or(dialogue.carrier_due).unwrap_or(Moment::NEVER);
            self.front_ready_at = self.front_ready_at.min(due);
        }
    }

    /// Whether the call of this generation is under way.
    pub(crate) fn awaits_reply(&self, generation: u64) -> bool {
        self.dialogue.as_ref().is_some_and(|dialogue| dialogue.flight().is_some() && dialogue.generation() == generation)
    }

    /// Whether a carrier is to wait for [that instant](Schedule::waits_to_retry).
    pub(crate) fn needs_retrier(&mut self, now: Moment) -> bool {
        self.retry_due(now).is_some()
    }

    /// When a carrier is to come again although nobody may hold the limiter any more. Of the carriers that wait, one waits for that
    /// instant at most.
    pub(crate) fn waits_to_retry(&mut self, now: Moment) -> Option<Moment> {
        let at = self.retry_due(now)?;
        self.dialogue.as_mut()?.retrier_at = at;
        Some(at)
    }

    /// When the store is owed something, or will be, or what this process has granted alone counts no more. `None`: nothing is, or
    /// a carrier waits that comes by then.
    fn retry_due(&mut self, now: Moment) -> Option<Moment> {
        let (owes, alone_until) = (self.gate.owes(), self.counts_alone_until(now));
        let dialogue = self.dialogue.as_mut()?;
        dialogue.forget_expired(now);
        let ahead_until = dialogue.block.as_ref().map_or(Moment::NEVER, Block::ends_at);
        let at = if owes || dialogue.owes() { dialogue.tells_at } else { ahead_until.min(alone_until) };
        (at < dialogue.retrier_at && dialogue.flight().is_none()).then_some(at)
    }

    /// That carrier waits no longer.
    pub(crate) fn retrier_left(&mut self) {
        self.dialogue.iter_mut().for_each(|dialogue| dialogue.retrier_at = Moment::NEVER);
    }

    /// When the front may ask.
    fn asks_at(&mut self, now: Moment) -> Moment {
        let Some(front) = self.queue.front() else { return Moment::NEVER };
        if self.refuses_waiters() || self.is_alone() {
            return Moment::NEVER;
        }
        let by_unit = self.queue.unit_costs(front.id);
        let costs = Costs::new(front.cost, &by_unit);
        let resumed_at = self.suspended().map_or(now, |suspension| suspension.ready_at(now, costs.plain));
        let is_counted = self.gate.counts_denials() && self.dialogue.as_ref().is_some_and(|it| !it.impatient.is_empty());
        let is_impatient = self.is_impatient(front.id);
        // A request that does not wait is to learn when its own costs are admitted.
        let tells_when = |denial: &Denial| !is_impatient || denial.is_of(&self.gate.costs_of_each(costs));
        let denial = self.known_denial(now, costs).filter(|denial| !is_counted && tells_when(denial));
        let deadline = if is_impatient { now } else { self.queue.deadline(front.id) };
        resumed_at.max(denial.map_or(now, |denial| denial.asks_at(deadline)))
    }

    /// What is to be told to the store now. `None`: nothing, and no carrier is needed any more. `led`: a request carries it, which
    /// watches the deadline.
    pub(crate) fn next_call(&mut self, now: Moment, led: bool) -> Option<Outgoing> {
        let is_under_way = self.dialogue.as_ref()?.flight().is_some();
        if is_under_way || self.call_at(now) > now {
            self.dialogue.as_mut()?.carrier_due = None;
            return None;
        }
        let asks = self.asks_at(now) <= now;
        let Self { gate, queue, dialogue, .. } = self;
        let dialogue = dialogue.as_mut()?;
        let mut runs = Runs::default();
        for (id, costs, _) in queue.waiting().take(if asks { Dialogue::MAX_CALL } else { 0 }) {
            let waits = !dialogue.impatient.contains(&id);
            let number = dialogue.next_number() + runs.len();
            runs.push(id, waits, (costs.plain, costs.by_unit), number, || gate.costs_of_each(costs));
            dialogue.block.iter_mut().for_each(|block| block.note_demand(costs.plain));
        }
        let all_ask = runs.len() == queue.len() as u64 && (asks || queue.is_empty());
        if let Some(block) = dialogue.block.as_mut().filter(|_| all_ask && !self.closed)
            && let ahead @ 1.. = block.wanted()
        {
            let number = dialogue.next_number() + runs.len();
            runs.push_ahead(ahead, number, gate.costs_of_each(Costs::plain(1)));
        }
        dialogue.probes = false;
        let outbox = gate.outbox()?;
        let expires_at = now.plus(dialogue.terms.ttl);
        let mut returns = std::mem::take(&mut dialogue.unconfirmed);
        returns.extend(outbox.returns.drain(..).map(|number| (number, expires_at)));
        dialogue.unconfirmed = returns.split_off(returns.len().min(Dialogue::MAX_CALL));
        let settlements = outbox.take_settlements(Dialogue::MAX_CALL);
        let valid_until = dialogue.valid_until(now);
        let (asks, returned) = (runs.runs().to_vec(), returns.iter().map(|(number, _)| *number).collect());
        let generation = dialogue.take_off(now, runs, returns, settlements.clone());
        dialogue.carrier_due = None;
        // Where this process decides alone, the front may have its turn before the reply.
        let alone_at = if dialogue.is_alone { self.front_ready_at } else { Moment::NEVER };
        let watched = dialogue.reply_due().filter(|_| !led || self.queue.len() > 1);
        self.front_ready_at = watched.unwrap_or(Moment::NEVER).min(alone_at);
        let call = Call { valid_until, returns: returned, settlements, asks, ..self.empty_call() };
        Some(Outgoing { call, generation })
    }

    /// A call of this key without anything to do.
    fn empty_call(&self) -> Call {
        let Some(dialogue) = self.dialogue.as_deref() else { unreachable!("the limits are in a store") };
        let terms = &dialogue.terms;
        let (scope, policy) = (terms.scope.clone(), self.gate.policy().clone());
        Call { ttl: terms.ttl, replaces_policy: dialogue.news.replaces(), ..Call::new(scope, policy, terms.holder) }
    }

    /// The leases to be renewed, in calls of a bounded size.
    pub(crate) fn renewals(&mut self, now: Moment) -> Vec<(Call, Vec<u64>)> {
        let leases = self.gate.renewable(now);
        let call = |leases: &[(u64, u64)]| {
            let (fences, renewals) = leases.iter().copied().unzip();
            (Call { renewals, ..self.empty_call() }, fences)
        };
        leases.chunks(Dialogue::MAX_CALL).map(call).collect()
    }

    /// A request that comes now may carry its own call, if nobody else waits: see [`Schedule::take_lead`].
    pub(crate) fn offer_lead(&mut self) {
        self.dialogue.iter_mut().for_each(|dialogue| dialogue.offer_lead());
    }

    /// Withdraws the offer. Returns the request that has taken it, for which no carrier was sent for.
    pub(crate) fn take_lead(&mut self) -> Option<WaiterId> {
        self.dialogue.as_mut()?.take_lead()
    }

    /// Whoever has brought a reply, or a failure, comes for the next call.
    pub(crate) fn carrier_returns(&mut self, now: Moment) {
        if let Some(dialogue) = &mut self.dialogue {
            dialogue.carrier_returns(now);
        }
    }

    /// Whether somebody is to begin to renew the leases.
    pub(crate) fn begins_heartbeat(&mut self, now: Moment) -> bool {
        let needs_one = self.dialogue.as_ref().is_some_and(|dialogue| !dialogue.has_heartbeat);
        let begins = needs_one && self.gate.has_renewable(now);
        if let Some(dialogue) = self.dialogue.as_mut().filter(|_| begins) {
            dialogue.has_heartbeat = true;
        }
        begins
    }

    /// Nobody renews the leases any more, although some may be left.
    pub(crate) fn heartbeat_stopped(&mut self) {
        self.dialogue.iter_mut().for_each(|dialogue| dialogue.has_heartbeat = false);
    }

    /// Whether nothing is left to renew: nobody does so any more, until a heartbeat begins again.
    pub(crate) fn ends_heartbeat(&mut self, now: Moment) -> bool {
        let ends = !self.gate.has_renewable(now);
        if ends {
            self.heartbeat_stopped();
        }
        ends
    }

    /// The TTL of leases in the store, in nanoseconds.
    pub(crate) fn store_ttl(&self) -> u64 {
        self.dialogue.as_ref().map_or(0, |dialogue| dialogue.terms.ttl)
    }
}
