//! Grants from units that were taken ahead.

use crate::core::costs::Costs;
use crate::core::dialogue::{Block, Unused};
use crate::core::effects::Effects;
use crate::core::gate::GrantByStore;
use crate::core::grant::Grant;
use crate::core::request::Caller;
use crate::core::schedule::Schedule;
use crate::strategy::Moment;

impl Schedule {
    /// Grants from units that were taken ahead, which is only of a policy that counts the plain cost alone. `None`: there are too
    /// few, or none are taken.
    pub(super) fn take_ahead(&mut self, now: Moment, cost: u64, caller: Caller, effects: &mut Effects) -> Option<Grant> {
        let grant = self.grant_ahead(now, cost, caller)?;
        let runs_low = self.dialogue.as_ref().and_then(|dialogue| dialogue.block.as_ref()).is_some_and(Block::runs_low);
        if runs_low {
            self.serve_by_store(now, effects);
        }
        Some(grant)
    }

    /// How many can be granted now.
    pub(super) fn units_ahead(&self, now: Moment) -> u64 {
        self.dialogue.as_ref().and_then(|dialogue| dialogue.block.as_ref()).map_or(0, |block| block.left(now))
    }

    fn grant_ahead(&mut self, now: Moment, cost: u64, caller: Caller) -> Option<Grant> {
        if self.suspension.is_some() {
            return None;
        }
        let (fence, granted_at) = self.dialogue.as_mut()?.block.as_mut()?.take(now, cost)?;
        Some(self.gate.record(now, Costs::plain(cost), GrantByStore { fence, number: 0, granted_at, sent_at: now }, caller))
    }

    /// Grants to those who wait.
    pub(super) fn serve_ahead(&mut self, now: Moment, effects: &mut Effects) {
        if self.dialogue.as_ref().is_none_or(|dialogue| dialogue.block.is_none()) || self.refuses_waiters() {
            return;
        }
        while let Some(front) = self.queue.front() {
            let Some(grant) = self.grant_ahead(now, front.cost, front.caller) else { return };
            self.hand_over(now, front, grant, effects);
        }
    }

    /// When more is to be asked for although nobody waits, or what is left goes back.
    pub(super) fn refill_at(&self, now: Moment) -> Moment {
        let Some(dialogue) = &self.dialogue else { return Moment::NEVER };
        let Some(block) = dialogue.block.as_ref().filter(|_| !self.closed) else { return Moment::NEVER };
        // During a pause, units that were taken ahead are not granted.
        if !block.runs_low() || self.suspension.is_some() {
            return block.ends_at();
        }
        let denied_until = dialogue.denial.as_ref().map_or(now, |denial| denial.until);
        denied_until.max(dialogue.retry_at).min(block.ends_at())
    }

    /// Units that were not used in time, or will not be, go back.
    pub(super) fn give_unused_back(&mut self, now: Moment) {
        let closed = self.closed && self.queue.is_empty();
        let Some(block) = self.dialogue.as_mut().and_then(|dialogue| dialogue.block.as_mut()) else { return };
        if closed || block.ends_at() <= now {
            let unused = block.empty();
            self.give_back_unused(unused);
        }
    }

    pub(super) fn give_back_unused(&mut self, unused: Option<Unused>) {
        if let Some(Unused { units, granted_at }) = unused {
            let charged = self.gate.costs_of_each(Costs::plain(units));
            self.gate.decline_units(charged, granted_at);
        }
    }
}
