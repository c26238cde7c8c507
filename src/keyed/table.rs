//! The implementation of a keyed limiter: finds a key, creates it, gives it a manager, and decides.

use std::hash::Hash;
use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::key::{IdleKey, IdleState, KeptHash, KeyRef, KeySnapshot};
use super::shard::{Change, Changes, Removed, Shard};
use super::shards::{ON_THE_WAY, ShardGuard, Shards};
use super::shared::KeyedShared;
use crate::carry_over::UsageCarryOver;
use crate::contain_panic::contain_panic;
use crate::core::gate::Gate;
use crate::core::gate::plan::Plan;
use crate::core::request::{Caller, Costs};
use crate::core::schedule::Schedule;
use crate::core::suspension::AllKeysHold;
use crate::decision::Decision;
use crate::error::{AcquireError, ConfigError, TryAcquireError};
use crate::event::EventKind;
use crate::manager::{Manager, PerPlan, Reading, RequestOptions};
use crate::observe::Observers;
use crate::permit::Permit;
use crate::policy::Policy;
use crate::snapshot::{KeyTotals, LimitStatus};
use crate::strategy::{Moment, Strategy};

/// Grants to idle keys between two checks for removable keys.
const REAP_EVERY: u64 = 64;

/// A keyed limiter whose idle keys take `W` words.
pub(super) struct KeyTable<K, const W: usize, H> {
    pub(super) shared: KeyedShared<K>,
    pub(super) shards: Shards<K, W, H>,
    changes: Changes,
}

/// The purpose of a call for a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// An unknown key stays unknown.
    Look,
    Change,
    /// The call requests a permit.
    Request,
}

/// How a key was found.
enum Entered<R> {
    /// The key is idle, and the call was answered.
    Idle(R),
    /// The key is active. The clock was read just before its shard was locked.
    Active(Arc<Manager>, Reading),
    /// The key is unknown, and must stay unknown or there is no room for it. It would have this tier.
    Absent {
        tier: Arc<PerPlan>,
        hold: Option<AllKeysHold>,
        now: Moment,
    },
}

/// The table's answer to a request that is ready to wait.
pub(super) enum Admitted {
    Granted(Permit),
    /// The key is active: its manager decides.
    ToManager(Arc<Manager>),
}

/// A call for a key that is about to visit the key's shard.
struct Entering<'a, K, Q: ?Sized> {
    key: &'a Q,
    hash: u64,
    policy: Option<Policy>,
    purpose: Purpose,
    /// The clock just before the shard is locked, which is then held for less long.
    reading: Reading,
    /// `None` until they are needed.
    copies: Option<Copies<K>>,
}

/// The copies that a new key and a new manager take.
struct Copies<K> {
    key: Option<K>,
    observer: Observers,
}

/// Work that runs foreign code, so it is done after the shard is unlocked.
struct AfterUnlock<K> {
    evicted: Option<(K, Moment)>,
    /// The plan that a manager uses from now on.
    plan: Option<(Arc<Manager>, Arc<Plan>)>,
    /// The former and the present policy of a key whose tier has changed while it was idle.
    changed: Option<Box<[Policy; 2]>>,
    removed: Removed<K>,
}

