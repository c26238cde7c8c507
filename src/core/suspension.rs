//! What holds a limiter back besides its policy: a pause, an upstream's quota that is spread out, a queue that overflowed.

use std::time::Duration;

use crate::decision::Decision;
use crate::strategy::Moment;

/// What holds every request back. Each part ends at a moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Suspension {
    /// For each [`PauseScope`], until when; [`Moment::NEVER`]: until a [`Suspension::resume`].
    paused_until: [Option<Moment>; 2],
    /// Until when every request is refused; each request in the meantime restarts that time.
    blocked_until: Option<Moment>,
    spread: Option<Spread>,
}

/// What a pause holds back. A resume of one does not end a pause of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PauseScope {
    Limiter,
    /// All keys of a keyed limiter.
    AllKeys,
}

/// What holds all keys of a keyed limiter back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AllKeysHold {
    pub(crate) closed: bool,
    pub(crate) paused_until: Option<Moment>,
}

impl AllKeysHold {
    /// Whether it holds nothing back, now or later.
    pub(crate) fn is_over(self, now: Moment) -> bool {
        !self.closed && self.paused_until <= Some(now)
    }

    /// The decision on a key that nothing else holds back.
    pub(crate) fn decide(self, decision: Decision, now: Moment) -> Decision {
        match self.paused_until.filter(|until| *until > now) {
            _ if self.closed => decision.refused(),
            Some(until) => decision.held_back(until, now),
            None => decision,
        }
    }
}

/// The rest of an upstream's quota, at an even pace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Spread {
    /// Nanoseconds a unit.
    interval: u64,
    next: Moment,
    until: Moment,
    /// The signal with the fewest units remaining when it came. A signal with more is stale, but a refund may make it count.
    binding: Budget,
    latest: Budget,
}

/// The units that an upstream's signal still allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Budget {
    /// Negative if more units were used than the quota had. Units that are given back make up for these first.
    left: i128,
    /// The latest grant at the signal. The upstream may have counted it and earlier ones, so their refunds add nothing.
    fence: u64,
}

impl Budget {
    fn settle(&mut self, fence: u64, cost: u64, actual: u64) {
        if fence > self.fence {
            self.left += i128::from(cost) - i128::from(actual);
        }
    }
}

impl Spread {
    fn left(&self) -> u64 {
        u64::try_from(self.binding.left.min(self.latest.left).max(0)).unwrap_or(u64::MAX)
    }
}

