//! The shards of a keyed limiter, and what they share.

use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use foldhash::quality::SeedableRandomState;
use tokio::time::Instant;

use super::key_state::KeyState;
use super::key_table::{Denial, Enqueued, KeyTable};
use super::shard::{Shard, Tier, key_state};
use super::{KeySnapshot, KeyedLimiterEvent, WhenFull};
use crate::carry_over::UsageCarryOver;
use crate::contain_panic::contain_panic;
use crate::core::gate::Gate;
use crate::core::plan::Plan;
use crate::core::request::Caller;
use crate::core::schedule::{Options, Schedule};
use crate::decision::Decision;
use crate::error::{AcquireError, TryAcquireError};
use crate::manager::{Manager, Order, SharedDriver, TimerHost};
use crate::observe::Observer;
use crate::permit::Permit;
use crate::policy::Policy;
use crate::strategy::Moment;

/// Keys that a call looks at for some that can go.
const SAMPLES: usize = 4;
/// Grants to known keys between two such looks.
const SAMPLE_EVERY: u64 = 64;
/// Other calls between two such looks.
const SAMPLE_EVERY_ACCESS: u32 = 8;
/// Keys that are looked at where there is no room for a new one.
const SAMPLES_WHEN_FULL: usize = 64;
/// Of how many keys the one that is nearest to new is evicted.
const EVICTION_SAMPLE: usize = 32;

