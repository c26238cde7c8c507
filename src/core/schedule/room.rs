//! A full queue, and what its refusals say.

use std::time::Duration;

use super::{Schedule, nanos};
use crate::core::costs::Costs;
use crate::core::effects::Effects;
use crate::core::request::Request;
use crate::error::AcquireError;
use crate::event::ShedReason;
use crate::overflow::Overflow;
use crate::strategy::Moment;

impl Schedule {
    /// Makes room for a new request in a full queue, or refuses it.
    pub(super) fn make_room(&mut self, now: Moment, request: &Request<'_>, effects: &mut Effects) -> Result<(), AcquireError> {
        if self.has_room() {
            return Ok(());
        }
        if let Overflow::Block { penalty } = self.options.overflow {
            self.suspension.get_or_insert_default().block(now, nanos(penalty));
            self.dropping = true;
            self.shed(request, ShedReason::Blocked, effects);
            self.run_due(now, effects);
            return Err(AcquireError::Blocked { retry_after: penalty });
        }
        let Some(victim) = self.queue.victim(self.options.overflow, request.priority) else {
            self.shed(request, ShedReason::QueueFull, effects);
            return Err(AcquireError::QueueFull {
                retry_after: self.retry_after(now, self.queue.units_ahead_of(request.priority), request.costs),
            });
        };
        self.drop_waiter(now, victim, effects);
        self.front_ready_at = now; // the front may have changed: check again
        Ok(())
    }

    /// When a request behind `ahead` waiting units could be admitted, at the earliest.
    pub(super) fn retry_after(&self, now: Moment, ahead: u64, costs: Costs<'_>) -> Option<Duration> {
        let ready = self.reported_ready_at(now, ahead, costs);
        (ready > now).then(|| ready.duration_since(now))
    }
}
