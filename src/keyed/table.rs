//! A keyed limiter behind its public face: finds a key, creates it, gives it a manager, and decides.

use std::hash::Hash;
use std::sync::Arc;

use super::event::KeyedLimiterEvent;
use super::idle::{Idle, KeptHash};
use super::idle_key::{Fences, IdleKey};
use super::key_state::KeyState;
use super::key_table::{Admitted, Denial, KeyTable};
use super::shard::{Location, Removed, Shard};
use super::shards::Shards;
use super::shared::Shared;
use super::snapshot::KeySnapshot;
use super::tier::Tier;
use crate::contain_panic::contain_panic;
use crate::core::costs::Costs;
use crate::core::gate::Gate;
use crate::core::request::Caller;
use crate::decision::Decision;
use crate::error::{AcquireError, TryAcquireError};
use crate::event::{Attempt, EventKind};
use crate::manager::{Manager, ManagerParts, RequestOptions};
use crate::observe::Observer;
use crate::permit::Permit;
use crate::policy::Policy;
use crate::strategy::Moment;

/// Grants to idle keys between two checks for removable keys.
const REAP_EVERY: u64 = 64;

/// A keyed limiter whose idle keys take `W` words.
pub(super) struct Table<K, const W: usize, H> {
    shared: Shared<K>,
    shards: Shards<K, W, H>,
}

/// A key on its way into its shard.
struct Entering<'a, K> {
    key: &'a K,
    hash: u64,
    policy: Option<Policy>,
    /// Whether an unknown key becomes known.
    create: bool,
    /// Made when they turn out to be needed.
    copies: Option<Copies<K>>,
}

/// The copies that a new key and a new manager take.
struct Copies<K> {
    key: Option<K>,
    observer: Option<Observer>,
}

/// How a key was found.
enum Entered<R> {
    /// It is idle, and the call was answered.
    Idle(R),
    Active(Arc<Manager>),
    /// It is unknown, and must stay so or finds no room. With the plan that it would have, and the moment.
    Absent(Tier, Moment),
}

/// What is done after the shard is unlocked, because it runs foreign code.
struct AfterUnlock<K> {
    evicted: Option<(K, Moment)>,
    /// The plan that a manager uses from now on.
    tier: Option<(Arc<Manager>, Tier)>,
    /// The former and the present policy of a key whose tier has changed while it was idle.
    changed: Option<Box<[Policy; 2]>>,
    removed: Removed<K>,
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static, const W: usize, H: KeptHash> KeyTable<K> for Table<K, W, H> {
    #[inline]
    fn try_acquire(&self, key: &K, cost: u64, caller: Caller) -> Result<Permit, TryAcquireError> {
        if let Some(plan) = &self.shared.plan {
            let hash = self.shards.hash(key);
            let reading = self.shared.time_source.now(); // before the lock, which is then held for half as long
            let mut guard = self.shards.lock(hash);
            let Shard { idle, tiers, clock, fence, id_prefix, .. } = &mut *guard;
            let idle = idle.find_mut(hash, |idle| idle.is(hash, key));
            if let Some(Idle { words, .. }) = idle.filter(|_| cost.wrapping_sub(1) < plan.max_cost()) {
                let now = clock.now_since(reading);
                if (KeyState { plan, words }).admit(now, cost) {
                    *fence += 1;
                    let (id_prefix, fence, origin) = (*id_prefix, *fence, clock.origin());
                    if fence.is_multiple_of(REAP_EVERY) {
                        self.shards.reap_and_unlock(guard, now);
                    } else {
                        drop(guard);
                    }
                    return Ok(Permit::idle(id_prefix, fence, cost, now, origin));
                }
                if self.shared.observer.is_none() {
                    // The decision holds a policy copy of this shard only.
                    return Err(KeyState { plan: tiers.own().plan(), words }.deny(now, cost));
                }
            }
        }
        self.try_acquire_slowly(key, &RequestOptions::new(cost, caller))
    }

    fn try_request(&self, key: &K, options: &RequestOptions) -> Result<Permit, TryAcquireError> {
        if options.by_unit.is_some() {
            return self.try_acquire_slowly(key, options);
        }
        self.try_acquire(key, options.cost, options.caller)
    }

    fn admit(&self, key: &K, options: &RequestOptions) -> Result<Admitted, AcquireError> {
        let cost = options.cost;
        options.checked_timeout()?;
        let entered = self.enter(key, true, |IdleKey { mut state, mut fences, now, origin }| match state.fits(cost) {
            Err(misfit) => Some(Err(misfit.into())),
            Ok(()) => state.admit(now, cost).then(|| Ok(fences.permit(cost, now, origin))),
        })?;
        match entered {
            Entered::Idle(answer) => answer.map(Admitted::Granted),
            Entered::Active(manager) => Ok(Admitted::ToManager(manager)),
            Entered::Absent(..) => Err(self.too_many(key).into()),
        }
    }

    fn manager(&self, key: &K) -> Result<Arc<Manager>, Denial> {
        match self.enter(key, true, |_| None::<std::convert::Infallible>)? {
            Entered::Active(manager) => Ok(manager),
            Entered::Absent(..) => Err(self.too_many(key)),
            Entered::Idle(never) => match never {},
        }
    }

    fn check(&self, key: &K, costs: Costs<'_>) -> Decision {
        let cost = costs.plain;
        let decide = |IdleKey { state, now, .. }: IdleKey<'_>| match cost {
            0 => state.decide(now, 1).refused(),
            cost => state.decide(now, cost),
        };
        match self.enter(key, false, |idle| Some(decide(idle))) {
            Ok(Entered::Idle(decision)) => decision,
            Ok(Entered::Active(manager)) => manager.check(costs),
            Ok(Entered::Absent(tier, now)) => {
                let decision =
                    Gate::new(Arc::clone(tier.plan()), now, false).decide(now, 0, Costs { plain: cost.max(1), ..costs });
                if cost == 0 || !self.shards.has_room() { decision.refused() } else { decision }
            }
            Err(_) => self.default_decision().refused(),
        }
    }

