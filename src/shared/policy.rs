//! The policy of a shared limiter: that of its builder, or a later revision from the store.
//!
//! The state of each key in the store has the policy and the revision that it was decided by. A call of an earlier revision fails,
//! and its process follows; a call of a later one replaces the policy of the key. So a later policy spreads with every key that
//! processes share. All share the empty key: a process that has called for other keys only also looks at that one now and then.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use super::keys::Keys;
use crate::core::gate::plan::Plan;
use crate::core::session::{PolicyTerms, PrefetchOptions};
use crate::error::StoreError;
use crate::exchange::{Call, Scope};
use crate::manager::{FollowsStore, nonzero_nanos};
use crate::policy::{Limit, Policy};
use crate::store::{Release, ReleaseListener, Store, read_policy};
use crate::strategy::Counts;

/// The options of a limiter that make a policy's terms.
#[derive(Debug)]
pub(super) struct TermOptions {
    pub(super) holder: u64,
    pub(super) lease: Duration,
    pub(super) poll_every: Duration,
    /// The maximum number of prefetched units, and how long they are kept.
    pub(super) prefetch: Option<(u64, Duration)>,
}

/// The policy that applies to all keys in this process.
#[derive(Debug)]
pub(super) struct PolicyInForce {
    store: Arc<dyn Store>,
    name: Arc<str>,
    options: TermOptions,
    keys: Arc<Keys>,
    /// Whether the store reports turns to this process. It listens from the first policy on that counts places.
    hears_turns: OnceLock<bool>,
    terms: Mutex<Arc<PolicyTerms>>,
}

impl PolicyInForce {
    pub(super) fn new(
        store: Arc<dyn Store>,
        name: Arc<str>,
        options: TermOptions,
        keys: Arc<Keys>,
        (plan, revision): (Arc<Plan>, u64),
    ) -> Self {
        let first = PolicyTerms {
            plan: Arc::clone(&plan),
            revision,
            ttl: nonzero_nanos(options.lease),
            polls_every: 0,
            hears_turns: false,
            prefetch: PrefetchOptions::default(),
        };
        let mut this = Self {
            store,
            name,
            options,
            keys,
            hears_turns: OnceLock::new(),
            terms: Mutex::new(Arc::new(first)),
        };
        this.terms = Mutex::new(this.terms_of(plan, revision));
        this
    }

    /// The terms of a policy that is valid and that the store can keep.
    pub(super) fn check(
        &self,
        policy: Policy,
        revision: u64,
    ) -> Result<Arc<PolicyTerms>, StoreError> {
        self.store.supports(&policy)?;
        let plan = Plan::new(policy, Duration::ZERO).map_err(StoreError::Policy)?;
        Ok(self.terms_of(Arc::new(plan), revision))
    }

    fn terms_of(&self, plan: Arc<Plan>, revision: u64) -> Arc<PolicyTerms> {
        let TermOptions {
            holder,
            lease,
            poll_every,
            prefetch,
        } = self.options;
        let listens = || {
            let heard = move |keys: &Keys, release: Release<'_>| keys.heard(release, holder);
            let listener = ReleaseListener::new(&self.keys, heard);
            self.store.listen(&self.name, listener)
        };
        let hears_turns = plan.holds_places() && *self.hears_turns.get_or_init(listens);
        let poll_every = poll_every.saturating_mul(if hears_turns { 50 } else { 1 });
        let prefetch = prefetch.filter(|_| !plan.limits().iter().any(is_never_prefetched));
        let prefetch = prefetch.map(|(max, kept_for)| PrefetchOptions {
            max,
            kept_for: nonzero_nanos(kept_for).get(),
        });
        Arc::new(PolicyTerms {
            ttl: plan.ttl().unwrap_or(nonzero_nanos(lease)),
            plan,
            revision,
            polls_every: nonzero_nanos(poll_every).get(),
            hears_turns,
            prefetch: prefetch.unwrap_or_default(),
        })
    }

    /// Applies these terms to all keys, unless a later revision applies already.
    pub(super) fn adopt(&self, terms: Arc<PolicyTerms>) {
        let mut present = self.terms.lock();
        if present.revision >= terms.revision {
            return;
        }
        present.clone_from(&terms);
        drop(present);
        // A key that is opened meanwhile begins with the new terms, or is among these.
        for manager in self.keys.all() {
            manager.at_store().adopt(&terms);
        }
    }

    /// A call for the empty key. Another policy than the first one is kept there.
    pub(super) fn call(&self, terms: &PolicyTerms) -> Call {
        let scope = Scope {
            limiter: Arc::clone(&self.name),
            key: Arc::default(),
        };
        Call {
            revision: terms.revision,
            keeps_policy: terms.revision > 0,
            ..Call::new(scope, terms.plan.policy().clone(), self.options.holder)
        }
    }
}

impl FollowsStore for PolicyInForce {
    fn follow(&self, policy: &str, revision: u64) -> Result<(), StoreError> {
        let terms = self.check(read_policy(policy)?, revision)?;
        self.adopt(terms);
        Ok(())
    }

    fn terms(&self) -> Arc<PolicyTerms> {
        Arc::clone(&self.terms.lock())
    }

    fn look(&self) -> Call {
        self.call(&self.terms())
    }

    fn is_awaited(&self) -> bool {
        /// Of more keys, one is taken to be awaited.
        const MOST: usize = 1_000;
        let managers = self.keys.all();
        managers.len() > MOST || managers.iter().any(|manager| manager.totals().queued > 0)
    }
}

/// Whether the units of this limit cannot be prefetched.
pub(super) fn is_never_prefetched(limit: &Limit) -> bool {
    limit.counts_places() || limit.counts() != Counts::Cost
}