pub(super) type TierOf<K> = Box<dyn Fn(&K) -> Policy + Send + Sync>;
pub(super) type KeyedObserver<K> = Arc<dyn Fn(KeyedLimiterEvent<'_, K>) + Send + Sync>;

/// What all shards share.
pub(super) struct Shared<K> {
    pub(super) hasher: SeedableRandomState,
    /// That of all keys, where all can be quiet and none has a tier: who is known is then asked at once.
    pub(super) plan: Option<Arc<Plan>>,
    /// The random part of permit ids, and how many were made from it: see [`Shared::next_id_prefix`].
    pub(super) id_prefix: u64,
    pub(super) id_prefixes: AtomicU64,
    pub(super) since_epoch: Duration,
    pub(super) max_keys: usize,
    pub(super) when_full: WhenFull,
    pub(super) tier_of: Option<TierOf<K>>,
    /// Every permit is to know its limiter, so no key is quiet.
    pub(super) settles: bool,
    pub(super) name: Option<Arc<str>>,
    pub(super) options: Options,
    pub(super) observer: Option<KeyedObserver<K>>,
    pub(super) shared_driver: Arc<SharedDriver>,
    pub(super) len: AtomicUsize,
    /// The shard that is looked at next where there is no room.
    pub(super) next_shard: AtomicUsize,
}

impl<K> Shared<K> {
    /// How many of `W` words there are for the state of a quiet key, beside its tier.
    pub(super) fn words<const W: usize>(&self) -> usize {
        match (self.settles, self.tier_of.is_some()) {
            (true, _) => 0,
            (false, true) => W - 1,
            (false, false) => W,
        }
    }

    /// The random part of the ids of one row of fences: each line has one, and the quiet keys of each shard.
    fn next_id_prefix(&self) -> u64 {
        /// An id, as a UUID, has no room for some of the bits below.
        const SHIFT: u32 = 16;
        self.id_prefix.wrapping_add(self.id_prefixes.fetch_add(1, Relaxed) << SHIFT)
    }
}

/// A keyed limiter whose quiet keys take `W` words.
pub(super) struct Table<K, const W: usize> {
    shared: Shared<K>,
    shards: Box<[Mutex<Shard<K, W>>]>,
}

/// What is done when the shard's lock is let go of: it may run other people's code.
struct AfterUnlock<K> {
    evicted: Option<(K, Moment)>,
    /// What a line goes by from now on.
    tier: Option<(Arc<Manager>, Tier)>,
}

/// Where a key is.
enum Location {
    Idle { bucket: usize },
    Active(Arc<Manager>),
    Absent(Tier),
}

type Guard<'a, K, const W: usize> = MutexGuard<'a, Shard<K, W>>;

impl<K: Hash + Eq + Clone + Send + Sync + 'static, const W: usize> Table<K, W> {
    /// `shard` makes a shard with a seed.
    pub(super) fn new(shared: Shared<K>, shards: usize, shard: impl Fn(u64) -> Shard<K, W>) -> Self {
        let shards = (0..shards).map(|_| Mutex::new(shard(shared.next_id_prefix()))).collect();
        Self { shared, shards }
    }

    #[inline(always)]
    fn hash(&self, key: &K) -> u64 {
        self.shared.hasher.hash_one(key)
    }

    #[inline(always)]
    fn shard(&self, hash: u64) -> Guard<'_, K, W> {
        // Neither the bits that choose the bucket nor those that are kept beside it.
        let index = (u64::from((hash >> 25) as u32) * self.shards.len() as u64) >> 32;
        self.shards[index as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tier_of(&self, key: &K) -> Option<Policy> {
        self.shared.tier_of.as_ref().map(|tier_of| tier_of(key))
    }

    /// Finds a key, of the tier that it has now, and on the way looks at a few for some that can go.
    fn find(
        &self,
        shard: &mut Shard<K, W>,
        hash: u64,
        key: &K,
        policy: Option<Policy>,
        now: Moment,
        after_unlock: &mut AfterUnlock<K>,
    ) -> Result<Location, Denial> {
        shard.accesses = shard.accesses.wrapping_add(1);
        if shard.accesses.is_multiple_of(SAMPLE_EVERY_ACCESS) {
            self.reap(shard, SAMPLES, now);
        }
        let tiered = policy.is_some();
        let compile = |policy| Plan::new(policy, self.shared.since_epoch);
        let tier =
            policy.map_or(Ok(Ok(0)), |policy| shard.tier(policy, self.shared.words::<W>(), compile)).map_err(Denial::Config)?;
        if let Some(manager) = shard.manager(hash, key) {
            let manager = Arc::clone(manager);
            if tiered {
                let tier = tier.map_or_else(|own| own, |known| shard.tiers[known].clone());
                after_unlock.tier = Some((Arc::clone(&manager), tier));
            }
            return Ok(Location::Active(manager));
        }
        let bucket = shard.idle.find_bucket_index(hash, |(other, _)| other == key);
        let (bucket, new) = match (bucket, tier) {
            (None, tier) => return Ok(Location::Absent(tier.map_or_else(|own| own, |known| shard.tiers[known].clone()))),
            (Some(bucket), Ok(known)) if !tiered || self.tier_at(shard, bucket) == known => return Ok(Location::Idle { bucket }),
            (Some(bucket), Ok(known)) if shard.tiers[known].fits => {
                self.change_tier(shard, bucket, known, now);
                return Ok(Location::Idle { bucket });
            }
            (Some(bucket), Ok(known)) => (bucket, shard.tiers[known].clone()),
            (Some(bucket), Err(own)) => (bucket, own),
        };
        Ok(Location::Active(self.activate(shard, hash, bucket, Some(new), now)))
    }

    fn tier_at(&self, shard: &Shard<K, W>, bucket: usize) -> usize {
        shard.idle.get_bucket(bucket).map_or(0, |(_, words)| words[W - 1] as usize)
    }

    /// What a quiet key has used stays used under its new tier.
    fn change_tier(&self, shard: &mut Shard<K, W>, bucket: usize, known: usize, now: Moment) {
        let new = shard.tiers[known].clone();
        let Some(old) = shard.key_state(bucket) else { return };
        let mut gate = Gate::resume(Arc::clone(old.plan), old.states().map(|(_, state)| state), 0, now);
        gate.set_plan(Arc::clone(&new.plan), now, UsageCarryOver::AsIs);
        let Some((_, words)) = shard.idle.get_bucket_mut(bucket) else { return };
        *words = [0; W];
        words[W - 1] = known as u64;
        if let Some(states) = gate.states() {
            KeyState { plan: &new.plan, words }.restore(states.into_iter());
        }
    }

    /// Gives a quiet key a line, of its tier or of another.
    fn activate(&self, shard: &mut Shard<K, W>, hash: u64, bucket: usize, tier: Option<Tier>, now: Moment) -> Arc<Manager> {
        let key_state = shard.key_state(bucket).expect("a key was found there");
        let states: Vec<_> = key_state.states().map(|(_, state)| state).collect();
        let mut gate = Gate::resume(Arc::clone(key_state.plan), states.into_iter(), shard.fence, now);
        if let Some(tier) = tier {
            gate.set_plan(Arc::clone(&tier.plan), now, UsageCarryOver::AsIs);
        }
        let entry = shard.idle.get_bucket_entry(bucket).unwrap_or_else(|_| unreachable!("a key was found there"));
        let (key, _) = entry.remove().0;
        self.open_active(shard, hash, key, gate)
    }

    fn open_active(&self, shard: &mut Shard<K, W>, hash: u64, key: K, gate: Gate) -> Arc<Manager> {
        let Shared { name, options, since_epoch, shared_driver, observer, .. } = &self.shared;
        let observer = observer.as_ref().map_or(Observer::NONE, |observer| {
            let (observer, key) = (Arc::clone(observer), key.clone());
            Observer::new(move |event| observer(KeyedLimiterEvent::Limiter { key: &key, event }))
        });
        let timer_host = TimerHost::SharedDriver(Arc::clone(shared_driver));
        let manager = Manager::new(
            Schedule::new(gate, *options),
            shard.clock.clone(),
            timer_host,
            *since_epoch,
            self.shared.next_id_prefix(),
            name.clone(),
            observer,
        );
        let manager = Arc::new(manager);
        shard.active.insert_unique(hash, (key, Arc::clone(&manager)), |(key, _)| self.hash(key));
        manager
    }

    /// Makes a key known, as new.
    fn insert(
        &self,
        shard: &mut Shard<K, W>,
        hash: u64,
        key: &K,
        tier: &Tier,
        now: Moment,
        after_unlock: &mut AfterUnlock<K>,
    ) -> Result<Location, Denial> {
        let key = key.clone(); // it may panic: before the key is counted
        self.reap(shard, SAMPLES, now);
        if !self.make_room(shard, now, &mut after_unlock.evicted) {
            return Err(Denial::TooManyKeys { max: self.shared.max_keys });
        }
        if !tier.fits {
            let gate = Gate::resume(Arc::clone(&tier.plan), std::iter::empty(), shard.fence, now);
            return Ok(Location::Active(self.open_active(shard, hash, key, gate)));
        }
        let mut words = [0; W];
        if self.shared.tier_of.is_some() {
            words[W - 1] = shard.tiers.iter().position(|known| known.policy == tier.policy).unwrap_or(0) as u64;
        }
        KeyState { plan: &tier.plan, words: &mut words }.fill(now);
        let entry = shard.idle.insert_unique(hash, (key, words), |(key, _)| self.hash(key));
        Ok(Location::Idle { bucket: entry.bucket_index() })
    }

    /// Counts one key more, if there may be one.
    fn make_room(&self, shard: &mut Shard<K, W>, now: Moment, evicted: &mut Option<(K, Moment)>) -> bool {
        if self.count_one_more() {
            return true;
        }
        // Nothing in proportion to the keys: a few here, a few in the next shard that nobody holds.
        self.reap(shard, SAMPLES_WHEN_FULL, now);
        let index = self.shared.next_shard.fetch_add(1, Relaxed) % self.shards.len();
        let mut other = match self.shards[index].try_lock() {
            Err(TryLockError::WouldBlock) => None,
            Ok(other) => Some(other),
            Err(TryLockError::Poisoned(other)) => Some(other.into_inner()),
        };
        if let Some(other) = &mut other {
            let now = other.clock.now().0;
            self.reap(other, SAMPLES_WHEN_FULL, now);
        }
        if self.count_one_more() {
            return true;
        }
        if self.shared.when_full == WhenFull::Deny {
            return false;
        }
        *evicted = shard.evict(EVICTION_SAMPLE, now).or_else(|| {
            let other = other.as_mut()?;
            let now = other.clock.now().0;
            other.evict(EVICTION_SAMPLE, now)
        });
        evicted.is_some() // its place is taken over
    }

    fn count_one_more(&self) -> bool {
        let more = |len| (len < self.shared.max_keys).then_some(len + 1);
        self.shared.len.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    #[inline]
    fn reap(&self, shard: &mut Shard<K, W>, samples: usize, now: Moment) {
        let before = shard.len();
        shard.reap(samples, now, |key| self.hash(key));
        self.shared.len.fetch_sub(before - shard.len(), Relaxed);
    }

    /// Does something with a key, which from now on is as wanted. What cannot be done under the lock, `act` hands out.
    fn access<R>(&self, key: &K, create: Create, act: impl FnOnce(Access<'_>) -> R) -> Result<R, Denial> {
        let policy = self.tier_of(key);
        let hash = self.hash(key);
        let mut guard = self.shard(hash);
        let shard = &mut *guard;
        let (now, instant) = shard.clock.now();
        let mut after_unlock = AfterUnlock { evicted: None, tier: None };
        let location = self.find(shard, hash, key, policy, now, &mut after_unlock).and_then(|location| match location {
            Location::Absent(tier) if create != Create::AsItIs => self.insert(shard, hash, key, &tier, now, &mut after_unlock),
            location => Ok(location),
        });
        let location = location.map(|location| match location {
            Location::Idle { bucket } if create == Create::Active => {
                Location::Active(self.activate(shard, hash, bucket, None, now))
            }
            location => location,
        });
        let result = location.map(|location| {
            let at = match location {
                Location::Active(manager) => Entry::Active(manager),
                Location::Absent(tier) => Entry::Absent(tier),
                Location::Idle { bucket } => {
                    let Shard { idle, tiers, fence, id_prefix, .. } = shard;
                    let (_, words) = idle.get_bucket_mut(bucket).expect("a key was found there");
                    Entry::Idle(
                        key_state(tiers, words, self.shared.tier_of.is_some()),
                        Fences { id_prefix: *id_prefix, latest: fence },
                    )
                }
            };
            act(Access { at, now, instant })
        });
        drop(guard);
        self.follow_up(key, &result, now, after_unlock);
        result
    }

    /// Does what could not be done under the lock.
    fn follow_up<R>(&self, key: &K, result: &Result<R, Denial>, now: Moment, after_unlock: AfterUnlock<K>) {
        if let Some((manager, tier)) = after_unlock.tier {
            manager.apply_policy(&tier.policy, &tier.plan);
        }
        let Some(observer) = &self.shared.observer else { return };
        if let Some((key, reset_at)) = &after_unlock.evicted {
            let reset_after = reset_at.duration_since(now);
            contain_panic(|| observer(KeyedLimiterEvent::Evicted { key, reset_after }));
        }
        if let Err(Denial::TooManyKeys { .. }) = result {
            contain_panic(|| observer(KeyedLimiterEvent::TooManyKeys { key }));
        }
    }

    #[cold]
    fn reap_some(&self, shard: &mut Shard<K, W>, now: Moment) {
        self.reap(shard, SAMPLES, now);
    }

    /// [`KeyTable::try_acquire`], when it is not admitted at once: a key that is new, has a line, or is denied.
    #[inline(never)]
    fn try_anew(&self, key: &K, cost: u64, caller: Caller) -> Result<Permit, TryAcquireError> {
        let manager = self.access(key, Create::Known, |Access { at, now, instant }| match at {
            Entry::Active(manager) => Err(manager),
            Entry::Idle(mut key_state, fences) => Ok(match key_state.plan.max_cost() {
                _ if cost == 0 => Err(TryAcquireError::ZeroCost),
                max if cost > max => Err(TryAcquireError::ExceedsLimit { cost, max }),
                _ if key_state.admit(now, cost) => Ok(fences.permit(cost, instant)),
                _ => {
                    key_state.note_denial(now, cost);
                    Err(TryAcquireError::Denied(key_state.decide(now, cost)))
                }
            }),
            Entry::Absent(_) => unreachable!("it was created"),
        })?;
        match manager {
            Ok(answer) => answer,
            Err(manager) => manager.try_acquire(cost, caller).map(|granted| Permit::new(&manager, granted, cost)),
        }
    }
}

/// What a key is to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Create {
    AsItIs,
    Known,
    /// Known, and not quiet.
    Active,
}

/// A key, and when.
struct Access<'a> {
    at: Entry<'a>,
    now: Moment,
    instant: Instant,
}

enum Entry<'a> {
    Idle(KeyState<'a>, Fences<'a>),
    Active(Arc<Manager>),
    Absent(Tier),
}

