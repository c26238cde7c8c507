//! The shards of a keyed limiter, and what they share.

use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use foldhash::quality::SeedableRandomState;
use tokio::time::Instant;

use super::any_table::{AnyTable, Begun, Denial};
use super::cells::Cells;
use super::shard::{Shard, Tier, cells};
use super::{KeySnapshot, KeyedEvent, WhenFull};
use crate::decision::Decision;
use crate::error::{AcquireError, TryAcquireError};
use crate::gate::{Carry, Gate};
use crate::lease::Caller;
use crate::manager::{Manager, Order, Rota, Timekeeping};
use crate::observe::{Observer, contain_panic};
use crate::permit::Permit;
use crate::plan::Plan;
use crate::policy::Policy;
use crate::schedule::{Options, Schedule};
use crate::strategy::Moment;

/// Keys that a call looks at for some that can go.
const LOOKS: usize = 4;
/// Grants to known keys between two such looks.
const LOOK_EVERY: u64 = 64;
/// Other calls between two such looks.
const LOOK_EVERY_VISIT: u32 = 8;
/// Keys that are looked at where there is no room for a new one.
const LOOKS_WHEN_FULL: usize = 64;
/// Of how many keys the one that is nearest to new is evicted.
const EVICTION_SAMPLE: usize = 32;

