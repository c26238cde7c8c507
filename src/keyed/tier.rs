use std::sync::Arc;

use super::key_state::{KeyState, Word};
use crate::core::plan::Plan;
use crate::error::ConfigError;
use crate::manager::Common;
use crate::policy::Policy;

pub(super) type TierOf<K> = Box<dyn Fn(&K) -> Policy + Send + Sync>;

/// The policy of some keys.
#[derive(Debug, Clone)]
pub(super) struct Tier {
    pub(super) policy: Policy,
    /// What the managers of its keys in this shard have in common.
    pub(super) common: Arc<Common>,
    /// Whether the state of a key fits into the words of an idle key.
    pub(super) fits: bool,
}

/// The tiers that a shard has seen; the first is the limiter's own policy.
#[derive(Debug)]
pub(super) struct Tiers {
    seen: Vec<Tier>,
    /// Whether keys have tiers; otherwise there is only the first.
    tiered: bool,
    /// Words for the state of an idle key, beside the number of its tier.
    words: usize,
}

/// A tier by its number, or the tier itself where there are too many to keep.
pub(super) type TierRef = Result<usize, Tier>;

impl Tiers {
    /// How many tiers a shard keeps. A key of any further tier is always active.
    const MAX: usize = 64;

    pub(super) fn new(policy: Policy, common: Common, tiered: bool, words: usize) -> Self {
        Self { seen: vec![Tier::new(policy, common, words)], tiered, words }
    }

    pub(super) fn own(&self) -> &Tier {
        &self.seen[0]
    }

    /// Replaces the limiter's own policy. Returns the former one.
    pub(super) fn replace_own(&mut self, plan: Plan) -> Tier {
        let policy = plan.policy().clone();
        let common = self.own().common.with_plan(Arc::new(plan));
        std::mem::replace(&mut self.seen[0], Tier::new(policy, common, self.words))
    }

    /// The tier of a policy; without one, the limiter's own.
    pub(super) fn find(&mut self, policy: Option<&Policy>) -> Result<TierRef, ConfigError> {
        let Some(policy) = policy else { return Ok(Ok(0)) };
        if let Some(known) = self.position(policy) {
            return Ok(Ok(known));
        }
        let own = &self.own().common;
        let plan = Plan::new(policy.clone(), own.since_epoch())?;
        let tier = Tier::new(policy.clone(), own.with_plan(Arc::new(plan)), self.words);
        if self.seen.len() == Self::MAX {
            return Ok(Err(Tier { fits: false, ..tier }));
        }
        self.seen.push(tier);
        Ok(Ok(self.seen.len() - 1))
    }

    fn position(&self, policy: &Policy) -> Option<usize> {
        self.seen.iter().position(|tier| tier.policy == *policy)
    }

    /// The number of a tier whose keys can be idle.
    pub(super) fn number_of(&self, policy: &Policy) -> Option<usize> {
        self.position(policy).filter(|number| self.seen[*number].fits)
    }

    pub(super) fn get(&self, tier: TierRef) -> Tier {
        tier.map_or_else(|own| own, |number| self.seen[number].clone())
    }

    /// Whether a key of this tier can be idle.
    pub(super) fn fits(&self, number: usize) -> bool {
        self.seen[number].fits
    }

    /// Whether a key of any tier can be idle.
    pub(super) fn any_fits(&self) -> bool {
        self.seen.iter().any(|tier| tier.fits)
    }

    pub(super) fn number_in<const W: usize>(&self, words: &[Word; W]) -> usize {
        if self.tiered { words[W - 1].get() as usize } else { 0 }
    }

    /// The words of an idle key of a tier, with all else zero.
    pub(super) fn words<const W: usize>(&self, number: usize) -> [Word; W] {
        let mut words = [Word::ZERO; W];
        if self.tiered {
            words[W - 1] = Word::new(number as u64);
        }
        words
    }

    /// The state of an idle key, with the plan of its tier.
    pub(super) fn state<'a, const W: usize>(&'a self, words: &'a mut [Word; W]) -> KeyState<'a> {
        self.seen[self.number_in(words)].state(words)
    }
}

impl Tier {
    fn new(policy: Policy, common: Common, words: usize) -> Self {
        let fits = common.plan.width().is_some_and(|width| width <= words);
        Self { policy, common: Arc::new(common), fits }
    }

    pub(super) fn plan(&self) -> &Arc<Plan> {
        &self.common.plan
    }

    /// The state of an idle key of this tier.
    pub(super) fn state<'a>(&'a self, words: &'a mut [Word]) -> KeyState<'a> {
        KeyState { plan: self.plan(), words }
    }
}
