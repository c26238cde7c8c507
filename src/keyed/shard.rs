//! A shard of a keyed limiter: some of the keys, under a lock of their own.
//!
//! A key is *idle* or *active*. An idle key is only the state of its limits. A key is active while it has waiters or places in
//! flight, or while its limiter is held. An active key has a manager like any limiter; for plain places the manager is little
//! more than a word until a request waits. The key becomes idle again when the manager is no longer needed.
//!
//! The only foreign code here is the `Eq` of keys, before anything has changed, and their `Clone`: for [`Shard::snapshots`], and
//! for the observers of the keys that a change makes active. Removed keys are collected in [`Removed`] and dropped when no lock is
//! held.
//!
//! A [`Change`] is for all keys: the known ones, and those that become known later.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::sync::atomic::{Ordering::Acquire, fence};

use foldhash::quality::SeedableRandomState;
use parking_lot::Mutex;

use super::key::{
    Active, Idle, IdleKey, IdleState, KeptHash, KeyEntry, KeyRef, KeySnapshot, KeyWord,
};
use super::probing::Probing;
use super::shared::{KeyedShared, Tiers};
use crate::carry_over::UsageCarryOver;
use crate::contain_panic::contain_panic;
use crate::core::effects::Effects;
use crate::core::gate::Gate;
use crate::core::gate::plan::Plan;
use crate::core::schedule::Schedule;
use crate::core::suspension::{AllKeysHold, PauseScope};
use crate::manager::{AtRest, Clock, FinalTotals, Manager, Unapplied};
use crate::observe::Observers;
use crate::snapshot::KeyTotals;
use crate::strategy::{Moment, Strategy};

/// A shard. The fields that a grant to an idle key needs come first, next to the lock.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Shard<K, const W: usize, H> {
    pub(super) clock: Clock,
    pub(super) idle: Probing<Idle<K, W, H>>,
    /// The plan of all keys, if all can be idle and none has a tier: a request of an idle key is then decided at once. All shards
    /// share it.
    pub(super) plan: Option<Arc<Plan>>,
    /// The pause or the closing of all keys; [`Shard::hold_at`] removes it when it is over.
    pub(super) hold: Option<Box<AllKeysHold>>,
    /// The random part of the ids of permits of idle keys.
    pub(super) id_prefix: u64,
    /// At least the fence of the latest grant to an idle key.
    pub(super) fence: u64,
    active: Probing<Active<K, H>>,
    pub(super) tiers: Tiers,
    hasher: SeedableRandomState,
    /// The number of the latest change to all keys.
    pub(super) changes: u64,
    /// The number of removed managers that had granted places.
    removals: u64,
    /// The counts of idle keys, and of managers that were removed. Its `granted` does not include the grants to idle keys, which
    /// `fence` counts. The fences with which the present managers began are subtracted.
    pub(super) counted: KeyTotals,
    /// Calls other than grants to idle keys.
    accesses: u32,
    /// Where the next check for removable keys begins.
    idle_cursor: usize,
    active_cursor: usize,
}

/// How many keys a call checks for removal. Checking an active key takes some hundred nanoseconds; an idle key, or a key that is
/// only a word, takes a few.
#[derive(Clone, Copy)]
pub(super) struct Samples {
    pub(super) idle: usize,
    pub(super) active: usize,
}

#[cfg(test)]
thread_local! {
    /// How many active keys were checked in this thread.
    pub(super) static CHECKED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The result of a look at the keys of one shard.
pub(super) struct Look {
    /// The keys in use.
    pub(super) in_use: Vec<Arc<Manager>>,
    /// How many keys were looked at.
    pub(super) asked: usize,
    /// A number that changes with each grant of a place.
    pub(super) mark: u64,
}

/// Keys and managers (with their observers) that were removed from a shard. Their drops run foreign code.
#[derive(Debug)]
pub(super) struct Removed<K> {
    keys: Vec<K>,
    managers: Vec<Arc<Manager>>,
}

impl<K> Default for Removed<K> {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            managers: Vec::new(),
        }
    }
}

