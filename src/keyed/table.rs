//! A keyed limiter behind its public face: finds a key, creates it, gives it a manager, and decides.

mod enter;
mod explain;

use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::admitted::{Admitted, Denial};
use super::changes::Changes;
use super::idle::{Idle, KeptHash};
use super::idle_key::IdleKey;
use super::key_ref::KeyRef;
use super::key_state::KeyState;
use super::shard::{Change, Changed, Look, Shard};
use super::shards::Shards;
use super::shared::Shared;
use super::snapshot::KeySnapshot;
use super::tier::Tier;
use crate::carry_over::UsageCarryOver;
use crate::core::costs::Costs;
use crate::core::gate::Gate;
use crate::core::plan::Plan;
use crate::core::request::Caller;
use crate::core::suspension::Hold;
use crate::decision::Decision;
use crate::error::{AcquireError, ConfigError, TryAcquireError};
use crate::event::EventKind;
use crate::manager::{Manager, RequestOptions};
use crate::permit::Permit;
use crate::policy::Policy;
use crate::snapshot::KeyTotals;
use crate::strategy::Moment;

/// Grants to idle keys between two checks for removable keys.
const REAP_EVERY: u64 = 64;

/// A keyed limiter whose idle keys take `W` words.
pub(super) struct Table<K, const W: usize, H> {
    pub(super) shared: Shared<K>,
    shards: Shards<K, W, H>,
    changes: Changes,
}

/// What a call does with a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// An unknown key stays unknown.
    Look,
    Change,
    /// It asks for a permit.
    Request,
}

