//! A sweep over all waiters, a few at a time, for those that a new plan can never admit.

use super::Queue;
use crate::core::costs::Costs;
use crate::core::waiter::{Waiter, WaiterId};

impl Queue {
    /// Starts a sweep of all waiters, by priority and then in the order in which they came; see [`Queue::next_misfit`].
    pub(crate) fn sweep(&mut self) {
        let front = self.front_line().and_then(|line| line.front()).map(|front| front.id);
        self.rest.get_or_insert_default().swept_to = front;
    }

    pub(crate) fn is_swept(&self) -> bool {
        self.swept_to().is_none()
    }

    fn swept_to(&self) -> Option<WaiterId> {
        self.rest.as_ref()?.swept_to
    }

    /// The next waiter of the sweep whose costs do not fit, and why. Each waiter that is visited takes one of the `steps`; when none
    /// is left, the sweep stops, and continues there the next time.
    pub(crate) fn next_misfit<E>(
        &mut self,
        fits: impl Fn(Costs<'_>) -> Result<(), E>,
        steps: &mut usize,
    ) -> Option<(WaiterId, E)> {
        while *steps > 0 {
            let next = self.first_from(self.swept_to()?).map(|waiter| (waiter.id, fits(self.costs(waiter))));
            self.rest.as_mut()?.swept_to = next.as_ref().map(|(id, _)| id.next());
            *steps -= 1;
            if let (id, Err(misfit)) = next? {
                return Some((id, misfit));
            }
        }
        None
    }

    /// This waiter, or the next one in the queue.
    fn first_from(&self, id: WaiterId) -> Option<&Waiter> {
        let same_level = self.levels.get(id.level()).and_then(|level| level.line.first_from(id));
        let below = || (0..id.level()).rev().find_map(|level| self.levels.get(level)?.line.front());
        same_level.or_else(below)
    }

    #[cfg(test)]
    pub(crate) fn next_in_sweep(&self) -> Option<WaiterId> {
        self.first_from(self.swept_to()?).map(|waiter| waiter.id)
    }
}