impl<K> Removed<K> {
    /// Drops everything. The caller must hold no lock. A panic in the drop of a key must not reach the call that happens to
    /// remove it.
    pub(super) fn discard(self) {
        let Self { keys, managers } = self;
        keys.into_iter().for_each(|key| contain_panic(|| drop(key)));
        managers
            .into_iter()
            .for_each(|manager| contain_panic(|| drop(manager)));
    }

    fn key(&mut self, key: Option<K>) {
        if std::mem::needs_drop::<K>() {
            self.keys.extend(key);
        }
    }
}

impl<K: Hash + Eq, const W: usize, H: KeptHash> Shard<K, W, H> {
    pub(super) fn new(
        clock: Clock,
        id_prefix: u64,
        tiers: Tiers,
        hasher: SeedableRandomState,
        plan: Option<Arc<Plan>>,
    ) -> Self {
        Self {
            clock,
            idle: Probing::new(),
            plan,
            hold: None,
            id_prefix,
            fence: 0,
            active: Probing::new(),
            tiers,
            hasher,
            changes: 0,
            removals: 0,
            counted: KeyTotals::default(),
            accesses: 0,
            idle_cursor: 0,
            active_cursor: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.idle.len() + self.active.len()
    }

    pub(super) fn has_active(&self) -> bool {
        self.active.len() > 0
    }

    /// Counts a call. Returns whether this call must check for removable keys.
    pub(super) fn count_access(&mut self) -> bool {
        /// Calls between two such checks.
        const EVERY: u32 = 8;
        self.accesses = self.accesses.wrapping_add(1);
        self.accesses.is_multiple_of(EVERY)
    }

    /// The pause or the closing of all keys, if it still holds.
    pub(super) fn hold_at(&mut self, now: Moment) -> Option<AllKeysHold> {
        self.hold.take_if(|hold| hold.is_over(now));
        self.hold.as_deref().copied()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.closed)
    }

    /// The keys in use: those with a waiter or a place in flight.
    pub(super) fn look(&self) -> Look {
        let (mut in_use, mut mark) = (Vec::new(), self.removals);
        for manager in self.active.iter().map(|active| &active.value) {
            match manager.active_key().drained_after() {
                Some(0) => {}
                Some(grants) => {
                    mark = mark.wrapping_add(self.hasher.hash_one((manager.id_prefix(), grants)));
                }
                None => in_use.push(Arc::clone(manager)),
            }
        }
        Look {
            in_use,
            asked: self.active.len(),
            mark,
        }
    }

    /// Sums over the keys of the shard, also over removed ones.
    pub(super) fn totals(&self) -> KeyTotals {
        let mut totals = KeyTotals {
            granted: self.counted.granted.wrapping_add(self.fence),
            ..self.counted
        };
        self.active
            .iter()
            .for_each(|active| totals.add(active.value.totals()));
        totals
    }

    /// Finds a key: the manager of an active one, or else the slot of an idle one. The `Eq` of keys runs here; nothing has changed
    /// when it panics.
    pub(super) fn find(
        &self,
        hash: u64,
        key: &(impl KeyRef<K> + ?Sized),
    ) -> (Option<Arc<Manager>>, Option<usize>) {
        let active = self.active.find(hash, |active| active.is(hash, key));
        if let Some(active) = active.and_then(|slot| self.active.get(slot)) {
            return (Some(Arc::clone(&active.value)), None);
        }
        (None, self.idle.find(hash, |idle| idle.is(hash, key)))
    }

