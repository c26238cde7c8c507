//! What a word before the lock takes over from the schedule, and gives back.

use super::Schedule;

impl Schedule {
    /// The units that are left and the latest fence, if these are the whole state: no request waits, nothing else holds requests
    /// back, and the gate says so ([`Gate::places_left`](crate::core::gate::Gate::places_left)).
    #[inline(always)]
    pub(crate) fn places_left(&self) -> Option<(u64, u64)> {
        let undecided = !self.queue.is_empty() || self.closed || self.suspension.is_some();
        if undecided { None } else { Some((self.gate.places_left()?, self.gate.granted())) }
    }

    /// See [`Gate::set_places_left`](crate::core::gate::Gate::set_places_left).
    #[inline(always)]
    pub(crate) fn set_places_left(&mut self, units: u64, fence: u64) {
        self.gate.set_places_left(units, fence);
    }

    /// Releases units that permits held. The caller then serves the queue: see [`Schedule::release`].
    pub(crate) fn return_places(&mut self, units: u64) {
        self.gate.return_places(units);
    }
}
