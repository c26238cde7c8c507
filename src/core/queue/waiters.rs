//! The requests that wait, what holds them back besides the limits, and what is counted and reported about them.
//!
//! Without an observer, nothing is kept for events.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::Queue;
use crate::core::effects::Effects;
use crate::core::gate::plan::BegunBan;
use crate::core::queue::untaken_answers::{Answer, UntakenAnswers};
use crate::core::queue::waiter::WaiterId;
use crate::core::request::{Caller, Costs, Grant, Refused, Request};
use crate::core::suspension::Suspension;
use crate::decision::Decision;
use crate::event::{EventKind, ShedReason};
use crate::overflow::Overflow;
use crate::permit_id::PermitId;
use crate::policy::Policy;
use crate::snapshot::KeyTotals;
use crate::strategy::Moment;

/// The options of a queue.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Options {
    pub(crate) max_queue: Option<usize>,
    pub(crate) overflow: Overflow,
    /// Among requests of one priority, the latest is served first.
    pub(crate) newest_first: bool,
    /// An upstream's quota with fewer units remaining is spread out.
    pub(crate) spread_below: u64,
    /// Whether there is an observer.
    pub(crate) observed: bool,
}

#[derive(Debug)]
pub(crate) struct Waiters {
    pub(crate) queue: Queue,
    pub(crate) untaken: UntakenAnswers,
    /// Shared by all keys.
    pub(crate) options: Arc<Options>,
    /// What holds all requests back besides the policy; usually nothing.
    pub(crate) suspension: Option<Box<Suspension>>,
    /// No further request is accepted.
    pub(crate) closed: bool,
    /// It is closed, and the requests that wait are still served.
    draining: bool,
    /// All waiters are being dropped: see [`Overflow::Block`].
    pub(crate) dropping: bool,
    /// The batch was full before all possible grants were made; late waiters have been decided.
    serving: bool,
    /// When the front of the queue can be admitted; [`Moment::NEVER`] if only a release helps.
    pub(crate) front_ready_at: Moment,
    /// Allocated at the first count: each of a million keys may have a queue.
    counts: Option<Box<WaiterCounts>>,
}

#[derive(Debug, Default)]
struct WaiterCounts {
    /// How often each outcome has happened.
    totals: KeyTotals,
    /// The limit of an adaptive concurrency that was reported last since the policy was set.
    reported_limit: Option<u64>,
}

impl Waiters {
    pub(crate) fn new(options: Arc<Options>) -> Self {
        Self {
            queue: Queue::new(
                options.newest_first,
                options.overflow == Overflow::DropLongest,
            ),
            untaken: UntakenAnswers::default(),
            options,
            suspension: None,
            closed: false,
            draining: false,
            dropping: false,
            serving: false,
            front_ready_at: Moment::NEVER,
            counts: None,
        }
    }

    #[inline(always)]
    pub(crate) fn has_room(&self) -> bool {
        let max = self.options.max_queue.unwrap_or(Queue::MAX_LEN);
        self.queue.len() < max.min(Queue::MAX_LEN)
    }

    /// Whether a permit that is released concerns the limits alone.
    #[inline(always)]
    pub(crate) fn leave_releases_to_gate(&self) -> bool {
        self.queue.is_empty() && !self.closed && !self.queue.has_flows()
    }

    /// Whether no request waits, and nothing but the limits decides on a new one. Where flows are known, they count it.
    #[inline(always)]
    pub(crate) fn leaves_all_to_limits(&self) -> bool {
        self.queue.is_empty()
            && !self.closed
            && self.suspension.is_none()
            && !self.queue.has_flows()
    }
}

/// Closing.
impl Waiters {
    /// Whether all waiters are to be refused.
    pub(crate) fn refuses_waiters(&self) -> bool {
        self.closed && !self.draining
    }

    /// Refuses new requests; those that wait are served if it `drains`.
    pub(crate) fn close(&mut self, drains: bool, effects: &mut Effects) {
        let was_closed = std::mem::replace(&mut self.closed, true);
        self.draining = drains && (self.draining || !was_closed);
        if !was_closed {
            self.tell(effects, || EventKind::Closed);
        }
    }

    /// Whether each waiter is to be refused or dropped.
    pub(crate) fn is_emptying(&self) -> bool {
        self.refuses_waiters() || self.dropping
    }

    /// Records that a batch of waiters was refused or dropped.
    pub(crate) fn note_emptied(&mut self, now: Moment) {
        self.dropping = !self.queue.is_empty();
        self.front_ready_at = if self.dropping { now } else { Moment::NEVER };
    }
}

/// Pauses.
impl Waiters {
    /// What holds all requests back besides the policy.
    pub(crate) fn suspension(&self) -> Option<Suspension> {
        self.suspension.as_deref().copied()
    }

    /// When a request of this cost is no longer held back.
    #[inline(always)]
    pub(crate) fn resumes_at(&self, now: Moment, cost: u64) -> Moment {
        self.suspension
            .as_deref()
            .map_or(now, |suspension| suspension.ready_at(now, cost))
    }

