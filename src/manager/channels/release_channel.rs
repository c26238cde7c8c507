//! The *release* channel: how a place is released.
//!
//! There is no queue: the caller that brings a place back adds it to the open [word](crate::manager::lock::word), or takes the
//! manager's lock and serves the front of the queue itself. So a release never waits for another task, and a permit can be released
//! by its drop.

use std::num::NonZeroU64;
use std::sync::Arc;

use tokio::time::Instant;

use super::{RequestOptions, nonzero_nanos};
use crate::contain_panic::contain_panic;
use crate::core::arena::Index;
use crate::core::request::{Actual, Claim, CostDetails, Grant, WorkReport};
use crate::error::AcquireError;
use crate::manager::lock::word::PutBack;
use crate::manager::parts::{Locked, Manager};
use crate::manager::visit::Visit;
use crate::policy::Limit;
use crate::strategy::Outcome;

manager_view!(
    "How permits are released, and what their holders ask before that.",
    ReleaseChannel,
    release_channel
);

impl Manager {
    /// Gives back what the claim of a grant holds, if it holds anything.
    pub(crate) fn release(self: &Arc<Self>, fence: u64, cost: u64, claim: Claim) {
        if claim == Claim::PLACE {
            match self.state.word.put_back(cost) {
                PutBack::Done => {}
                PutBack::InTransit => self.release_under_lock(fence, 0, claim), // locking takes the units over
                PutBack::Refused => self.release_under_lock(fence, cost, claim),
            }
        } else if claim.holds() {
            self.release_under_lock(fence, cost, claim);
        }
    }

    #[inline(never)]
    fn release_under_lock(self: &Arc<Self>, fence: u64, cost: u64, claim: Claim) {
        self.release_channel()
            .release_locked(self.lock(), fence, cost, claim);
    }
}

impl<'a> ReleaseChannel<'a> {
    /// [`Manager::release`] with the lock.
    #[inline(always)]
    fn release_locked(self, mut state: Locked<'a>, fence: u64, cost: u64, claim: Claim) {
        if !state.awaits_drain() && state.schedule.release(fence, cost, claim) {
            return;
        }
        match state.schedule.pass_on(cost, claim) {
            Some(next) => {
                drop(state); // no time has passed
                contain_panic(|| next.wake());
            }
            None => self.release_to_next(state, fence, cost, claim),
        }
    }

    /// The slow path of [`ReleaseChannel::release_locked`], when a request or a watch of the drain waits for the place.
    #[inline(never)]
    fn release_to_next(self, mut state: Locked<'a>, fence: u64, cost: u64, claim: Claim) {
        let now = state.now();
        Visit::new(self.0, state, now).give(|schedule, now, effects| {
            schedule.release_to_next(now, fence, cost, claim, effects);
        });
    }

    /// Releases the place of a permit if there is only a word: then no limit needs settlements or reports.
    fn release_to_word(self, grant: Grant, cost: u64) -> bool {
        let is_all = grant.claim == Claim::PLACE && self.0.state.is_only_a_word();
        if is_all {
            self.0.release(grant.fence, cost, grant.claim);
        }
        is_all
    }

    /// Releases a permit of `cost` whose work really cost `actual`, and went as the `outcome` says, if that is known. Returns whether it
    /// was live.
    pub(crate) fn settle(
        self,
        grant: Grant,
        cost: u64,
        actual: Actual<'_>,
        outcome: Option<Outcome>,
    ) -> bool {
        if !matches!(actual, Actual::Nothing | Actual::Cost(0)) && self.release_to_word(grant, cost)
        {
            return true; // a permit that cost nothing counts as refunded
        }
        self.0.visit().after_due().give(|schedule, now, effects| {
            let report = outcome.map(|outcome| WorkReport::new(outcome, grant, now));
            schedule.settle(now, grant, cost, (actual, report), effects)
        })
    }

    /// Releases a permit of `cost` with a report on its work. Returns whether it was live.
    pub(crate) fn report(self, grant: Grant, cost: u64, outcome: Outcome) -> bool {
        if self.release_to_word(grant, cost) {
            return true;
        }
        let mut state = self.0.lock();
        if grant.claim == Claim::PLACE && state.schedule.ignores_reports() {
            self.release_locked(state, grant.fence, cost, grant.claim);
            return true; // a place without a TTL is not reclaimed
        }
        let now = state.now();
        Visit::new(self.0, state, now).give(|schedule, now, effects| {
            let report = WorkReport::new(outcome, grant, now);
            schedule.report(now, grant, cost, report, effects)
        })
    }

    /// The costs by unit of a permit, while it is live and any of its limits counts by unit.
    pub(crate) fn cost_details(self, fence: u64) -> Option<Arc<CostDetails>> {
        self.0
            .visit()
            .give(|schedule, _, _| schedule.outlook().cost_details(fence).cloned())
    }

    /// Records that a permit will never be released.
    pub(crate) fn forget(self, grant: Grant) {
        if grant.claim.names_units() || grant.claim.lease().is_some() {
            self.0
                .visit()
                .give(|schedule, _, _| schedule.forget(grant.fence, grant.claim));
        }
    }

    pub(crate) fn renew(self, index: Index, fence: u64) -> bool {
        self.0
            .visit()
            .give(|schedule, now, _| schedule.renew(now, index, fence))
    }

    /// Gives a permit its own TTL, which counts from now if it `renews`. Returns whether the permit is live.
    pub(crate) fn set_own_ttl(
        self,
        index: Index,
        fence: u64,
        own: NonZeroU64,
        renews: bool,
    ) -> bool {
        self.0.visit().give(|schedule, now, effects| {
            schedule.set_own_ttl(now, (index, fence), own, renews, effects)
        })
    }

    /// Refuses a request for a TTL if the policy has none: its permits are no leases.
    pub(crate) fn check_ttl(self, options: &RequestOptions) -> Result<(), AcquireError> {
        let Some(ttl) = options.ttl() else {
            return Ok(());
        };
        let policy = self.0.policy();
        let has_one = |limit: &Limit| limit.description().lease_ttl.is_some();
        if policy.limits().iter().any(has_one) {
            Ok(())
        } else {
            Err(AcquireError::NoTtl { ttl, policy })
        }
    }

    /// Gives the permit of a grant the TTL of its request, if the request has one.
    #[inline(never)]
    pub(crate) fn limit_ttl(self, grant: Grant, options: &RequestOptions) {
        if let (Some(own), Some(lease)) = (options.ttl(), grant.claim.lease()) {
            self.set_own_ttl(lease, grant.fence, nonzero_nanos(own), false);
        }
    }

    /// Whether a leased permit is live.
    pub(crate) fn is_live(self, index: Index, fence: u64) -> bool {
        let mut state = self.0.lock();
        let now = state.now();
        state.schedule.live_lease(now, index, fence).is_some()
    }

    /// When a live permit expires; `None` when it is not live, or has no TTL any more.
    pub(crate) fn expires_at(self, index: Index, fence: u64) -> Option<Instant> {
        let mut state = self.0.lock();
        let now = state.now();
        let expires_at = state
            .schedule
            .live_lease(now, index, fence)?
            .expires_at
            .known()?;
        Some(state.clock.instant(expires_at))
    }
}
