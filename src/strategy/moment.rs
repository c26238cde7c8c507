use std::time::Duration;

/// An instant on the limiter's own time line: nanoseconds since the limiter was built.
///
/// The pure rooms are passed moments and never read a clock. 64 bits of nanoseconds reach 584 years; all arithmetic saturates at
/// [`Moment::NEVER`]. After that, time stands still: a limiter grants the units that remain at [`Moment::LAST`], and from then on
/// only released places.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Moment(u64);

impl Moment {
    /// The instant at which the limiter was built.
    pub(crate) const START: Self = Self(0);
    /// The last instant that a clock returns. Every window that is open then never ends.
    pub(crate) const LAST: Self = Self(u64::MAX - 1);
    /// Later than all instants. It means: no timer, no deadline, not without a release.
    pub(crate) const NEVER: Self = Self(u64::MAX);

    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub(crate) const fn nanos(self) -> u64 {
        self.0
    }

    /// This instant moved later by `nanos`.
    pub(crate) const fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// This instant moved earlier by `nanos`, not beyond [`Moment::START`].
    pub(crate) const fn minus(self, nanos: u64) -> Self {
        Self(self.0.saturating_sub(nanos))
    }

    /// Nanoseconds from `earlier` to this instant; 0 when `earlier` is later.
    pub(crate) const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// [`Moment::since`] as a [`Duration`].
    pub(crate) const fn duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.since(earlier))
    }

    /// `None` for [`Moment::NEVER`].
    pub(crate) fn known(self) -> Option<Self> {
        (self != Self::NEVER).then_some(self)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Align, FixedWindow, LimitRule, Log, Penalty, Rule, SlidingWindow, Strategy as _, Throttle, TokenBucket};
    use super::*;
    use crate::rate::Rate;

    /// A fixed bug: after 584 years, windows and logs admitted everything.
    #[test]
    fn at_the_last_instant_each_limit_is_granted_once() {
        for nanos in [1, 5, 3_600_000_000_000] {
            let period = Duration::from_nanos(nanos);
            let window = |rule| Rule::Window(rule).into();
            let from_first_grant = FixedWindow::new(1, period).align(Align::FirstGrant);
            for rule in [
                Throttle::every(period).rule(),
                TokenBucket::new(Rate::new(7, period), 1).rule(),
                TokenBucket::new(Rate::new(7, period), 1).refill_each_period().rule(),
                FixedWindow::new(1, period).rule(Duration::ZERO).map(window),
                FixedWindow::new(1, period).align(Align::WallClock).rule(Duration::MAX).map(window),
                from_first_grant.rule(Duration::ZERO).map(window),
                SlidingWindow::log(1, period).rule(),
                SlidingWindow::counter(1, period).rule(),
                Penalty::new(1, Rate::new(1, period)).rule(),
            ] {
                let rule = rule.unwrap();
                let denied = match (rule.words(), &rule) {
                    (Some(rule), _) => {
                        let state = rule.decide(rule.initial(Moment::LAST), Moment::LAST, 1).unwrap();
                        rule.decide(state, Moment::LAST, 1).err()
                    }
                    (_, LimitRule::Log(rule)) => {
                        let mut log = Log::default();
                        rule.charge(&mut log, Moment::LAST, 1);
                        rule.decide(&log, Moment::LAST, 1).err()
                    }
                    _ => unreachable!("none of these"),
                };
                assert_eq!(denied, Some(Moment::NEVER), "{rule:?}");
            }
        }
    }
}