pub(super) type TierOf<K> = Box<dyn Fn(&K) -> Policy + Send + Sync>;
pub(super) type KeyedObserver<K> = Arc<dyn Fn(KeyedEvent<'_, K>) + Send + Sync>;

/// What all shards share.
pub(super) struct Shared<K> {
    pub(super) hasher: SeedableRandomState,
    /// That of all keys, where all can be quiet and none has a tier: who is known is then asked at once.
    pub(super) plan: Option<Arc<Plan>>,
    /// The random part of permit ids, and how many were made from it: see [`Shared::next_seed`].
    pub(super) seed: u64,
    pub(super) seeds: AtomicU64,
    pub(super) since_epoch: Duration,
    pub(super) max_keys: usize,
    pub(super) when_full: WhenFull,
    pub(super) tier_of: Option<TierOf<K>>,
    /// Every permit is to know its limiter, so no key is quiet.
    pub(super) settles: bool,
    pub(super) name: Option<Arc<str>>,
    pub(super) options: Options,
    pub(super) observer: Option<KeyedObserver<K>>,
    pub(super) rota: Arc<Rota>,
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
    fn next_seed(&self) -> u64 {
        /// An id, as a UUID, has no room for some of the bits below.
        const SHIFT: u32 = 16;
        self.seed.wrapping_add(self.seeds.fetch_add(1, Relaxed) << SHIFT)
    }
}

/// A keyed limiter whose quiet keys take `W` words.
pub(super) struct Table<K, const W: usize> {
    shared: Shared<K>,
    shards: Box<[Mutex<Shard<K, W>>]>,
}

/// What is done when the shard's lock is let go of: it may run other people's code.
struct Later<K> {
    evicted: Option<(K, Moment)>,
    /// What a line goes by from now on.
    tier: Option<(Arc<Manager>, Tier)>,
}

/// Where a key is.
enum Spot {
    Quiet { bucket: usize },
    Line(Arc<Manager>),
    Absent(Tier),
}

type Guard<'a, K, const W: usize> = MutexGuard<'a, Shard<K, W>>;

impl<K: Hash + Eq + Clone + Send + Sync + 'static, const W: usize> Table<K, W> {
    /// `shard` makes a shard with a seed.
    pub(super) fn new(shared: Shared<K>, shards: usize, shard: impl Fn(u64) -> Shard<K, W>) -> Self {
        let shards = (0..shards).map(|_| Mutex::new(shard(shared.next_seed()))).collect();
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
        later: &mut Later<K>,
    ) -> Result<Spot, Denial> {
        shard.visits = shard.visits.wrapping_add(1);
        if shard.visits.is_multiple_of(LOOK_EVERY_VISIT) {
            self.sweep(shard, LOOKS, now);
        }
        let tiered = policy.is_some();
        let compile = |policy| Plan::new(policy, self.shared.since_epoch);
        let tier =
            policy.map_or(Ok(Ok(0)), |policy| shard.tier(policy, self.shared.words::<W>(), compile)).map_err(Denial::Config)?;
        if let Some(line) = shard.line(hash, key) {
            let line = Arc::clone(line);
            if tiered {
                let tier = tier.map_or_else(|own| own, |known| shard.tiers[known].clone());
                later.tier = Some((Arc::clone(&line), tier));
            }
            return Ok(Spot::Line(line));
        }
        let bucket = shard.quiet.find_bucket_index(hash, |(other, _)| other == key);
        let (bucket, new) = match (bucket, tier) {
            (None, tier) => return Ok(Spot::Absent(tier.map_or_else(|own| own, |known| shard.tiers[known].clone()))),
            (Some(bucket), Ok(known)) if !tiered || self.tier_at(shard, bucket) == known => return Ok(Spot::Quiet { bucket }),
            (Some(bucket), Ok(known)) if shard.tiers[known].fits => {
                self.change_tier(shard, bucket, known, now);
                return Ok(Spot::Quiet { bucket });
            }
            (Some(bucket), Ok(known)) => (bucket, shard.tiers[known].clone()),
            (Some(bucket), Err(own)) => (bucket, own),
        };
        Ok(Spot::Line(self.promote(shard, hash, bucket, Some(new), now)))
    }

    fn tier_at(&self, shard: &Shard<K, W>, bucket: usize) -> usize {
        shard.quiet.get_bucket(bucket).map_or(0, |(_, words)| words[W - 1] as usize)
    }

    /// What a quiet key has used stays used under its new tier.
    fn change_tier(&self, shard: &mut Shard<K, W>, bucket: usize, known: usize, now: Moment) {
        let new = shard.tiers[known].clone();
        let Some(old) = shard.cells(bucket) else { return };
        let mut gate = Gate::resume(old.plan.clone(), old.states().map(|(_, state)| state), 0, now);
        gate.set_plan((*new.plan).clone(), now, Carry::AsIs);
        let Some((_, words)) = shard.quiet.get_bucket_mut(bucket) else { return };
        *words = [0; W];
        words[W - 1] = known as u64;
        if let Some(states) = gate.states() {
            Cells { plan: &new.plan, words }.restore(states.into_iter());
        }
    }

    /// Gives a quiet key a line, of its tier or of another.
    fn promote(&self, shard: &mut Shard<K, W>, hash: u64, bucket: usize, tier: Option<Tier>, now: Moment) -> Arc<Manager> {
        let cells = shard.cells(bucket).expect("a key was found there");
        let states: Vec<_> = cells.states().map(|(_, state)| state).collect();
        let mut gate = Gate::resume(cells.plan.clone(), states.into_iter(), shard.fence, now);
        if let Some(tier) = tier {
            gate.set_plan((*tier.plan).clone(), now, Carry::AsIs);
        }
        let entry = shard.quiet.get_bucket_entry(bucket).unwrap_or_else(|_| unreachable!("a key was found there"));
        let (key, _) = entry.remove().0;
        self.open_line(shard, hash, key, gate)
    }

    fn open_line(&self, shard: &mut Shard<K, W>, hash: u64, key: K, gate: Gate) -> Arc<Manager> {
        let Shared { name, options, since_epoch, rota, observer, .. } = &self.shared;
        let observer = observer.as_ref().map_or(Observer::NONE, |observer| {
            let (observer, key) = (Arc::clone(observer), key.clone());
            Observer::new(move |event| observer(KeyedEvent::Limiter { key: &key, event }))
        });
        let timekeeping = Timekeeping::Rota(Arc::clone(rota));
        let line = Manager::new(
            Schedule::new(gate, *options),
            shard.clock.clone(),
            timekeeping,
            *since_epoch,
            self.shared.next_seed(),
            name.clone(),
            observer,
        );
        let line = Arc::new(line);
        shard.lines.insert_unique(hash, (key, Arc::clone(&line)), |(key, _)| self.hash(key));
        line
    }

    /// Makes a key known, as new.
    fn insert(
        &self,
        shard: &mut Shard<K, W>,
        hash: u64,
        key: &K,
        tier: &Tier,
        now: Moment,
        later: &mut Later<K>,
    ) -> Result<Spot, Denial> {
        let key = key.clone(); // it may panic: before the key is counted
        self.sweep(shard, LOOKS, now);
        if !self.make_room(shard, now, &mut later.evicted) {
            return Err(Denial::TooManyKeys { max: self.shared.max_keys });
        }
        if !tier.fits {
            let gate = Gate::resume((*tier.plan).clone(), std::iter::empty(), shard.fence, now);
            return Ok(Spot::Line(self.open_line(shard, hash, key, gate)));
        }
        let mut words = [0; W];
        if self.shared.tier_of.is_some() {
            words[W - 1] = shard.tiers.iter().position(|known| known.policy == tier.policy).unwrap_or(0) as u64;
        }
        Cells { plan: &tier.plan, words: &mut words }.fill(now);
        let entry = shard.quiet.insert_unique(hash, (key, words), |(key, _)| self.hash(key));
        Ok(Spot::Quiet { bucket: entry.bucket_index() })
    }

    /// Counts one key more, if there may be one.
    fn make_room(&self, shard: &mut Shard<K, W>, now: Moment, evicted: &mut Option<(K, Moment)>) -> bool {
        if self.count_one_more() {
            return true;
        }
        // Nothing in proportion to the keys: a few here, a few in the next shard that nobody holds.
        self.sweep(shard, LOOKS_WHEN_FULL, now);
        let index = self.shared.next_shard.fetch_add(1, Relaxed) % self.shards.len();
        let mut other = match self.shards[index].try_lock() {
            Err(TryLockError::WouldBlock) => None,
            Ok(other) => Some(other),
            Err(TryLockError::Poisoned(other)) => Some(other.into_inner()),
        };
        if let Some(other) = &mut other {
            let now = other.clock.now().0;
            self.sweep(other, LOOKS_WHEN_FULL, now);
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
    fn sweep(&self, shard: &mut Shard<K, W>, looks: usize, now: Moment) {
        let before = shard.len();
        shard.sweep(looks, now, |key| self.hash(key));
        self.shared.len.fetch_sub(before - shard.len(), Relaxed);
    }

    /// Does something with a key, which from now on is as wanted. What cannot be done under the lock, `act` hands out.
    fn visit<R>(&self, key: &K, wanted: Wanted, act: impl FnOnce(Visit<'_>) -> R) -> Result<R, Denial> {
        let policy = self.tier_of(key);
        let hash = self.hash(key);
        let mut guard = self.shard(hash);
        let shard = &mut *guard;
        let (now, instant) = shard.clock.now();
        let mut later = Later { evicted: None, tier: None };
        let spot = self.find(shard, hash, key, policy, now, &mut later).and_then(|spot| match spot {
            Spot::Absent(tier) if wanted != Wanted::AsItIs => self.insert(shard, hash, key, &tier, now, &mut later),
            spot => Ok(spot),
        });
        let spot = spot.map(|spot| match spot {
            Spot::Quiet { bucket } if wanted == Wanted::Line => Spot::Line(self.promote(shard, hash, bucket, None, now)),
            spot => spot,
        });
        let result = spot.map(|spot| {
            let at = match spot {
                Spot::Line(line) => At::Line(line),
                Spot::Absent(tier) => At::Absent(tier),
                Spot::Quiet { bucket } => {
                    let Shard { quiet, tiers, fence, seed, .. } = shard;
                    let (_, words) = quiet.get_bucket_mut(bucket).expect("a key was found there");
                    At::Quiet(cells(tiers, words, self.shared.tier_of.is_some()), Fences { seed: *seed, latest: fence })
                }
            };
            act(Visit { at, now, instant })
        });
        drop(guard);
        self.follow_up(key, &result, now, later);
        result
    }

    /// Does what could not be done under the lock.
    fn follow_up<R>(&self, key: &K, result: &Result<R, Denial>, now: Moment, later: Later<K>) {
        if let Some((line, tier)) = later.tier {
            line.go_by(&tier.policy, &tier.plan);
        }
        let Some(observer) = &self.shared.observer else { return };
        if let Some((key, reset_at)) = &later.evicted {
            let reset_after = reset_at.duration_since(now);
            contain_panic(|| observer(KeyedEvent::Evicted { key, reset_after }));
        }
        if let Err(Denial::TooManyKeys { .. }) = result {
            contain_panic(|| observer(KeyedEvent::TooManyKeys { key }));
        }
    }

    #[cold]
    fn look_around(&self, shard: &mut Shard<K, W>, now: Moment) {
        self.sweep(shard, LOOKS, now);
    }

    /// [`AnyTable::try_acquire`], when it is not admitted at once: a key that is new, has a line, or is denied.
    #[inline(never)]
    fn try_anew(&self, key: &K, cost: u64, caller: Caller) -> Result<Permit, TryAcquireError> {
        let line = self.visit(key, Wanted::Known, |Visit { at, now, instant }| match at {
            At::Line(line) => Err(line),
            At::Quiet(mut cells, fences) => Ok(match cells.plan.max_cost() {
                _ if cost == 0 => Err(TryAcquireError::ZeroCost),
                max if cost > max => Err(TryAcquireError::ExceedsLimit { cost, max }),
                _ if cells.admit(now, cost) => Ok(fences.permit(cost, instant)),
                _ => {
                    cells.note_denial(now, cost);
                    Err(TryAcquireError::Denied(cells.decide(now, cost)))
                }
            }),
            At::Absent(_) => unreachable!("it was created"),
        })?;
        match line {
            Ok(answer) => answer,
            Err(line) => line.try_acquire(cost, caller).map(|granted| Permit::new(&line, granted, cost)),
        }
    }
}

/// What a key is to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    AsItIs,
    Known,
    /// Known, and not quiet.
    Line,
}

/// A key, and when.
struct Visit<'a> {
    at: At<'a>,
    now: Moment,
    instant: Instant,
}

enum At<'a> {
    Quiet(Cells<'a>, Fences<'a>),
    Line(Arc<Manager>),
    Absent(Tier),
}

