//! One limit of a policy: its state, of any kind, what it counts, and which grants it can refund. It can take over from a limit of a
//! former policy.

use std::sync::Arc;

use crate::carry_over::UsageCarryOver;
use crate::core::request::Costs;
use crate::core::word;
use crate::core::word::packed_rate::MAX_VALUE;
use crate::policy::Limit;
use crate::strategy::{
    Counts, Grants, LimitReport, LimitRule, LogRule, Moment, PaceRule, Places, Ratio, RefundBound,
    Rule, Slope, StateWords, Strategy, Usage,
};

/// Each grant and release reads the variant. A separate tag is read faster than one in the niche of a field.
#[derive(Debug)]
#[repr(u8)]
pub(crate) enum LimitState {
    Pace(Arc<PaceRule>, StateWords, History),
    Rule(Arc<Rule>, StateWords),
    Log(LogRule, Box<Grants>),
    Places(Places),
}

/// The past grants of a pace, for refunds.
#[derive(Debug)]
pub(crate) enum History {
    /// Grants are not recorded: each one holds the value that it [reached](crate::core::word::packed_rate).
    Off,
    /// No grant can be refunded. Few of many keys with a manager have a record.
    Empty,
    Bound(RefundBound),
}

impl History {
    #[inline(always)]
    fn note(&mut self, rule: &PaceRule, before: StateWords, now: Moment) {
        match self {
            Self::Off => {}
            Self::Empty => *self = Self::Bound(RefundBound::new(now)),
            Self::Bound(refund_bound) => refund_bound.note(rule, before.into(), now),
        }
    }
}

/// Calls a method of a limit's rule with its state. For places, the rule and the state are one value.
macro_rules! with_rule {
    ($limit:expr, |$rule:ident, $state:ident| $answer:expr, |$places:ident| $of_places:expr) => {
        match $limit {
            LimitState::Pace($rule, $state, _) => {
                let $state = (*$state).into();
                $answer
            }
            LimitState::Rule($rule, $state) => {
                let $state = *$state;
                $answer
            }
            LimitState::Log($rule, $state) => $answer,
            LimitState::Places($places) => $of_places,
        }
    };
}

impl LimitState {
    pub(crate) fn new(rule: &LimitRule, now: Moment) -> Self {
        match rule {
            LimitRule::Pace(rule) => {
                Self::Pace(Arc::clone(rule), rule.initial(now).into(), History::Empty)
            }
            LimitRule::Words(rule) => Self::Rule(Arc::clone(rule), rule.initial(now)),
            LimitRule::Log(rule) => Self::Log(*rule, Box::default()),
            LimitRule::Places(limit, adapt) => Self::Places(Places::new(*limit, adapt.as_ref())),
        }
    }

    /// Units in flight, if this limit counts them.
    pub(crate) fn places(&self) -> Option<u64> {
        match self {
            Self::Places(places) => Some(places.in_use),
            Self::Pace(..) | Self::Rule(..) | Self::Log(..) => None,
        }
    }

    /// Whether the cost is admitted. `Ok` holds the state afterwards, for [`LimitState::proceed`]. `Err` holds the end of the
    /// wait.
    #[inline(always)]
    pub(crate) fn decide(&self, now: Moment, cost: u64) -> Result<StateWords, Moment> {
        match self {
            Self::Pace(rule, state, _) => rule.decide((*state).into(), now, cost).map(Into::into),
            Self::Rule(rule, state) => rule.decide(*state, now, cost),
            Self::Log(rule, log) => rule.decide(log, now, cost).map(|()| StateWords::default()),
            Self::Places(places) => places.decide(cost).map(|in_use| [in_use, 0]),
        }
    }

    /// Charges the cost. `next` is the state afterwards.
    #[inline(always)]
    pub(crate) fn proceed(&mut self, now: Moment, cost: u64, next: StateWords) {
        match self {
            Self::Pace(rule, state, history) => {
                history.note(rule, *state, now);
                *state = next;
            }
            Self::Rule(_, state) => *state = next,
            Self::Log(rule, log) => rule.charge(log, now, cost),
            Self::Places(places) => places.proceed(now, next[0]),
        }
    }