    /// The end of a pause, if there is one now.
    pub(crate) fn paused_until(&self, now: Moment) -> Option<Moment> {
        Some(self.resumes_at(now, 1)).filter(|until| *until > now)
    }

    /// Records that a request was granted.
    #[inline(always)]
    pub(crate) fn note_grant(&mut self, now: Moment, cost: u64) {
        if let Some(suspension) = &mut self.suspension {
            suspension.note_grant(now, cost);
        }
    }

    /// Whether a pause has ended by itself and was not [removed](Self::end_suspension).
    pub(crate) fn has_ended_suspension(&self, now: Moment) -> bool {
        let has_ended =
            |suspension: &Suspension| suspension.is_over(now) || suspension.has_ended_pause(now);
        self.suspension.as_deref().is_some_and(has_ended)
    }

    /// Removes the pauses that have ended by themselves, and reports each.
    #[cold]
    pub(crate) fn end_suspension(&mut self, now: Moment, effects: &mut Effects) {
        let Some(suspension) = &mut self.suspension else {
            return;
        };
        let ended = suspension.end_pauses(now);
        if suspension.is_over(now) {
            self.suspension = None;
        }
        for ended in ended.into_iter().flatten() {
            self.tell_resume(now, ended, effects);
        }
    }
}

/// Turns and answers.
impl Waiters {
    /// Begins to serve the front. Returns when its turn was due.
    #[inline(always)]
    pub(crate) fn begin_serving(&mut self) -> Moment {
        self.serving = false;
        std::mem::replace(&mut self.front_ready_at, Moment::NEVER)
    }

    /// Stops at a full batch: more may be granted at once.
    pub(crate) fn pause_serving(&mut self, now: Moment) {
        self.front_ready_at = now;
        self.serving = true;
    }

    /// Whether waiters may have passed their deadlines before their turn, and it is not decided yet which ones.
    #[inline(always)]
    pub(crate) fn may_be_late(&self, now: Moment) -> bool {
        !self.serving && self.queue.next_deadline() < now && !self.is_emptying()
    }

    /// Whether the flows decide whose turn it is, and that is not decided yet, as it is in the middle of a batch.
    #[inline(always)]
    pub(crate) fn chooses_front(&self) -> bool {
        self.queue.has_flows() && !self.serving
    }

    /// Adds a waiter. `bare_place`: its grant will be a place and nothing more.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        request: &Request<'_>,
        waker: Waker,
        bare_place: bool,
    ) -> WaiterId {
        let slot = if bare_place {
            self.untaken.slots.claim(self.queue.len() as u32)
        } else {
            None
        };
        self.queue.push(request, waker, slot)
    }

    /// Records that a new request is granted a permit, which holds this many units.
    #[cold]
    pub(crate) fn note_held(&mut self, costs: Costs<'_>, grant: Grant, units: u64) {
        if let Some(path) = costs.flow() {
            self.queue.hold(path, grant.fence, units);
        }
    }

    /// Records that the permit of this fence has ended.
    #[inline(always)]
    pub(crate) fn note_end(&mut self, fence: u64) {
        if self.queue.has_flows() {
            self.queue.note_released(fence);
        }
    }

    /// Gives a waiter its grant, which holds so many units for its flow, and reports that.
    #[inline(always)]
    pub(crate) fn grant(
        &mut self,
        now: Moment,
        id: WaiterId,
        (grant, held): (Grant, u64),
        effects: &mut Effects,
    ) {
        if self.queue.knows_arrivals() {
            self.tell_grant(now, id, grant.fence, effects);
        }
        effects.wake(self.deliver(id, grant, held));
    }

    /// Gives a waiter its grant, which holds so many units for its flow. Its waker is to be woken outside every lock.
    #[inline(always)]
    pub(crate) fn deliver(&mut self, id: WaiterId, grant: Grant, held: u64) -> Option<Waker> {
        let waker = if self.queue.has_flows() {
            self.queue.remove_granted(id, grant.fence, held)?
        } else {
            self.queue.remove(id)?
        };
        self.untaken.grant(id, grant);
        Some(waker)
    }

    /// Refuses a waiter, if it still waits.
    pub(crate) fn refuse(&mut self, id: WaiterId, refused: Refused, effects: &mut Effects) {
        if let Some(waker) = self.queue.remove(id) {
            self.untaken.keep(id, Err(refused));
            effects.wake(Some(waker));
        }
    }

    /// Takes the answer to a queued request out, if there is one. The id is invalid after that. `Err`: there is none. Its value
    /// is whether the waiter has another waker, which `waker` must replace. See [`Queue::replace_waker`].
    pub(crate) fn poll(&mut self, id: WaiterId, waker: &Waker) -> Result<Answer, bool> {
        if let Some(answer) = self.untaken.take(id) {
            return Ok(answer);
        }
        let waiter = self
            .queue
            .waiter(id)
            .expect("an id is valid until its owner has its answer");
        Err(!waiter.waker.will_wake(waker))
    }
}