/// Numbers the permits of the quiet keys of a shard.
struct Fences<'a> {
    seed: u64,
    latest: &'a mut u64,
}

impl Fences<'_> {
    #[inline(always)]
    fn permit(self, cost: u64, instant: Instant) -> Permit {
        *self.latest += 1;
        Permit::quiet(self.seed, *self.latest, cost, instant)
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static, const W: usize> AnyTable<K> for Table<K, W> {
    #[inline]
    fn try_acquire(&self, key: &K, cost: u64, caller: Caller) -> Result<Permit, TryAcquireError> {
        if let Some(plan) = &self.shared.plan {
            let hash = self.hash(key);
            let mut guard = self.shard(hash);
            let shard = &mut *guard;
            let Shard { quiet, tiers, clock, fence, seed, .. } = shard;
            if let Some((_, words)) = quiet.find_mut(hash, |(other, _)| other == key) {
                let (now, instant) = clock.now();
                let mut cells = Cells { plan, words };
                if cost.wrapping_sub(1) < plan.max_cost() {
                    if !cells.admit(now, cost) {
                        cells.note_denial(now, cost);
                        // The decision keeps a policy that only this shard hands out.
                        let own = Cells { plan: &tiers[0].plan, words: cells.words };
                        return Err(TryAcquireError::Denied(own.decide(now, cost)));
                    }
                    let permit = Fences { seed: *seed, latest: fence }.permit(cost, instant);
                    if fence.is_multiple_of(LOOK_EVERY) {
                        self.look_around(shard, now);
                    }
                    return Ok(permit);
                }
            }
        }
        self.try_anew(key, cost, caller)
    }

    fn begin(&self, key: &K, order: &Order) -> Result<Begun, AcquireError> {
        let cost = order.cost;
        order.checked_timeout()?;
        let granted = self.visit(key, Wanted::Known, |Visit { at, now, instant }| match at {
            At::Line(line) => Ok(Some(Begun::Wait(line))),
            At::Quiet(mut cells, fences) => match cells.plan.max_cost() {
                _ if cost == 0 => Err(AcquireError::ZeroCost),
                max if cost > max => Err(AcquireError::ExceedsLimit { cost, max }),
                _ => Ok(cells.admit(now, cost).then(|| Begun::Granted(fences.permit(cost, instant)))),
            },
            At::Absent(_) => unreachable!("it was created"),
        })??;
        granted.map_or_else(|| Ok(Begun::Wait(self.line(key)?)), Ok)
    }

    fn line(&self, key: &K) -> Result<Arc<Manager>, Denial> {
        self.visit(key, Wanted::Line, |Visit { at, .. }| match at {
            At::Line(line) => line,
            At::Quiet(..) | At::Absent(_) => unreachable!("it was given a line"),
        })
    }

    fn check(&self, key: &K, cost: u64) -> Decision {
        let line = self.visit(key, Wanted::AsItIs, |Visit { at, now, .. }| match at {
            At::Line(line) => Err(line),
            At::Quiet(cells, _) if cost > 0 => Ok(cells.decide(now, cost)),
            At::Quiet(cells, _) => Ok(cells.decide(now, 1).refused()),
            At::Absent(tier) => {
                let decision = Gate::new((*tier.plan).clone(), now, false).decide(now, 0, cost.max(1));
                Ok(if cost == 0 || !self.has_room() { decision.refused() } else { decision })
            }
        });
        match line {
            Ok(Ok(decision)) => decision,
            Ok(Err(line)) => line.check(cost),
            Err(_) => self.default_decision().refused(),
        }
    }

    fn penalize(&self, key: &K, units: u64) -> bool {
        let line = self.visit(key, Wanted::Known, |Visit { at, now, .. }| match at {
            At::Line(line) => Some(line),
            At::Quiet(mut cells, _) => {
                cells.charge(now, units);
                None
            }
            At::Absent(_) => unreachable!("it was created"),
        });
        if let Ok(Some(line)) = &line {
            line.charge(units);
        }
        line.is_ok()
    }

    fn reward(&self, key: &K, units: u64) {
        let line = self.visit(key, Wanted::AsItIs, |Visit { at, now, .. }| match at {
            At::Line(line) => Some(line),
            At::Quiet(mut cells, _) => {
                cells.forgive(now, units);
                None
            }
            At::Absent(_) => None,
        });
        if let Ok(Some(line)) = line {
            line.forgive(units);
        }
    }

    fn reset(&self, key: &K) -> bool {
        let line = self.visit(key, Wanted::AsItIs, |Visit { at, now, .. }| match at {
            At::Line(line) => (true, Some(line)),
            At::Quiet(mut cells, _) => {
                cells.fill(now);
                (true, None)
            }
            At::Absent(_) => (false, None),
        });
        let (known, line) = line.unwrap_or((false, None));
        if let Some(line) = line {
            line.reset();
        }
        known
    }

    fn snapshot(&self, key: &K) -> Option<KeySnapshot> {
        let line = self.visit(key, Wanted::AsItIs, |Visit { at, now, .. }| match at {
            At::Line(line) => Some(Err(line)),
            At::Quiet(cells, _) => Some(Ok(KeySnapshot::of_quiet(&cells, now))),
            At::Absent(_) => None,
        });
        Some(line.ok()??.unwrap_or_else(|line| KeySnapshot::of_line(&line)))
    }

    fn snapshots(&self, shard: usize) -> Option<Vec<(K, KeySnapshot)>> {
        let mut guard = self.shards.get(shard)?.lock().unwrap_or_else(PoisonError::into_inner);
        let Shard { quiet, lines, tiers, clock, .. } = &mut *guard;
        let now = clock.now().0;
        let tiered = self.shared.tier_of.is_some();
        let quiet = quiet.iter_mut().map(|(key, words)| (key.clone(), KeySnapshot::of_quiet(&cells(tiers, words, tiered), now)));
        let mut snapshots: Vec<_> = quiet.collect();
        let lines: Vec<_> = lines.iter().map(|(key, line)| (key.clone(), Arc::clone(line))).collect();
        drop(guard);
        snapshots.extend(lines.into_iter().map(|(key, line)| (key, KeySnapshot::of_line(&line))));
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
        Gate::new((*shard.tiers[0].plan).clone(), now, false).decide(now, 0, 1)
    }
}