    #[inline(always)]
    pub(crate) fn release(&mut self, cost: u64) {
        if let Self::Places(places) = self {
            places.release(cost);
        }
    }

    /// Charges the cost whether or not it is admitted: a debt that later requests wait for.
    pub(crate) fn charge(&mut self, now: Moment, cost: u64) {
        let next = match self {
            Self::Pace(rule, state, _) => rule.charge((*state).into(), now, cost).into(),
            Self::Rule(rule, state) => rule.charge(*state, now, cost),
            Self::Log(..) => StateWords::default(),
            Self::Places(places) => [places.in_use.saturating_add(cost), 0],
        };
        self.proceed(now, cost, next);
    }

    /// Refunds what was charged at `at` and never used.
    pub(crate) fn refund(&mut self, now: Moment, at: Moment, cost: u64) {
        match self {
            Self::Pace(rule, state, History::Bound(bound)) => {
                *state = rule.refund_within((*state).into(), bound, at, cost).into();
            }
            Self::Pace(_, _, History::Off | History::Empty) => {} // nothing is known of its grants
            Self::Rule(rule, state) => *state = rule.refund(*state, now, at, cost),
            Self::Log(_, log) => log.take_back(at, cost),
            Self::Places(places) => places.release(cost),
        }
    }

    /// Replaces the `cost` that was charged to a limit of time by the `actual` one. A refund needs the time of the grant.
    pub(crate) fn settle(
        &mut self,
        now: Moment,
        granted_at: Option<Moment>,
        cost: u64,
        actual: u64,
    ) {
        if self.places().is_some() {
            return;
        }
        if actual > cost {
            self.charge(now, actual - cost);
        } else if actual < cost
            && let Some(at) = granted_at
        {
            self.refund(now, at, cost - actual);
        }
    }

    /// Refunds up to `cost` units, whenever they were charged. Units in flight stay in flight.
    pub(crate) fn forgive(&mut self, now: Moment, cost: u64) {
        match self {
            Self::Pace(rule, state, history) => {
                *state = rule.forgive((*state).into(), now, cost).into();
                if let History::Bound(_) = history {
                    *history = History::Empty;
                }
            }
            Self::Rule(rule, state) => *state = rule.forgive(*state, now, cost),
            Self::Log(_, log) => log.take_back_latest(cost),
            Self::Places(..) => {}
        }
    }

    /// Records that a request that does not wait was denied `cost`. Returns whether that changed the state.
    pub(crate) fn note_denial(&mut self, now: Moment, cost: u64) -> bool {
        let Self::Rule(rule, state) = self else {
            return false;
        };
        let (before, next) = (*state, rule.note_denial(*state, now, cost));
        *state = next;
        before != next
    }

    /// The end of its ban, if it bans.
    pub(crate) fn banned_until(&self, now: Moment) -> Option<Moment> {
        let Self::Rule(rule, state) = self else {
            return None;
        };
        rule.banned_until(*state, now)
    }

    /// Stops recording grants, if this is a rate that fits a [line](crate::core::word::packed_rate). Returns the parts that it
    /// refills in a nanosecond; `None` if it does not fit.
    pub(crate) fn becomes_line(&mut self, now: Moment) -> Option<u64> {
        match self {
            Self::Pace(rule, state, history) => {
                let slope = rule
                    .slope((*state).into(), now)
                    .filter(|slope| word::fits(*slope))?;
                *history = History::Off;
                Some(slope.parts_per_nano)
            }
            Self::Rule(rule, _) => {
                matches!(**rule, Rule::Window(window) if window.limit <= MAX_VALUE / 2).then_some(0)
            }
            Self::Log(..) | Self::Places(..) => None,
        }
    }

    /// Records grants from now on, if it did not before.
    pub(crate) fn records_grants(&mut self, now: Moment) {
        if let Self::Pace(_, _, history @ History::Off) = self {
            *history = History::Bound(RefundBound::new(now));
        }
    }

