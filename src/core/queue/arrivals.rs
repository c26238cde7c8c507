//! When the waiters came, which is recorded only where an observer is told how long they have waited.

use super::Queue;
use crate::core::waiter::WaiterId;
use crate::strategy::Moment;

impl Queue {
    /// Records when a waiter came.
    pub(crate) fn note_arrival(&mut self, id: WaiterId, now: Moment) {
        self.rest.get_or_insert_default().came_at.insert(id, now);
    }

    /// Whether it is recorded of any waiter when it came.
    #[inline(always)]
    pub(crate) fn knows_arrivals(&self) -> bool {
        self.rest.as_ref().is_some_and(|rest| !rest.came_at.is_empty())
    }

    /// When the waiter came, if that was recorded. It is forgotten now.
    pub(crate) fn take_arrival(&mut self, id: WaiterId) -> Option<Moment> {
        self.rest.as_mut()?.came_at.remove(&id)
    }

    /// Neither is a sweep under way, nor is it recorded of any waiter when it came.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.rest.as_ref().is_none_or(|rest| rest.swept_to.is_none() && rest.came_at.is_empty())
    }
}
