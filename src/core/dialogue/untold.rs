//! Settlements that the store was not told of.

use super::Dialogue;
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
}