    /// The parts that are used, of a pace that records no grants.
    #[inline(always)]
    pub(crate) fn used_on_line(&self, now: Moment) -> Option<u64> {
        let Self::Pace(rule, state, History::Off) = self else {
            return None;
        };
        u64::try_from(rule.usage((*state).into(), now).parts).ok()
    }

    /// The rate as a line, if it is one at present.
    pub(crate) fn slope(&self, now: Moment) -> Option<Slope> {
        match self {
            Self::Pace(rule, state, _) => rule.slope((*state).into(), now),
            Self::Rule(rule, state) => rule.slope(*state, now),
            Self::Log(..) | Self::Places(..) => None,
        }
    }

    /// Sets the parts that a line has used at its base.
    pub(crate) fn set_used(&mut self, base: Moment, used: u64) {
        match self {
            Self::Pace(rule, state, _) => {
                *state = rule.with_used((*state).into(), base, used).into();
            }
            Self::Rule(rule, state) => *state = rule.with_used(*state, base, used),
            Self::Log(..) | Self::Places(..) => {}
        }
    }

    /// Refunds `cost` of a pace that records no grants, but `most` parts at most. Returns the parts; `None` if it is another limit.
    pub(crate) fn refund_on_line(&mut self, cost: u64, most: u64) -> Option<u64> {
        let Self::Pace(rule, state, History::Off) = self else {
            return None;
        };
        let (refunded, parts) = rule.refund_at_most((*state).into(), cost, most);
        *state = refunded.into();
        Some(parts)
    }

    /// Starts a limit of time, which is new, with the usage of another one.
    pub(crate) fn take_over(&mut self, now: Moment, former: &Self, ratio: Ratio) {
        match (self, former) {
            (Self::Rule(rule, state), Self::Rule(former_rule, former)) => {
                *state = rule.take_over(now, former_rule, *former, ratio);
            }
            (Self::Log(rule, log), Self::Log(former_rule, former)) => {
                **log = rule.take_over(now, former_rule, former, ratio);
            }
            (Self::Pace(rule, state, _), former) => {
                *state = rule.with_usage(now, former.usage(now), ratio).into();
            }
            (Self::Rule(rule, state), former) => {
                *state = rule.with_usage(now, former.usage(now), ratio);
            }
            (Self::Log(rule, log), former) => {
                rule.charge(log, now, ratio.of_whole(former.usage(now)));
            }
            (Self::Places(..), _) => {}
        }
    }

    /// When it is reset, if nothing is in flight and nothing more is admitted.
    pub(crate) fn reset_at(&self, now: Moment) -> Moment {
        with_rule!(self, |rule, state| rule.reset_at(state, now), |places| {
            places.reset_at(now)
        })
    }

    /// See [`PaceRule::forgettable_at`].
    pub(crate) fn forgettable_at(&self, now: Moment) -> Moment {
        match self {
            Self::Pace(rule, state, _) => rule.forgettable_at((*state).into(), now),
            Self::Rule(..) | Self::Log(..) | Self::Places(..) => self.reset_at(now),
        }
    }

    /// See [`Strategy::ready_at`].
    pub(crate) fn ready_at(&self, now: Moment, ahead: u64, cost: u64) -> Moment {
        with_rule!(
            self,
            |rule, state| rule.ready_at(state, now, ahead, cost),
            |_places| now
        )
    }

    /// See [`Strategy::report`].
    #[inline(always)]
    pub(crate) fn report(&self, now: Moment, ahead: u64, cost: u64) -> LimitReport {
        with_rule!(
            self,
            |rule, state| rule.report(state, now, ahead, cost),
            |places| places.report(now, ahead, cost)
        )
    }

    /// When this number of units will have come, if each is taken as soon as it is there: also more units than the capacity of
    /// the `limit`, which has this state. `None` if they are there now; [`Moment::NEVER`] if only a release helps.
    pub(crate) fn comes_at(&self, now: Moment, units: u64, limit: &Limit) -> Option<Moment> {
        let at = match self {
            Self::Pace(..) => self.ready_at(now, 0, units),
            Self::Rule(rule, _) if matches!(**rule, Rule::Window(_)) => {
                self.ready_at(now, 0, units)
            }
            Self::Places(places) => return places.decide(units).err(),
            Self::Rule(..) | Self::Log(..) => {
                let capacity = limit.capacity().max(1);
                let rounds = units.saturating_sub(1) / capacity;
                let first = self
                    .decide(now, units - rounds * capacity)
                    .err()
                    .unwrap_or(now);
                first.plus(rounds.saturating_mul(limit.round_nanos()))
            }
        };
        (at > now).then_some(at)
    }