    /// The state of an idle key.
    pub(super) fn key_state(&mut self, slot: usize) -> Option<IdleState<'_>> {
        Some(self.tiers.state(&mut self.idle.get_mut(slot)?.value))
    }

    pub(super) fn tier_at(&self, slot: usize) -> usize {
        self.idle
            .get(slot)
            .map_or(0, |idle| self.tiers.number_in(&idle.value))
    }

    /// Inserts a reset idle key of a known tier. Returns its slot.
    pub(super) fn insert_new(&mut self, hash: u64, key: K, tier: usize, now: Moment) -> usize {
        let rules = self.tiers.get(tier).plan.words();
        let words = self
            .tiers
            .restored(tier, rules.map(|(rule, _)| rule.initial(now)));
        self.insert_idle(hash, key, words)
    }

    fn insert_idle(&mut self, hash: u64, key: K, words: [KeyWord; W]) -> usize {
        let idle = KeyEntry::new(hash, key, words);
        self.idle.insert(hash, idle, |idle| idle.hash(&self.hasher))
    }

    /// Inserts an active key. Its manager must have begun with the present fence.
    pub(super) fn insert_active(&mut self, hash: u64, key: K, manager: Arc<Manager>) {
        self.counted.granted = self.counted.granted.wrapping_sub(self.fence);
        let active = KeyEntry::new(hash, key, manager);
        self.active
            .insert(hash, active, |active| active.hash(&self.hasher));
    }

    /// An idle key, for a request.
    pub(super) fn idle_key(
        &mut self,
        slot: usize,
        hold: Option<AllKeysHold>,
        now: Moment,
    ) -> Option<IdleKey<'_>> {
        let idle = self.idle.get_mut(slot)?;
        Some(IdleKey {
            state: self.tiers.state(&mut idle.value),
            hold,
            id_prefix: self.id_prefix,
            fence: &mut self.fence,
            denied: &mut self.counted.denied,
            now,
            origin: self.clock.origin(),
        })
    }

    /// Moves an idle key to another tier. Its usage carries over.
    pub(super) fn change_tier(&mut self, slot: usize, tier: usize, now: Moment) {
        if let Some(idle) = self.idle.get_mut(slot) {
            let gate = self.tiers.state(&mut idle.value).gate(0, now);
            idle.value = self.tiers.carry_over(gate, tier, UsageCarryOver::AsIs, now);
        }
    }

    /// Removes an idle key that gets a manager of this tier, which may differ from its present tier. Usage carries over.
    pub(super) fn take_idle(&mut self, slot: usize, tier: usize, now: Moment) -> Option<(K, Gate)> {
        let former = self.tier_at(slot);
        let fence = self.fence;
        let mut gate = self.key_state(slot)?.gate(fence, now);
        if tier != former {
            let plan = Arc::clone(&self.tiers.get(tier).plan);
            gate.set_plan(plan, now, UsageCarryOver::AsIs);
        }
        Some((self.remove_idle(slot)?, gate))
    }

    /// Checks a few idle keys and a few active ones. Reset keys are removed; active keys whose manager is not needed become idle.
    pub(super) fn reap(
        &mut self,
        Samples { idle, active }: Samples,
        now: Moment,
        removed: &mut Removed<K>,
    ) {
        for _ in 0..idle.min(self.idle.slots()) {
            self.idle_cursor = before(self.idle_cursor, self.idle.slots());
            let slot = self.idle_cursor;
            if self
                .key_state(slot)
                .is_some_and(|key_state| key_state.reset_at(now) <= now)
            {
                removed.key(self.remove_idle(slot));
            }
        }
        for _ in 0..active.min(self.active.len()) {
            if let Some(slot) = self.next_active() {
                self.deactivate(slot, removed);
            }
        }
        self.idle.shrink(|idle| idle.hash(&self.hasher));
        self.active.shrink(|active| active.hash(&self.hasher));
    }

    /// Checks a few keys, and removes the one that would be reset first: an idle one, or if there is none, an active one whose
    /// manager is not needed. If none of these can be removed, it checks up to `most` active keys until one can. Returns the key,
    /// and when it would have been reset.
    pub(super) fn evict(
        &mut self,
        samples: Samples,
        most: usize,
        now: Moment,
        removed: &mut Removed<K>,
    ) -> Option<(K, Moment)> {
        self.evict_idle(samples.idle, now)
            .or_else(|| self.evict_active(samples.active, most, removed))
    }

    fn evict_idle(&mut self, samples: usize, now: Moment) -> Option<(K, Moment)> {
        let slots = self.idle.slots();
        let start = self.idle_cursor.min(slots);
        let below_cursor_first = (0..start).rev().chain((start..slots).rev());
        let (reset_at, slot) = below_cursor_first
            .filter_map(|slot| Some((self.key_state(slot)?.reset_at(now), slot)))
            .take(samples)
            .min()?;
        self.idle_cursor = slot;
        Some((self.remove_idle(slot)?, reset_at))
    }

    fn evict_active(
        &mut self,
        samples: usize,
        most: usize,
        removed: &mut Removed<K>,
    ) -> Option<(K, Moment)> {
        let mut soonest: Option<(usize, AtRest)> = None;
        for sample in 0..most.min(self.active.len()) {
            if sample >= samples && soonest.is_some() {
                break;
            }
            let slot = self.next_active()?;
            let rest = self
                .unshared(slot)
                .and_then(|manager| manager.active_key().rest());
            if let Some(rest) = rest
                && soonest
                    .as_ref()
                    .is_none_or(|(_, soonest)| rest.reset_at < soonest.reset_at)
            {
                soonest = Some((slot, rest));
            }
        }
        let (slot, AtRest { reset_at, last, .. }) = soonest?;
        Some((self.remove_active(slot, last, removed)?.1, reset_at))
    }

    fn remove_idle(&mut self, slot: usize) -> Option<K> {
        Some(self.idle.remove(slot, |idle| idle.hash(&self.hasher))?.key)
    }

    /// The slot of the next active key.
    fn next_active(&mut self) -> Option<usize> {
        for _ in 0..self.active.slots() {
            self.active_cursor = before(self.active_cursor, self.active.slots());
            if self.active.get(self.active_cursor).is_some() {
                return Some(self.active_cursor);
            }
        }
        None
    }

    /// The manager of an active key, if the shard has the only handle. New handles are cloned only under the shard's lock; a
    /// driver may hold one for a moment, and changes nothing if no request waits.
    fn unshared(&self, slot: usize) -> Option<&Arc<Manager>> {
        #[cfg(test)]
        CHECKED.set(CHECKED.get() + 1);
        let manager = self
            .active
            .get(slot)
            .map(|active| &active.value)
            .filter(|manager| Arc::strong_count(manager) == 1);
        fence(Acquire); // all uses of a handle happen before its drop, and the count includes the decrement of that drop
        manager
    }

    /// Makes an active key idle if its manager is not needed. A reset key is removed.
    fn deactivate(&mut self, slot: usize, removed: &mut Removed<K>) -> Option<()> {
        let key = self.unshared(slot)?.active_key();
        let AtRest { is_new, last, .. } = key.rest()?;
        if is_new {
            let (_, key) = self.remove_active(slot, last, removed)?;
            removed.key(Some(key));
        } else if self.tiers.any_fits() {
            let (policy, states) = key.at_rest()?;
            let tier = self.tiers.number_of(&policy)?;
            let words = self.tiers.restored(tier, states.into_iter());
            let (hash, key) = self.remove_active(slot, last, removed)?;
            self.insert_idle(hash, key, words);
        }
        Some(())
    }

    /// Removes an active key whose manager is not needed. If the key returns, its fences continue from here.
    fn remove_active(
        &mut self,
        slot: usize,
        last: FinalTotals,
        removed: &mut Removed<K>,
    ) -> Option<(u64, K)> {
        let active = self
            .active
            .remove(slot, |active| active.hash(&self.hasher))?;
        let hash = active.hash(&self.hasher);
        removed.managers.push(active.value);
        let fence = self.fence.max(last.totals.granted);
        self.counted.add(last.totals);
        self.counted.granted = self.counted.granted.wrapping_sub(fence - self.fence);
        self.fence = fence;
        self.removals += u64::from(last.holds_places);
        if let Some(clock) = last.clock {
            self.clock.catch_up(clock);
        }
        Some((hash, active.key))
    }

    /// The idle keys with their states, and the active ones with their managers. The `Clone` of keys runs here; nothing changes
    /// when it panics.
    #[expect(clippy::type_complexity, reason = "it has one caller")]
    pub(super) fn snapshots(&mut self) -> (Vec<(K, KeySnapshot)>, Vec<(K, Arc<Manager>)>)
    where
        K: Clone,
    {
        let now = self.clock.now();
        let hold = self.hold_at(now);
        let idle = self.idle.iter_mut().map(|KeyEntry { key, value, .. }| {
            let state = self.tiers.state(value);
            (key.clone(), KeySnapshot::of_idle(&state, hold, now))
        });
        let active = self.active.iter();
        (
            idle.collect(),
            active
                .map(|active| (active.key.clone(), Arc::clone(&active.value)))
                .collect(),
        )
    }
}

