//! The shards of a keyed limiter, and the bound on the number of keys in all of them.

use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use foldhash::quality::SeedableRandomState;
use parking_lot::{Mutex, MutexGuard};

use super::key::KeptHash;
use super::shard::{Removed, Samples, Shard};
use crate::strategy::Moment;

/// What happens to a new key when [`max_keys`](crate::KeyedLimiterBuilder::max_keys) keys are known and none that was checked is
/// reset. See [`KeyedLimiterBuilder::when_full`](crate::KeyedLimiterBuilder::when_full) for an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenFull {
    /// The new key is refused with [`TooManyKeys`](crate::TryAcquireError::TooManyKeys). No known key is evicted.
    #[default]
    Deny,
    /// A search compares up to 32 idle keys, or 8 active ones if none is idle. The key among them that would be reset first is
    /// forgotten, with its usage. Keys with permits in flight or waiting requests, and keys whose limiter is held, stay.
    ///
    /// With `max_keys` of at most 1,024, a new key is refused only if all known keys have to stay. In a larger table the search
    /// is bounded, so that a refusal does not take longer the more keys there are: a new key is refused if all checked keys
    /// have to stay, about 150 of them. Keys that another call is using are not checked.
    EvictSoonestReset,
}

/// The keys that an access to a key checks.
pub(super) const ON_THE_WAY: Samples = Samples { idle: 4, active: 2 };
/// The keys that are checked when there is no room for a new key: in its shard, and in one more.
const WHEN_FULL: Samples = Samples {
    idle: 64,
    active: 3,
};
/// The keys to choose from at an eviction: the one that would be reset first is evicted. If none can be evicted, [`Shard::evict`]
/// checks some more.
const EVICTION: Samples = Samples {
    idle: 32,
    active: 8,
};

/// A table of at most this many keys fits the processor's caches, so all of it is searched for a key that can be evicted.
const SMALL: usize = 1_024;
/// The bounds of that search in a larger table, where the work of a refusal must not grow with the number of keys: the number of
/// active keys that are checked in a shard (a manager with another handle is recognised at once), and the number of shards after
/// the new key's own.
const SEARCHED_ACTIVE: usize = 48;
const SEARCHED_SHARDS: usize = 2;

/// Two cache lines, which processors load together: no two shards share them.
#[repr(align(128))]
struct LockedShard<K, const W: usize, H>(Mutex<Shard<K, W, H>>);

pub(super) type ShardGuard<'a, K, const W: usize, H> = MutexGuard<'a, Shard<K, W, H>>;

pub(super) struct Shards<K, const W: usize, H> {
    shards: Box<[LockedShard<K, W, H>]>,
    hasher: SeedableRandomState,
    when_full: WhenFull,
    pub(super) max_keys: usize,
    len: AtomicUsize,
    /// The shard that is searched next when there is no room.
    next: AtomicUsize,
}

impl<K, const W: usize, H> Shards<K, W, H> {
    pub(super) fn count(&self) -> usize {
        self.shards.len()
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Relaxed)
    }
}

impl<K: Hash + Eq, const W: usize, H: KeptHash> Shards<K, W, H> {
    pub(super) fn new(
        shards: impl Iterator<Item = Shard<K, W, H>>,
        hasher: SeedableRandomState,
        max_keys: usize,
        when_full: WhenFull,
    ) -> Self {
        let shards = shards.map(|shard| LockedShard(Mutex::new(shard))).collect();
        Self {
            shards,
            hasher,
            when_full,
            max_keys,
            len: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
        }
    }

    #[inline(always)]
    pub(super) fn hash(&self, key: &(impl Hash + ?Sized)) -> u64 {
        self.hasher.hash_one(key)
    }

