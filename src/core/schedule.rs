//! The gate and the queue before it, as one deterministic state machine.
//!
//! Every input that depends on time takes `now`. Actions outside (wakers to wake, reclaims to report) are collected in
//! [`Effects`]; [`Schedule::next_wake`] says when time matters next, and [`Schedule::run_due`] then does what is due. The caller that holds the lock carries the effects out after unlocking. So a test drives it without a runtime.

mod check;
mod control;
mod due;
mod in_word;
#[cfg(test)]
mod model;
mod release;
mod room;
mod shared;
mod tell;
#[cfg(test)]
mod tests;

#[cfg(feature = "_simulation")]
pub(crate) use shared::simulation;
pub(crate) use shared::{Asked, Outgoing};

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::core::answers::Answers;
use crate::core::arena::Index;
use crate::core::costs::{Costs, UnitCosts};
use crate::core::dialogue::{Denial, Dialogue};
use crate::core::effects::Effects;
use crate::core::gate::Gate;
use crate::core::grant::Grant;
use crate::core::kept::Answer;
use crate::core::lease::Lease;
use crate::core::queue::Queue;
use crate::core::refused::Refused;
use crate::core::request::{Caller, Request};
use crate::core::suspension::Suspension;
use crate::core::waiter::WaiterId;
use crate::error::{AcquireError, Misfit};
use crate::event::ShedReason;
use crate::overflow::Overflow;
use crate::policy::Policy;
use crate::strategy::Moment;

/// Why a request is not admitted in place.
enum Refusal {
    Closed,
    Misfit(Misfit),
    Blocked,
    MustWait,
}

/// Why a request is not granted in place.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NotInPlace {
    /// The gate does not admit it now: it is denied, or must wait.
    Denied,
    /// More must be done to decide. Call again with effects.
    Undecided,
}

/// The outcome of a request. `G` is the record of a grant, or `()` where that is passed another way.
#[derive(Debug)]
pub(crate) enum Enqueued<G> {
    Granted(G),
    Queued(WaiterId),
}

/// The options of a schedule.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    pub(crate) max_queue: usize,
    pub(crate) overflow: Overflow,
    /// Of one priority, the latest request is served first.
    pub(crate) newest_first: bool,
    /// An upstream's quota with fewer units remaining is spread out.
    pub(crate) spread_below: u64,
    /// Whether an observer is told what happens.
    pub(crate) observed: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_queue: usize::MAX, overflow: Overflow::Reject, newest_first: false, spread_below: 0, observed: false }
    }
}

#[derive(Debug)]
pub(crate) struct Schedule {
    gate: Gate,
    queue: Queue,
    /// Shared by the schedules of all keys.
    options: Arc<Options>,
    /// What holds all requests back besides the policy; usually nothing.
    suspension: Option<Box<Suspension>>,
    /// No further request is accepted.
    closed: bool,
    /// It is closed, and those that wait are still served.
    serves_the_rest: bool,
    /// All waiters are being dropped: see [`Overflow::Block`].
    dropping: bool,
    /// The batch was full before all possible grants were made; late waiters have been decided.
    serving: bool,
    /// Grants in slots, not taken yet, that hold no place. Those that hold one are counted in flight, unless they were reclaimed.
    undelivered: u32,
    /// When the front of the queue can be admitted; [`Moment::NEVER`] if only a release helps.
    front_ready_at: Moment,
    /// Allocated at the first count: each of a million keys may have a schedule.
    counts: Option<Box<Counts>>,
    /// Where the limits are in a store.
    dialogue: Option<Box<Dialogue>>,
}

/// How often what happened.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    denied: u64,
    shed: u64,
    timed_out: u64,
    reclaimed: u64,
    refunded: u64,
    /// The limit of an adaptive concurrency that an observer was told last; 0: none since the policy was set.
    told_limit: u64,
}

