use std::time::Duration;

use super::{Moment, Strategy, Verdict};

/// At most one grant per interval; with a burst, `burst` at once and then the same pace.
///
/// The rule is the generic cell rate algorithm (GCRA, ITU-T I.371, "virtual scheduling"): one word holds the *theoretical
/// arrival time*, at which everything admitted so far has been paced out. A cost of `n` moves it by `n` intervals, and is
/// admitted when the result lies at most `burst` intervals ahead of now.
///
/// ```text
/// every 100 ms         |x    .    x    .    .    .    x    .    x        one per interval; idle time earns nothing
///                      0        100                 300       400 ms
/// .burst(3)            |xxx  .    x    .    x    .    .    .    xx       three at once, then the pace
/// ```
///
/// Worst burst: `burst` units in one instant. In any span of length `t`: at most `burst + t / interval` units. Without a
/// burst the distance between any two grants is at least the interval, measured at the instant of the decision; a timer that
/// fires late delays all that follow. With a burst the lateness is caught up, never by more than the burst.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, Throttle};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Throttle::every(Duration::from_millis(100)))?;
/// let start = tokio::time::Instant::now();
/// for _ in 0..4 {
///     let _permit = limiter.acquire().await?;
/// }
/// assert_eq!(start.elapsed(), Duration::from_millis(300)); // the first at once
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Throttle {
    pub(crate) interval: Duration,
    pub(crate) burst: u64,
}

impl Throttle {
    /// One grant per `interval` (1 ns to 100 years; checked when a limiter is built), the first at once.
    ///
    /// See the [type's example](Throttle#examples).
    #[must_use]
    pub const fn every(interval: Duration) -> Self {
        Self { interval, burst: 1 }
    }

    /// Lets up to `units` through at once (at least 1; `units` × interval at most 100 years), and then the same pace. It is
    /// also the largest cost of one request.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tollgate::{Limiter, Throttle};
    ///
    /// let limiter = Limiter::new(Throttle::every(Duration::from_secs(60)).burst(2))?;
    /// assert!(limiter.try_acquire_many(2).is_ok());
    /// assert!(limiter.try_acquire().is_err());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub const fn burst(self, units: u64) -> Self {
        Self { burst: units, ..self }
    }
}

/// The parameters of a [`Throttle`], checked: `interval` × `burst` is at most [`super::MAX_SPAN_NANOS`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct ThrottleRule {
    /// Nanoseconds.
    pub(crate) interval: u64,
    pub(crate) burst: u64,
}

/// The theoretical arrival time: when everything admitted so far has been paced out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ThrottleState {
    arrival: Moment,
}

impl ThrottleRule {
    /// How far ahead of now the theoretical arrival time may lie.
    const fn tolerance(&self) -> u64 {
        self.interval * self.burst
    }

    fn ready(&self, arrival: Moment, now: Moment, cost: u64) -> Moment {
        arrival.max(now).plus(self.interval.saturating_mul(cost)).minus(self.tolerance()).max(now)
    }

    /// Takes back a grant of `cost` that was decided at `at` and never used. What comes back is bounded by the trail, so that
    /// the grants decided since stay within the rule without it. Returns the state after.
    pub(crate) fn refund(&self, state: ThrottleState, trail: &mut Trail, at: Moment, cost: u64) -> ThrottleState {
        ThrottleState { arrival: state.arrival.minus(trail.take_back(at, self.interval.saturating_mul(cost))) }
    }
}

impl Strategy for ThrottleRule {
    type State = ThrottleState;

    fn decide(&self, state: ThrottleState, now: Moment, cost: u64) -> Verdict<ThrottleState> {
        let arrival = state.arrival.max(now).plus(self.interval.saturating_mul(cost));
        if arrival <= now.plus(self.tolerance()) {
            Verdict::Granted(ThrottleState { arrival })
        } else {
            Verdict::WaitUntil(arrival.minus(self.tolerance()))
        }
    }

    fn ready_at(&self, state: ThrottleState, now: Moment, ahead: u64, cost: u64) -> Moment {
        let arrival = state.arrival.max(now).plus(self.interval.saturating_mul(ahead));
        self.ready(arrival, now, cost)
    }

    fn remaining(&self, state: ThrottleState, now: Moment) -> u64 {
        self.tolerance().saturating_sub(state.arrival.since(now)) / self.interval
    }

    fn reset_at(&self, state: ThrottleState, now: Moment) -> Moment {
        state.arrival.max(now)
    }
}

/// What must be remembered of the recent past so that an undelivered grant can be taken back.
///
/// Taking one interval off the arrival time is wrong when a later grant found the line idle: that grant was paced from its own
/// instant, not from the one taken back. So the trail keeps the least *backlog* (arrival time minus now) that any later
/// instant found. Let `i` be a grant that stays, decided after the one taken back: the rule holds for the grants from `i` on
/// as long as the arrival time stays at or above `i`'s instant plus their intervals, and it lies above that by at least the
/// backlog that `i` found. Grants of one instant are exchangeable, so one of the latest instant comes back whole.
///
/// It lives beside the state, once a gate, because only grants on their way to a waiter need it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Trail {
    latest: Moment,
    least_backlog: u64,
}