/// How a key was found.
enum Entered<R> {
    /// It is idle, and the call was answered.
    Idle(R),
    Active(Arc<Manager>),
    /// It is unknown, and must stay so or finds no room. With the plan that it would have, and the moment.
    Absent {
        tier: Tier,
        hold: Option<Hold>,
        now: Moment,
    },
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static, const W: usize, H: KeptHash> Table<K, W, H> {
    #[inline]
    pub(super) fn try_acquire<Q: KeyRef<K> + ?Sized>(
        &self,
        key: &Q,
        cost: u64,
        caller: Caller,
    ) -> Result<Permit, TryAcquireError> {
        self.try_at_once(key, cost, |_, _| ()).unwrap_or_else(|| self.try_acquire_slowly(key, cost, caller))
    }

    /// Decides for a key that is known and idle, and looks at it right after the decision. `None`: it is undecided, and nothing was done.
    #[inline(always)]
    fn try_at_once<Q: KeyRef<K> + ?Sized>(
        &self,
        key: &Q,
        cost: u64,
        look: impl FnOnce(&KeyState<'_>, Moment),
    ) -> Option<Result<Permit, TryAcquireError>> {
        if self.shared.decides_at_once.load(Relaxed) {
            let hash = self.shards.hash(key);
            let reading = self.shared.time_source.now(); // before the lock, which is then held for half as long
            let mut guard = self.shards.lock(hash);
            let Shard { idle, plan, hold, tiers, clock, fence, id_prefix, counted, .. } = &mut *guard;
            let idle = idle.find_mut(hash, |idle| idle.is(hash, key));
            if let (Some(Idle { words, .. }), Some(plan), None) = (idle, plan, hold)
                && cost.wrapping_sub(1) < plan.max_cost()
            {
                let now = clock.now_since(reading);
                let mut state = KeyState { plan, words };
                if state.admit(now, cost) {
                    look(&state, now);
                    *fence += 1;
                    let (id_prefix, fence, origin) = (*id_prefix, *fence, clock.origin());
                    if fence.is_multiple_of(REAP_EVERY) {
                        self.shards.reap_and_unlock(guard, now);
                    } else {
                        drop(guard);
                    }
                    return Some(Ok(Permit::idle(id_prefix, fence, cost, now, origin)));
                }
                if self.shared.observer.is_none() {
                    // The decision holds a policy copy of this shard only.
                    let mut state = KeyState { plan: tiers.own().plan(), words: state.words };
                    counted.denied += 1;
                    let denial = state.deny(None, now, cost);
                    look(&state, now);
                    return Some(Err(denial));
                }
            }
        }
        None
    }

    pub(super) fn try_request<Q: KeyRef<K> + ?Sized>(
        &self,
        key: &Q,
        options: &RequestOptions,
    ) -> Result<Permit, TryAcquireError> {
        if options.by_unit.is_none() {
            return self.try_acquire(key, options.cost, options.caller);
        }
        if self.shared.observer.is_some() {
            return self.try_request_and_tell(key, options, |_| (), |manager| manager.try_request(options));
        }
        let try_idle = |mut idle: IdleKey<'_>| idle.try_acquire(options.cost);
        self.update(key, Purpose::Request, try_idle, |manager| manager.try_request(options))?
    }

    pub(super) fn admit<Q: KeyRef<K> + ?Sized>(&self, key: &Q, options: &RequestOptions) -> Result<Admitted, AcquireError> {
        self.admit_and_look(key, options, |_, _| ())
    }

    /// Looks at an idle key right after a grant.
    #[inline(always)]
    fn admit_and_look<Q: KeyRef<K> + ?Sized>(
        &self,
        key: &Q,
        options: &RequestOptions,
        mut look: impl FnMut(&KeyState<'_>, Moment),
    ) -> Result<Admitted, AcquireError> {
        let cost = options.cost;
        options.checked_timeout()?;
        let admit = |IdleKey { mut state, hold, mut fences, now, origin, .. }: IdleKey<'_>| match state.fits(cost) {
            Err(misfit) => Some(Err(misfit.into())),
            Ok(()) => (hold.is_none() && state.admit(now, cost)).then(|| {
                look(&state, now);
                Ok(fences.permit(cost, now, origin))
            }),
        };
        let entered = self.enter(key, Purpose::Request, admit)?;
        match entered {
            Entered::Idle(answer) => answer.map(Admitted::Granted),
            Entered::Active(manager) => Ok(Admitted::ToManager(manager)),
            Entered::Absent { .. } => Err(self.too_many(key).into()),
        }
    }

    pub(super) fn manager<Q: KeyRef<K> + ?Sized>(&self, key: &Q) -> Result<Arc<Manager>, Denial> {
        match self.enter(key, Purpose::Change, |_| None::<std::convert::Infallible>)? {
            Entered::Active(manager) => Ok(manager),
            Entered::Absent { .. } => Err(self.too_many(key)),
            Entered::Idle(never) => match never {},
        }
    }

    pub(super) fn check<Q: KeyRef<K> + ?Sized>(&self, key: &Q, costs: Costs<'_>) -> Decision {
        let cost = costs.plain;
        let decide = |IdleKey { state, hold, now, .. }: IdleKey<'_>| match cost {
            0 => state.decide(None, now, 1).refused(),
            cost => state.decide(hold, now, cost),
        };
        match self.enter(key, Purpose::Look, |idle| Some(decide(idle))) {
            Ok(Entered::Idle(decision)) => decision,
            Ok(Entered::Active(manager)) => manager.check(costs),
            Ok(Entered::Absent { tier, hold, now }) => {
                let costs = Costs { plain: cost.max(1), ..costs };
                let decision = Gate::new(Arc::clone(tier.plan()), now, false).decide(now, 0, costs);
                let refused = cost == 0 || !self.shards.has_room();
                if refused { decision.refused() } else { hold.unwrap_or_default().decide(decision, now) }
            }
            Err(_) => self.default_decision().refused(),
        }
    }

    pub(super) fn penalize<Q: KeyRef<K> + ?Sized>(&self, key: &Q, units: u64) -> bool {
        let charge = |mut idle: IdleKey<'_>| idle.state.charge(idle.now, units);
        self.update(key, Purpose::Change, charge, |manager| manager.charge(units)).is_ok()
    }

    pub(super) fn reward<Q: KeyRef<K> + ?Sized>(&self, key: &Q, units: u64) {
        let forgive = |mut idle: IdleKey<'_>| idle.state.forgive(idle.now, units);
        self.update_known(key, forgive, |manager| manager.forgive(units));
    }

    pub(super) fn reset<Q: KeyRef<K> + ?Sized>(&self, key: &Q) -> bool {
        self.update_known(key, |mut idle| idle.state.fill(idle.now), Manager::reset).is_some()
    }

    pub(super) fn snapshot<Q: KeyRef<K> + ?Sized>(&self, key: &Q) -> Option<KeySnapshot> {
        self.update_known(key, |idle| KeySnapshot::of_idle(&idle.state, idle.hold, idle.now), KeySnapshot::of_active)
    }

    pub(super) fn snapshots(&self, shard: usize) -> Option<Vec<(K, KeySnapshot)>> {
        if shard == self.shards.count() {
            return None;
        }
        let (mut snapshots, active) = self.shards.get(shard).snapshots(KeySnapshot::of_idle);
        snapshots.extend(active.into_iter().map(|(key, manager)| (key, KeySnapshot::of_active(&manager))));
        Some(snapshots)
    }

    pub(super) fn totals(&self) -> KeyTotals {
        let mut totals = KeyTotals::default();
        (0..self.shards.count()).for_each(|shard| totals.add(self.shards.get(shard).totals()));
        totals
    }

    pub(super) fn pause(&self, nanos: u64) {
        self.change(Change::Pause(nanos));
    }

    pub(super) fn resume(&self) {
        self.change(Change::Resume);
    }

    pub(super) fn policy(&self) -> Policy {
        self.shards.lock(0).tiers.own().policy.clone()
    }

    pub(super) fn set_policy(&self, policy: Policy, carry: UsageCarryOver) -> Result<(), ConfigError> {
        if self.shared.tier_of.is_some() {
            return Err(ConfigError::HasTiers);
        }
        let since_epoch = self.shards.lock(0).tiers.own().common.since_epoch();
        self.change(Change::SetPlan(Arc::new(Plan::new(policy, since_epoch)?), carry));
        Ok(())
    }

    pub(super) fn close(&self) {
        self.change(Change::Close);
    }

    pub(super) fn close_to_new(&self) {
        self.change(Change::CloseToNew);
    }

    pub(super) fn is_closed(&self) -> bool {
        // The last shard to be closed.
        self.shards.get(0).is_closed()
    }

    pub(super) fn shards(&self) -> usize {
        self.shards.count()
    }

    pub(super) fn look(&self, shard: usize) -> Look {
        self.shards.get(shard).look()
    }
}

impl<K, const W: usize, H> Table<K, W, H> {
    pub(super) fn len(&self) -> usize {
        self.shards.len()
    }