    /// See [`Strategy::usage`].
    pub(crate) fn usage(&self, now: Moment) -> Usage {
        with_rule!(self, |rule, state| rule.usage(state, now), |places| {
            Usage::of_units(places.in_use)
        })
    }

    /// The state in words; `None` where it does not fit into words.
    pub(crate) fn words(&self) -> Option<StateWords> {
        match self {
            Self::Pace(_, state, _) | Self::Rule(_, state) => Some(*state),
            Self::Log(..) | Self::Places(..) => None,
        }
    }

    /// Sets the state from words, if it fits into words.
    pub(crate) fn set_words(&mut self, words: StateWords) {
        match self {
            Self::Pace(_, state, _) | Self::Rule(_, state) => *state = words,
            Self::Log(..) | Self::Places(..) => {}
        }
    }

    /// The present capacity of this limit. That of an adaptive concurrency differs from its policy.
    #[inline(always)]
    pub(crate) fn capacity(&self, limit: &Limit, now: Moment) -> u64 {
        self.concurrency(now).unwrap_or_else(|| limit.capacity())
    }

    /// The units that may be in flight, if this limit counts them.
    #[inline(always)]
    pub(crate) fn concurrency(&self, now: Moment) -> Option<u64> {
        match self {
            Self::Places(places) => Some(places.limit_at(now)),
            Self::Pace(..) | Self::Rule(..) | Self::Log(..) => None,
        }
    }
}

/// A limit with its state and what it counts.
#[derive(Debug)]
pub(super) struct CountedLimit {
    pub(super) state: LimitState,
    /// `None`: it counts the plain cost, has always done so, and can refund all grants.
    measure: Option<Box<Measure>>,
}

/// What a limit counts for new grants, what it counted for earlier ones (by which their units are returned), and which grants it
/// can refund.
#[derive(Debug, Clone, Default)]
pub(super) struct Measure {
    counts: Counts,
    /// What was counted before, oldest first, each with the last fence that was charged by it.
    former: Vec<(u64, Counts)>,
    /// The last fence whose grant it cannot refund: it was granted before the limit was added, or its units were reset since.
    refundable_after: u64,
}

impl CountedLimit {
    pub(super) fn new(limit: &Limit, rule: &LimitRule, now: Moment) -> Self {
        let measure = Measure::new(limit.counts());
        Self {
            state: LimitState::new(rule, now),
            measure: (!measure.is_plain()).then(|| Box::new(measure)),
        }
    }

    /// What it counts.
    pub(super) fn measure(&self) -> Measure {
        self.measure.as_deref().cloned().unwrap_or_default()
    }

    /// Whether it counts the plain cost, and has always done so.
    pub(super) fn is_plain(&self) -> bool {
        let measure = self.measure.as_ref();
        measure.is_none_or(|measure| measure.is_plain())
    }

    /// Forgets former measures, because all permits that were granted by one were released.
    pub(super) fn forget_former_measures(&mut self) {
        if let Some(measure) = &mut self.measure {
            measure.former.clear();
        }
    }

    /// The units that a new grant charges to it. A request that does not state a number that the limit requires is not admitted.
    pub(super) fn charged(&self, costs: Costs<'_>) -> u64 {
        match &self.measure {
            Some(measure) => costs.of(measure.counts).unwrap_or(u64::MAX),
            None => costs.plain,
        }
    }

    /// The units that the permit of this fence returns to it.
    pub(super) fn returned(&self, fence: u64, costs: Costs<'_>) -> u64 {
        let measure = self.measure.as_ref();
        measure.map_or(costs.plain, |measure| measure.returned(fence, costs))
    }

