//! The limits in the store are made as new. What belonged to the former ones must not come to the new ones.

use crate::core::dialogue::Block;
use crate::core::effects::Effects;
use crate::core::schedule::Schedule;
use crate::strategy::Moment;

impl Schedule {
    /// A reset begins. Settlements and charges that the store was not told of are withheld until it has ended. Returns the call under way, if
    /// it tells of some: they are to arrive before the reset.
    pub(crate) fn reset_begins(&mut self) -> Option<u64> {
        let owed = self.gate.outbox()?.take_settlements(usize::MAX);
        self.dialogue.as_mut()?.withhold(owed)
    }

    /// The limits in the store were made as new: what is withheld concerns the former ones.
    pub(crate) fn was_reset(&mut self, now: Moment, effects: &mut Effects) {
        self.dialogue.iter_mut().for_each(|dialogue| dialogue.was_reset());
        self.drop_what_was_before_reset();
        self.reevaluate_front(now, effects);
    }

    /// A reset has ended. What is withheld still is owed, because it has failed, or was given up, as have all others of the key.
    pub(crate) fn reset_ended(&mut self, now: Moment, effects: &mut Effects) {
        let withheld = self.dialogue.as_mut().map(|dialogue| dialogue.release_withheld()).unwrap_or_default();
        if !withheld.is_empty()
            && let Some(outbox) = self.gate.outbox()
        {
            outbox.put_back(withheld);
            self.reevaluate_front(now, effects);
        }
    }

    /// A denial, and units that were taken ahead. They go back: those that were granted after the reset are refunded, and no others.
    pub(super) fn drop_what_was_before_reset(&mut self) {
        let Some(dialogue) = &mut self.dialogue else { return };
        dialogue.denial = None;
        let unused = dialogue.block.as_mut().and_then(Block::empty);
        self.give_back_unused(unused);
    }
}