impl Trail {
    /// Forgets what was kept: no grant is on its way.
    pub(crate) fn restart(&mut self) {
        self.least_backlog = u64::MAX;
    }

    /// Notes a grant decided at `now` on `before`, the state that it found.
    pub(crate) fn note(&mut self, before: ThrottleState, now: Moment) {
        if now != self.latest {
            self.latest = now;
            self.least_backlog = self.least_backlog.min(before.arrival.since(now));
        }
    }

    fn take_back(&mut self, at: Moment, nanos: u64) -> u64 {
        if at == self.latest {
            return nanos;
        }
        let back = nanos.min(self.least_backlog);
        self.least_backlog -= back;
        back
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Strategy as _; // both globs have a `Strategy`
    use super::*;

    /// Every grant that counts, with the rule applied to each pair: what GCRA promises, said naively.
    fn within_rule(rule: ThrottleRule, grants: &[(u64, u64)]) -> bool {
        (0..grants.len()).all(|first| {
            let mut units = 0;
            grants[first..].iter().all(|&(at, cost)| {
                units += cost;
                units * rule.interval <= rule.tolerance() + (at - grants[first].0)
            })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// Invariants 1 and 7; trap: a deadline reset to now + interval after each wake.
        #[test]
        fn denied_until_exactly_the_predicted_instant_then_granted(
            interval in 1_u64..1_000, burst in 1_u64..8, steps in prop::collection::vec((0_u64..3_000, 1_u64..8), 1..60),
        ) {
            let rule = ThrottleRule { interval, burst };
            let (mut state, mut now, mut grants) = (ThrottleState::default(), Moment::START, Vec::new());
            for (step, cost) in steps {
                now = now.plus(step);
                let cost = cost.min(burst);
                prop_assert_eq!(rule.decide(state, now, 1) != Verdict::WaitUntil(rule.ready_at(state, now, 0, 1)), rule.remaining(state, now) > 0);
                if let Verdict::WaitUntil(at) = rule.decide(state, now, cost) {
                    prop_assert_eq!(at, rule.ready_at(state, now, 0, cost));
                    prop_assert!(matches!(rule.decide(state, at.minus(1), cost), Verdict::WaitUntil(again) if again == at));
                    now = at;
                }
                let Verdict::Granted(next) = rule.decide(state, now, cost) else { panic!("denied at its retry-after") };
                state = next;
                grants.push((now.nanos(), cost));
                prop_assert!(within_rule(rule, &grants));
            }
        }

        /// Invariants 1 and 2: undelivered grants are taken back in any order, some long after; what stays is within the rule.
        #[test]
        fn refunds_in_any_order_never_exceed_the_rule(
            interval in 1_u64..200, burst in 1_u64..8,
            steps in prop::collection::vec((prop_oneof![Just(0_u64), 0_u64..400], 1_u64..4, any::<bool>(), any::<prop::sample::Index>()), 1..80),
        ) {
            let rule = ThrottleRule { interval, burst };
            let (mut state, mut trail, mut now) = (ThrottleState::default(), Trail::default(), Moment::START);
            let (mut grants, mut undelivered) = (Vec::<(u64, u64)>::new(), Vec::<(u64, u64)>::new());
            trail.restart();
            for (step, cost, refund, pick) in steps {
                now = now.plus(step);
                if refund && !undelivered.is_empty() {
                    let (at, cost) = undelivered.remove(pick.index(undelivered.len()));
                    let same_instant = at == trail.latest.nanos();
                    let before = state;
                    state = rule.refund(state, &mut trail, Moment::from_nanos(at), cost);
                    prop_assert!(!same_instant || before.arrival.since(state.arrival) == cost * interval);
                    let index = grants.iter().position(|&grant| grant == (at, cost)).unwrap();
                    grants.remove(index);
                    if undelivered.is_empty() {
                        trail.restart();
                    }
                }
                let cost = cost.min(burst);
                while let Verdict::Granted(next) = rule.decide(state, now, cost) {
                    trail.note(state, now);
                    state = next;
                    grants.push((now.nanos(), cost));
                    undelivered.push((now.nanos(), cost));
                    prop_assert!(within_rule(rule, &grants), "{:?}", grants);
                }
            }
        }
    }

    /// Trap: overflow at the largest quotas.
    #[test]
    fn the_largest_parameters_do_not_overflow() {
        let rule = ThrottleRule { interval: super::super::MAX_SPAN_NANOS, burst: 1 };
        let Verdict::Granted(state) = rule.decide(ThrottleState::default(), Moment::START, 1) else { panic!() };
        assert_eq!(rule.ready_at(state, Moment::START, u64::MAX, 1).known(), Some(Moment::NEVER.minus(rule.interval)));
        assert_eq!(rule.decide(state, Moment::START, 1), Verdict::WaitUntil(Moment::from_nanos(rule.interval)));
    }

    #[test]
    fn a_billion_a_second_does_not_drift() {
        let rule = ThrottleRule { interval: 1, burst: 1_000 };
        let mut state = ThrottleState::default();
        for nanos in 0..100_000 {
            let Verdict::Granted(next) = rule.decide(state, Moment::from_nanos(nanos), 1) else { panic!() };
            state = next;
        }
        assert_eq!(rule.remaining(state, Moment::from_nanos(99_999)), 999);
    }
}
