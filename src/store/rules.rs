//! The rules of this crate, for stores that keep bytes.

#[cfg(any(test, fuzzing))]
pub(super) mod fuzzed;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::core::gate::plan::Plan;
use crate::core::ledger::{Agreement, Damaged, Encoded, Ledger, Offer};
use crate::error::StoreError;
use crate::exchange::{Call, Reply};
use crate::policy::Policy;
use crate::strategy::Moment;

/// Decides calls by the rules of this crate, for a [`Store`](super::Store) on any engine that keeps bytes.
///
/// A call is decided on the [state of its key](KeyState). The engine must ensure that no other write comes between reading that
/// state and writing the next one: by a lock of the row, a transaction, or compare-and-swap. The SQL stores of this crate work in
/// this way. [`Store`](super::Store) has an example.
///
/// For a token bucket or a throttle, a [settlement](crate::Permit::settle) below its charge refunds nothing, because the bytes do
/// not keep past grants: too little is refunded, never too much.
pub struct Rules {
    store: String,
    policies: PolicyCache<Policy, PolicyRules>,
}

/// The state that a store keeps for a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyState {
    /// The limits and the leases. Empty bytes mean the same as no state. Only [`Rules`] reads them. Another version of this crate
    /// may refuse them as [damaged](StoreError::Damaged).
    pub bytes: Vec<u8>,
    /// From this instant on the state can be deleted, in nanoseconds since 1970: it no longer matters if no further call comes.
    /// An engine that counts in longer units rounds the instant up.
    pub expires_at: u64,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decided {
    /// The reply, which is valid once `state` is written.
    pub reply: Reply,
    /// The state to write for the key; `None` if nothing has changed. A call that grants nothing can also change the state: it
    /// raises a penalty, and a new key with a [bucket that starts low](crate::TokenBucket::initial) fills from then on.
    pub state: Option<KeyState>,
    /// The [holders](Call::holder) whose turn it is to take places of the key. Notify the [listeners](super::Store::listen) of each of
    /// them once `state` is written.
    pub turns: Vec<u64>,
    /// The holder whose turn is next: see [`Release::Turn`](super::Release::Turn).
    pub next: Option<u64>,
}

/// A cache of data that a store has made from the policies of recent calls.
#[derive(Debug)]
pub(super) struct PolicyCache<K, T>(Mutex<HashMap<K, Arc<T>>>);

/// A policy as the rules need it for each call.
struct PolicyRules {
    plan: Arc<Plan>,
    text: String,
}

impl Rules {
    /// Makes rules for the store of this [name](super::Store::name), which errors show.
    pub fn new(store: impl Into<String>) -> Self {
        Self {
            store: store.into(),
            policies: PolicyCache::default(),
        }
    }

    /// Whether the rules support this policy: see [`Store::supports`](super::Store::supports).
    ///
    /// # Errors
    ///
    /// [`StoreError::Policy`] if it is invalid; [`StoreError::Unsupported`] if it has a concurrency that adapts, which follows
    /// the work of one process.
    pub fn supports(&self, policy: &Policy) -> Result<(), StoreError> {
        super::check_supported(&self.store, policy)?;
        self.policy_rules(policy).map(drop)
    }

    /// The name of the store.
    #[cfg(feature = "_sql")]
    pub(super) fn store(&self) -> &str {
        &self.store
    }

