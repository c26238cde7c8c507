//! Settlements that the store was not told of: those of calls that have failed, and those of limits that are being made as new.

use super::Dialogue;
use crate::exchange::Settlement;
use crate::strategy::Moment;

impl Dialogue {
    /// Whether the settlements of a call that has failed are told again. Not those that the store may have got; and nobody tries for
    /// ever, nor keeps the key for it.
    pub(in crate::core) fn tells_again(&mut self, now: Moment, may_have_run: bool) -> bool {
        /// Since the first failure, in nanoseconds. What came after it is dropped with the rest.
        const LONGEST: u64 = 120_000_000_000;
        let since = self.untold_since.unwrap_or(now);
        let again = !may_have_run && now.since(since) < LONGEST;
        self.untold_since = again.then_some(since);
        again
    }

    /// A reset begins. Returns the generation of the call under way, if it tells of settlements.
    pub(in crate::core) fn withhold(&mut self, settlements: Vec<Settlement>) -> Option<u64> {
        self.resets += 1;
        self.withheld.extend(settlements);
        self.flight.as_ref().filter(|flight| !flight.settlements.is_empty()).map(|_| self.generation)
    }

    /// The limits in the store were made as new.
    pub(in crate::core) fn was_reset(&mut self) {
        self.withheld.clear();
        self.untold_since = None;
        self.flight.iter_mut().for_each(|flight| flight.was_reset = true);
    }

    /// A reset has ended. Returns what is owed again when no other one is under way.
    pub(in crate::core) fn release_withheld(&mut self) -> Vec<Settlement> {
        self.resets -= 1;
        if self.resets == 0 { std::mem::take(&mut self.withheld) } else { Vec::new() }
    }
}
