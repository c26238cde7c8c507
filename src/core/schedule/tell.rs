//! What is counted or told to an observer. Where there is none, nothing is kept for it.

use std::time::Duration;

use super::{Enqueued, Schedule};
use crate::core::effects::{Effects, Happening};
use crate::core::grant::Grant;
use crate::core::queue::Front;
use crate::core::refused::Refused;
use crate::core::request::Request;
use crate::core::waiter::WaiterId;
use crate::error::AcquireError;
use crate::event::{EventKind, ShedReason};
use crate::policy::Policy;
use crate::strategy::Moment;

impl Schedule {
    pub(crate) fn is_observed(&self) -> bool {
        self.options.observed
    }

    fn tell(&self, effects: &mut Effects, event: impl FnOnce() -> EventKind) {
        if self.options.observed {
            effects.tell(Happening::Other(event()));
        }
    }

    /// A request was dropped from a full queue, or refused.
    pub(super) fn shed(&mut self, request: &Request<'_>, reason: ShedReason, effects: &mut Effects) {
        self.counts().shed += 1;
        let &Request { costs, priority, caller, .. } = request;
        let cost = costs.plain;
        self.tell(effects, || EventKind::Shed { cost, priority, reason, requested_in: caller });
    }

    /// A request waits from now on.
    #[inline(always)]
    pub(super) fn waits(&mut self, now: Moment, id: WaiterId) -> Enqueued<Grant> {
        if self.options.observed {
            self.queue.note_arrival(id, now);
        }
        Enqueued::Queued(id)
    }

    /// The front is about to be granted this fence. If it was decided in the call that has brought it, it has not waited.
    #[cold]
    pub(super) fn tell_grant(&mut self, now: Moment, request: Front, fence: u64, effects: &mut Effects) {
        if let Some(came_at) = self.queue.take_arrival(request.id) {
            effects.tell(Happening::GrantedAfterWait { fence, request, waited: now.duration_since(came_at) });
        }
    }

    /// The error of a request that times out, or would: it says when an equal new request could be admitted. `id`: it has waited.
    pub(super) fn time_out(
        &mut self,
        now: Moment,
        ahead: u64,
        turn: Moment,
        request: &Request<'_>,
        id: Option<WaiterId>,
        effects: &mut Effects,
    ) -> Refused {
        self.counts().timed_out += 1;
        let &Request { costs, priority, caller, .. } = request;
        let cost = costs.plain;
        let retry_after = (turn > now).then(|| turn.duration_since(now));
        let waited = id.and_then(|id| self.queue.take_arrival(id)).map_or(Duration::ZERO, |came_at| now.duration_since(came_at));
        self.tell(effects, || EventKind::TimedOut { cost, priority, waited, retry_after, requested_in: caller });
        let decision = costs.explained().then(|| Box::new(self.decide_late(now, ahead, costs)));
        self.refusal(now, costs, AcquireError::TimedOut { retry_after, decision })
    }

    /// The limit of an adaptive concurrency as an observer knows it; `None` where there is neither.
    pub(super) fn known_limit(&self, now: Moment) -> Option<u64> {
        let told = self.counts.as_ref().map(|counts| counts.told_limit).filter(|told| *told > 0);
        self.options.observed.then(|| told.or_else(|| self.gate.concurrency(now))).flatten()
    }

    /// A report may have moved the limit from the `known` one.
    pub(super) fn tell_limit(&mut self, now: Moment, known: Option<u64>, effects: &mut Effects) {
        if let (Some(from), Some(to)) = (known, self.gate.concurrency(now))
            && from != to
        {
            self.counts().told_limit = to;
            self.tell(effects, || EventKind::LimitMoved { from, to });
        }
    }

    pub(super) fn tell_policy(&mut self, from: Policy, effects: &mut Effects) {
        self.counts.iter_mut().for_each(|counts| counts.told_limit = 0);
        self.tell(effects, || EventKind::PolicyChanged { from, to: self.gate.policy().clone() });
    }

    /// The end of a pause has moved. It has none if it is [`Moment::NEVER`].
    pub(super) fn tell_pause(&self, now: Moment, until: Moment, effects: &mut Effects) {
        let paused_for = until.known().map_or(Duration::MAX, |until| until.duration_since(now));
        self.tell(effects, || EventKind::Paused { paused_for });
    }

    pub(super) fn tell_resume(&self, now: Moment, ended: Moment, effects: &mut Effects) {
        self.tell(effects, || EventKind::Resumed { ended_ago: now.duration_since(ended) });
    }

    pub(super) fn tell_close(&self, effects: &mut Effects) {
        self.tell(effects, || EventKind::Closed);
    }
}
