//! What a word before the lock holds of the schedule.

use super::Schedule;
use crate::core::line::{Content, Opening};
use crate::strategy::Moment;

impl Schedule {
    /// Whether a word may decide: the policy fits, no request waits, and nothing else holds requests back.
    #[inline(always)]
    pub(crate) fn fits_word(&self) -> bool {
        self.gate.fits_word() && self.queue.is_empty() && !self.closed && self.suspension.is_none()
    }

    /// What a word is to hold, and the fence of the latest grant; `None` if it cannot decide.
    pub(crate) fn opening(&mut self, now: Moment) -> Option<(Opening, u64)> {
        if !self.fits_word() {
            return None;
        }
        Some((self.gate.opening(now)?, self.gate.granted()))
    }

    /// Takes over what a word held.
    #[inline(always)]
    pub(crate) fn take_over(&mut self, content: Content, fence: u64) {
        self.gate.take_over(content, fence);
    }
}