/// What a request of an idle key gets at once.
enum AtOnce<'a, K, const W: usize, H> {
    Granted(Permit),
    /// The request was not admitted at this moment: the shard is still locked, and the key is in this slot.
    Denied(ShardGuard<'a, K, W, H>, usize, Moment),
    /// Nothing has changed, except that the key may be known now.
    Undecided,
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static, const W: usize, H: KeptHash> KeyTable<K, W, H> {
    pub(super) fn new(shared: KeyedShared<K>, shards: Shards<K, W, H>) -> Self {
        Self {
            shared,
            shards,
            changes: Changes::default(),
        }
    }

    #[inline]
    pub(super) fn try_acquire<Q: KeyRef<K> + ?Sized>(
        &self,
        key: &Q,
        cost: u64,
        caller: Caller,
    ) -> Result<Permit, TryAcquireError> {
        match self.decide_at_once(key, cost, |_, _| ()) {
            AtOnce::Granted(permit) => Ok(permit),
            AtOnce::Denied(shard, slot, now) => {
                Self::deny_at_once(shard, slot, now, cost, |_, _| ())
            }
            AtOnce::Undecided => self.try_slowly(key, &RequestOptions::new(cost, caller), None),
        }
    }

    /// Decides now. Sets `limits` to the status of each limit right after the decision, unless there is no room for the key, or
    /// the policy of its tier is invalid.
    pub(super) fn try_request<Q: KeyRef<K> + ?Sized>(
        &self,
        key: &Q,
        options: &RequestOptions,
        mut limits: Option<&mut Vec<LimitStatus>>,
    ) -> Result<Permit, TryAcquireError> {
        let mut look = |state: &IdleState<'_>, now| {
            limits
                .iter_mut()
                .for_each(|limits| **limits = state.limits(now));
        };
        options
            .check_weights()
            .map_err(TryAcquireError::without_decision)?;
        let cost = options.cost;
        match self.decide_at_once(key, cost, &mut look) {
            AtOnce::Granted(permit) => Ok(permit),
            AtOnce::Denied(shard, slot, now) => Self::deny_at_once(shard, slot, now, cost, look),
            AtOnce::Undecided => self.try_slowly(key, options, limits),
        }
    }

    /// Grants a request of an idle key, known or new, and calls `look` with the state right after the grant. Leaves a denial to
    /// [`KeyTable::deny_at_once`].
    #[inline(always)]
    fn decide_at_once<Q: KeyRef<K> + ?Sized>(
        &self,
        key: &Q,
        cost: u64,
        look: impl FnOnce(&IdleState<'_>, Moment),
    ) -> AtOnce<'_, K, W, H> {
        if self.shared.decides_at_once.load(Relaxed) {
            let hash = self.shards.hash(key);
            let reading = self.shared.time_source.now(); // read before the lock, which is then held for half as long
            let mut guard = self.shards.lock(hash);
            let shard = &mut *guard;
            let now = shard.clock.now_since(reading);
            let mut slot = shard.idle.find(hash, |idle| idle.is(hash, key));
            if slot.is_none() {
                slot = self.new_slot(shard, (hash, key), now);
            }
            let idle = slot.and_then(|slot| shard.idle.get_mut(slot));
            if let (Some(idle), Some(plan), None) = (idle, &shard.plan, &shard.hold)
                && cost.wrapping_sub(1) < plan.max_cost()
            {
                let words = &mut idle.value;
                let mut state = IdleState { plan, words };
                if state.admit(now, cost) {
                    look(&state, now);
                    shard.fence += 1;
                    let (id_prefix, fence) = (shard.id_prefix, shard.fence);
                    let origin = shard.clock.origin();
                    if fence.is_multiple_of(REAP_EVERY) {
                        self.shards.reap_and_unlock(guard, now);
                    } else {
                        drop(guard);
                    }
                    return AtOnce::Granted(Permit::idle(id_prefix, fence, cost, now, origin));
                }
                if let (Some(slot), false) = (slot, self.shared.observed) {
                    return AtOnce::Denied(guard, slot, now);
                }
            }
        }
        AtOnce::Undecided
    }

    /// The slot of a new key, if it is made in place: no foreign code runs, all keys of the shard are idle, and there is room. So the
    /// keys that are removed on the way can be dropped under the lock.
    #[cold]
    #[inline(never)]
    fn new_slot<Q: KeyRef<K> + ?Sized>(
        &self,
        shard: &mut Shard<K, W, H>,
        (hash, key): (u64, &Q),
        now: Moment,
    ) -> Option<usize> {
        shard.plan.as_ref()?; // its state fits into words
        if H::FOREIGN || shard.has_active() {
            return None;
        }
        (self.shards).reap(shard, ON_THE_WAY, now, &mut Removed::default());
        let has_room = self.shards.count_one_more();
        has_room.then(|| shard.insert_new(hash, key.to_key(), 0, now))
    }

    /// The denial of a request for the idle key in this slot, which was not admitted. Calls `look` with the state right after it.
    ///
    /// It is made in its place, after which the caller does nothing: moving it, just after its fields were written, would stall the
    /// processor.
    #[cold]
    #[inline(never)]
    fn deny_at_once(
        mut shard: ShardGuard<'_, K, W, H>,
        slot: usize,
        now: Moment,
        cost: u64,
        look: impl FnOnce(&IdleState<'_>, Moment),
    ) -> Result<Permit, TryAcquireError> {
        let shard = &mut *shard;
        shard.counted.denied += 1;
        let idle = shard.idle.get_mut(slot).expect("it was found here");
        let mut state = IdleState {
            plan: &shard.tiers.own().plan, // the decision holds a policy copy of this shard only
            words: &mut idle.value,
        };
        let denial = Err(state.deny(None, now, cost));
        look(&state, now);
        denial
    }

    /// Decides a request that [`KeyTable::decide_at_once`] does not: for a key that is active or of a tier, for some new ones, and when an
    /// observer gets the denial. Sets `limits` to the status of each limit right after the decision.
    #[inline(never)]
    fn try_slowly<Q: KeyRef<K> + ?Sized>(
        &self,
        key: &Q,
        options: &RequestOptions,
        mut limits: Option<&mut Vec<LimitStatus>>,
    ) -> Result<Permit, TryAcquireError> {
        let observed = self.shared.observed;
        let mut events = Vec::new();
        let entered = self.enter(key, Purpose::Request, |mut idle| {
            let attempt = observed.then(|| idle.attempt(options));
            let answer = idle.try_acquire(options.cost);
            if let Some(limits) = &mut limits {
                **limits = idle.state.limits(idle.now);
            }
            if let (Some(attempt), Err(TryAcquireError::Denied(decision))) = (attempt, &answer) {
                events = attempt.denied(decision, idle.state.bans(idle.now));
            }
            Some(answer)
        });
        match entered.map_err(TryAcquireError::without_decision)? {
            Entered::Idle(answer) => {
                if !events.is_empty() {
                    self.shared.tell_of_borrowed(key, events);
                }
                answer
            }
            Entered::Active(manager, reading) => {
                manager
                    .in_channel()
                    .try_request(options, limits, Some(reading))
            }
            Entered::Absent { .. } => Err(TryAcquireError::without_decision(self.too_many(key))),
        }
    }

    /// Admits a request that is ready to wait. If an idle key grants it, sets `limits` to the status of each limit right after
    /// the grant.
    pub(super) fn admit<Q: KeyRef<K> + ?Sized>(
        &self,
        key: &Q,
        options: &RequestOptions,
        mut limits: Option<&mut Vec<LimitStatus>>,
    ) -> Result<Admitted, AcquireError> {
        options.check_weights()?;
        options.checked_timeout()?;
        let entered = self.enter(key, Purpose::Request, |mut idle| {
            if let Err(error) = idle.state.fits(options.cost) {
                return Some(Err(error));
            }
            let permit = idle.admit(options.cost)?;
            if let Some(limits) = &mut limits {
                **limits = idle.state.limits(idle.now);
            }
            Some(Ok(permit))
        })?;
        match entered {
            Entered::Idle(answer) => answer.map(Admitted::Granted),
            Entered::Active(manager, _) => Ok(Admitted::ToManager(manager)),
            Entered::Absent { .. } => Err(self.too_many(key)),
        }
    }

    pub(super) fn manager<Q: KeyRef<K> + ?Sized>(
        &self,
        key: &Q,
    ) -> Result<Arc<Manager>, AcquireError> {
        match self.enter(key, Purpose::Change, |_| None::<std::convert::Infallible>)? {
            Entered::Active(manager, _) => Ok(manager),
            Entered::Absent { .. } => Err(self.too_many(key)),
            Entered::Idle(never) => match never {},
        }
    }

    pub(super) fn check<Q: KeyRef<K> + ?Sized>(&self, key: &Q, costs: Costs<'_>) -> Decision {
        let cost = costs.plain;
        let decide = |IdleKey {
                          state, hold, now, ..
                      }: IdleKey<'_>| match cost {
            0 => state.decide(None, now, 1).refused(),
            cost => state.decide(hold, now, cost),
        };
        match self.enter(key, Purpose::Look, |idle| Some(decide(idle))) {
            Ok(Entered::Idle(decision)) => decision,
            Ok(Entered::Active(manager, _)) => manager.check(costs),
            Ok(Entered::Absent { tier, hold, now }) => {
                let costs = Costs {
                    plain: cost.max(1),
                    ..costs
                };
                let decision = Gate::new(Arc::clone(&tier.plan), now, false)
                    .limits()
                    .decide(now, 0, costs);
                let refused = cost == 0 || !self.shards.has_room();
                if refused {
                    decision.refused()
                } else {
                    hold.unwrap_or_default().decide(decision, now)
                }
            }
            Err(_) => self.default_decision().refused(),
        }
    }

    /// The status of each limit of the key. An unknown key stays unknown.
    pub(super) fn limits<Q: KeyRef<K> + ?Sized>(&self, key: &Q) -> Vec<LimitStatus> {
        match self.enter(key, Purpose::Look, |idle| Some(idle.state.limits(idle.now))) {
            Ok(Entered::Idle(limits)) => limits,
            Ok(Entered::Active(manager, _)) => manager.limits(),
            Ok(Entered::Absent { tier, now, .. }) => Gate::new(Arc::clone(&tier.plan), now, false)
                .limits()
                .statuses(now),
            Err(_) => Vec::new(),
        }
    }

    pub(super) fn penalize<Q: KeyRef<K> + ?Sized>(&self, key: &Q, units: u64) -> bool {
        let charge = |IdleKey { mut state, now, .. }: IdleKey<'_>| {
            state.change(|rule, words| rule.charge(words, now, units));
        };
        self.visit(key, Purpose::Change, charge, |manager| {
            manager.charge(units);
        })
        .is_some()
    }

    pub(super) fn reward<Q: KeyRef<K> + ?Sized>(&self, key: &Q, units: u64) {
        let forgive = |IdleKey { mut state, now, .. }: IdleKey<'_>| {
            state.change(|rule, words| rule.forgive(words, now, units));
        };
        self.visit(key, Purpose::Look, forgive, |manager| {
            manager.control(|schedule, now, effects| schedule.forgive(now, units, effects));
        });
    }

    pub(super) fn reset<Q: KeyRef<K> + ?Sized>(&self, key: &Q) -> bool {
        self.visit(
            key,
            Purpose::Look,
            |mut idle| idle.state.change(|rule, _| rule.initial(idle.now)),
            |manager| {
                manager.control(Schedule::reset);
            },
        )
        .is_some()
    }

    pub(super) fn snapshot<Q: KeyRef<K> + ?Sized>(&self, key: &Q) -> Option<KeySnapshot> {
        self.visit(
            key,
            Purpose::Look,
            |idle| KeySnapshot::of_idle(&idle.state, idle.hold, idle.now),
            KeySnapshot::of_active,
        )
    }

    pub(super) fn snapshots(&self, shard: usize) -> Option<Vec<(K, KeySnapshot)>> {
        if shard == self.shards.count() {
            return None;
        }
        let (mut snapshots, active) = self.shards.get(shard).snapshots();
        snapshots.extend(
            active
                .into_iter()
                .map(|(key, manager)| (key, KeySnapshot::of_active(&manager))),
        );
        Some(snapshots)
    }

    pub(super) fn totals(&self) -> KeyTotals {
        let mut totals = KeyTotals::default();
        (0..self.shards.count()).for_each(|shard| totals.add(self.shards.get(shard).totals()));
        totals
    }

    pub(super) fn set_policy(
        &self,
        policy: Policy,
        carry: UsageCarryOver,
    ) -> Result<(), ConfigError> {
        if self.shared.tier_of.is_some() {
            return Err(ConfigError::HasTiers);
        }
        let since_epoch = self.shards.get(0).tiers.own().since_epoch();
        self.change(Change::SetPlan(
            Arc::new(Plan::new(policy, since_epoch)?),
            carry,
        ));
        Ok(())
    }

    /// Changes all keys, shard by shard.
    pub(super) fn change(&self, change: Change) {
        let number = self.changes.begin(change);
        for index in (0..self.shards.count()).rev() {
            let (mut removed, mut unapplied) = (Removed::default(), Vec::new());
            self.shards.change(index, |shard| {
                for (number, change) in self.changes.after(shard.changes) {
                    shard.change(&change, &self.shared, &mut removed, &mut unapplied);
                    shard.changes = number;
                }
                let decides_at_once = shard.plan.is_some();
                self.shared.decides_at_once.store(decides_at_once, Relaxed);
            });
            removed.discard();
            for (manager, unapplied) in unapplied {
                unapplied.apply(&manager);
                contain_panic(|| drop(manager)); // perhaps the last handle
            }
        }
        self.changes.end(number);
    }

    /// Reads or changes a key, idle or active. `None` if the key is unknown and stays so, or the policy of its tier is invalid.
    fn visit<R>(
        &self,
        key: &(impl KeyRef<K> + ?Sized),
        purpose: Purpose,
        mut idle: impl FnMut(IdleKey<'_>) -> R,
        active: impl FnOnce(&Arc<Manager>) -> R,
    ) -> Option<R> {
        match self.enter(key, purpose, |key| Some(idle(key))).ok()? {
            Entered::Idle(result) => Some(result),
            Entered::Active(manager, _) => Some(active(&manager)),
            Entered::Absent { .. } => {
                if purpose == Purpose::Change {
                    self.too_many(key);
                }
                None
            }
        }
    }

    fn too_many(&self, key: &(impl KeyRef<K> + ?Sized)) -> AcquireError {
        self.shared.tell_of_borrowed(key, [EventKind::TooManyKeys]);
        AcquireError::TooManyKeys {
            max: self.shards.max_keys,
        }
    }

    /// The decision of the limiter's own policy for a new key, used for a key whose own policy is invalid.
    fn default_decision(&self) -> Decision {
        let mut shard = self.shards.get(0);
        let now = shard.clock.now();
        Gate::new(Arc::clone(&shard.tiers.own().plan), now, false)
            .limits()
            .decide(now, 0, Costs::plain(1))
    }

    /// Finds a key with its present tier. If the key is idle, calls `ask`; if `ask` returns `None`, the key becomes active. Also
    /// checks a few keys for removal.
    ///
    /// The only foreign code under the lock is `Eq`, before anything has changed. So if the code of a new key is foreign, the
    /// copies that the key needs are made between two visits of the shard. `ask` may be called at each visit.
    fn enter<Q: KeyRef<K> + ?Sized, R>(
        &self,
        key: &Q,
        purpose: Purpose,
        mut ask: impl FnMut(IdleKey<'_>) -> Option<R>,
    ) -> Result<Entered<R>, AcquireError> {
        let policy = self
            .shared
            .tier_of
            .as_ref()
            .map(|tier_of| tier_of(&key.to_key()));
        let mut entering = Entering {
            key,
            hash: self.shards.hash(key),
            policy,
            purpose,
            reading: self.shared.time_source.now(),
            copies: None,
        };
        loop {
            let mut after_unlock = AfterUnlock {
                evicted: None,
                plan: None,
                changed: None,
                removed: Removed::default(),
            };
            let mut shard = self.shards.lock(entering.hash);
            let now = shard.clock.now_since(entering.reading);
            let entered =
                self.enter_shard(&mut shard, &mut entering, now, &mut ask, &mut after_unlock);
            drop(shard);
            self.follow_up(key, now, after_unlock);
            if let Some(entered) = entered? {
                return Ok(entered);
            }
            entering.copies = Some(self.new_copies(key.to_key()));
            entering.reading = self.shared.time_source.now();
        }
    }

    /// One visit of [`KeyTable::enter`]. `None` if copies are needed but not made yet.
    fn enter_shard<R>(
        &self,
        shard: &mut Shard<K, W, H>,
        entering: &mut Entering<'_, K, impl KeyRef<K> + ?Sized>,
        now: Moment,
        ask: &mut impl FnMut(IdleKey<'_>) -> Option<R>,
        after_unlock: &mut AfterUnlock<K>,
    ) -> Result<Option<Entered<R>>, AcquireError> {
        let &mut Entering {
            key,
            hash,
            ref policy,
            purpose,
            reading,
            ..
        } = entering;
        let hold = shard.hold_at(now);
        if purpose == Purpose::Request && hold.is_some_and(|hold| hold.closed) {
            return Err(AcquireError::Closed);
        }
        if shard.count_access() {
            self.shards
                .reap(shard, ON_THE_WAY, now, &mut after_unlock.removed);
        }
        // The manager of this key may have read a later time, by which the key was removed as a reset one.
        let now = shard.clock.latest();
        let (active, idle) = shard.find(hash, key);
        let tier = shard
            .tiers
            .find(policy.as_ref())
            .map_err(|error| AcquireError::Config(error.into()))?;
        if let Some(manager) = active {
            if policy.is_some() {
                let plan = Arc::clone(&shard.tiers.get(tier).plan);
                after_unlock.plan = Some((Arc::clone(&manager), plan));
            }
            return Ok(Some(Entered::Active(manager, reading)));
        }
        let slot = match idle {
            Some(slot) => slot,
            None if purpose == Purpose::Look => {
                return Ok(Some(Entered::Absent {
                    tier: Arc::clone(shard.tiers.get(tier)),
                    hold,
                    now,
                }));
            }
            None => {
                let Some(copies) = self.copies(entering) else {
                    return Ok(None);
                };
                let AfterUnlock {
                    evicted, removed, ..
                } = after_unlock;
                self.shards.reap(shard, ON_THE_WAY, now, removed);
                if !self.shards.make_room(shard, now, evicted, removed) {
                    return Ok(Some(Entered::Absent {
                        tier: Arc::clone(shard.tiers.get(tier)),
                        hold,
                        now,
                    }));
                }
                let Some(key) = copies.key.take() else {
                    return Ok(None);
                };
                if shard.tiers.fits(tier) {
                    shard.insert_new(hash, key, tier, now)
                } else {
                    let observer = take(&mut copies.observer);
                    let number = self.shared.next_number();
                    let manager = Manager::of_new_key(
                        Arc::clone(shard.tiers.get(tier)),
                        number,
                        shard.fence,
                        &shard.clock,
                        observer,
                        hold,
                    );
                    shard.insert_active(hash, key, Arc::clone(&manager));
                    return Ok(Some(Entered::Active(manager, reading)));
                }
            }
        };
        let former = shard.tier_at(slot);
        let policy_of = |tier| shard.tiers.get(tier).plan.policy().clone();
        let changed = (tier != former).then(|| [former, tier].map(policy_of).into());
        let can_stay_idle = shard.tiers.fits(tier);
        if changed.is_some() && can_stay_idle {
            shard.change_tier(slot, tier, now);
            after_unlock.changed = changed.clone();
        }
        if can_stay_idle
            && let Some(idle) = shard.idle_key(slot, hold, now)
            && let Some(result) = ask(idle)
        {
            return Ok(Some(Entered::Idle(result)));
        }
        let mut observer = Observers::NONE;
        if self.shared.observed {
            let Some(copies) = self.copies(entering) else {
                return Ok(None);
            };
            observer = take(&mut copies.observer);
        }
        after_unlock.changed = changed;
        let Some((key, gate)) = shard.take_idle(slot, tier, now) else {
            return Ok(None);
        };
        let common = Arc::clone(shard.tiers.get(tier));
        let number = self.shared.next_number();
        let manager = Manager::of_key(common, number, gate, &shard.clock, observer, hold);
        shard.insert_active(hash, key, Arc::clone(&manager));
        Ok(Some(Entered::Active(manager, reading)))
    }

    /// The copies. If they are missing, makes them under the lock, or returns `None` if that would run foreign code.
    fn copies<'a>(
        &self,
        entering: &'a mut Entering<'_, K, impl KeyRef<K> + ?Sized>,
    ) -> Option<&'a mut Copies<K>> {
        if entering.copies.is_none() && !H::FOREIGN {
            entering.copies = Some(self.new_copies(entering.key.to_key()));
        }
        entering.copies.as_mut()
    }

    fn new_copies(&self, key: K) -> Copies<K> {
        Copies {
            observer: self.shared.observers.of_key(Some(&key)),
            key: Some(key),
        }
    }

    /// Does the work that must not be done under the lock.
    fn follow_up(
        &self,
        key: &(impl KeyRef<K> + ?Sized),
        now: Moment,
        AfterUnlock {
            evicted,
            plan,
            changed,
            removed,
        }: AfterUnlock<K>,
    ) {
        if let Some((manager, plan)) = plan {
            manager.active_key().apply_plan(&plan);
        }
        if let Some(changed) = changed {
            let [from, to] = *changed;
            self.shared
                .tell_of_borrowed(key, [EventKind::PolicyChanged { from, to }]);
        }
        if let Some((key, reset_at)) = evicted {
            let reset_after = reset_at.duration_since(now);
            self.shared
                .observers
                .tell(Some(&key), || EventKind::Evicted { reset_after });
            contain_panic(|| drop(key));
        }
        removed.discard();
    }
}

/// A table of any width. A trait object is impossible here, because a key may be borrowed in any form.
pub(super) enum AnyTable<K> {
    Plain1(KeyTable<K, 1, ()>),
    Plain2(KeyTable<K, 2, ()>),
    Plain4(KeyTable<K, 4, ()>),
    Hashed1(KeyTable<K, 1, u64>),
    Hashed2(KeyTable<K, 2, u64>),
    Hashed4(KeyTable<K, 4, u64>),
}

/// Evaluates an expression with the table of the actual width.
macro_rules! with_table {
    ($any:expr, |$table:ident| $answer:expr) => {
        match $any {
            $crate::keyed::table::AnyTable::Plain1($table) => $answer,
            $crate::keyed::table::AnyTable::Plain2($table) => $answer,
            $crate::keyed::table::AnyTable::Plain4($table) => $answer,
            $crate::keyed::table::AnyTable::Hashed1($table) => $answer,
            $crate::keyed::table::AnyTable::Hashed2($table) => $answer,
            $crate::keyed::table::AnyTable::Hashed4($table) => $answer,
        }
    };
}

pub(super) use with_table;