    /// The shard of a key. The only foreign code under its lock is the `Eq` and `Clone` of keys. A panic in that code has changed
    /// nothing, so the shard goes on to serve.
    #[inline(always)]
    pub(super) fn lock(&self, hash: u64) -> ShardGuard<'_, K, W, H> {
        // These bits differ from those that choose the slot.
        let index = (u64::from((hash >> 25) as u32) * self.shards.len() as u64) >> 32;
        self.get(index as usize)
    }

    /// The shard of this number, below [`Shards::count`].
    #[inline(always)]
    pub(super) fn get(&self, index: usize) -> ShardGuard<'_, K, W, H> {
        self.shards[index].0.lock()
    }

    /// Changes a shard by a closure that may remove keys.
    pub(super) fn change(&self, index: usize, change: impl FnOnce(&mut Shard<K, W, H>)) {
        self.count_removed(&mut self.get(index), change);
    }

    /// [`Shards::change`] for a shard that is locked.
    fn count_removed(&self, shard: &mut Shard<K, W, H>, change: impl FnOnce(&mut Shard<K, W, H>)) {
        let before = shard.len();
        change(shard);
        if shard.len() < before {
            self.len.fetch_sub(before - shard.len(), Relaxed);
        }
    }

    /// Whether there is room for one new key now.
    pub(super) fn has_room(&self) -> bool {
        self.when_full != WhenFull::Deny || self.len() < self.max_keys
    }

    /// [`Shards::reap`] for a guard, which is dropped before the removed keys are.
    #[cold]
    pub(super) fn reap_and_unlock(&self, mut shard: ShardGuard<'_, K, W, H>, now: Moment) {
        let mut removed = Removed::default();
        self.reap(&mut shard, ON_THE_WAY, now, &mut removed);
        drop(shard);
        removed.discard();
    }

    /// Checks a few keys for removal.
    pub(super) fn reap(
        &self,
        shard: &mut Shard<K, W, H>,
        samples: Samples,
        now: Moment,
        removed: &mut Removed<K>,
    ) {
        self.count_removed(shard, |shard| shard.reap(samples, now, removed));
    }

    /// Counts one more key, if there is room. Otherwise checks a few keys here and in other shards that are not locked. The work
    /// does not grow with the number of keys beyond [`SMALL`].
    pub(super) fn make_room(
        &self,
        shard: &mut Shard<K, W, H>,
        now: Moment,
        evicted: &mut Option<(K, Moment)>,
        removed: &mut Removed<K>,
    ) -> bool {
        if self.count_one_more() {
            return true;
        }
        self.reap(shard, WHEN_FULL, now, removed);
        let first_other = self.next.fetch_add(1, Relaxed) % self.shards.len();
        if let Some(mut other) = self.try_lock(first_other) {
            let now = other.clock.now();
            self.reap(&mut other, WHEN_FULL, now, removed);
        }
        if self.count_one_more() {
            return true;
        }
        if self.when_full == WhenFull::Deny {
            return false;
        }
        let (most_active, most_shards) = if self.max_keys <= SMALL {
            (usize::MAX, usize::MAX)
        } else {
            (SEARCHED_ACTIVE, SEARCHED_SHARDS)
        };
        let others = (first_other..self.shards.len())
            .chain(0..first_other)
            .take(most_shards);
        *evicted = shard
            .evict(EVICTION, most_active, now, removed)
            .or_else(|| {
                others
                    .filter_map(|index| self.try_lock(index))
                    .find_map(|mut other| {
                        let now = other.clock.now();
                        other.evict(EVICTION, most_active, now, removed)
                    })
            });
        evicted.is_some() // the new key takes its place
    }

    /// A shard, unless it is locked.
    fn try_lock(&self, index: usize) -> Option<ShardGuard<'_, K, W, H>> {
        self.shards[index].0.try_lock()
    }

    /// Counts one more key, if there is room.
    pub(super) fn count_one_more(&self) -> bool {
        let more = |len| (len < self.max_keys).then_some(len + 1);
        self.len.fetch_update(Relaxed, Relaxed, more).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::keyed::shard::CHECKED;
    use crate::keyed::table::with_table;
    use crate::{
        FixedWindow, KeyedLimiter, MaxConcurrency, Outcome, Throttle, UsageCarryOver, WhenFull,
    };

    /// How many active keys a refusal checks when `keys` are known and all are held.
    fn checked(keys: u64) -> usize {
        const REFUSALS: u64 = 100;
        let builder = KeyedLimiter::<u64>::builder(MaxConcurrency::new(1)).max_keys(keys as usize);
        let keyed = builder
            .when_full(WhenFull::EvictSoonestReset)
            .build()
            .unwrap();
        let _held: Vec<_> = (0..keys).map(|key| keyed.limiter(&key).unwrap()).collect();
        CHECKED.set(0);
        assert!((keys..keys + REFUSALS).all(|key| keyed.try_acquire(&key).is_err()));
        CHECKED.get().div_ceil(REFUSALS as usize)
    }

    #[test]
    fn a_refusal_checks_all_keys_of_a_small_table_and_few_of_a_large_one() {
        assert!(
            (1_024..=1_040).contains(&checked(1_024)),
            "{}",
            checked(1_024)
        );
        for keys in [1_025, 40_000] {
            assert!(checked(keys) <= 160, "{} for {keys} keys", checked(keys));
        }
    }

    /// The marks of all shards.
    fn marks(keyed: &KeyedLimiter<u64>) -> Vec<u64> {
        with_table!(&*keyed.table, |table| {
            let shards = 0..table.shards.count();
            shards
                .map(|shard| table.shards.get(shard).look().mark)
                .collect()
        })
    }

    #[test]
    fn a_pause_removes_keys_with_all_places_free_and_their_shard_shows_that_there_was_a_grant() {
        let keyed = KeyedLimiter::<u64>::new(MaxConcurrency::new(1)).unwrap();
        let before = marks(&keyed);
        drop(keyed.try_acquire(&7).unwrap());
        assert_eq!(keyed.len(), 1);
        keyed.resume();
        assert_eq!(keyed.len(), 1, "an end of a pause removes none");
        keyed.pause_for(Duration::from_secs(1));
        assert_eq!(keyed.len(), 0);
        assert_ne!(marks(&keyed), before);
    }

    #[test]
    fn keys_are_in_all_shards() {
        let keyed = KeyedLimiter::<u64>::new(Throttle::every(Duration::from_secs(60))).unwrap();
        (0..20_000).for_each(|key| drop(keyed.try_acquire(&key).unwrap()));
        with_table!(&*keyed.table, |table| {
            let shards = table.shards.count();
            assert!(shards > 500);
            assert!((0..shards).all(|shard| table.shards.get(shard).len() > 0));
        });
    }

    #[test]
    fn the_usage_of_idle_keys_is_carried_over_to_another_policy() {
        let window = |limit| FixedWindow::new(limit, Duration::from_secs(3_600));
        let keyed = KeyedLimiter::<u64>::new(window(10)).unwrap();
        drop(keyed.try_acquire_many(&7, 4).unwrap());
        for (limit, remaining) in [(20, 12), (5, 3), (100, 60)] {
            keyed
                .set_policy_with(window(limit), UsageCarryOver::InProportion)
                .unwrap();
            assert_eq!(keyed.check(&7, 1).remaining(), remaining);
        }
    }

    #[test]
    fn a_key_becomes_idle_when_its_limiter_is_not_held_any_more() {
        let window = FixedWindow::new(10, Duration::from_secs(3_600));
        let builder = || KeyedLimiter::<u64>::builder(window).max_keys(1);
        for keyed in [builder(), builder().tiers(move |_| window.into())].map(|b| b.build()) {
            let keyed = keyed.unwrap();
            let is_active = || with_table!(&*keyed.table, |table| table.shards.get(0).has_active());
            let limiter = keyed.limiter(&7).unwrap();
            drop(limiter.try_acquire_many(4).unwrap());
            assert!(is_active());
            drop(limiter);
            (0..16).for_each(|_| _ = keyed.snapshot(&7));
            assert!(!is_active());
            assert_eq!(keyed.check(&7, 1).remaining(), 6);
        }
    }

    /// The manager of a key with plain places allocates its state when a request waits, and not before.
    #[test]
    fn a_place_is_settled_and_reported_without_a_state() {
        let builder = KeyedLimiter::<u64>::builder(MaxConcurrency::new(3)).max_keys(1);
        let keyed = builder.build().unwrap();
        let [_held, settled, reported] = [(); 3].map(|()| keyed.try_acquire(&7).unwrap());
        assert!(settled.settle(1) && reported.report(Outcome::Ok));
        let in_use = with_table!(&*keyed.table, |table| table.shards.get(0).look().in_use);
        assert_eq!(in_use.len(), 1);
        assert!(in_use[0].active_key().is_only_a_word());
        assert_eq!(keyed.check(&7, 1).remaining(), 2);
    }
}
