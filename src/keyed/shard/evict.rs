//! Makes room for a new key: a known one is forgotten before it is reset.

use std::hash::Hash;

use super::{Removed, Samples, Shard};
use crate::keyed::idle::KeptHash;
use crate::strategy::Moment;

impl<K: Hash + Eq, const W: usize, H: KeptHash> Shard<K, W, H> {
    /// Of a few keys, removes the one that would be reset first: an idle one, or if there is none an active one whose manager is
    /// not needed. If none of these can be removed, active ones are checked until one can, at most `most`. Returns the key, and
    /// when it would have been reset.
    pub(in crate::keyed) fn evict(
        &mut self,
        samples: Samples,
        most: usize,
        now: Moment,
        removed: &mut Removed<K>,
    ) -> Option<(K, Moment)> {
        self.evict_idle(samples.idle, now).or_else(|| self.evict_active(samples.active, most, removed))
    }

    fn evict_idle(&mut self, samples: usize, now: Moment) -> Option<(K, Moment)> {
        let slots = self.idle.slots();
        let start = self.idle_cursor.min(slots);
        let (mut found, mut soonest) = (0, None);
        for slot in (0..start).rev().chain((start..slots).rev()) {
            let Some(reset_at) = self.key_state(slot).map(|key_state| key_state.reset_at(now)) else { continue };
            if soonest.is_none_or(|soonest| (reset_at, slot) < soonest) {
                soonest = Some((reset_at, slot));
            }
            found += 1;
            if found == samples {
                break;
            }
        }
        let (reset_at, slot) = soonest?;
        self.idle_cursor = slot;
        Some((self.remove_idle(slot)?, reset_at))
    }

    fn evict_active(&mut self, samples: usize, most: usize, removed: &mut Removed<K>) -> Option<(K, Moment)> {
        let mut soonest: Option<(Moment, usize)> = None;
        for sample in 0..most.min(self.active.len()) {
            if sample >= samples && soonest.is_some() {
                break;
            }
            let slot = self.next_active()?;
            let reset_at = self.unshared(slot).and_then(|manager| manager.rest()).map(|rest| rest.reset_at);
            if let Some(reset_at) = reset_at
                && soonest.is_none_or(|soonest| reset_at < soonest.0)
            {
                soonest = Some((reset_at, slot));
            }
        }
        let (reset_at, slot) = soonest?;
        let last = self.unshared(slot)?.rest()?.last;
        Some((self.remove_active(slot, last, removed)?.1, reset_at))
    }
}
