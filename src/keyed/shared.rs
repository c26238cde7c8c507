//! The data that keys share: all keys of a limiter, and the keys of a shard that have one policy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::key::{IdleState, KeyRef, KeyWord};
use crate::carry_over::UsageCarryOver;
use crate::contain_panic::contain_panic;
use crate::core::gate::Gate;
use crate::core::gate::plan::Plan;
use crate::error::ConfigError;
use crate::event::EventKind;
use crate::manager::{PerPlan, TimeSource};
use crate::observe::KeyedObservers;
use crate::policy::Policy;
use crate::strategy::{Moment, StateWords};

/// The data that all keys share.
pub(super) struct KeyedShared<K> {
    /// Whether a request of an idle key is likely to be decided at once, because the shards have a plan for it.
    pub(super) decides_at_once: AtomicBool,
    pub(super) time_source: TimeSource,
    /// The number of the next manager, or of the next shard for the permits of its idle keys. Each number makes different permit
    /// ids.
    pub(super) numbers: AtomicU64,
    pub(super) tier_of: Option<TierOf<K>>,
    /// Whether there are observers. A copy for the path of a denial.
    pub(super) observed: bool,
    pub(super) observers: Arc<KeyedObservers>,
}

impl<K: Send + Sync + 'static> KeyedShared<K> {
    pub(super) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Relaxed)
    }

    /// Reports events of a borrowed key that has no manager. If cloning the key panics, the events are not reported. Called
    /// outside every lock.
    #[cold]
    pub(super) fn tell_of_borrowed(
        &self,
        key: &(impl KeyRef<K> + ?Sized),
        kinds: impl IntoIterator<Item = EventKind>,
    ) {
        if self.observed {
            contain_panic(|| {
                let key = key.to_key();
                for kind in kinds {
                    self.observers.tell(Some(&key), || kind);
                }
            });
        }
    }
}

pub(super) type TierOf<K> = Box<dyn Fn(&K) -> Policy + Send + Sync>;

/// The tiers that a shard has seen. A tier is the policy of some keys.
#[derive(Debug)]
pub(super) struct Tiers {
    /// For each tier, the data that the managers of its keys in this shard share. The first tier is the limiter's own policy.
    seen: Vec<Arc<PerPlan>>,
    /// Whether keys have tiers. Otherwise there is only the first tier.
    tiered: bool,
    /// The number of words for the state of an idle key, without the number of its tier.
    words: usize,
}

impl Tiers {
    /// The number of tiers that a shard keeps. A key of any other tier is always active; such a tier is kept until the next one
    /// replaces it.
    const MAX: usize = 64;

    pub(super) fn new(own: PerPlan, tiered: bool, words: usize) -> Self {
        Self {
            seen: vec![Arc::new(own)],
            tiered,
            words,
        }
    }

    pub(super) fn own(&self) -> &Arc<PerPlan> {
        &self.seen[0]
    }

    /// Replaces the limiter's own policy. Returns the former one.
    pub(super) fn replace_own(&mut self, plan: Plan) -> Arc<PerPlan> {
        let own = self.own().with_plan(Arc::new(plan));
        std::mem::replace(&mut self.seen[0], Arc::new(own))
    }

    /// The number of the tier of `policy`, or of the limiter's own policy if `policy` is `None`.
    pub(super) fn find(&mut self, policy: Option<&Policy>) -> Result<usize, ConfigError> {
        let Some(policy) = policy else {
            return Ok(0);
        };
        if let Some(known) = self.position(policy) {
            return Ok(known);
        }
        let own = self.own();
        let plan = Plan::new(policy.clone(), own.since_epoch())?;
        let tier = own.with_plan(Arc::new(plan));
        self.seen.truncate(Self::MAX);
        self.seen.push(Arc::new(tier));
        Ok(self.seen.len() - 1)
    }

    fn position(&self, policy: &Policy) -> Option<usize> {
        self.seen
            .iter()
            .position(|tier| tier.plan.policy() == policy)
    }

    /// The number of the tier of `policy`, if keys of the tier can be idle.
    pub(super) fn number_of(&self, policy: &Policy) -> Option<usize> {
        self.position(policy).filter(|number| self.fits(*number))
    }

    pub(super) fn get(&self, number: usize) -> &Arc<PerPlan> {
        &self.seen[number]
    }

    /// Whether a key of this tier can be idle: the shard keeps the tier, and the state fits into the words of an idle key.
    pub(super) fn fits(&self, number: usize) -> bool {
        let width = self.seen[number].plan.width();
        number < Self::MAX && width.is_some_and(|width| width <= self.words)
    }

    /// Whether a key of any tier can be idle.
    pub(super) fn any_fits(&self) -> bool {
        (0..self.seen.len()).any(|number| self.fits(number))
    }

    pub(super) fn number_in<const W: usize>(&self, words: &[KeyWord; W]) -> usize {
        if self.tiered {
            words[W - 1].get() as usize
        } else {
            0
        }
    }

    /// The words of an idle key of a tier, from the states of its limits.
    pub(super) fn restored<const W: usize>(
        &self,
        number: usize,
        states: impl Iterator<Item = StateWords>,
    ) -> [KeyWord; W] {
        let mut words = [KeyWord::ZERO; W];
        if self.tiered {
            words[W - 1] = KeyWord::new(number as u64);
        }
        self.state(&mut words).restore(states);
        words
    }

    /// The words of an idle key of a tier, with the usage of a gate carried over.
    pub(super) fn carry_over<const W: usize>(
        &self,
        mut gate: Gate,
        number: usize,
        carry: UsageCarryOver,
        now: Moment,
    ) -> [KeyWord; W] {
        gate.set_plan(Arc::clone(&self.seen[number].plan), now, carry);
        self.restored(number, gate.limits().states().into_iter().flatten())
    }

    /// The state of an idle key, with the plan of its tier.
    pub(super) fn state<'a, const W: usize>(
        &'a self,
        words: &'a mut [KeyWord; W],
    ) -> IdleState<'a> {
        IdleState {
            plan: &self.seen[self.number_in(words)].plan,
            words,
        }
    }
}