    /// Decides a call on the state of its key. `now` is in nanoseconds since 1970, by a clock that all callers of the store share
    /// as far as possible, ideally the clock of its server, read under the lock. It is 0 to 2^64 - 2. If the clock steps back,
    /// time stands still.
    ///
    /// After an error, write nothing.
    ///
    /// # Errors
    ///
    /// [`StoreError::TooLate`], [`StoreError::PolicyDiffers`], [`StoreError::Policy`], and [`StoreError::Damaged`] if the bytes
    /// are not those of a [`Decided::state`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::store::{Asks, Call, Rules, Scope};
    ///
    /// let rules = Rules::new("an example");
    /// let scope = Scope { limiter: "api".into(), key: b"alice".as_slice().into() };
    /// let mut call = Call::new(scope, "10/min".parse()?, 1);
    /// call.asks.push(Asks::new(1, 15, [1]));
    /// let now = 1_800_000_000_000_000_000;
    /// let first = rules.decide(now, None, &call)?;
    /// assert_eq!(first.reply.granted, 10);
    /// let second = rules.decide(now + 60_000_000_000, first.state.as_ref(), &call)?;
    /// assert!(second.reply.granted == 10 && second.reply.first_fence > first.reply.first_fence);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn decide(
        &self,
        now: u64,
        state: Option<&KeyState>,
        call: &Call,
    ) -> Result<Decided, StoreError> {
        let policy = self.policy_rules(&call.policy)?;
        if call.valid_until.is_some_and(|until| until <= now) {
            return Err(StoreError::too_late(&self.store));
        }
        let now = Moment::from_nanos(now).min(Moment::LAST);
        let state = state.filter(|state| !state.bytes.is_empty());
        let (mut ledger, adopted) = match state {
            None => (
                Ledger::new(Arc::clone(&policy.plan), call.revision, now),
                false,
            ),
            Some(state) => self.read(&policy, now, state, call)?,
        };
        let (reply, Offer { turns, next }) = ledger.call(now, call);
        let counts_denials =
            policy.plan.counts_denials() && call.asks.iter().any(|asks| !asks.waits);
        let brings = call.returns.len() + call.settlements.len() + call.renewals.len();
        let expires_at = ledger.forgettable_at();
        // A bucket that starts low fills from the first call on, whatever the answer to that call was. If the state were not
        // kept, each call would find a new bucket.
        let begins = state.is_none() && expires_at > now;
        // Each call of each process keeps the policy longer: not all are written.
        let enough = now.plus(Call::KEEPS_POLICY_FOR / 2).nanos();
        let keeps = call.keeps_policy && state.is_some_and(|state| state.expires_at < enough);
        let changed = reply.granted > 0
            || reply.reclaimed > 0
            || brings > 0
            || counts_denials
            || adopted
            || begins
            || keeps
            || !turns.is_empty()
            || ledger.has_tickets() && (!call.asks.is_empty() || call.waits_no_more);
        let state = changed.then(|| KeyState {
            bytes: ledger.encode(&policy.text),
            expires_at: expires_at.nanos(),
        });
        Ok(Decided {
            reply,
            state,
            turns,
            next,
        })
    }

    fn policy_rules(&self, policy: &Policy) -> Result<Arc<PolicyRules>, StoreError> {
        self.policies.get(policy.clone(), || {
            let plan = super::plan(policy)?;
            let text = policy.to_string();
            Ok(PolicyRules { plan, text })
        })
    }

    /// Reads the ledger. Also returns whether it has adopted the policy of the call.
    fn read(
        &self,
        policy: &PolicyRules,
        now: Moment,
        state: &KeyState,
        call: &Call,
    ) -> Result<(Ledger, bool), StoreError> {
        let PolicyRules { plan, text } = policy;
        let damaged = |Damaged| StoreError::damaged(&self.store, &format!("{:?}", call.scope));
        let encoded = Encoded::read(&state.bytes).map_err(damaged)?;
        let (is_same, revision) = (encoded.text == *text, encoded.revision);
        if !is_same && now.nanos() >= state.expires_at {
            return Ok((Ledger::new(Arc::clone(plan), call.revision, now), true));
        }
        let differs = || {
            let stored = encoded.text.to_owned();
            StoreError::policy_differs(call, stored, revision)
        };
        if call.revision < revision || call.revision == revision && !is_same {
            return Err(differs());
        }
        if is_same {
            let mut ledger = Ledger::decode(Arc::clone(plan), encoded).map_err(damaged)?;
            let agreement = ledger.agree(plan, call.revision, now);
            return Ok((ledger, agreement == Agreement::Adopted));
        }
        let stored = super::read_policy(encoded.text);
        let stored = stored.and_then(|stored| self.policy_rules(&stored));
        let stored = stored.map_err(|source| differs().unknown_policy(source))?;
        let mut ledger = Ledger::decode(Arc::clone(&stored.plan), encoded).map_err(damaged)?;
        ledger.agree(plan, call.revision, now);
        Ok((ledger, true))
    }
}

impl<K: Eq + Hash, T> PolicyCache<K, T> {
    /// The most policies that are kept, which is more than a program is expected to have.
    const MAX: usize = 1_000;

    /// Returns the data of this policy, or of these policies. If there is none yet, `make` makes it now.
    pub(super) fn get(
        &self,
        policy: K,
        make: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<Arc<T>, StoreError> {
        if let Some(made) = self.0.lock().get(&policy) {
            return Ok(Arc::clone(made));
        }
        let made = Arc::new(make()?);
        let mut known = self.0.lock();
        if known.len() >= Self::MAX {
            known.clear();
        }
        known.insert(policy, Arc::clone(&made));
        Ok(made)
    }
}

impl<K, T> Default for PolicyCache<K, T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

debug_fields! { Rules, |rules| store = rules.store }