    /// Whether it charged the grant of this fence and can refund it.
    pub(super) fn has_granted(&self, fence: u64) -> bool {
        let measure = self.measure.as_ref();
        measure.is_none_or(|measure| fence > measure.refundable_after)
    }

    /// Makes the grants up to this fence non-refundable.
    pub(super) fn void_refunds(&mut self, fence: u64) {
        self.measure.get_or_insert_default().refundable_after = fence;
    }
}

impl Measure {
    fn new(counts: Counts) -> Self {
        Self {
            counts,
            ..Self::default()
        }
    }

    /// Changes what is counted for the grants after this fence.
    fn changed(mut self, counts: Counts, fence: u64) -> Self {
        // If nothing was granted since the last change, no grant was charged by the measure in between.
        if self.counts != counts && self.former.last().is_none_or(|(last, _)| *last < fence) {
            self.former.push((fence, self.counts));
        }
        Self { counts, ..self }
    }

    /// Whether it is the plain cost for all grants.
    fn is_plain(&self) -> bool {
        self.counts == Counts::Cost && self.former.is_empty()
    }

    /// The units that the permit of this fence returns.
    fn returned(&self, fence: u64, costs: Costs<'_>) -> u64 {
        let former = self.former.iter().find(|(last, _)| fence <= *last);
        let counts = former.map_or(self.counts, |(_, counts)| *counts);
        costs.of(counts).unwrap_or(0)
    }
}

/// The units in flight, by what the concurrency limits count or counted. There is one entry for each thing that is counted.
#[derive(Debug, Default)]
pub(super) struct InFlight(Vec<(Measure, u64)>);

impl InFlight {
    /// Several entries for the same thing are equal: the first is kept.
    pub(super) fn new(entries: impl IntoIterator<Item = (Measure, u64)>) -> Self {
        let mut in_flight = Vec::<(Measure, u64)>::new();
        for (measure, units) in entries {
            if in_flight
                .iter()
                .all(|(other, _)| other.counts != measure.counts)
            {
                in_flight.push((measure, units));
            }
        }
        if in_flight.iter().all(|(_, units)| *units == 0) {
            in_flight.clear(); // no permit holds anything
        }
        Self(in_flight)
    }

    /// The entries with any unit in flight.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(Measure, u64)> {
        self.0.iter().filter(|(_, units)| *units > 0)
    }

    /// Charges a grant. A unit that it does not name costs nothing.
    pub(super) fn charge(&mut self, costs: Costs<'_>) {
        for (measure, units) in &mut self.0 {
            *units = units.saturating_add(costs.of(measure.counts).unwrap_or(0));
        }
    }

    /// Releases the permit of this fence.
    pub(super) fn release(&mut self, fence: u64, costs: Costs<'_>) {
        for (measure, units) in &mut self.0 {
            *units = units.saturating_sub(measure.returned(fence, costs));
        }
    }

    /// Releases units of permits whose fences are unknown.
    pub(super) fn release_units(&mut self, released: u64) {
        for (_, units) in &mut self.0 {
            *units = units.saturating_sub(released);
        }
    }

    /// The measure and the units that a new limit takes over after the grant of this fence: the entry that counts the same, or
    /// else the first one with any unit in flight.
    fn taken_over_by(&self, counts: Counts, fence: u64) -> (Measure, u64) {
        let same = self.0.iter().find(|(measure, _)| measure.counts == counts);
        match same.or_else(|| self.iter().next()) {
            Some((measure, units)) => (measure.clone().changed(counts, fence), *units),
            None => (Measure::new(counts), 0),
        }
    }

    /// The entries that no new concurrency limit counts. New grants are charged to them too: otherwise, too few units would be in
    /// flight when a later plan counts the same again.
    pub(super) fn left_over(mut self, limits: &[Limit]) -> Self {
        self.0.retain(|(measure, units)| {
            let counts_it =
                |limit: &Limit| limit.counts_places() && limit.counts() == measure.counts;
            *units > 0 && !limits.iter().any(counts_it)
        });
        self
    }
}

