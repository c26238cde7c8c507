//! What holders do with their permits.

use std::num::NonZeroU64;

use super::*;
use crate::core::request::WorkReport;

impl Harness {
    pub(super) fn release(&mut self, Held { grant, cost }: Held) -> TestCaseResult {
        let before = self.snapshot_if_nothing_is_due();
        let is_awaited = self.reference.closed || !self.reference.waiting.is_empty();
        if is_awaited {
            self.input_amid_due(|schedule, now, effects| {
                assert!(!schedule.release(grant.fence, cost.plain, grant.claim));
                match schedule.pass_on(cost.plain, grant.claim) {
                    Some(next) => effects.wake(Some(next)),
                    None => {
                        schedule.release_to_next(
                            now,
                            grant.fence,
                            cost.plain,
                            grant.claim,
                            effects,
                        );
                    }
                }
            });
        } else if !self.schedule.release(grant.fence, cost.plain, grant.claim) {
            prop_assert!(self.has_flows, "no request waits for it");
            self.input(|schedule, now, effects| {
                schedule.release_to_next(now, grant.fence, cost.plain, grant.claim, effects);
            });
        }
        let is_live = self.reference.give_back(grant.fence);
        self.a_reclaimed_permit_changes_nothing(is_live, before)
    }

    pub(super) fn settle(
        &mut self,
        Held { grant, cost }: Held,
        actual: Settled,
        outcome: Option<Outcome>,
    ) -> TestCaseResult {
        let before = self.snapshot_if_nothing_is_due();
        let reported = actual.with(|actual| {
            self.input(|schedule, now, effects| {
                let report = outcome.map(|outcome| WorkReport::new(outcome, grant, now));
                schedule.settle(now, grant, cost.plain, (actual, report), effects)
            })
        });
        let is_live = self.reference.settle(grant.fence, actual);
        prop_assert_eq!(reported, is_live);
        self.a_reclaimed_permit_changes_nothing(is_live, before)
    }

    pub(super) fn report(
        &mut self,
        Held { grant, cost }: Held,
        outcome: Outcome,
    ) -> TestCaseResult {
        let before = self.snapshot_if_nothing_is_due();
        let reported = self.input(|schedule, now, effects| {
            let report = WorkReport::new(outcome, grant, now);
            schedule.report(now, grant, cost.plain, report, effects)
        });
        let is_live = self.reference.give_back(grant.fence);
        prop_assert_eq!(reported, is_live);
        self.a_reclaimed_permit_changes_nothing(is_live, before)
    }

    pub(super) fn renew(&mut self, grant: Grant) -> TestCaseResult {
        let has_lease = self.reference.grants[&grant.fence].leased.is_some();
        prop_assert_eq!(grant.claim.lease().is_some(), has_lease);
        if let Some(lease) = grant.claim.lease() {
            let reported = self.schedule.renew(self.moment(), lease, grant.fence);
            prop_assert_eq!(reported, self.reference.renew(grant.fence));
        }
        Ok(())
    }

    pub(super) fn set_own_ttl(&mut self, grant: Grant, ttl: u64, renews: bool) -> TestCaseResult {
        if let Some(lease) = grant.claim.lease() {
            let own = NonZeroU64::new(ttl).unwrap();
            let reported = self.input(|schedule, now, effects| {
                schedule.set_own_ttl(now, (lease, grant.fence), own, renews, effects)
            });
            prop_assert_eq!(
                reported,
                self.reference.set_own_ttl(grant.fence, ttl, renews)
            );
        }
        Ok(())
    }

    fn snapshot_if_nothing_is_due(&self) -> Option<LimiterSnapshot> {
        (!self.is_due()).then(|| self.schedule.outlook().snapshot(self.moment()))
    }

    /// A reclaimed permit changes nothing: its place was released already.
    fn a_reclaimed_permit_changes_nothing(
        &self,
        is_live: bool,
        before: Option<LimiterSnapshot>,
    ) -> TestCaseResult {
        let after = self.schedule.outlook().snapshot(self.moment());
        prop_assert!(
            is_live || before.is_none_or(|before| before == after),
            "it was {before:?} and is {after:?}"
        );
        Ok(())
    }
}
