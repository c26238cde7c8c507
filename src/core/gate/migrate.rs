//! Carries the usage over when the policy changes.

use crate::carry_over::UsageCarryOver;
use crate::core::gate::limit_state::LimitState;
use crate::policy::Limit;
use crate::strategy::{Counts, Moment};

/// A limit of the policy that was replaced.
pub(super) struct OldLimit {
    pub(super) limit: Limit,
    pub(super) state: LimitState,
    /// The last fence whose grant has nothing to refund here.
    pub(super) refundable_after: u64,
}

/// A reset limit of the new policy, with the last fence so far.
pub(super) struct NewLimit<'a> {
    pub(super) limit: Limit,
    pub(super) state: &'a mut LimitState,
    pub(super) refundable_after: &'a mut u64,
}

/// Lets each new limit take over the usage of an old one: an equal one, or else one of its kind, or else any that is left. An
/// equal one keeps its state. Only a limit that counts the same has a usage to take over. A new limit without a counterpart starts
/// reset. Units in flight stay in flight: `in_flight` says how many, for what a limit counts.
pub(super) fn carry_over(
    mut old_limits: Vec<OldLimit>,
    mut new_limits: Vec<NewLimit<'_>>,
    now: Moment,
    carry: UsageCarryOver,
    in_flight: impl Fn(Counts) -> u64,
) {
    let alike: [fn(&Limit, &Limit) -> bool; 3] = [
        |old, new| old == new,
        |old, new| std::mem::discriminant(old) == std::mem::discriminant(new),
        |_, _| true,
    ];
    for alike in alike {
        new_limits.retain_mut(
            |NewLimit {
                 limit,
                 state,
                 refundable_after,
             }| {
                let counts_places = state.places().is_some();
                let fits = |old: &OldLimit| {
                    let counts_alike = counts_places || old.limit.counts() == limit.counts();
                    counts_alike
                        && alike(&old.limit, limit)
                        && old.state.places().is_some() == counts_places
                };
                let Some(found) = old_limits.iter().position(fits) else {
                    return true;
                };
                let old = old_limits.remove(found);
                if old.limit == *limit {
                    **state = old.state;
                    **refundable_after = old.refundable_after;
                } else if counts_places {
                    state.charge(now, in_flight(limit.counts()));
                } else {
                    state.take_over(
                        now,
                        &old.state,
                        carry.ratio(old.limit.capacity(), limit.capacity()),
                    );
                }
                false
            },
        );
    }
    for new in new_limits
        .iter_mut()
        .filter(|new| new.state.places().is_some())
    {
        new.state.charge(now, in_flight(new.limit.counts()));
    }
}
