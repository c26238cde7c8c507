//! How permits come back: released, or given up before they were taken.

use std::task::Waker;

use super::Schedule;
use crate::core::costs::Actual;
use crate::core::effects::{Effects, Happening};
use crate::core::grant::{Claim, Grant};
use crate::core::queue::Abandoned;
use crate::core::waiter::WaiterId;
use crate::strategy::Moment;

impl Schedule {
    /// The owner of a queued request of `cost` gave it up: its entry is removed, or its grant is refunded to the next.
    pub(crate) fn abandon(&mut self, now: Moment, id: WaiterId, cost: u64, effects: &mut Effects) {
        self.catch_up(now, effects);
        let was_front = self.queue.is_front(id);
        if let Some(dialogue) = &mut self.dialogue {
            dialogue.forget(id);
        }
        match self.queue.abandon(id) {
            Abandoned::Waiting(waker) => {
                effects.discard(Some(waker));
                if was_front {
                    self.front_ready_at = now; // the front has changed: check again
                    self.run_due(now, effects);
                }
            }
            Abandoned::Granted(grant) => {
                self.queue.take_explanation(grant.fence);
                self.undelivered -= u32::from(!grant.claim.holds_place());
                if self.take_back(now, grant, cost, Actual::Nothing) {
                    self.run_due(now, effects);
                }
            }
            Abandoned::Failed => {}
        }
    }

    /// Releases a permit; nothing happens if it was reclaimed before. `false`, without a change: a request waits for it, and
    /// [`Schedule::release_to_next`] must be called.
    #[inline(always)]
    pub(crate) fn release(&mut self, fence: u64, cost: u64, claim: Claim) -> bool {
        let unawaited = self.queue.is_empty() && !self.closed && self.dialogue.is_none();
        // One that came late changes nothing, and is told with effects.
        unawaited && (self.gate.release(fence, cost, claim).is_some() || !self.is_observed())
    }

    /// [`Schedule::release_to_next`] in the common case: all places are out, and the front asks for as many as come back. Returns its
    /// waker. `None`, without a change, in any other case.
    #[inline(always)]
    pub(crate) fn pass_on(&mut self, cost: u64, claim: Claim) -> Option<Waker> {
        let front = self.queue.front()?;
        let fits = front.cost == cost && claim == Claim::PLACE && !front.id.names_units();
        let is_something_due = self.next_wake() != Moment::NEVER || !self.queue.is_plain() || self.closed || self.dropping;
        if !fits || is_something_due || self.suspension.is_some() {
            return None;
        }
        let fence = self.gate.pass_on()?;
        self.queue.grant(front.id, Grant::of_place(fence))
    }

    /// [`Schedule::release`], and serves the waiters as far as the gate admits them.
    pub(crate) fn release_to_next(&mut self, now: Moment, fence: u64, cost: u64, claim: Claim, effects: &mut Effects) {
        self.catch_up(now, effects);
        if self.gate.release(fence, cost, claim).is_some() {
            self.run_due(now, effects);
        } else if self.is_observed() {
            effects.tell(Happening::ReleasedLate { fence, cost });
        }
    }

    /// A permit will never be released.
    pub(crate) fn forget(&mut self, fence: u64, claim: Claim) {
        self.gate.forget(fence, claim);
    }

    /// Releases units that permits held. The caller then serves the queue: see [`Schedule::release`].
    pub(crate) fn return_units(&mut self, units: u64) {
        self.gate.return_units(units);
    }
}