    pub(super) fn name(&self) -> Option<&str> {
        self.shared.name.as_deref()
    }

    pub(super) fn max_keys(&self) -> usize {
        self.shards.max_keys()
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static, const W: usize, H: KeptHash> Table<K, W, H> {
    pub(super) fn new(shared: Shared<K>, shards: Shards<K, W, H>) -> Self {
        Self { shared, shards, changes: Changes::default() }
    }

    /// Changes all keys, shard by shard.
    fn change(&self, change: Change) {
        let number = self.changes.begin(change);
        for index in (0..self.shards.count()).rev() {
            let mut changed = Changed::nothing();
            self.shards.change(index, |shard| {
                for (number, change) in self.changes.after(shard.changes) {
                    shard.change(&change, &self.shared, &mut changed);
                    shard.changes = number;
                }
                if index == 0 {
                    self.shared.decides_at_once.store(shard.plan.is_some(), Relaxed);
                }
            });
            changed.follow_up();
        }
        self.changes.end(number);
    }

    /// [`Table::try_acquire`], where it is not decided at once: for a key that is new, active, or of a tier, and where a denial is
    /// told.
    #[inline(never)]
    fn try_acquire_slowly<Q: KeyRef<K> + ?Sized>(&self, key: &Q, cost: u64, caller: Caller) -> Result<Permit, TryAcquireError> {
        if self.shared.observer.is_some() {
            let options = RequestOptions::new(cost, caller);
            return self.try_request_and_tell(key, &options, |_| (), |manager| manager.try_acquire(cost, caller));
        }
        self.update(key, Purpose::Request, |mut idle| idle.try_acquire(cost), |manager| manager.try_acquire(cost, caller))?
    }

    /// Tells the observer, if there is one, and looks at an idle key right after the decision.
    fn try_request_and_tell<Q: KeyRef<K> + ?Sized>(
        &self,
        key: &Q,
        options: &RequestOptions,
        mut look: impl FnMut(&IdleKey<'_>),
        active: impl FnOnce(&Arc<Manager>) -> Result<Permit, TryAcquireError>,
    ) -> Result<Permit, TryAcquireError> {
        let cost = options.cost;
        let mut events = Vec::new();
        let try_idle = |mut idle: IdleKey<'_>| {
            let now = idle.now;
            let attempt = self.shared.observer.is_some().then(|| idle.attempt(options));
            let answer = idle.try_acquire(cost);
            look(&idle);
            if let (Some(attempt), Err(TryAcquireError::Denied(decision))) = (attempt, &answer) {
                events = attempt.denied(decision, idle.state.bans(now));
            }
            answer
        };
        let answer = self.update(key, Purpose::Request, try_idle, active)?;
        if !events.is_empty() {
            self.shared.emit_of_idle(key, events);
        }
        answer
    }

    /// Changes a key, which becomes known.
    fn update<R>(
        &self,
        key: &(impl KeyRef<K> + ?Sized),
        purpose: Purpose,
        mut idle: impl FnMut(IdleKey<'_>) -> R,
        active: impl FnOnce(&Arc<Manager>) -> R,
    ) -> Result<R, Denial> {
        match self.enter(key, purpose, |key| Some(idle(key)))? {
            Entered::Idle(result) => Ok(result),
            Entered::Active(manager) => Ok(active(&manager)),
            Entered::Absent { .. } => Err(self.too_many(key)),
        }
    }

    /// Changes a known key.
    fn update_known<R>(
        &self,
        key: &(impl KeyRef<K> + ?Sized),
        mut idle: impl FnMut(IdleKey<'_>) -> R,
        active: impl FnOnce(&Arc<Manager>) -> R,
    ) -> Option<R> {
        match self.enter(key, Purpose::Look, |key| Some(idle(key))).ok()? {
            Entered::Idle(result) => Some(result),
            Entered::Active(manager) => Some(active(&manager)),
            Entered::Absent { .. } => None,
        }
    }

    fn too_many(&self, key: &(impl KeyRef<K> + ?Sized)) -> Denial {
        if self.shared.observer.is_some() {
            self.shared.emit(&key.to_key(), EventKind::TooManyKeys);
        }
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
