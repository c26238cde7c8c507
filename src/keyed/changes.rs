//! The order of the changes to all keys.
//!
//! A change goes to one shard after the other, and several may be under way in different threads. Each shard applies all changes
//! that are under way in the order of their numbers, in whichever thread it is reached first. So the keys of all shards end in the
//! same state.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::shard::Change;

#[derive(Debug, Default)]
pub(super) struct Changes(Mutex<ChangeLog>);

#[derive(Debug, Default)]
struct ChangeLog {
    /// The number of the latest change.
    latest: u64,
    under_way: Vec<(u64, Change)>,
}

impl Changes {
    /// Records that a change is under way. Returns its number.
    pub(super) fn begin(&self, change: Change) -> u64 {
        let mut log = self.lock();
        log.latest += 1;
        let number = log.latest;
        log.under_way.push((number, change));
        number
    }

    /// The changes after this number that a shard may not have applied yet.
    pub(super) fn after(&self, number: u64) -> Vec<(u64, Change)> {
        self.lock()
            .under_way
            .iter()
            .filter(|change| change.0 > number)
            .cloned()
            .collect()
    }

    /// Records that all shards have applied this change.
    pub(super) fn end(&self, number: u64) {
        self.lock().under_way.retain(|change| change.0 != number);
    }

    fn lock(&self) -> MutexGuard<'_, ChangeLog> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_finds_each_change_until_all_have_it_in_order() {
        let changes = Changes::default();
        let [pause, resume] =
            [Change::Pause(1), Change::Resume].map(|change| changes.begin(change));
        let numbers = |after| {
            changes
                .after(after)
                .iter()
                .map(|change| change.0)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (numbers(0), numbers(pause), numbers(resume)),
            (vec![pause, resume], vec![resume], vec![])
        );
        changes.end(resume);
        assert_eq!(numbers(0), [pause]);
        changes.end(pause);
        assert_eq!(numbers(0), [0_u64; 0]);
    }
}