/// For each new limit, the index of the old one whose usage it takes over: an equal one, or else one of its kind, or else any that is
/// left. Usage is taken over only from a limit that counts the same, and between limits of concurrency.
pub(crate) fn counterparts(old_limits: &[Limit], new_limits: &[Limit]) -> Vec<Option<usize>> {
    let mut found = vec![None; new_limits.len()];
    let mut left: Vec<_> = (0..old_limits.len()).collect();
    let alike: [fn(&Limit, &Limit) -> bool; 3] = [
        |old, new| old == new,
        |old, new| std::mem::discriminant(old) == std::mem::discriminant(new),
        |_, _| true,
    ];
    for alike in alike {
        for (new, found) in new_limits.iter().zip(&mut found) {
            if found.is_some() {
                continue;
            }
            let fits = |index: &usize| {
                let old = &old_limits[*index];
                let counts_alike = new.counts_places() || old.counts() == new.counts();
                let places_alike = old.counts_places() == new.counts_places();
                counts_alike && places_alike && alike(old, new)
            };
            *found = left
                .iter()
                .position(fits)
                .map(|position| left.remove(position));
        }
    }
    found
}

/// The index of the old limit of concurrency by whose cost a permit in flight counts for a new one: the one that counts the same, or
/// else the first one. `None` if there was none.
pub(crate) fn place_counterpart(old_limits: &[Limit], new: &Limit) -> Option<usize> {
    let mut places = old_limits
        .iter()
        .enumerate()
        .filter(|(_, old)| old.counts_places());
    let same = places.clone().find(|(_, old)| old.counts() == new.counts());
    same.or_else(|| places.next()).map(|(index, _)| index)
}

