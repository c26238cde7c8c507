//! What a gate would grant at later instants if no other request came: its states are copied, and grants are made on the copies.
//!
//! A log, which can be long, is not copied: the grants of the forecast are kept beside it.

use std::collections::VecDeque;
use std::iter::Peekable;
use std::sync::Arc;

use crate::core::gate::lease::Lease;
use crate::core::gate::limit_state::{CountedLimit, History, LimitState};
use crate::core::request::Costs;
use crate::core::suspension::Suspension;
use crate::strategy::{Grants, LogRule, Moment};

/// A copy of a gate that advances in time. `R` yields the reclaims to come, first to last.
#[derive(Debug)]
pub(crate) struct Forecast<'a, R: Iterator<Item = Reclaim<'a>>> {
    limits: Vec<(&'a CountedLimit, LimitForecast<'a>)>,
    suspension: Option<Suspension>,
    reclaims: Peekable<R>,
    now: Moment,
}

/// A lease that will be reclaimed, and what its permit cost.
pub(crate) type Reclaim<'a> = (&'a Lease, Costs<'a>);

/// How far a [step](Forecast::step) has come.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ForecastStep {
    Admitted,
    /// A permit must be [reclaimed](Forecast::reclaim) first.
    ReclaimDue,
    Refused,
}

#[derive(Debug)]
enum LimitForecast<'a> {
    Copied(LimitState),
    Log(LogForecast<'a>),
}

/// A log, and the grants of the forecast that have not expired, oldest first.
#[derive(Debug)]
struct LogForecast<'a> {
    rule: &'a LogRule,
    log: &'a Grants,
    granted: VecDeque<(Moment, u64)>,
    /// The units of these grants. Some may have expired since: they can be more than the limit, which can be the largest number.
    units: u128,
}

impl<'a, R: Iterator<Item = Reclaim<'a>>> Forecast<'a, R> {
    pub(super) fn new(
        limits: impl Iterator<Item = &'a CountedLimit>,
        suspension: Option<Suspension>,
        reclaims: R,
        now: Moment,
    ) -> Self {
        Self {
            limits: limits
                .map(|limit| (limit, LimitForecast::new(&limit.state, now)))
                .collect(),
            suspension,
            reclaims: reclaims.peekable(),
            now,
        }
    }

    /// The instant that it has reached.
    pub(crate) fn now(&self) -> Moment {
        self.now
    }

    /// Advances to the instant at which the costs are admitted and charges them, if that instant is not after `latest`. Otherwise
    /// advances to `latest`. Returns whether they were admitted.
    pub(crate) fn take(&mut self, costs: Costs<'_>, latest: Moment) -> bool {
        loop {
            match self.step(costs, latest) {
                ForecastStep::Admitted => return true,
                ForecastStep::Refused => return false,
                ForecastStep::ReclaimDue => self.reclaim(|_, _| {}),
            }
        }
    }

    /// [`Forecast::take`] until the next reclaim, which may change whose turn it is.
    pub(crate) fn step(&mut self, costs: Costs<'_>, latest: Moment) -> ForecastStep {
        loop {
            let ready = self.ready_at(costs);
            if ready <= self.now {
                self.charge(costs);
                return ForecastStep::Admitted;
            }
            let reclaim = self
                .reclaims
                .peek()
                .map_or(Moment::NEVER, |(lease, _)| lease.expires_at);
            let next = ready.min(reclaim);
            if next > latest || next == Moment::NEVER {
                self.now = self.now.max(latest);
                return ForecastStep::Refused;
            }
            self.now = self.now.max(next);
            if reclaim == next {
                return ForecastStep::ReclaimDue;
            }
        }
    }

    fn charge(&mut self, costs: Costs<'_>) {
        for (limit, forecast) in &mut self.limits {
            match limit.charged(costs) {
                0 => {}
                cost => forecast.charge(self.now, cost),
            }
        }
        if let Some(suspension) = &mut self.suspension {
            suspension.note_grant(self.now, costs.plain);
        }
    }

    /// Whether a unit of all that a request charges is free, although the request may not be admitted.
    pub(crate) fn has_room_for_one(&self, costs: Costs<'_>) -> bool {
        let is_held_back = self
            .suspension
            .is_some_and(|suspension| suspension.ready_at(self.now, costs.plain) > self.now);
        let has_room = |(limit, forecast): &(&CountedLimit, LimitForecast<'_>)| {
            limit.charged(costs) == 0 || forecast.ready_at(self.now, 1) <= self.now
        };
        !is_held_back && self.limits.iter().all(has_room)
    }

    /// When the costs are admitted if no place is released; [`Moment::NEVER`] if only a release helps.
    pub(crate) fn ready_at(&self, costs: Costs<'_>) -> Moment {
        let suspended_until = self.suspension.map_or(self.now, |suspension| {
            suspension.ready_at(self.now, costs.plain)
        });
        let ready_at =
            |(limit, forecast): &(&CountedLimit, LimitForecast<'_>)| match limit.charged(costs) {
                0 => self.now,
                cost => forecast.ready_at(self.now, cost),
            };
        self.limits
            .iter()
            .map(ready_at)
            .fold(suspended_until, Moment::max)
    }

    /// If only a release or a resume admits these costs, the forecast continues as if all places were free and all requests
    /// resumed.
    pub(crate) fn assume_releases(&mut self, costs: Costs<'_>) {
        if self.ready_at(costs) == Moment::NEVER {
            self.limits
                .retain(|(limit, _)| limit.state.places().is_none());
            self.suspension
                .take_if(|suspension| suspension.ready_at(self.now, costs.plain) == Moment::NEVER);
        }
    }

    /// Reclaims all permits whose TTL has passed, and passes the fence of each and its units, as the first concurrency limit counts
    /// them.
    pub(crate) fn reclaim(&mut self, mut reclaimed: impl FnMut(u64, u64)) {
        while let Some((lease, costs)) = self
            .reclaims
            .next_if(|(lease, _)| lease.expires_at <= self.now)
        {
            let mut units = None;
            for (limit, forecast) in &mut self.limits {
                let returned = limit.returned(lease.fence, costs);
                forecast.release(returned);
                if limit.state.places().is_some() {
                    units.get_or_insert(returned);
                }
            }
            reclaimed(lease.fence, units.unwrap_or(0));
        }
    }
}