    fn penalize(&self, key: &K, units: u64) -> bool {
        let charge = |mut idle: IdleKey<'_>| idle.state.charge(idle.now, units);
        self.update(key, charge, |manager| manager.charge(units)).is_ok()
    }

    fn reward(&self, key: &K, units: u64) {
        let forgive = |mut idle: IdleKey<'_>| idle.state.forgive(idle.now, units);
        self.update_known(key, forgive, |manager| manager.forgive(units));
    }

    fn reset(&self, key: &K) -> bool {
        self.update_known(key, |mut idle| idle.state.fill(idle.now), Manager::reset).is_some()
    }

    fn snapshot(&self, key: &K) -> Option<KeySnapshot> {
        self.update_known(key, |idle| KeySnapshot::of_idle(&idle.state, idle.now), KeySnapshot::of_active)
    }

    fn snapshots(&self, shard: usize) -> Option<Vec<(K, KeySnapshot)>> {
        let (mut snapshots, active) = self.shards.get(shard)?.snapshots(KeySnapshot::of_idle);
        snapshots.extend(active.into_iter().map(|(key, manager)| (key, KeySnapshot::of_active(&manager))));
        Some(snapshots)
    }

    fn len(&self) -> usize {
        self.shards.len()
    }

    fn max_keys(&self) -> usize {
        self.shards.max_keys()
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static, const W: usize, H: KeptHash> Table<K, W, H> {
    pub(super) fn new(shared: Shared<K>, shards: Shards<K, W, H>) -> Self {
        Self { shared, shards }
    }

    /// [`KeyTable::try_acquire`], where it is not decided at once: for a key that is new, active, or of a tier, and where a denial is
    /// told.
    #[inline(never)]
    fn try_acquire_slowly(&self, key: &K, options: &RequestOptions) -> Result<Permit, TryAcquireError> {
        if self.shared.observer.is_some() {
            return self.try_acquire_and_tell(key, options);
        }
        let try_idle = |mut idle: IdleKey<'_>| idle.try_acquire(options.cost);
        self.update(key, try_idle, |manager| manager.try_request(options))?
    }

    #[cold]
    fn try_acquire_and_tell(&self, key: &K, options: &RequestOptions) -> Result<Permit, TryAcquireError> {
        let &RequestOptions { cost, caller, .. } = options;
        let mut events = Vec::new();
        let try_idle = |mut idle: IdleKey<'_>| {
            let now = idle.now;
            let attempt = Attempt { now, cost, requested_in: caller, bans: idle.state.bans(now).collect() };
            let answer = idle.try_acquire(cost);
            if let Err(TryAcquireError::Denied(decision)) = &answer {
                events = attempt.denied(decision, idle.state.bans(now));
            }
            answer
        };
        let answer = self.update(key, try_idle, |manager| manager.try_request(options))?;
        events.into_iter().for_each(|kind| self.shared.emit_of_idle(key, kind));
        answer
    }

    /// Changes a key, which becomes known.
    fn update<R>(
        &self,
        key: &K,
        mut idle: impl FnMut(IdleKey<'_>) -> R,
        active: impl FnOnce(&Arc<Manager>) -> R,
    ) -> Result<R, Denial> {
        match self.enter(key, true, |key| Some(idle(key)))? {
            Entered::Idle(result) => Ok(result),
            Entered::Active(manager) => Ok(active(&manager)),
            Entered::Absent(..) => Err(self.too_many(key)),
        }
    }

    /// Changes a known key.
    fn update_known<R>(
        &self,
        key: &K,
        mut idle: impl FnMut(IdleKey<'_>) -> R,
        active: impl FnOnce(&Arc<Manager>) -> R,
    ) -> Option<R> {
        match self.enter(key, false, |key| Some(idle(key))).ok()? {
            Entered::Idle(result) => Some(result),
            Entered::Active(manager) => Some(active(&manager)),
            Entered::Absent(..) => None,
        }
    }

    /// Finds a key with its present tier, and calls `ask` if it is idle; if `ask` has no answer, the key becomes active. On the
    /// way, a few keys are checked for removal.
    ///
    /// The only foreign code under the lock is `Eq`, before anything has changed. So the copies that a new key needs, if its code
    /// is foreign, are made between two visits of the shard; `ask` may be called at each visit.
    fn enter<R>(&self, key: &K, create: bool, mut ask: impl FnMut(IdleKey<'_>) -> Option<R>) -> Result<Entered<R>, Denial> {
        let policy = self.shared.tier_of.as_ref().map(|tier_of| tier_of(key));
        let mut entering = Entering { key, hash: self.shards.hash(key), policy, create, copies: None };
        loop {
            let mut after_unlock = AfterUnlock { evicted: None, tier: None, changed: None, removed: Removed::default() };
            let mut shard = self.shards.lock(entering.hash);
            let now = shard.clock.now();
            let entered = self.enter_shard(&mut shard, &mut entering, now, &mut ask, &mut after_unlock);
            drop(shard);
            self.follow_up(key, now, after_unlock);
            if let Some(entered) = entered? {
                return Ok(entered);
            }
            entering.copies = Some(self.new_copies(key));
        }
    }

    /// One visit of [`Table::enter`]. `None` where it takes copies and has none.
    fn enter_shard<R>(
        &self,
        shard: &mut Shard<K, W, H>,
        entering: &mut Entering<'_, K>,
        now: Moment,
        ask: &mut impl FnMut(IdleKey<'_>) -> Option<R>,
        after_unlock: &mut AfterUnlock<K>,
    ) -> Result<Option<Entered<R>>, Denial> {
        let &mut Entering { key, hash, ref policy, create, .. } = entering;
        if shard.count_access() {
            self.shards.reap_some(shard, now, &mut after_unlock.removed);
        }
        let location = shard.locate(hash, key);
        let tier = shard.tiers.find(policy.as_ref()).map_err(Denial::Config)?;
        let slot = match location {
            Location::Active(manager) => {
                if policy.is_some() {
                    after_unlock.tier = Some((Arc::clone(&manager), shard.tiers.get(tier)));
                }
                return Ok(Some(Entered::Active(manager)));
            }
            Location::Idle { slot } => slot,
            Location::Absent if !create => return Ok(Some(Entered::Absent(shard.tiers.get(tier), now))),
            Location::Absent => {
                let Some(copies) = self.copies(entering) else { return Ok(None) };
                let new = shard.tiers.get(tier.clone());
                let AfterUnlock { evicted, removed, .. } = after_unlock;
                self.shards.reap_some(shard, now, removed);
                if !self.shards.make_room(shard, now, evicted, removed) {
                    return Ok(Some(Entered::Absent(new, now)));
                }
                let Some(key) = copies.key.take() else { return Ok(None) };
                match &tier {
                    Ok(number) if new.fits => shard.insert_new(hash, key, *number, now),
                    _ => {
                        let observer = copies.observer.take().unwrap_or(Observer::NONE);
                        let number = self.shared.numbers.next();
                        let manager = Manager::of_new_key(new.common, number, shard.fence, &shard.clock, observer);
                        shard.insert_active(hash, key, Arc::clone(&manager));
                        return Ok(Some(Entered::Active(manager)));
                    }
                }
            }
        };
        let other = match tier {
            Ok(number) if number == shard.tier_at(slot) => None,
            Ok(number) if shard.tiers.fits(number) => {
                after_unlock.changed = Some([shard.policy_at(slot), shard.tiers.get(Ok(number)).policy].into());
                shard.change_tier(slot, number, now);
                None
            }
            tier => Some(shard.tiers.get(tier)),
        };
        let Shard { idle, tiers, clock, fence, id_prefix, .. } = shard;
        if let Some(idle) = idle.get_mut(slot).filter(|_| other.is_none()) {
            let fences = Fences { id_prefix: *id_prefix, latest: fence };
            if let Some(result) = ask(IdleKey { state: tiers.state(&mut idle.words), fences, now, origin: clock.origin() }) {
                return Ok(Some(Entered::Idle(result)));
            }
        }
        let mut observer = Observer::NONE;
        if self.shared.observer.is_some() {
            let Some(copies) = self.copies(entering) else { return Ok(None) };
            observer = copies.observer.take().unwrap_or(Observer::NONE);
        }
        if let Some(other) = &other {
            after_unlock.changed = Some([shard.policy_at(slot), other.policy.clone()].into());
        }
        let common = other.clone().unwrap_or_else(|| shard.tiers.get(Ok(shard.tier_at(slot)))).common;
        let Some((key, gate)) = shard.take_idle(slot, other, now) else { return Ok(None) };
        let (clock, number) = (shard.clock.clone(), self.shared.numbers.next());
        let manager = Manager::open(ManagerParts { common, number, gate, clock, observer });
        shard.insert_active(hash, key, Arc::clone(&manager));
        Ok(Some(Entered::Active(manager)))
    }

    /// The copies. If they are missing they are made here, under the lock, unless that runs foreign code.
    fn copies<'a>(&self, entering: &'a mut Entering<'_, K>) -> Option<&'a mut Copies<K>> {
        if entering.copies.is_none() && !H::FOREIGN {
            entering.copies = Some(self.new_copies(entering.key));
        }
        entering.copies.as_mut()
    }

    fn new_copies(&self, key: &K) -> Copies<K> {
        let observer = self.shared.observer.as_ref().map_or(Observer::NONE, |observer| {
            let (observer, key) = (Arc::clone(observer), key.clone());
            Observer::new(move |event| observer(KeyedLimiterEvent::Limiter { key: &key, event }))
        });
        Copies { key: Some(key.clone()), observer: Some(observer) }
    }

    /// Does what could not be done under the lock.
    fn follow_up(&self, key: &K, now: Moment, AfterUnlock { evicted, tier, changed, removed }: AfterUnlock<K>) {
        if let Some((manager, tier)) = tier {
            manager.apply_policy(&tier.policy, tier.plan());
        }
        if let Some([from, to]) = changed.map(|changed| *changed).filter(|_| self.shared.observer.is_some()) {
            self.shared.emit_of_idle(key, EventKind::PolicyChanged { from, to });
        }
        if let Some((key, reset_at)) = evicted {
            let reset_after = reset_at.duration_since(now);
            self.shared.emit(KeyedLimiterEvent::Evicted { limiter: self.shared.name.as_ref(), key: &key, reset_after });
            contain_panic(|| drop(key));
        }
        removed.discard();
    }

    fn too_many(&self, key: &K) -> Denial {
        self.shared.emit(KeyedLimiterEvent::TooManyKeys { limiter: self.shared.name.as_ref(), key });
        Denial::TooManyKeys { max: self.shards.max_keys() }
    }

    /// The decision of the limiter's own policy for a new key, used for a key whose own policy is invalid.
    fn default_decision(&self) -> Decision {
        let mut shard = self.shards.lock(0);
        let (now, plan) = (shard.clock.now(), Arc::clone(shard.tiers.own().plan()));
        drop(shard);
        Gate::new(plan, now, false).decide(now, 0, Costs::plain(1))
    }
}
