//! One of the parts of a keyed limiter, each under a lock of its own.
//!
//! A key is *quiet* or has a *line*. A quiet key is its state and nothing else. A key that somebody waits for, that has places out,
//! or whose limiter somebody holds, has a manager like any limiter has: its line. It becomes quiet again when nobody needs that.

use std::hash::Hash;
use std::sync::Arc;

use hashbrown::HashTable;

use super::key_state::KeyState;
use crate::core::plan::Plan;
use crate::error::ConfigError;
use crate::manager::{Clock, Manager, Resting};
use crate::policy::Policy;
use crate::strategy::Moment;

/// The policy of some keys.
#[derive(Debug, Clone)]
pub(super) struct Tier {
    pub(super) policy: Policy,
    pub(super) plan: Arc<Plan>,
    /// Whether the state of a key fits among the quiet.
    pub(super) fits: bool,
}

#[derive(Debug)]
pub(super) struct Shard<K, const W: usize> {
    pub(super) clock: Clock,
    /// The random part of the ids of permits of quiet keys.
    pub(super) id_prefix: u64,
    /// The fence of the latest grant to a quiet key, at least.
    pub(super) fence: u64,
    /// Where keys have tiers, the last word is the tier's number.
    pub(super) idle: HashTable<(K, [u64; W])>,
    pub(super) active: HashTable<(K, Arc<Manager>)>,
    /// All that were seen here; the first is that of the limiter.
    pub(super) tiers: Vec<Tier>,
    tiered: bool,
    /// Calls other than grants to known keys.
    pub(super) accesses: u32,
    /// Where the next look for keys that can go begins.
    idle_cursor: usize,
    active_cursor: usize,
}

/// How many tiers a shard keeps. A key of one more has a line of its own.
const MAX_TIERS: usize = 64;

impl Tier {
    /// `words`: how many there are for the state of a quiet key.
    pub(super) fn new(policy: Policy, plan: Plan, words: usize) -> Self {
        let fits = plan.width().is_some_and(|width| width <= words);
        Self { policy, plan: Arc::new(plan), fits }
    }
}

impl<K: Hash + Eq, const W: usize> Shard<K, W> {
    pub(super) fn new(clock: Clock, id_prefix: u64, tier: Tier, tiered: bool) -> Self {
        Self {
            clock,
            id_prefix,
            fence: 0,
            idle: HashTable::new(),
            active: HashTable::new(),
            tiers: vec![tier],
            tiered,
            accesses: 0,
            idle_cursor: 0,
            active_cursor: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.idle.len() + self.active.len()
    }

    pub(super) fn manager(&self, hash: u64, key: &K) -> Option<&Arc<Manager>> {
        if self.active.is_empty() {
            return None; // the common case
        }
        self.active.find(hash, |(other, _)| other == key).map(|(_, manager)| manager)
    }

    /// The number of the tier with this policy (`words` as in [`Tier::new`]), or else the tier itself, where there are too many to keep.
    pub(super) fn tier(
        &mut self,
        policy: Policy,
        words: usize,
        compile: impl FnOnce(Policy) -> Result<Plan, ConfigError>,
    ) -> Result<Result<usize, Tier>, ConfigError> {
        if let Some(known) = self.tiers.iter().position(|tier| tier.policy == policy) {
            return Ok(Ok(known));
        }
        let tier = Tier::new(policy.clone(), compile(policy)?, words);
        if self.tiers.len() == MAX_TIERS {
            return Ok(Err(Tier { fits: false, ..tier }));
        }
        self.tiers.push(tier);
        Ok(Ok(self.tiers.len() - 1))
    }

    /// The state of a quiet key.
    pub(super) fn key_state(&mut self, bucket: usize) -> Option<KeyState<'_>> {
        let (_, words) = self.idle.get_bucket_mut(bucket)?;
        Some(key_state(&self.tiers, words, self.tiered))
    }

    /// Looks at a few keys and lets those go that are as good as new; keys whose line nobody needs become quiet.
    pub(super) fn reap(&mut self, samples: usize, now: Moment, hash: impl Fn(&K) -> u64) {
        for _ in 0..samples.min(self.idle.num_buckets()) {
            self.idle_cursor = next(self.idle_cursor, self.idle.num_buckets());
            let bucket = self.idle_cursor;
            if self.key_state(bucket).is_some_and(|key_state| key_state.reset_at(now) <= now)
                && let Ok(entry) = self.idle.get_bucket_entry(bucket)
            {
                entry.remove();
            }
        }
        for _ in 0..samples.div_ceil(2).min(self.active.num_buckets()) {
            self.active_cursor = next(self.active_cursor, self.active.num_buckets());
            self.deactivate(self.active_cursor, &hash);
        }
        shrink(&mut self.idle, |(key, _)| hash(key));
        shrink(&mut self.active, |(key, _)| hash(key));
    }