impl Suspension {
    /// Whether it holds back no request, now or later.
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        self.paused_until[PauseScope::AllKeys as usize] <= Some(now)
            && self.is_over_but_for_all_keys(now)
    }

    /// [`Suspension::is_over`], apart from a pause of all keys.
    pub(crate) fn is_over_but_for_all_keys(&self, now: Moment) -> bool {
        let paused = self.paused_until[PauseScope::Limiter as usize] > Some(now);
        !paused && !self.is_blocked(now) && self.spread.is_none_or(|spread| spread.until <= now)
    }

    /// The earliest instant at which `cost` can be granted; [`Moment::NEVER`] if only [`Suspension::resume`] helps. A cost above
    /// the rest of an upstream's quota waits until the quota resets.
    pub(crate) fn ready_at(&self, now: Moment, cost: u64) -> Moment {
        let next = |spread: Spread| {
            if cost > spread.left() {
                spread.until
            } else {
                spread.next.min(spread.until)
            }
        };
        let spread = self.spread.map_or(now, next);
        let others = self.paused_until.into_iter().chain([self.blocked_until]);
        others.flatten().fold(spread.max(now), Moment::max)
    }

    /// The largest cost that an upstream's spread quota has left.
    pub(crate) fn units_left(&self, now: Moment) -> u64 {
        self.spread
            .filter(|spread| spread.until > now)
            .map_or(u64::MAX, |spread| spread.left())
    }

    /// `None` when it is not paused; the longest duration when the pause has no end.
    pub(crate) fn paused_for(&self, now: Moment) -> Option<Duration> {
        let [limiter, all_keys] = self.paused_until;
        let until = limiter.max(all_keys).filter(|until| *until > now)?;
        Some(
            until
                .known()
                .map_or(Duration::MAX, |until| until.duration_since(now)),
        )
    }

    /// The later end of two pauses counts: a second denial must not shorten the first. Returns whether the end has moved.
    pub(crate) fn pause(&mut self, scope: PauseScope, until: Moment) -> bool {
        let paused_until = &mut self.paused_until[scope as usize];
        let moves = *paused_until < Some(until);
        *paused_until = (*paused_until).max(Some(until));
        moves
    }

    /// Ends a pause. Resuming a limiter also ends the spreading of an upstream's quota. Returns whether there was a pause.
    pub(crate) fn resume(&mut self, scope: PauseScope) -> bool {
        if scope == PauseScope::Limiter {
            self.spread = None;
        }
        self.paused_until[scope as usize].take().is_some()
    }

    /// Whether a pause has ended by itself and was not [removed](Suspension::end_pauses).
    pub(crate) fn has_ended_pause(&self, now: Moment) -> bool {
        self.paused_until
            .iter()
            .flatten()
            .any(|until| *until <= now)
    }

    /// Removes the pauses that have ended by themselves. Returns when they ended, first to last.
    pub(crate) fn end_pauses(&mut self, now: Moment) -> [Option<Moment>; 2] {
        let mut ended = self
            .paused_until
            .each_mut()
            .map(|until| until.take_if(|until| *until <= now));
        ended.sort_unstable();
        ended
    }

    /// Spreads `units` evenly until an upstream's quota resets; `fence` is that of the latest grant. For the same quota, a signal
    /// with more units than are known to remain is stale, because responses overtake each other.
    pub(crate) fn spread(&mut self, now: Moment, units: u64, until: Moment, fence: u64) {
        /// Most upstreams state a reset in whole seconds. One that is later by more than that belongs to another quota.
        const SAME: u64 = 1_000_000_000;
        let known = self
            .spread
            .filter(|spread| spread.until > now && until <= spread.until.plus(SAME));
        let signal = Budget {
            left: units.into(),
            fence,
        };
        let mut spread = Spread {
            interval: 0,
            next: now,
            until,
            binding: signal,
            latest: signal,
        };
        if let Some(known) = known.filter(|known| known.left() <= units) {
            // Strictly, both signals still count. One budget that allows less than either is simpler. The new signal has counted the
            // units that were used beyond the quota.
            spread.binding = known.binding;
            spread.binding.left = known.binding.left.max(0);
            spread.latest.left = known.latest.left.clamp(0, units.into());
        }
        spread.interval = until.since(now).div_ceil(spread.left().max(1));
        if let Some(known) = known {
            spread.next = known.next.min(now.plus(spread.interval));
        }
        self.spread = Some(spread);
    }

    /// `cost` was granted.
    pub(crate) fn note_grant(&mut self, now: Moment, cost: u64) {
        if let Some(spread) = &mut self.spread {
            spread.binding.left -= i128::from(cost);
            spread.latest.left -= i128::from(cost);
            spread.next = now.plus(spread.interval.saturating_mul(cost));
        }
    }

    /// A grant of `cost` used `actual` units. The pace counts from the `latest` grant, so only its unused units make the next
    /// grant sooner.
    pub(crate) fn settle(&mut self, fence: u64, cost: u64, actual: u64, latest: u64) {
        if let Some(spread) = &mut self.spread {
            spread.binding.settle(fence, cost, actual);
            spread.latest.settle(fence, cost, actual);
            if fence == latest && fence > spread.binding.fence {
                spread.next = spread
                    .next
                    .minus(spread.interval.saturating_mul(cost.saturating_sub(actual)));
            }
        }
    }

    /// Refuses every request until none has come for `nanos`.
    pub(crate) fn block(&mut self, now: Moment, nanos: u64) {
        self.blocked_until = Some(now.plus(nanos));
    }

    pub(crate) fn is_blocked(&self, now: Moment) -> bool {
        self.blocked_until > Some(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use crate::strategy::Throttle;

    fn at(nanos: u64) -> Moment {
        Moment::from_nanos(nanos)
    }

    #[test]
    fn the_later_end_of_two_pauses_stands() {
        let mut suspension = Suspension::default();
        suspension.pause(PauseScope::Limiter, at(100));
        suspension.pause(PauseScope::Limiter, at(50));
        assert_eq!(suspension.ready_at(at(10), 1), at(100));
        assert!(!suspension.is_over(at(99)) && suspension.is_over(at(100)));
        suspension.resume(PauseScope::Limiter);
        assert!(suspension.is_over(at(10)));
    }

    #[test]
    fn a_limiter_and_all_keys_are_paused_and_resumed_apart() {
        let mut suspension = Suspension::default();
        suspension.pause(PauseScope::Limiter, at(50));
        suspension.pause(PauseScope::AllKeys, at(100));
        suspension.resume(PauseScope::Limiter);
        assert_eq!(suspension.ready_at(at(10), 1), at(100));
        assert!(suspension.is_over_but_for_all_keys(at(10)) && !suspension.is_over(at(99)));
        suspension.pause(PauseScope::Limiter, at(50));
        suspension.resume(PauseScope::AllKeys);
        assert_eq!(
            (suspension.ready_at(at(10), 1), suspension.is_over(at(10))),
            (at(50), false)
        );
    }

    #[test]
    fn a_pause_ends_at_its_end() {
        let mut suspension = Suspension::default();
        assert_eq!(suspension.paused_for(at(0)), None);
        let moves =
            [100, 50, 100, 102].map(|until| suspension.pause(PauseScope::AllKeys, at(until)));
        assert_eq!(moves, [true, false, false, true]);
        let paused_for = [100, 101, 102].map(|now| suspension.paused_for(at(now)));
        assert_eq!(
            paused_for,
            [Some(2), Some(1), None].map(|nanos| nanos.map(Duration::from_nanos))
        );
        let has_ended = [101, 102, 103].map(|now| suspension.has_ended_pause(at(now)));
        assert_eq!(has_ended, [false, true, true]);
        suspension.pause(PauseScope::Limiter, Moment::NEVER);
        assert_eq!(suspension.paused_for(at(103)), Some(Duration::MAX));
    }

    #[test]
    fn a_pause_of_all_keys_denies_until_its_end() {
        let policy = Policy::from(Throttle::every(Duration::from_nanos(1)));
        let nothing = std::iter::empty();
        let allowed = Decision::summarize(&policy, None, nothing, at(0), 0, |_| 1);
        let decide = |closed, now| {
            let hold = AllKeysHold {
                closed,
                paused_until: Some(at(100)),
            };
            let decision = hold.decide(allowed.clone(), at(now));
            (decision.is_allowed(), decision.retry_after())
        };
        assert_eq!(
            [99, 100, 101].map(|now| decide(false, now)),
            [
                (false, Some(Duration::from_nanos(1))),
                (true, None),
                (true, None)
            ]
        );
        assert_eq!([99, 100].map(|now| decide(true, now)), [(false, None); 2]);
    }

    #[test]
    fn a_quota_is_spread_evenly_until_it_is_new() {
        let mut suspension = Suspension::default();
        suspension.spread(at(0), 4, at(100), 0);
        let mut grants = Vec::new();
        while grants.len() < 6 {
            let now = suspension.ready_at(grants.last().map_or(at(0), |last| *last), 1);
            suspension.note_grant(now, 1);
            grants.push(now);
        }
        assert_eq!(grants, [0, 25, 50, 75, 100, 100].map(at));
        let mut suspension = Suspension::default();
        suspension.spread(at(0), 4, at(100), 0);
        suspension.note_grant(at(0), 2);
        assert_eq!(suspension.ready_at(at(1), 1), at(50));
    }

    #[test]
    fn news_of_a_quota_does_not_start_its_pace_anew() {
        let mut suspension = Suspension::default();
        suspension.spread(at(0), 4, at(100), 0);
        suspension.note_grant(at(0), 1);
        suspension.spread(at(10), 3, at(100), 0);
        assert_eq!(suspension.ready_at(at(10), 1), at(25));
    }

    #[test]
    fn stale_news_of_a_quota_speeds_nothing_up() {
        let mut suspension = Suspension::default();
        suspension.spread(at(0), 2, at(100), 0);
        suspension.note_grant(at(0), 1);
        suspension.spread(at(0), 5, at(100), 0); // sent before the grant, received after it
        assert_eq!(suspension.ready_at(at(0), 1), at(50));
        suspension.note_grant(at(50), 1);
        suspension.spread(at(50), 3, at(100), 0);
        assert_eq!(suspension.ready_at(at(50), 1), at(100), "none is left");
        assert_eq!(suspension.ready_at(at(100), 1), at(100), "the quota is new");
    }

    #[test]
    fn another_quota_is_not_taken_for_stale_news() {
        const S: u64 = 1_000_000_000;
        let mut suspension = Suspension::default();
        suspension.spread(at(0), 1, at(S), 0);
        suspension.note_grant(at(0), 1);
        suspension.spread(at(S / 2), 9, at(60 * S), 0);
        assert_eq!(suspension.ready_at(at(S / 2), 1), at(S / 2));
        assert_eq!(
            suspension.ready_at(at(S / 2), 10),
            at(60 * S),
            "more than there is waits for the next one"
        );
    }

    /// A fixed bug: units used beyond what was left were forgotten, and a refund then made one count that was gone.
    #[test]
    fn a_refund_first_makes_up_for_what_was_used_beyond_the_quota() {
        let mut suspension = Suspension::default();
        suspension.spread(at(0), 3, at(185), 0);
        suspension.note_grant(at(59), 1);
        suspension.note_grant(at(121), 1);
        suspension.settle(1, 1, 3, 2);
        suspension.settle(2, 1, 0, 2);
        assert_eq!(
            suspension.ready_at(at(121), 1),
            at(185),
            "the upstream has counted all three"
        );
    }

    #[test]
    fn a_quota_has_no_units_to_count_once_it_is_new() {
        let mut suspension = Suspension::default();
        suspension.spread(at(0), 1, at(100), 0);
        let left = [99, 100].map(|now| suspension.units_left(at(now)));
        assert_eq!(left, [1, u64::MAX]);
        suspension.note_grant(at(0), 1);
        suspension.spread(at(100), 9, at(200), 1);
        assert_eq!(suspension.units_left(at(100)), 9);
        assert_eq!(suspension.ready_at(at(100), 9), at(100));
    }

    /// The second signal has counted the first grant, and the first signal had not.
    fn signalled_twice() -> Suspension {
        let mut suspension = Suspension::default();
        suspension.spread(at(0), 10, at(100), 0);
        suspension.note_grant(at(0), 1);
        suspension.spread(at(0), 10, at(100), 1);
        suspension
    }

    #[test]
    fn of_two_signals_the_one_that_leaves_fewer_units_counts() {
        let left = |actual| {
            let mut suspension = signalled_twice();
            suspension.settle(1, 1, actual, 1);
            let before = suspension.units_left(at(0));
            suspension.note_grant(at(0), 2);
            (before, suspension.units_left(at(0)))
        };
        assert_eq!(left(4), (6, 4), "the first signal had not counted these");
        assert_eq!(left(0), (9, 7), "the second signal may have counted it");
    }

    #[test]
    fn units_that_were_not_used_quicken_the_pace_only_after_the_latest_grant() {
        let mut suspension = Suspension::default();
        suspension.spread(at(0), 4, at(100), 0);
        suspension.note_grant(at(0), 1);
        suspension.note_grant(at(25), 2);
        suspension.settle(1, 1, 0, 2);
        assert_eq!(suspension.ready_at(at(25), 1), at(75));
        suspension.settle(2, 2, 1, 2);
        assert_eq!(suspension.ready_at(at(25), 1), at(50));

        let mut suspension = Suspension::default();
        suspension.spread(at(0), 4, at(100), 0);
        suspension.note_grant(at(0), 1);
        suspension.spread(at(0), 2, at(100), 1);
        suspension.settle(1, 1, 0, 1);
        assert_eq!(
            (suspension.units_left(at(0)), suspension.ready_at(at(0), 1)),
            (2, at(25)),
            "the upstream may have counted it"
        );
    }
}