/// Lets each new limit, which is reset, take over the usage of its [counterpart](counterparts). An equal one keeps its state. A new
/// limit without a counterpart starts reset. Units in flight after the grant of this fence stay in flight.
pub(super) fn carry_over(
    old_limits: Vec<(Limit, CountedLimit)>,
    new_limits: Vec<(&Limit, &mut CountedLimit)>,
    now: Moment,
    carry: UsageCarryOver,
    in_flight: &InFlight,
    fence: u64,
) {
    let old: Vec<_> = old_limits.iter().map(|(limit, _)| *limit).collect();
    let new: Vec<_> = new_limits.iter().map(|(limit, _)| **limit).collect();
    let mut old_limits: Vec<_> = old_limits.into_iter().map(Some).collect();
    for ((limit, new), counterpart) in new_limits.into_iter().zip(counterparts(&old, &new)) {
        let (measure, units) = in_flight.taken_over_by(limit.counts(), fence);
        if fence > 0 {
            new.measure = Some(Box::new(Measure {
                refundable_after: fence,
                ..measure
            }));
        }
        let counts_places = new.state.places().is_some();
        if counts_places {
            new.state.charge(now, units);
        }
        let counterpart = counterpart.and_then(|index| old_limits[index].take());
        let Some((old_limit, old)) = counterpart else {
            continue;
        };
        if old_limit == *limit {
            if let Some(measure) = &mut new.measure {
                let former = old.measure;
                measure.refundable_after = former.map_or(0, |former| former.refundable_after);
            }
            new.state = old.state;
        } else if !counts_places {
            let ratio = carry.ratio(old_limit.capacity(), limit.capacity());
            new.state.take_over(now, &old.state, ratio);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::policy::{Policy, samples};
    use crate::strategy::Unit;

    /// A fixed bug: after 584 years, windows and logs admitted everything.
    #[test]
    fn every_limit_grants_at_the_last_instant_what_it_has_and_then_nothing() {
        let (limits, now) = (samples().into_iter(), Moment::LAST);
        for limit in limits.flat_map(|(_, limits)| limits) {
            let rule = limit.checked(Duration::MAX).unwrap();
            let mut state = LimitState::new(&rule, now);
            let remaining = state.report(now, 0, 1).remaining;
            if remaining > 0 {
                let next = state.decide(now, remaining).unwrap();
                state.proceed(now, remaining, next);
            }
            assert_eq!(state.decide(now, 1), Err(Moment::NEVER), "{limit}");
        }
    }

    fn state(text: &str) -> (Limit, LimitState) {
        let limit = *text.parse::<Policy>().unwrap().limits().first().unwrap();
        let rule = limit.checked(Duration::ZERO).unwrap();
        (limit, LimitState::new(&rule, Moment::START))
    }

    /// Against a naive count, one unit after the other.
    #[test]
    fn units_come_as_if_each_was_taken_as_soon_as_it_is_there() {
        let limits = [
            ("throttle every 10ms burst 10", &[7, 10][..]),
            ("10/100ms", &[7, 10]),
            ("10/100ms refilled each period", &[7, 10]),
            ("window 10/100ms", &[7, 10]),
            ("sliding log 10/100ms", &[7, 10]),
        ];
        for (text, used) in limits {
            for used in used {
                let (limit, mut state) = state(text);
                state.charge(Moment::START, *used);
                let now = Moment::from_nanos(50_000_000);
                let mut at = now;
                let (_, mut taken) = self::state(text);
                taken.charge(Moment::START, *used);
                for units in 1..=35 {
                    at = taken.decide(at, 1).err().unwrap_or(at);
                    taken.charge(at, 1);
                    let comes = state.comes_at(now, units, &limit).unwrap_or(now);
                    assert_eq!(comes, at, "{units} more than {used} of {text}");
                }
            }
        }
    }

    /// As if each window let its units go at an even pace.
    #[test]
    fn more_units_than_a_counter_has_come_after_whole_windows() {
        let (limit, mut state) = state("sliding counter 10/100ms");
        state.charge(Moment::START, 10);
        let comes = [5, 15, 25].map(|units| state.comes_at(Moment::START, units, &limit));
        let at = |millis: u64| Some(Moment::from_nanos(millis * 1_000_000));
        assert_eq!(comes, [150, 250, 350].map(at));
    }

    const UNITS: [Counts; 3] = [
        Counts::Cost,
        Counts::Requests,
        Counts::Unit(Unit::new("bytes")),
    ];

    #[test]
    fn a_measure_by_which_nothing_was_charged_is_not_kept() {
        let [cost, requests, bytes] = UNITS;
        let measure = Measure::new(cost).changed(cost, 3);
        assert!(measure.is_plain());
        let measure = measure.changed(requests, 5).changed(bytes, 5);
        assert_eq!(
            (measure.counts, &measure.former[..]),
            (bytes, &[(5, cost)][..])
        );
        let measure = measure.changed(requests, 6);
        assert_eq!(measure.former, [(5, cost), (6, bytes)]);
    }

    #[test]
    fn what_a_new_limit_counts_is_not_left_over_nor_what_nothing_holds() {
        let [cost, requests, bytes] = UNITS;
        let entries = [(cost, 2), (requests, 0), (bytes, 3)];
        let entries = entries.map(|(counts, units)| (Measure::new(counts), units));
        let policy: Policy = "9 concurrent and 9 concurrent counting bytes"
            .parse()
            .unwrap();
        let left_over = |limits| {
            let InFlight(left) = InFlight::new(entries.clone()).left_over(limits);
            left.into_iter()
                .map(|(measure, units)| (measure.counts, units))
                .collect::<Vec<_>>()
        };
        assert_eq!(left_over(&[]), [(cost, 2), (bytes, 3)]);
        assert_eq!(left_over(&policy.limits()[..1]), [(bytes, 3)]);
        assert_eq!(left_over(policy.limits()), []);
    }

    #[test]
    fn a_new_concurrency_takes_places_over_from_one_that_counts_the_same_or_from_the_first() {
        let of = |former: &str, new: &str| {
            let [former, new] = [former, new].map(|text| text.parse::<Policy>().unwrap());
            place_counterpart(former.limits(), &new.limits()[0])
        };
        let former = "5/s and 9 concurrent and 8 concurrent counting bytes";
        assert_eq!(of(former, "3 concurrent"), Some(1));
        assert_eq!(of(former, "3 concurrent counting bytes"), Some(2));
        assert_eq!(of(former, "3 concurrent counting tokens"), Some(1));
        assert_eq!(of("5/s", "3 concurrent"), None);
    }
}
