//! Finds a key, creates it, and gives it a manager.

use std::hash::Hash;
use std::mem::take;
use std::sync::Arc;

use super::{Entered, KeyTable, Purpose};
use crate::contain_panic::contain_panic;
use crate::core::gate::plan::Plan;
use crate::error::AcquireError;
use crate::event::EventKind;
use crate::keyed::idle::{KeptHash, KeyRef};
use crate::keyed::idle_state::IdleKey;
use crate::keyed::shard::{Location, Removed, Shard};
use crate::keyed::shards::ON_THE_WAY;
use crate::manager::Manager;
use crate::observe::Observers;
use crate::policy::Policy;
use crate::strategy::Moment;

/// A call for a key that is about to visit the key's shard.
struct Entering<'a, K, Q: ?Sized> {
    key: &'a Q,
    hash: u64,
    policy: Option<Policy>,
    purpose: Purpose,
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

impl<K: Hash + Eq + Clone + Send + Sync + 'static, const W: usize, H: KeptHash> KeyTable<K, W, H> {
    /// Finds a key with its present tier. If the key is idle, calls `ask`; if `ask` returns `None`, the key becomes active. Also
    /// checks a few keys for removal.
    ///
    /// The only foreign code under the lock is `Eq`, before anything has changed. So if the code of a new key is foreign, the
    /// copies that the key needs are made between two visits of the shard. `ask` may be called at each visit.
    pub(super) fn enter<Q: KeyRef<K> + ?Sized, R>(
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
            let now = shard.clock.now();
            let entered =
                self.enter_shard(&mut shard, &mut entering, now, &mut ask, &mut after_unlock);
            drop(shard);
            self.follow_up(key, now, after_unlock);
            if let Some(entered) = entered? {
                return Ok(entered);
            }
            entering.copies = Some(self.new_copies(key.to_key()));
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
        let location = shard.locate(hash, key);
        let tier = shard
            .tiers
            .find(policy.as_ref())
            .map_err(|error| AcquireError::Config(error.into()))?;
        let slot = match location {
            Location::Active(manager) => {
                if policy.is_some() {
                    let plan = Arc::clone(&shard.tiers.get(tier).plan);
                    after_unlock.plan = Some((Arc::clone(&manager), plan));
                }
                return Ok(Some(Entered::Active(manager)));
            }
            Location::Idle { slot } => slot,
            Location::Absent if purpose == Purpose::Look => {
                return Ok(Some(Entered::Absent {
                    tier: Arc::clone(shard.tiers.get(tier)),
                    hold,
                    now,
                }));
            }
            Location::Absent => {
                let Some(copies) = self.copies(entering) else {
                    return Ok(None);
                };
                let common = Arc::clone(shard.tiers.get(tier));
                let AfterUnlock {
                    evicted, removed, ..
                } = after_unlock;
                self.shards.reap(shard, ON_THE_WAY, now, removed);
                if !self.shards.make_room(shard, now, evicted, removed) {
                    return Ok(Some(Entered::Absent {
                        tier: common,
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
                        common,
                        number,
                        shard.fence,
                        &shard.clock,
                        observer,
                        hold,
                    );
                    shard.insert_active(hash, key, Arc::clone(&manager));
                    return Ok(Some(Entered::Active(manager)));
                }
            }
        };
        let former = shard.tier_at(slot);
        let policy_of = |tier| shard.tiers.get(tier).plan.policy().clone();
        let changed = (tier != former).then(|| [former, tier].map(policy_of).into());
        let can_stay_idle = changed.is_none() || shard.tiers.fits(tier);
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
        Ok(Some(Entered::Active(manager)))
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