impl<'a> LimitForecast<'a> {
    fn new(limit: &'a LimitState, now: Moment) -> Self {
        Self::Copied(match limit {
            LimitState::Log(rule, log) => {
                return Self::Log(LogForecast {
                    rule,
                    log,
                    granted: VecDeque::new(),
                    units: 0,
                });
            }
            LimitState::Pace(rule, state, _) => {
                LimitState::Pace(Arc::clone(rule), *state, History::Off)
            }
            LimitState::Rule(rule, state) => LimitState::Rule(Arc::clone(rule), *state),
            LimitState::Places(places) => LimitState::Places(places.fixed(now)),
        })
    }

    fn ready_at(&self, now: Moment, cost: u64) -> Moment {
        match self {
            Self::Copied(limit) => limit.decide(now, cost).err().unwrap_or(now),
            Self::Log(log) => log.ready_at(now, cost),
        }
    }

    fn charge(&mut self, now: Moment, cost: u64) {
        match self {
            Self::Copied(limit) => limit.charge(now, cost),
            Self::Log(log) => log.charge(now, cost),
        }
    }

    fn release(&mut self, cost: u64) {
        if let Self::Copied(limit) = self {
            limit.release(cost);
        }
    }
}

impl LogForecast<'_> {
    /// Between two instants at which grants of the forecast expire, the remaining ones act like a part of the cost.
    fn ready_at(&self, now: Moment, cost: u64) -> Moment {
        let ready_at = |from: Moment, cost: u128| match u64::try_from(cost) {
            Ok(cost) => self.rule.decide(self.log, from, cost).err().unwrap_or(from),
            Err(_) => Moment::NEVER,
        };
        let (mut from, mut left) = (now, self.units);
        for (granted, units) in &self.granted {
            let leaves = granted.plus(self.rule.period);
            let ready = ready_at(from, u128::from(cost) + left);
            if ready < leaves {
                return ready;
            }
            from = from.max(leaves);
            left -= u128::from(*units);
        }
        ready_at(from, cost.into())
    }

    fn charge(&mut self, now: Moment, cost: u64) {
        while let Some((at, units)) = self.granted.front().copied()
            && at.plus(self.rule.period) <= now
        {
            self.granted.pop_front();
            self.units -= u128::from(units);
        }
        self.units += u128::from(cost);
        match self.granted.back_mut().filter(|grant| grant.0 == now) {
            Some((_, units)) => *units += cost,
            None => self.granted.push_back((now, cost)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::Location;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::core::gate::Gate;
    use crate::core::gate::plan::Plan;
    use crate::core::request::CostDetails;
    use crate::core::suspension::PauseScope;
    use crate::strategy::Counts;

    proptest! {
        #![proptest_config(crate::replay::cases(1_000))]

        /// The grants of a forecast are kept beside the log. Here, they are recorded in it.
        #[test]
        fn a_log_is_forecast_as_if_the_grants_were_in_it(
            limit in 1_u64..8, granted in prop::collection::vec((0_u64..30, 1_u64..8), 0..6),
            costs in prop::collection::vec(1_u64..8, 1..12),
        ) {
            let rule = LogRule { limit, period: 50 };
            let (mut log, mut now) = (Grants::default(), Moment::START);
            for (nanos, cost) in granted {
                now = now.plus(nanos);
                if rule.decide(&log, now, cost).is_ok() {
                    rule.charge(&mut log, now, cost);
                }
            }
            let before = log.clone();
            let mut forecast = LogForecast { rule: &rule, log: &before, granted: VecDeque::new(), units: 0 };
            for cost in costs {
                let cost = cost.min(limit);
                let ready = rule.decide(&log, now, cost).err().unwrap_or(now);
                prop_assert_eq!(forecast.ready_at(now, cost), ready);
                now = ready;
                rule.charge(&mut log, now, cost);
                forecast.charge(now, cost);
            }
        }
    }

    fn gate(policy: &str) -> Gate {
        let plan = Plan::new(policy.parse().unwrap(), Duration::ZERO).unwrap();
        Gate::new(plan, Moment::START, false)
    }

    #[test]
    fn there_is_room_for_one_where_each_limit_admits_a_unit() {
        let now = Moment::START;
        let room_after = |policy: &str, taken: u64| {
            let mut gate = gate(policy);
            for _ in 0..taken {
                gate.admit(now, Costs::plain(1), Location::caller())
                    .unwrap();
            }
            let limits = gate.limits();
            let forecast = limits.forecast(now, None, std::iter::empty());
            let costs = Costs::plain(3);
            let has_room = forecast.has_room_for_one(costs);
            assert_eq!(has_room, limits.have_room_for_one(now, costs));
            has_room
        };
        for policy in [
            "3 concurrent",
            "3/s",
            "window 3/s",
            "sliding log 3/s",
            "9 concurrent and 3/s",
            "3/s and 9 concurrent",
        ] {
            assert_eq!(
                [0, 2, 3].map(|taken| room_after(policy, taken)),
                [true, true, false],
                "{policy}"
            );
        }
    }

    #[test]
    fn a_limit_that_is_not_charged_needs_no_room() {
        let (now, mut gate) = (Moment::START, gate("9 concurrent and 1/s counting bytes"));
        let byte = gate.limits().policy().limits()[1].counts();
        let costs = |bytes| {
            let mut details = CostDetails::default();
            let Counts::Unit(unit) = byte else {
                panic!("it counts bytes");
            };
            details.set(unit, bytes);
            Some(Arc::new(details))
        };
        let (none, one) = (costs(0), costs(1));
        gate.admit(now, Costs::new(1, &one), Location::caller())
            .unwrap();
        let forecast = gate.limits().forecast(now, None, std::iter::empty());
        assert!(forecast.has_room_for_one(Costs::new(1, &none)));
        assert!(!forecast.has_room_for_one(Costs::new(1, &one)));
    }

    #[test]
    fn there_is_no_room_for_one_during_a_pause() {
        let (gate, now) = (gate("3 concurrent"), Moment::START);
        let mut suspension = Suspension::default();
        let has_room = |suspension| {
            let forecast = gate
                .limits()
                .forecast(now, Some(suspension), std::iter::empty());
            forecast.has_room_for_one(Costs::plain(1))
        };
        assert!(has_room(suspension));
        suspension.pause(PauseScope::Limiter, now.plus(1));
        assert!(!has_room(suspension));
    }
}