impl Schedule {
    pub(crate) fn new(gate: Gate, options: impl Into<Arc<Options>>) -> Self {
        let options = options.into();
        Self {
            gate,
            queue: Queue::new(options.newest_first),
            options,
            suspension: None,
            closed: false,
            serves_the_rest: false,
            dropping: false,
            serving: false,
            undelivered: 0,
            front_ready_at: Moment::NEVER,
            counts: None,
            dialogue: None,
        }
    }

    /// The same for limits in a store, which the gate knows of.
    pub(crate) fn with_dialogue(self, dialogue: Dialogue) -> Self {
        Self { dialogue: Some(Box::new(dialogue)), ..self }
    }

    pub(crate) fn policy(&self) -> &Policy {
        self.gate.policy()
    }

    /// The highest usage of any limit, in units.
    pub(crate) fn used(&self, now: Moment) -> u64 {
        self.gate.used(now)
    }

    /// Whether permits have a TTL.
    pub(crate) fn leases_permits(&self) -> bool {
        self.gate.leases_permits()
    }

    /// Whether the limits are in a store.
    pub(crate) fn asks_a_store(&self) -> bool {
        self.dialogue.is_some()
    }

    /// Restarts the TTL of a permit. Returns whether it is live.
    pub(crate) fn renew(&mut self, now: Moment, index: Index, fence: u64) -> bool {
        self.gate.renew(index, fence, now)
    }

    /// The lease of a permit, while it is live.
    pub(crate) fn live_lease(&mut self, now: Moment, index: Index, fence: u64) -> Option<&mut Lease> {
        self.gate.live_lease(index, fence, now)
    }

    /// The units that a permit was granted, if they are recorded.
    pub(crate) fn unit_costs(&self, fence: u64) -> Option<&Arc<UnitCosts>> {
        self.gate.unit_costs(fence)
    }

    fn counts(&mut self) -> &mut Counts {
        self.counts.get_or_insert_default()
    }

    #[inline(always)]
    fn has_room(&self) -> bool {
        self.queue.len() < self.options.max_queue.min(Queue::MAX_LEN)
    }

    fn suspended(&self) -> Option<Suspension> {
        self.suspension.as_deref().copied()
    }

    /// Whether `now` matters to what is decided; if not, any value will do.
    pub(crate) fn follows_time(&self) -> bool {
        self.gate.follows_time() || self.queue.has_deadlines() || self.suspension.is_some()
    }

    /// Whether `now` matters to the inputs: to what is decided, or to what an observer is told.
    pub(crate) fn reads_clock(&self) -> bool {
        self.follows_time() || self.queue.knows_arrivals()
    }

    /// When time matters next: the front's turn, the first TTL, the first deadline.
    pub(crate) fn next_wake(&self) -> Moment {
        self.front_ready_at.min(self.gate.next_expiry()).min(self.queue.next_deadline())
    }

    /// When time matters next to a caller that blocks its thread for a queued request and runs the timer there.
    pub(crate) fn wake_of(&self, id: WaiterId) -> Moment {
        if self.queue.is_front(id) { self.next_wake() } else { self.queue.deadline(id) }
    }