    /// All that a line knows which nobody needs. New clones of it are made under the shard's lock only; whoever takes its turns may
    /// hold one for a moment, and changes nothing where nobody waits.
    fn rest(&self, bucket: usize) -> Option<Resting> {
        let (_, manager) = self.active.get_bucket(bucket).filter(|(_, manager)| Arc::strong_count(manager) == 1)?;
        manager.at_rest()
    }

    /// Removes a line that rests. The fences of its key go on from there, when it comes back.
    fn remove_active(&mut self, bucket: usize, fence: u64, clock: Clock) -> Option<K> {
        let entry = self.active.get_bucket_entry(bucket).ok()?;
        self.fence = self.fence.max(fence);
        self.clock.catch_up(clock);
        Some(entry.remove().0.0)
    }

    /// Ends a line that nobody needs.
    fn deactivate(&mut self, bucket: usize, hash: &impl Fn(&K) -> u64) {
        let Some(Resting { policy, states, is_new, fence, clock, .. }) = self.rest(bucket) else { return };
        let tier = self.tiers.iter().position(|tier| tier.fits && tier.policy == policy);
        if !is_new && (tier.is_none() || states.is_none()) {
            return;
        }
        let Some(key) = self.remove_active(bucket, fence, clock) else { return };
        if let (false, Some(tier), Some(states)) = (is_new, tier, states) {
            let mut words = [0; W];
            if self.tiered {
                words[W - 1] = tier as u64;
            }
            key_state(&self.tiers, &mut words, self.tiered).restore(states.into_iter());
            self.idle.insert_unique(hash(&key), (key, words), |(key, _)| hash(key));
        }
    }

    /// Of a few keys, the one goes that would be as good as new first: a quiet one, or where there is none one whose line nobody
    /// needs. Tells which, and when it would have been.
    pub(super) fn evict(&mut self, samples: usize, now: Moment) -> Option<(K, Moment)> {
        self.evict_idle(samples, now).or_else(|| self.evict_active(samples))
    }

    fn evict_active(&mut self, samples: usize) -> Option<(K, Moment)> {
        let mut nearest: Option<(usize, Resting)> = None;
        for _ in 0..samples.min(self.active.num_buckets()) {
            self.active_cursor = next(self.active_cursor, self.active.num_buckets());
            if let Some(rest) = self.rest(self.active_cursor)
                && nearest.as_ref().is_none_or(|(_, nearest)| rest.reset_at < nearest.reset_at)
            {
                nearest = Some((self.active_cursor, rest));
            }
        }
        let (bucket, Resting { reset_at, fence, clock, .. }) = nearest?;
        Some((self.remove_active(bucket, fence, clock)?, reset_at))
    }

    fn evict_idle(&mut self, samples: usize, now: Moment) -> Option<(K, Moment)> {
        let buckets = self.idle.num_buckets();
        let start = self.idle_cursor;
        let mut found = Vec::with_capacity(samples);
        for step in 0..buckets {
            let bucket = (start + step) % buckets;
            if let Some(key_state) = self.key_state(bucket) {
                found.push((key_state.reset_at(now), bucket));
            }
            if found.len() == samples {
                break;
            }
        }
        let (reset_at, bucket) = found.into_iter().min()?;
        self.idle_cursor = bucket;
        let entry = self.idle.get_bucket_entry(bucket).ok()?;
        Some((entry.remove().0.0, reset_at))
    }
}

/// Gives memory back when so few are left that it is worth more than moving them.
fn shrink<T>(table: &mut HashTable<T>, hash: impl Fn(&T) -> u64) {
    if table.capacity() > 64 && table.len() < table.capacity() / 8 {
        table.shrink_to(table.capacity() / 2, hash);
    }
}

fn next(cursor: usize, buckets: usize) -> usize {
    if cursor + 1 < buckets { cursor + 1 } else { 0 }
}

/// The state of a quiet key, with the plan that it goes by.
pub(super) fn key_state<'a, const W: usize>(tiers: &'a [Tier], words: &'a mut [u64; W], tiered: bool) -> KeyState<'a> {
    let tier = if tiered { words[W - 1] as usize } else { 0 };
    KeyState { plan: &tiers[tier].plan, words }
}
