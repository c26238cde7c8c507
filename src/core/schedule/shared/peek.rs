//! What a request would be answered now. It takes nothing.

use crate::core::costs::Costs;
use crate::core::dialogue::{decision, statuses};
use crate::core::effects::Effects;
use crate::core::schedule::Schedule;
use crate::decision::Decision;
use crate::exchange::{Call, Reply};
use crate::snapshot::LimitStatus;
use crate::strategy::Moment;

impl Schedule {
    /// What a request is answered without the store: that the limiter is closed or paused, or what this process decides alone while
    /// the store is known not to answer, and is not to be asked again yet.
    pub(crate) fn check_here(&mut self, now: Moment, costs: Costs<'_>, effects: &mut Effects) -> Option<Decision> {
        self.catch_up(now, effects);
        if self.closed || costs.plain == 0 {
            return Some(self.gate.refused_decision(now));
        }
        let is_held_back = self.suspended().is_some_and(|suspension| suspension.ready_at(now, costs.plain) > now);
        let waits_to_ask = self.dialogue.as_ref().is_some_and(|dialogue| now < dialogue.retry_at);
        if self.is_alone() && (is_held_back || waits_to_ask) {
            return Some(self.check_alone(now, costs));
        }
        is_held_back.then(|| self.latest_denial(now, costs).decision)
    }

    /// A call that only looks: whether a request would be granted, or else what the limits say.
    pub(crate) fn peek(&self, costs: Option<Costs<'_>>) -> Call {
        let peek = costs.map(|costs| self.gate.costs_of_each(costs));
        Call { peek, replaces_policy: false, ..self.empty_call() }
    }

    /// What the reply to such a call says of the limits.
    pub(crate) fn peeked_limits(&self, now: Moment, reply: &Reply) -> Vec<LimitStatus> {
        statuses(now, self.gate.policy(), reply, now)
    }

    /// What the reply to such a call says of a request, for which this process may have units in hand.
    pub(crate) fn peeked(&mut self, now: Moment, costs: Costs<'_>, mut reply: Reply, effects: &mut Effects) -> Decision {
        if let Some(decision) = self.check_here(now, costs, effects) {
            return decision; // it has changed meanwhile
        }
        let ahead = if self.queue.is_empty() { self.units_ahead(now) } else { 0 };
        if costs.plain <= ahead {
            reply.stop = None;
        }
        reply.limits.iter_mut().for_each(|limit| limit.remaining = limit.remaining.max(ahead));
        decision(now, self.gate.policy(), &reply, now)
    }
}