/// A change to all keys.
#[derive(Debug, Clone)]
pub(super) enum Change {
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
        let mut log = self.0.lock();
        log.latest += 1;
        let number = log.latest;
        log.under_way.push((number, change));
        number
    }

    /// The changes after this number that a shard may not have applied yet.
    pub(super) fn after(&self, number: u64) -> Vec<(u64, Change)> {
        self.0
            .lock()
            .under_way
            .iter()
            .filter(|change| change.0 > number)
            .cloned()
            .collect()
    }

    /// Records that all shards have applied this change.
    pub(super) fn end(&self, number: u64) {
        self.0.lock().under_way.retain(|change| change.0 != number);
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static, const W: usize, H: KeptHash> Shard<K, W, H> {
    /// Applies a change to all keys of the shard. Adds the work that the caller must do when it holds no lock, because it runs
    /// foreign code: the drop of the removed keys, and the rest of the change of each manager.
    pub(super) fn change(
        &mut self,
        change: &Change,
        shared: &KeyedShared<K>,
        removed: &mut Removed<K>,
        unapplied: &mut Vec<(Arc<Manager>, Unapplied)>,
    ) {
        let now = self.clock.now();
        if !matches!(change, Change::Resume) {
            self.remove_unused_words(removed);
        }
        match change {
            Change::Close { drains } => {
                self.hold.get_or_insert_default().closed = true;
                self.change_managers(change, unapplied, |schedule, now, effects| {
                    schedule.close(now, *drains, effects);
                });
            }
            Change::Pause(nanos) => {
                let hold = self.hold.get_or_insert_default();
                hold.paused_until = hold.paused_until.max(Some(now.plus(*nanos)));
                self.change_managers(change, unapplied, |schedule, now, effects| {
                    let until = now.plus(*nanos);
                    schedule.pause(now, PauseScope::AllKeys, until, effects);
                });
            }
            Change::Resume => {
                if let Some(hold) = &mut self.hold {
                    hold.paused_until = None;
                }
                self.hold_at(now);
                self.change_managers(change, unapplied, |schedule, now, effects| {
                    schedule.resume(now, PauseScope::AllKeys, effects);
                });
            }
            Change::SetPlan(plan, carry) => {
                let former = self.tiers.replace_own(plan.deep_clone());
                let own = Arc::clone(&self.tiers.own().plan);
                self.change_managers(change, unapplied, |schedule, now, effects| {
                    schedule.set_plan(now, Arc::clone(&own), *carry, effects);
                });
                self.plan = self.tiers.fits(0).then(|| Arc::clone(plan));
                if self.plan.is_some() {
                    self.change_idle(&former.plan, *carry, now);
                } else {
                    self.activate_all(&former.plan, *carry, now, shared, removed);
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
        unapplied: &mut Vec<(Arc<Manager>, Unapplied)>,
        input: impl Fn(&mut Schedule, Moment, &mut Effects),
    ) {
        for manager in self.active.iter().map(|active| &active.value) {
            let key = manager.active_key();
            if matches!(change, Change::Resume) && key.is_only_a_word() {
                continue; // it was never paused
            }
            let rest = key.change_later(&input);
            unapplied.extend(rest.map(|rest| (Arc::clone(manager), rest)));
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

/// The slot that is checked after this one. A removal moves keys from later slots, which were just checked, to earlier ones.
fn before(slot: usize, slots: usize) -> usize {
    if 0 < slot && slot <= slots {
        slot - 1
    } else {
        slots.saturating_sub(1)
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