/// Counts and events.
impl Waiters {
    /// How often each outcome has happened; the other totals are 0.
    pub(crate) fn counts(&self) -> KeyTotals {
        self.counts
            .as_ref()
            .map_or_else(KeyTotals::default, |counts| counts.totals)
    }

    pub(crate) fn counts_mut(&mut self) -> &mut KeyTotals {
        &mut self.counts.get_or_insert_default().totals
    }

    pub(crate) fn tell(&self, effects: &mut Effects, event: impl FnOnce() -> EventKind) {
        if self.options.observed {
            effects.tell(event());
        }
    }

    /// Records that a request was dropped from a full queue, or refused.
    pub(crate) fn shed(
        &mut self,
        request: &Request<'_>,
        reason: ShedReason,
        effects: &mut Effects,
    ) {
        self.counts_mut().shed += 1;
        self.tell(effects, || EventKind::Shed {
            cost: request.costs.plain,
            priority: request.priority,
            flow: request.costs.flow_id(),
            reason,
            requested_in: request.caller,
        });
    }

    /// Records that a request waits from now on.
    #[inline(always)]
    pub(crate) fn note_arrival(&mut self, now: Moment, id: WaiterId) {
        if self.options.observed {
            self.queue.note_arrival(id, now);
        }
    }

    /// Reports that a waiter is granted this fence. A request that is granted in the call that enqueued it has not waited.
    #[cold]
    fn tell_grant(&mut self, now: Moment, id: WaiterId, fence: u64, effects: &mut Effects) {
        let details = self.queue.cost_details(id);
        if let Some(came_at) = self.queue.take_arrival(id)
            && let Some(request) = self.queue.request(id, &details)
        {
            effects.tell(EventKind::GrantedAfterWait {
                id: PermitId::new(0, fence),
                fence,
                cost: request.costs.plain,
                priority: request.priority,
                flow: request.costs.flow_id(),
                waited: now.duration_since(came_at),
                requested_in: request.caller,
            });
        }
    }

    /// Records that a request times out, or is refused because it would. `id`: that of a request that has waited.
    pub(crate) fn note_timeout(
        &mut self,
        now: Moment,
        request: &Request<'_>,
        id: Option<WaiterId>,
        retry_after: Option<Duration>,
        effects: &mut Effects,
    ) {
        self.counts_mut().timed_out += 1;
        let waited = id
            .and_then(|id| self.queue.take_arrival(id))
            .map_or(Duration::ZERO, |came_at| now.duration_since(came_at));
        self.tell(effects, || EventKind::TimedOut {
            cost: request.costs.plain,
            priority: request.priority,
            flow: request.costs.flow_id(),
            waited,
            retry_after,
            requested_in: request.caller,
        });
    }

    /// Records that a request to a store was denied, which does not wait for its turn.
    pub(crate) fn note_denial(
        &mut self,
        costs: Costs<'_>,
        decision: &Decision,
        caller: Caller,
        effects: &mut Effects,
    ) {
        self.counts_mut().denied += 1;
        self.tell(effects, || EventKind::Denied {
            cost: costs.plain,
            flow: costs.flow_id(),
            decision: decision.clone(),
            requested_in: caller,
        });
    }

    /// Reports the bans that a denied attempt of this caller has started.
    pub(crate) fn tell_bans(
        &self,
        bans: impl IntoIterator<Item = BegunBan>,
        caller: Caller,
        effects: &mut Effects,
    ) {
        for ban in bans {
            self.tell(effects, || EventKind::Banned {
                limit_index: ban.limit_index,
                banned_for: Duration::from_nanos(ban.length),
                requested_in: caller,
            });
        }
    }

    /// The limit of an adaptive concurrency that was reported last. `None` without an observer or such a limit. `present`: its value
    /// now.
    pub(crate) fn reported_limit(&self, present: impl FnOnce() -> Option<u64>) -> Option<u64> {
        if !self.options.observed {
            return None;
        }
        let counts = self.counts.as_ref();
        counts
            .and_then(|counts| counts.reported_limit)
            .or_else(present)
    }

    /// Reports the limit, if it differs from the one that was reported last.
    pub(crate) fn tell_limit(
        &mut self,
        reported: Option<u64>,
        present: Option<u64>,
        effects: &mut Effects,
    ) {
        if let (Some(from), Some(to)) = (reported, present)
            && from != to
        {
            self.counts.get_or_insert_default().reported_limit = Some(to);
            self.tell(effects, || EventKind::LimitMoved { from, to });
        }
    }

    pub(crate) fn tell_policy(&mut self, from: Policy, to: &Policy, effects: &mut Effects) {
        if let Some(counts) = &mut self.counts {
            counts.reported_limit = None;
        }
        self.tell(effects, || EventKind::PolicyChanged {
            from,
            to: to.clone(),
        });
    }

    pub(crate) fn tell_resume(&self, now: Moment, ended: Moment, effects: &mut Effects) {
        self.tell(effects, || EventKind::Resumed {
            ended_ago: now.duration_since(ended),
        });
    }
}
