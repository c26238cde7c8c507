//! Changes to all keys: the known ones, and those that become known later.

use std::hash::Hash;
use std::sync::Arc;

use super::{Removed, Shard};
use crate::carry_over::UsageCarryOver;
use crate::contain_panic::contain_panic;
use crate::core::effects::Effects;
use crate::core::gate::plan::Plan;
use crate::core::schedule::Schedule;
use crate::core::suspension::PauseScope;
use crate::keyed::idle::KeptHash;
use crate::keyed::idle_state::IdleState;
use crate::keyed::probing::Probing;
use crate::keyed::shared::KeyedShared;
use crate::lock::Lock;
use crate::manager::{Manager, Unapplied};
use crate::observe::Observers;
use crate::strategy::Moment;

/// A change to all keys.
#[derive(Debug, Clone)]
pub(in crate::keyed) enum Change {
    /// Waiting requests are served if `drains` is set.
    Close {
        drains: bool,
    },
    /// A pause of this many nanoseconds.
    Pause(u64),
    Resume,
    SetPlan(Arc<Plan>, UsageCarryOver),
}

/// The order of the changes to all keys.
///
/// A change goes to one shard after the other, and several may be under way in different threads. Each shard applies all changes
/// that are under way in the order of their numbers, in the thread that reaches it first. So the keys of all shards end in the
/// same state.
#[derive(Debug, Default)]
pub(in crate::keyed) struct Changes(Lock<ChangeLog>);

#[derive(Debug, Default)]
struct ChangeLog {
    /// The number of the latest change.
    latest: u64,
    under_way: Vec<(u64, Change)>,
}

impl Changes {
    /// Records that a change is under way. Returns its number.
    pub(in crate::keyed) fn begin(&self, change: Change) -> u64 {
        let mut log = self.0.lock();
        log.latest += 1;
        let number = log.latest;
        log.under_way.push((number, change));
        number
    }

    /// The changes after this number that a shard may not have applied yet.
    pub(in crate::keyed) fn after(&self, number: u64) -> Vec<(u64, Change)> {
        self.0
            .lock()
            .under_way
            .iter()
            .filter(|change| change.0 > number)
            .cloned()
            .collect()
    }

    /// Records that all shards have applied this change.
    pub(in crate::keyed) fn end(&self, number: u64) {
        self.0.lock().under_way.retain(|change| change.0 != number);
    }
}

/// The follow-up work of a change. It runs foreign code, so it is done after the locks are released.
pub(in crate::keyed) struct Changed<K> {
    removed: Removed<K>,
    managers: Vec<(Arc<Manager>, Unapplied)>,
}

impl<K> Changed<K> {
    pub(in crate::keyed) fn nothing() -> Self {
        Self {
            removed: Removed::default(),
            managers: Vec::new(),
        }
    }

    pub(in crate::keyed) fn follow_up(self) {
        self.removed.discard();
        for (manager, unapplied) in self.managers {
            unapplied.apply(&manager);
            contain_panic(|| drop(manager)); // perhaps the last handle
        }
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static, const W: usize, H: KeptHash> Shard<K, W, H> {
    pub(in crate::keyed) fn change(
        &mut self,
        change: &Change,
        shared: &KeyedShared<K>,
        changed: &mut Changed<K>,
    ) {
        let now = self.clock.now();
        if !matches!(change, Change::Resume) {
            self.remove_unused_words(&mut changed.removed);
        }
        match change {
            Change::Close { drains } => {
                self.hold.get_or_insert_default().closed = true;
                self.change_managers(change, changed, |schedule, now, effects| {
                    schedule.close(now, *drains, effects);
                });
            }
            Change::Pause(nanos) => {
                let hold = self.hold.get_or_insert_default();
                hold.paused_until = hold.paused_until.max(Some(now.plus(*nanos)));
                self.change_managers(change, changed, |schedule, now, effects| {
                    let until = now.plus(*nanos);
                    schedule.pause(now, PauseScope::AllKeys, until, effects);
                });
            }
            Change::Resume => {
                if let Some(hold) = &mut self.hold {
                    hold.paused_until = None;
                }
                self.hold_at(now);
                self.change_managers(change, changed, |schedule, now, effects| {
                    schedule.resume(now, PauseScope::AllKeys, effects);
                });
            }
            Change::SetPlan(plan, carry) => {
                let former = self.tiers.replace_own(plan.deep_clone());
                let own = Arc::clone(&self.tiers.own().plan);
                self.change_managers(change, changed, |schedule, now, effects| {
                    schedule.set_plan(now, Arc::clone(&own), *carry, effects);
                });
                self.plan = self.tiers.fits(0).then(|| Arc::clone(plan));
                if self.plan.is_some() {
                    self.change_idle(&former.plan, *carry, now);
                } else {
                    self.activate_all(&former.plan, *carry, now, shared, &mut changed.removed);
                }
            }
        }
    }

    /// Removes the keys whose manager is one word with all places free. A change would allocate the state behind that word.
    fn remove_unused_words(&mut self, removed: &mut Removed<K>) {
        for slot in (0..self.active.slots()).rev() {
            if let Some(last) = self
                .unshared(slot)
                .and_then(|manager| manager.active_key().unused_word())
            {
                let key = self.remove_active(slot, last, removed);
                removed.key(key.map(|(_, key)| key));
            }
        }
    }

    /// Applies this change to each manager.
    fn change_managers(
        &self,
        change: &Change,
        changed: &mut Changed<K>,
        input: impl Fn(&mut Schedule, Moment, &mut Effects),
    ) {
        for manager in self.active.iter().map(|active| &active.value) {
            let key = manager.active_key();
            if matches!(change, Change::Resume) && key.is_only_a_word() {
                continue; // it was never paused
            }
            let unapplied = key.change_later(&input);
            changed
                .managers
                .extend(unapplied.map(|unapplied| (Arc::clone(manager), unapplied)));
        }
    }

    /// Carries over the usage of all idle keys.
    fn change_idle(&mut self, former: &Arc<Plan>, carry: UsageCarryOver, now: Moment) {
        for idle in self.idle.iter_mut() {
            let state = IdleState {
                plan: former,
                words: &mut idle.value,
            };
            let gate = state.gate(0, now);
            idle.value = self.tiers.carry_over(gate, 0, carry, now);
        }
    }

    /// Makes all idle keys active, because their states do not fit into words any more. Reset ones are removed.
    fn activate_all(
        &mut self,
        former: &Arc<Plan>,
        carry: UsageCarryOver,
        now: Moment,
        shared: &KeyedShared<K>,
        removed: &mut Removed<K>,
    ) {
        let hold = self.hold_at(now);
        for mut idle in std::mem::replace(&mut self.idle, Probing::new()).into_entries() {
            let hash = idle.hash(&self.hasher);
            let state = IdleState {
                plan: former,
                words: &mut idle.value,
            };
            let mut gate = state.gate(self.fence, now);
            let key = idle.key;
            gate.set_plan(Arc::clone(&self.tiers.own().plan), now, carry);
            if gate.limits().reset_at(now) <= now {
                removed.key(Some(key));
                continue;
            }
            let mut observer = Observers::NONE;
            contain_panic(|| observer = shared.observers.of_key(Some(&key)));
            let common = Arc::clone(self.tiers.own());
            let number = shared.next_number();
            let manager = Manager::of_key(common, number, gate, &self.clock, observer, hold);
            self.insert_active(hash, key, manager);
        }
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