    /// Whether all waiters are to be refused.
    pub(crate) fn refuses_waiters(&self) -> bool {
        self.closed && !self.serves_the_rest
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// No request waits, and no permit holds a place.
    pub(crate) fn is_drained(&self) -> bool {
        self.queue.is_empty() && self.undelivered == 0 && !self.gate.is_in_flight() && self.in_flight_locally() == 0
    }

    /// The number of grants of places so far, if it [is drained](Schedule::is_drained).
    pub(crate) fn drained_after(&self) -> Option<u64> {
        self.is_drained().then(|| if self.gate.holds_places() { self.gate.granted() } else { 0 })
    }

    pub(crate) fn has_waiters(&self) -> bool {
        !self.queue.is_empty()
    }

    /// See [`Queue::answers`].
    pub(crate) fn answers(&self) -> Option<&Arc<Answers>> {
        self.queue.answers()
    }

    /// See [`Queue::take_wakers`].
    pub(crate) fn take_wakers(&mut self, except: Option<WaiterId>) -> Vec<Waker> {
        self.queue.take_wakers(except)
    }

    /// See [`Queue::replace_waker`].
    pub(crate) fn replace_waker(&mut self, id: WaiterId, waker: Waker) -> Result<Waker, Waker> {
        self.queue.replace_waker(id, waker)
    }

    /// The common and fastest case: no request waits, nothing is due, and only the gate decides.
    #[inline(always)]
    pub(crate) fn admit_in_place(&mut self, now: Moment, cost: u64, caller: Caller) -> Result<Grant, NotInPlace> {
        let undecided = self.closed || !self.queue.is_empty() || cost.wrapping_sub(1) >= self.gate.max_cost_in_place();
        if undecided || self.gate.next_expiry() <= now || self.suspension.is_some() {
            return Err(NotInPlace::Undecided);
        }
        self.gate.admit_plain(now, cost, caller).map_err(|_| NotInPlace::Denied)
    }

    /// The common case of a wait: other requests wait already and go first. `None`: call [`Schedule::request`], with effects.
    /// Takes the `waker` if the request is queued.
    #[inline(always)]
    pub(crate) fn enqueue_behind(&mut self, now: Moment, request: &Request<'_>, waker: &mut Option<Waker>) -> Option<WaiterId> {
        let waits =
            !self.queue.is_empty() && !self.closed && self.next_wake() > now && !self.queue.would_be_front(request.priority);
        let fits = request.costs.plain.wrapping_sub(1) < self.gate.max_cost_in_place() || self.asks_for(request.costs);
        if waits
            && fits
            && self.has_room()
            && self.suspension.is_none()
            && request.deadline == Moment::NEVER
            && !self.options.observed
        {
            return Some(self.queue.push(request, waker.take()?, self.gate.grants_bare_places()));
        }
        None
    }

    /// A request that is ready to wait. `waker` is taken if the request is queued, and woken when its slot has an answer.
    pub(crate) fn request(
        &mut self,
        now: Moment,
        request: &Request<'_>,
        waker: &mut Option<Waker>,
        effects: &mut Effects,
    ) -> Result<Enqueued<Grant>, Refused> {
        let &Request { costs, priority, deadline, caller, .. } = request;
        match self.admit(now, costs, caller, effects) {
            Ok(grant) => {
                self.explain(now, costs, grant.fence);
                return Ok(Enqueued::Granted(grant));
            }
            Err(Refusal::Closed) => return Err(self.refusal(now, costs, AcquireError::Closed)),
            Err(Refusal::Misfit(misfit)) => return Err(self.refusal(now, costs, misfit.into())),
            Err(Refusal::Blocked) => {
                self.shed(request, ShedReason::Blocked, effects);
                return Err(self.refusal(now, costs, AcquireError::Blocked { retry_after: self.options.overflow.penalty() }));
            }
            Err(Refusal::MustWait) => {}
        }
        // A request that need not wait takes no room in a full queue.
        if !self.has_room()
            && !self.queue.is_empty()
            && self.queue.would_be_front(priority)
            && let Some(grant) = self.admit_next(now, costs, caller, effects)
        {
            self.explain(now, costs, grant.fence);
            self.reevaluate_front(now, effects); // the grant may have delayed the turn of the front
            return Ok(Enqueued::Granted(grant));
        }
        if deadline != Moment::NEVER {
            let turn = self.earliest_turn(now, request);
            // No waiter is dropped for a request that will not stay.
            let passes_by = deadline <= now && !self.has_room();
            if passes_by || turn > deadline {
                let ahead = self.queue.units_ahead_of(priority);
                let turn = if self.dialogue.is_some() { self.reported_ready_at(now, ahead, costs) } else { turn };
                return Err(self.time_out(now, ahead, turn, request, None, effects));
            }
        }
        self.make_room(now, request, effects).map_err(|error| self.refusal(now, costs, error))?;
        let waker = waker.take().unwrap_or_else(|| Waker::noop().clone());
        let bare_place = self.gate.grants_bare_places() && !costs.explained();
        let id = self.queue.push(request, waker, bare_place);
        self.watch_leader();
        if !self.queue.is_front(id) && self.front_ready_at > now && deadline > now {
            return Ok(self.waits(now, id)); // nothing to decide before the requests ahead are served
        }
        self.run_due(now, effects);
        match self.poll(id, Waker::noop()) {
            Ok(answer) => answer.map(Enqueued::Granted),
            Err(_) => Ok(self.waits(now, id)),
        }
    }

    /// Takes the answer to a queued request out of its slot, if there is one; see [`Queue::poll`].
    pub(crate) fn poll(&mut self, id: WaiterId, waker: &Waker) -> Result<Answer, bool> {
        let answer = self.queue.poll(id, waker)?;
        self.undelivered -= u32::from(answer.as_ref().is_ok_and(|grant| !grant.claim.holds_place()));
        Ok(answer)
    }

    /// Decides in place: no request waits, and the gate admits.
    fn admit(&mut self, now: Moment, costs: Costs<'_>, caller: Caller, effects: &mut Effects) -> Result<Grant, Refusal> {
        self.check_in(now, costs, effects)?;
        self.admit_next(now, costs, caller, effects).ok_or(Refusal::MustWait)
    }

    /// Admits a request that no other goes before, if that needs no call to a store.
    #[inline(always)]
    fn admit_next(&mut self, now: Moment, costs: Costs<'_>, caller: Caller, effects: &mut Effects) -> Option<Grant> {
        if self.dialogue.is_some() {
            return self.admit_without_call(now, costs, caller, effects);
        }
        self.admit_front(now, costs, caller).ok()
    }

    /// The checks before the gate.
    fn check_in(&mut self, now: Moment, costs: Costs<'_>, effects: &mut Effects) -> Result<(), Refusal> {
        if self.closed {
            return Err(Refusal::Closed);
        }
        self.gate.fits(costs).map_err(Refusal::Misfit)?;
        self.catch_up(now, effects);
        if let Some(suspension) = &mut self.suspension
            && suspension.is_blocked(now)
        {
            suspension.block(now, nanos(self.options.overflow.penalty()));
            return Err(Refusal::Blocked);
        }
        if !self.queue.is_empty() {
            return Err(Refusal::MustWait); // no barging
        }
        Ok(())
    }

    /// Admits the next request, or says when to check again.
    #[inline(always)]
    fn admit_front(&mut self, now: Moment, costs: Costs<'_>, caller: Caller) -> Result<Grant, Moment> {
        let ready = self.suspended().map_or(now, |suspension| suspension.ready_at(now, costs.plain));
        if ready > now {
            return Err(ready);
        }
        let grant = self.gate.admit(now, costs, caller)?;
        if let Some(suspension) = &mut self.suspension {
            suspension.note_grant(now, costs.plain);
        }
        Ok(grant)
    }

    /// See [`Gate::ready_at`]. A pause without an end is ignored.
    fn ready_at(&self, now: Moment, ahead: u64, costs: Costs<'_>) -> Moment {
        self.ready_after(self.known_denial(now, costs), now, ahead, costs)
    }

    /// [`Schedule::ready_at`] as it is reported: what a store has denied of other costs says nothing about these.
    fn reported_ready_at(&self, now: Moment, ahead: u64, costs: Costs<'_>) -> Moment {
        let is_of_these = |denial: &&Denial| denial.is_of(&self.gate.costs_of_each(costs));
        self.ready_after(self.known_denial(now, costs).filter(is_of_these), now, ahead, costs)
    }

    fn ready_after(&self, denial: Option<&Denial>, now: Moment, ahead: u64, costs: Costs<'_>) -> Moment {
        let suspended_until =
            self.suspended().and_then(|suspension| suspension.ready_at(now, costs.plain).known()).unwrap_or(now);
        let denial = denial.filter(|denial| !denial.ends_by_release);
        let denied_until = denial.and_then(|denial| denial.ready_at.known()).unwrap_or(now);
        self.gate.ready_at(now, ahead, costs).max(suspended_until).max(denied_until)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
