//! Changes to all keys: those that a shard knows, and those that come later.

use std::hash::Hash;
use std::sync::Arc;

use super::{Removed, Shard};
use crate::carry_over::UsageCarryOver;
use crate::contain_panic::contain_panic;
use crate::core::plan::Plan;
use crate::core::suspension::Hold;
use crate::keyed::idle::{Idle, KeptHash};
use crate::keyed::probing::Probing;
use crate::keyed::shared::Shared;
use crate::keyed::tier::Tier;
use crate::manager::{Manager, ManagerParts, Unapplied};
use crate::observe::Observers;
use crate::strategy::Moment;

/// A change to all keys.
#[derive(Debug, Clone)]
pub(in crate::keyed) enum Change {
    Close,
    CloseToNew,
    /// For so many nanoseconds.
    Pause(u64),
    Resume,
    SetPlan(Arc<Plan>, UsageCarryOver),
}

/// What a change leaves to be done when no lock is held, because it runs foreign code.
pub(in crate::keyed) struct Changed<K> {
    removed: Removed<K>,
    managers: Vec<(Arc<Manager>, Unapplied)>,
}

impl<K> Changed<K> {
    pub(in crate::keyed) fn nothing() -> Self {
        Self { removed: Removed::default(), managers: Vec::new() }
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
    pub(in crate::keyed) fn change(&mut self, change: &Change, shared: &Shared<K>, changed: &mut Changed<K>) {
        let now = self.clock.now();
        if !matches!(change, Change::Resume) {
            self.remove_unused_words(&mut changed.removed);
        }
        match change {
            Change::Close => {
                self.hold_mut().closed = true;
                self.change_managers(changed, Manager::close_later);
            }
            Change::CloseToNew => {
                self.hold_mut().closed = true;
                self.change_managers(changed, Manager::close_to_new_later);
            }
            Change::Pause(nanos) => {
                let hold = self.hold_mut();
                hold.paused_until = hold.paused_until.max(Some(now.plus(*nanos)));
                self.change_managers(changed, |manager| manager.pause_later(*nanos));
            }
            Change::Resume => {
                self.hold.iter_mut().for_each(|hold| hold.paused_until = None);
                self.hold_at(now);
                self.change_managers(changed, Manager::resume_later);
            }
            Change::SetPlan(plan, carry) => {
                let former = self.tiers.replace_own(plan.deep_clone());
                let own = Arc::clone(self.tiers.own().plan());
                self.change_managers(changed, |manager| manager.set_plan_later(&own, *carry));
                self.plan = self.tiers.fits(0).then(|| Arc::clone(plan));
                if self.plan.is_some() {
                    self.change_idle(&former, *carry, now);
                } else {
                    self.activate_all(&former, *carry, now, shared, &mut changed.removed);
                }
            }
        }
    }

    fn hold_mut(&mut self) -> &mut Hold {
        self.hold.get_or_insert_default()
    }

    /// Removes the keys whose manager is a word with all its places: a change would allocate the state behind it.
    fn remove_unused_words(&mut self, removed: &mut Removed<K>) {
        for slot in (0..self.active.slots()).rev() {
            if let Some(last) = self.unshared(slot).and_then(|manager| manager.unused_word()) {
                self.remove_active(slot, last, removed).into_iter().for_each(|(_, key)| removed.key(key));
            }
        }
    }

    fn change_managers(&self, changed: &mut Changed<K>, change: impl Fn(&Arc<Manager>) -> Option<Unapplied>) {
        for manager in self.active.iter().map(|active| &active.manager) {
            changed.managers.extend(change(manager).map(|unapplied| (Arc::clone(manager), unapplied)));
        }
    }

    /// Carries the usage of all idle keys over.
    fn change_idle(&mut self, former: &Tier, carry: UsageCarryOver, now: Moment) {
        let Self { idle, tiers, .. } = self;
        for idle in idle.iter_mut() {
            let mut gate = former.state(&mut idle.words).gate(0, now);
            gate.set_plan(Arc::clone(tiers.own().plan()), now, carry);
            idle.words = tiers.words(0);
            tiers.state(&mut idle.words).restore(gate.states().into_iter().flatten());
        }
    }

    /// Makes all idle keys active, because their states do not fit into words any more. Reset ones are removed.
    fn activate_all(&mut self, former: &Tier, carry: UsageCarryOver, now: Moment, shared: &Shared<K>, removed: &mut Removed<K>) {
        let hold = self.hold_at(now).unwrap_or_default();
        for Idle { key, mut words, hash } in std::mem::replace(&mut self.idle, Probing::new()).into_entries() {
            let mut gate = former.state(&mut words).gate(self.fence, now);
            gate.set_plan(Arc::clone(self.tiers.own().plan()), now, carry);
            if gate.reset_at(now) <= now {
                removed.key(key);
                continue;
            }
            let mut observer = Observers::NONE;
            contain_panic(|| observer = shared.observer_of(&key));
            let (common, number, clock) = (Arc::clone(&self.tiers.own().common), shared.numbers.next(), self.clock.clone());
            let manager = Manager::open(ManagerParts { common, number, gate, clock, observer, hold });
            self.insert_active(hash.of(&key, &self.hasher), key, manager);
        }
    }
}
