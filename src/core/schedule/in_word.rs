//! What a word before the lock holds of the schedule.

use super::Schedule;
use crate::core::line::{Content, Opening};
use crate::strategy::Moment;

impl Schedule {
    /// What a word is to hold, and the fence of the latest grant; `None` if it cannot decide: a request waits, something else holds
    /// requests back, or the [gate](crate::core::gate::Gate::opening) does not fit.
    #[inline(always)]
    pub(crate) fn opening(&mut self, now: Moment) -> Option<(Opening, u64)> {
        if !self.queue.is_empty() || self.closed || self.suspension.is_some() {
            return None;
        }
        Some((self.gate.opening(now)?, self.gate.granted()))
    }

    /// Takes over what a word held.
    #[inline(always)]
    pub(crate) fn take_over(&mut self, content: Content, fence: u64) {
        self.gate.take_over(content, fence);
    }

    /// Releases units that permits held. The caller then serves the queue: see [`Schedule::release`].
    pub(crate) fn return_places(&mut self, units: u64) {
        self.gate.return_places(units);
    }
}