/// Numbers the permits of the quiet keys of a shard.
struct Fences<'a> {
    id_prefix: u64,
    latest: &'a mut u64,
}

impl Fences<'_> {
    #[inline(always)]
    fn permit(self, cost: u64, instant: Instant) -> Permit {
        *self.latest += 1;
        Permit::idle(self.id_prefix, *self.latest, cost, instant)
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static, const W: usize> KeyTable<K> for Table<K, W> {
    #[inline]
    fn try_acquire(&self, key: &K, cost: u64, caller: Caller) -> Result<Permit, TryAcquireError> {
        if let Some(plan) = &self.shared.plan {
            let hash = self.hash(key);
            let mut guard = self.shard(hash);
            let shard = &mut *guard;
            let Shard { idle, tiers, clock, fence, id_prefix, .. } = shard;
            if let Some((_, words)) = idle.find_mut(hash, |(other, _)| other == key) {
                let (now, instant) = clock.now();
                let mut key_state = KeyState { plan, words };
                if cost.wrapping_sub(1) < plan.max_cost() {
                    if !key_state.admit(now, cost) {
                        key_state.note_denial(now, cost);
                        // The decision keeps a policy that only this shard hands out.
                        let own = KeyState { plan: &tiers[0].plan, words: key_state.words };
                        return Err(TryAcquireError::Denied(own.decide(now, cost)));
                    }
                    let permit = Fences { id_prefix: *id_prefix, latest: fence }.permit(cost, instant);
                    if fence.is_multiple_of(SAMPLE_EVERY) {
                        self.reap_some(shard, now);
                    }
                    return Ok(permit);
                }
            }
        }
        self.try_anew(key, cost, caller)
    }

    fn begin(&self, key: &K, order: &Order) -> Result<Enqueued, AcquireError> {
        let cost = order.cost;
        order.checked_timeout()?;
        let granted = self.access(key, Create::Known, |Access { at, now, instant }| match at {
            Entry::Active(manager) => Ok(Some(Enqueued::Wait(manager))),
            Entry::Idle(mut key_state, fences) => match key_state.plan.max_cost() {
                _ if cost == 0 => Err(AcquireError::ZeroCost),
                max if cost > max => Err(AcquireError::ExceedsLimit { cost, max }),
                _ => Ok(key_state.admit(now, cost).then(|| Enqueued::Granted(fences.permit(cost, instant)))),
            },
            Entry::Absent(_) => unreachable!("it was created"),
        })??;
        granted.map_or_else(|| Ok(Enqueued::Wait(self.manager(key)?)), Ok)
    }

    fn manager(&self, key: &K) -> Result<Arc<Manager>, Denial> {
        self.access(key, Create::Active, |Access { at, .. }| match at {
            Entry::Active(manager) => manager,
            Entry::Idle(..) | Entry::Absent(_) => unreachable!("it was given a manager"),
        })
    }

    fn check(&self, key: &K, cost: u64) -> Decision {
        let manager = self.access(key, Create::AsItIs, |Access { at, now, .. }| match at {
            Entry::Active(manager) => Err(manager),
            Entry::Idle(key_state, _) if cost > 0 => Ok(key_state.decide(now, cost)),
            Entry::Idle(key_state, _) => Ok(key_state.decide(now, 1).refused()),
            Entry::Absent(tier) => {
                let decision = Gate::new(Arc::clone(&tier.plan), now, false).decide(now, 0, cost.max(1));
                Ok(if cost == 0 || !self.has_room() { decision.refused() } else { decision })
            }
        });
        match manager {
            Ok(Ok(decision)) => decision,
            Ok(Err(manager)) => manager.check(cost),
            Err(_) => self.default_decision().refused(),
        }
    }

    fn penalize(&self, key: &K, units: u64) -> bool {
        let manager = self.access(key, Create::Known, |Access { at, now, .. }| match at {
            Entry::Active(manager) => Some(manager),
            Entry::Idle(mut key_state, _) => {
                key_state.charge(now, units);
                None
            }
            Entry::Absent(_) => unreachable!("it was created"),
        });
        if let Ok(Some(manager)) = &manager {
            manager.charge(units);
        }
        manager.is_ok()
    }

    fn reward(&self, key: &K, units: u64) {
        let manager = self.access(key, Create::AsItIs, |Access { at, now, .. }| match at {
            Entry::Active(manager) => Some(manager),
            Entry::Idle(mut key_state, _) => {
                key_state.forgive(now, units);
                None
            }
            Entry::Absent(_) => None,
        });
        if let Ok(Some(manager)) = manager {
            manager.forgive(units);
        }
    }

    fn reset(&self, key: &K) -> bool {
        let manager = self.access(key, Create::AsItIs, |Access { at, now, .. }| match at {
            Entry::Active(manager) => (true, Some(manager)),
            Entry::Idle(mut key_state, _) => {
                key_state.fill(now);
                (true, None)
            }
            Entry::Absent(_) => (false, None),
        });
        let (known, manager) = manager.unwrap_or((false, None));
        if let Some(manager) = manager {
            manager.reset();
        }
        known
    }

    fn snapshot(&self, key: &K) -> Option<KeySnapshot> {
        let manager = self.access(key, Create::AsItIs, |Access { at, now, .. }| match at {
            Entry::Active(manager) => Some(Err(manager)),
            Entry::Idle(key_state, _) => Some(Ok(KeySnapshot::of_idle(&key_state, now))),
            Entry::Absent(_) => None,
        });
        Some(manager.ok()??.unwrap_or_else(|manager| KeySnapshot::of_active(&manager)))
    }

    fn snapshots(&self, shard: usize) -> Option<Vec<(K, KeySnapshot)>> {
        let mut guard = self.shards.get(shard)?.lock().unwrap_or_else(PoisonError::into_inner);
        let Shard { idle, active, tiers, clock, .. } = &mut *guard;
        let now = clock.now().0;
        let tiered = self.shared.tier_of.is_some();
        let idle = idle.iter_mut().map(|(key, words)| (key.clone(), KeySnapshot::of_idle(&key_state(tiers, words, tiered), now)));
        let mut snapshots: Vec<_> = idle.collect();
        let active: Vec<_> = active.iter().map(|(key, manager)| (key.clone(), Arc::clone(manager))).collect();
        drop(guard);
        snapshots.extend(active.into_iter().map(|(key, manager)| (key, KeySnapshot::of_active(&manager))));
        Some(snapshots)
    }

    fn len(&self) -> usize {
        self.shared.len.load(Relaxed)
    }

    fn max_keys(&self) -> usize {
        self.shared.max_keys
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static, const W: usize> Table<K, W> {
    fn has_room(&self) -> bool {
        self.shared.when_full != WhenFull::Deny || self.shared.len.load(Relaxed) < self.shared.max_keys
    }

    /// What a key is told whose own policy makes no sense: what the limiter's says of a new one.
    fn default_decision(&self) -> Decision {
        let mut shard = self.shard(0);
        let now = shard.clock.now().0;
        Gate::new(Arc::clone(&shard.tiers[0].plan), now, false).decide(now, 0, 1)
    }
}
