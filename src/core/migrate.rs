//! Carries the usage over when the policy changes.

use crate::carry_over::UsageCarryOver;
use crate::core::limit_state::LimitState;
use crate::policy::Limit;
use crate::strategy::{Counts, Moment};

/// A limit of the policy that was replaced.
pub(super) struct Former {
    pub(super) limit: Limit,
    pub(super) state: LimitState,
    /// The last fence whose grant has nothing to refund here.
    pub(super) refundable_after: u64,
}

/// A reset limit of the new policy, with the last fence so far.
pub(super) struct Heir<'a> {
    pub(super) limit: Limit,
    pub(super) state: &'a mut LimitState,
    pub(super) refundable_after: &'a mut u64,
}

/// Lets each new limit take over the usage of an old one: an equal one, or else one of its kind, or else any that is left. An
/// equal one keeps its state. Only a limit that counts the same has a usage to take over. A new limit without a counterpart starts
/// reset. Units in flight stay in flight: `in_flight` says how many, for what a limit counts.
pub(super) fn carry_over(
    mut formers: Vec<Former>,
    mut heirs: Vec<Heir<'_>>,
    now: Moment,
    carry: UsageCarryOver,
    in_flight: impl Fn(Counts) -> u64,
) {
    let alike: [fn(&Limit, &Limit) -> bool; 3] = [
        |former, heir| former == heir,
        |former, heir| std::mem::discriminant(former) == std::mem::discriminant(heir),
        |_, _| true,
    ];
    for alike in alike {
        heirs.retain_mut(|Heir { limit, state, refundable_after }| {
            let counts_places = state.places().is_some();
            let fits = |former: &Former| {
                let counts_alike = counts_places || former.limit.counts() == limit.counts();
                counts_alike && alike(&former.limit, limit) && former.state.places().is_some() == counts_places
            };
            let Some(found) = formers.iter().position(fits) else { return true };
            let former = formers.remove(found);
            if former.limit == *limit {
                (**state, **refundable_after) = (former.state, former.refundable_after);
            } else if counts_places {
                state.charge(now, in_flight(limit.counts()));
            } else {
                state.take_over(now, &former.state, carry.ratio(former.limit.capacity(), limit.capacity()));
            }
            false
        });
    }
    for heir in heirs.iter_mut().filter(|heir| heir.state.places().is_some()) {
        heir.state.charge(now, in_flight(heir.limit.counts()));
    }
}
