//! Answers that come with what each limit of the key says at that instant.

use std::hash::Hash;
use std::sync::Arc;

use super::{Entered, IdleKey, Purpose, Table};
use crate::core::gate::Gate;
use crate::error::{AcquireError, TryAcquireError};
use crate::keyed::admitted::Admitted;
use crate::keyed::idle::KeptHash;
use crate::keyed::key_ref::KeyRef;
use crate::manager::RequestOptions;
use crate::permit::Permit;
use crate::snapshot::LimitStatus;

impl<K: Hash + Eq + Clone + Send + Sync + 'static, const W: usize, H: KeptHash> Table<K, W, H> {
    /// No limits if there is no room for the key, or the policy of its tier is invalid.
    pub(in crate::keyed) fn try_request_explained<Q: KeyRef<K> + ?Sized>(
        &self,
        key: &Q,
        options: &RequestOptions,
    ) -> (Result<Permit, TryAcquireError>, Vec<LimitStatus>) {
        let (mut of_idle, mut of_active) = (Vec::new(), Vec::new());
        if let Some(answer) = self.try_at_once(key, options.cost, |state, now| of_idle = state.limits(now)) {
            return (answer, of_idle);
        }
        let answer = self.try_request_and_tell(
            key,
            options,
            |IdleKey { state, now, .. }| of_idle = state.limits(*now),
            |manager| {
                let (answer, limits) = manager.try_request_explained(options);
                of_active = limits;
                answer
            },
        );
        (answer, if of_active.is_empty() { of_idle } else { of_active })
    }

    /// [`Table::admit`]; the limits are those of a grant.
    pub(in crate::keyed) fn admit_explained<Q: KeyRef<K> + ?Sized>(
        &self,
        key: &Q,
        options: &RequestOptions,
    ) -> Result<(Admitted, Vec<LimitStatus>), AcquireError> {
        let mut limits = Vec::new();
        let admitted = self.admit_and_look(key, options, |state, now| limits = state.limits(now))?;
        Ok((admitted, limits))
    }

    /// What each limit of the key says. An unknown key stays unknown.
    pub(in crate::keyed) fn limits<Q: KeyRef<K> + ?Sized>(&self, key: &Q) -> Vec<LimitStatus> {
        match self.enter(key, Purpose::Look, |idle| Some(idle.state.limits(idle.now))) {
            Ok(Entered::Idle(limits)) => limits,
            Ok(Entered::Active(manager)) => manager.limits(),
            Ok(Entered::Absent { tier, now, .. }) => Gate::new(Arc::clone(tier.plan()), now, false).statuses(now),
            Err(_) => Vec::new(),
        }
    }
}
