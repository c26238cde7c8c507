//! Whose turn it is: how the replicas that wait for a key share its units.
//!
//! The next unit goes to the replica that holds the fewest places; among equals, to the one that was granted the fewest units since
//! it came; among these, to the one that came first. A replica that comes starts with the fewest grants of those present, so that
//! none saves up credit while it is idle, and none pays for the past. This is max-min fairness for what is held, and start-time fair
//! queuing (Goyal, Vin and Cheng, 1996) for what is granted.
//!
//! A ticket for each replica that asked lately records what it waits for. The tickets tell how many asks of the others come before
//! an ask. Their units are set aside: an ask is granted if there is room for it behind them. So the first ask in the order of turns
//! is never passed, however many units it costs.
//!
//! At most 64 replicas have a ticket. If more wait for a rate, the store names an instant to each of the others, one after another, at
//! which the replica may take one ask, or as many as come in a millisecond. No unit is set aside for them.

#[cfg(test)]
mod tests;

use crate::core::gate::limit_state::LimitState;
use crate::strategy::Moment;

/// The most tickets. Each contended call reads all of them.
pub(super) const MAX_TICKETS: usize = 64;
/// How long a ticket is kept after its replica has asked, or should have, in nanoseconds.
const KEPT_FOR: u64 = 2_500_000_000;
/// How long the units of a replica that should have asked are set aside, in nanoseconds, where turns are reported.
const PATIENCE: u64 = 20_000_000;
/// How long a replica may take its own places again, in nanoseconds, where turns are reported.
pub(super) const SLICE: u64 = 10_000_000;
/// How long a replica that polls may take its own places again, in intervals of its polls.
const SLICE_IN_POLLS: u64 = 5;
/// How long a replica that has asked for units of rates, or should have, is taken to want more of them, in nanoseconds. It may be
/// granted some at once and ask again, when many units have come at the same time.
pub(super) const KEEN_FOR: u64 = 2_000_000;
/// The least time between two instants that are named to replicas without a ticket, in nanoseconds.
const LEAST_PAUSE: u64 = 1_000_000;

/// The tickets of the replicas that wait for a key, or did so lately. There are none while every ask is granted at once.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// In the order in which the replicas came.
    pub(super) tickets: Vec<TurnTicket>,
    /// The last instant that was named to a replica without a ticket.
    pub(super) tail: Moment,
}

/// What a replica waits for, and what it was granted.
#[derive(Debug, Clone, Default)]
pub(super) struct TurnTicket {
    pub(super) holder: u64,
    /// How many of its asks wait.
    pub(super) wanted: u64,
    /// What the first of them costs, for each limit, or else its last ask.
    pub(super) costs: Box<[u64]>,
    /// The units that it was granted since it came, and before that the fewest of those present.
    pub(super) granted: u64,
    /// The places that it holds.
    pub(super) held: u64,
    /// When it asked last.
    pub(super) asked_at: Moment,
    /// When it should ask again. `None`: after a release.
    pub(super) due: Option<Moment>,
    /// Since when it takes its own places again.
    pub(super) turn_began: Moment,
}

/// The position of an ask in the order of turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// The places that its replica holds.
    held: u64,
    /// `false` for a replica that may take its own places again: it goes first among those that hold as many.
    yields: bool,
    granted: u64,
    /// The index of its ticket.
    came: usize,
}

/// The replica that makes a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller {
    pub(super) holder: u64,
    /// How often it asks while it waits for a place, in nanoseconds; 0 if its turns are reported to it.
    pub(super) polls_every: u64,
    /// Whether the call has returned a place.
    pub(super) returns: bool,
}

/// The position of the next ask of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    holder: u64,
    rank: Rank,
    /// The most asks that are granted.
    most: u64,
    /// Whether the caller has no ticket, because there are too many replicas.
    has_no_ticket: bool,
}

/// What is left of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Left<'a> {
    /// How many of its asks wait now.
    pub(super) wanted: u64,
    /// What the first of them costs, for each limit, or else the last ask; empty without asks.
    pub(super) costs: &'a [u64],
    /// When there is room for it; `None` after a release.
    pub(super) due: Option<Moment>,
    /// The units that the call was granted.
    pub(super) granted: u64,
}

/// The replicas that may take free places.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Offer {
    /// The holders whose turn it is.
    pub(crate) turns: Vec<u64>,
    /// The holder whose turn is next, if one of them does not come.
    pub(crate) next: Option<u64>,
}

/// What an ask moves its replica back in the order of turns.
#[derive(Debug, Clone, Copy)]
struct Step {
    places: u64,
    units: u64,
}

impl Step {
    fn new(limits: &[LimitState], costs: &[u64]) -> Self {
        let places = limits
            .iter()
            .zip(costs)
            .filter(|(limit, _)| limit.places().is_some());
        Self {
            places: places.fold(0, |sum, (_, cost)| sum.saturating_add(*cost)),
            units: units(costs),
        }
    }
}

/// The units that an ask of these costs counts for.
pub(super) fn units(costs: &[u64]) -> u64 {
    costs.iter().copied().max().unwrap_or(0).max(1)
}

impl Rank {
    /// The rank after this number of asks.
    fn after(self, asks: u64, step: Step) -> Self {
        Self {
            held: self.held.saturating_add(asks.saturating_mul(step.places)),
            granted: self.granted.saturating_add(asks.saturating_mul(step.units)),
            ..self
        }
    }

    /// How many asks, each a `step` after the one before, come before the `other` rank, which is of another replica.
    fn asks_before(self, other: Self, step: Step) -> u64 {
        let (gap, places) = (other.held.saturating_sub(self.held), step.places);
        // The asks that are made while it holds fewer places.
        let fewer = match (gap, places) {
            (0, _) => 0,
            (_, 0) => return u64::MAX,
            _ => gap.div_ceil(places),
        };
        let first_as_many = self.after(fewer, step);
        if first_as_many.held != other.held || self.yields && !other.yields {
            return fewer;
        }
        let gap = other.granted.saturating_sub(first_as_many.granted);
        let ties = first_as_many.granted <= other.granted
            && self.came < other.came
            && gap.is_multiple_of(step.units);
        let as_many = gap.div_ceil(step.units).saturating_add(u64::from(ties));
        // An ask for a place holds more afterwards.
        fewer.saturating_add(if places > 0 { as_many.min(1) } else { as_many })
    }
}

impl TurnTicket {
    fn rank(&self, came: usize) -> Rank {
        Rank {
            held: self.held,
            yields: true,
            granted: self.granted,
            came,
        }
    }

    fn record(&mut self, now: Moment, caller: Caller, held: u64, left: Left<'_>) {
        if left.granted > 0 && now.since(self.turn_began) >= caller.slice() {
            self.turn_began = now;
        }
        self.granted = self.granted.saturating_add(left.granted);
        self.held = held;
        self.wanted = left.wanted;
        if !left.costs.is_empty() {
            self.costs = left.costs.into();
        }
        self.due = left.due.filter(|_| left.wanted > 0);
        self.asked_at = now;
    }

    /// Whether its replica may soon want more units of rates than it has asked for.
    fn is_keen(&self, now: Moment) -> bool {
        let is_due = self
            .due
            .is_some_and(|due| due <= now && now.since(due) < KEEN_FOR);
        now.since(self.asked_at) < KEEN_FOR || self.wanted > 0 && is_due
    }

    /// When its replica asked last, or should have.
    fn latest(&self) -> Moment {
        self.due.map_or(self.asked_at, |due| due.max(self.asked_at))
    }
}

impl Caller {
    fn patience(self) -> u64 {
        if self.polls_every == 0 {
            PATIENCE
        } else {
            self.polls_every.saturating_mul(2)
        }
    }

    fn slice(self) -> u64 {
        if self.polls_every == 0 {
            SLICE
        } else {
            self.polls_every.saturating_mul(SLICE_IN_POLLS)
        }
    }
}

impl Turn {
    /// Grants a replica without a ticket only the asks of its turn. `pause`: the time in which the units of an ask come, in
    /// nanoseconds.
    pub(super) fn bound(&mut self, pause: impl FnOnce() -> u64) {
        if self.has_no_ticket {
            self.most = (LEAST_PAUSE / pause().max(1)).max(1);
        }
    }

    /// Moves on by this number of granted asks.
    pub(super) fn advance(&mut self, limits: &[LimitState], costs: &[u64], asks: u64) {
        self.rank = self.rank.after(asks, Step::new(limits, costs));
        self.most = self.most.saturating_sub(asks);
    }
}

impl Turns {
    /// Begins a call. `held`: the places that a holder holds. Replicas that have not asked for a long time are forgotten. One that
    /// did not ask in its turn waits for nothing until it asks again. `None` if no other replica waits.
    pub(super) fn begin(
        &mut self,
        now: Moment,
        caller: Caller,
        held: impl Fn(u64) -> u64,
    ) -> Option<Turn> {
        if self.tickets.is_empty() && !self.is_crowded(now) {
            return None;
        }
        self.tickets
            .retain(|ticket| now.since(ticket.latest()) < KEPT_FOR);
        for ticket in &mut self.tickets {
            ticket.held = held(ticket.holder);
            let is_missing = ticket
                .due
                .is_some_and(|due| now.since(due) > caller.patience());
            if is_missing && ticket.holder != caller.holder {
                ticket.wanted = 0;
            }
        }
        let index = self.index_of(caller.holder);
        let ticket = index.map(|index| &self.tickets[index]);
        let keeps = caller.returns
            && ticket.is_some_and(|ticket| now.since(ticket.turn_began) < caller.slice());
        let rank = Rank {
            held: held(caller.holder),
            yields: !keeps,
            granted: ticket.map_or_else(|| self.fewest_granted(), |ticket| ticket.granted),
            came: index.unwrap_or(self.tickets.len()),
        };
        Some(Turn {
            holder: caller.holder,
            rank,
            most: u64::MAX,
            has_no_ticket: ticket.is_none() && self.is_crowded(now),
        })
    }

    /// How many of `count` asks of these costs there is room for behind the asks of others that come before them, and those that the
    /// others are taken to make.
    pub(super) fn room(
        &self,
        limits: &[LimitState],
        turn: Turn,
        now: Moment,
        costs: &[u64],
        count: u64,
    ) -> u64 {
        let step = Step::new(limits, costs);
        let wanted = |ticket: &TurnTicket, step: Step| {
            let wants_more = step.places == 0 && ticket.is_keen(now);
            if wants_more { u64::MAX } else { ticket.wanted }
        };
        let fits = |asks: u64| {
            let rank = turn.rank.after(asks - 1, step);
            let set_aside = self.set_aside(now, limits, turn.holder, rank, wanted);
            let mut of_each = limits
                .iter()
                .zip(costs)
                .zip(set_aside)
                .filter(|((_, cost), _)| **cost > 0);
            of_each.all(|((limit, cost), before)| {
                before.saturating_add(asks.saturating_mul(*cost))
                    <= limit.report(now, 0, *cost).remaining
            })
        };
        // The more asks, the more of the others come before the last of them.
        let (mut fitting, mut beyond) = (0, count.min(turn.most).saturating_add(1));
        while beyond - fitting > 1 {
            let middle = fitting + (beyond - fitting) / 2;
            if fits(middle) {
                fitting = middle;
            } else {
                beyond = middle;
            }
        }
        fitting
    }

    /// The units of each limit that are set aside for others before the next ask of the call.
    pub(super) fn before(&self, now: Moment, limits: &[LimitState], turn: Turn) -> Vec<u64> {
        self.set_aside(now, limits, turn.holder, turn.rank, |ticket, _| {
            ticket.wanted
        })
    }

    /// Ends a call: records what its replica waits for. Returns the instant at which it should ask again, if it
    /// has no ticket because too many replicas wait. `pause`: the time in which the units of an ask come.
    pub(super) fn end(
        &mut self,
        now: Moment,
        caller: Caller,
        held: u64,
        left: Left<'_>,
        pause: u64,
    ) -> Option<Moment> {
        let (is_crowded, index) = (self.is_crowded(now), self.index_of(caller.holder));
        let mut ticket = match index {
            Some(index) if !is_crowded || left.granted == 0 => {
                self.tickets[index].record(now, caller, held, left);
                return None;
            }
            Some(index) => self.tickets.remove(index), // those without a ticket come first now
            None => TurnTicket {
                holder: caller.holder,
                granted: self.fewest_granted(),
                ..TurnTicket::default()
            },
        };
        let is_full = self.tickets.len() >= MAX_TICKETS;
        if left.wanted == 0 && (is_crowded || is_full || self.tickets.is_empty()) {
            return None;
        }
        ticket.record(now, caller, held, left);
        if let Some(due) = left.due.filter(|_| is_crowded || is_full) {
            self.tail = self.tail.max(due).plus(pause.max(LEAST_PAUSE));
            return Some(self.tail);
        }
        if is_full {
            let most = (0..self.tickets.len()).max_by_key(|index| self.tickets[*index].granted);
            self.tickets.remove(most.unwrap_or_default()); // it comes back when it polls
        }
        self.tickets.push(ticket);
        None
    }

    /// The replicas, other than the caller, that wait for a place and may take one now. Each of them is returned once until it asks.
    pub(super) fn offer(&mut self, now: Moment, limits: &[LimitState], caller: u64) -> Offer {
        let mut offer = Offer::default();
        let mut last = None;
        while let Some((came, rank)) = self.next_after(last) {
            let ticket = &self.tickets[came];
            let set_aside =
                self.set_aside(now, limits, ticket.holder, rank, |ticket, _| ticket.wanted);
            let mut of_each = limits.iter().zip(&ticket.costs).zip(set_aside);
            let fits = of_each.all(|((limit, cost), before)| {
                limit.places().is_none()
                    || *cost == 0
                    || before.saturating_add(*cost) <= limit.report(now, 0, *cost).remaining
            });
            let ticket = &mut self.tickets[came];
            if !fits {
                offer.next = Some(ticket.holder);
                break;
            }
            if ticket.due.is_none() && ticket.holder != caller {
                ticket.due = Some(now);
                offer.turns.push(ticket.holder);
            }
            last = Some(rank);
        }
        offer
    }

    /// The first ticket after this rank that waits for something.
    fn next_after(&self, last: Option<Rank>) -> Option<(usize, Rank)> {
        let waiting = self
            .tickets
            .iter()
            .enumerate()
            .filter(|(_, ticket)| ticket.wanted > 0);
        let ranks = waiting.map(|(came, ticket)| (came, ticket.rank(came)));
        ranks
            .filter(|(_, rank)| last.is_none_or(|last| *rank > last))
            .min_by_key(|(_, rank)| *rank)
    }

    /// Whether a replica without a ticket is to come later than now.
    fn is_crowded(&self, now: Moment) -> bool {
        now < self.tail
    }

    fn index_of(&self, holder: u64) -> Option<usize> {
        self.tickets
            .iter()
            .position(|ticket| ticket.holder == holder)
    }

    fn fewest_granted(&self) -> u64 {
        self.tickets
            .iter()
            .map(|ticket| ticket.granted)
            .min()
            .unwrap_or(0)
    }

    /// The units of each limit that are set aside for the asks of others before this rank of a holder. `wanted`: how many asks wait.
    /// A replica that waits for an instant takes no place before it.
    fn set_aside(
        &self,
        now: Moment,
        limits: &[LimitState],
        holder: u64,
        rank: Rank,
        wanted: impl Fn(&TurnTicket, Step) -> u64,
    ) -> Vec<u64> {
        let mut units = vec![0_u64; limits.len()];
        for (came, ticket) in self.tickets.iter().enumerate() {
            let step = Step::new(limits, &ticket.costs);
            let wanted = wanted(ticket, step);
            if ticket.holder == holder || wanted == 0 {
                continue;
            }
            let asks = ticket.rank(came).asks_before(rank, step).min(wanted);
            let takes_places = ticket.due.is_none_or(|due| due <= now);
            for ((units, cost), limit) in units.iter_mut().zip(&ticket.costs).zip(limits) {
                if takes_places || limit.places().is_none() {
                    *units = units.saturating_add(asks.saturating_mul(*cost));
                }
            }
        }
        units
    }

    /// When the tickets no longer matter, if no replica asks.
    pub(super) fn forgettable_at(&self) -> Moment {
        let latest = self
            .tickets
            .iter()
            .map(|ticket| ticket.latest().plus(KEPT_FOR));
        latest.fold(self.tail, Moment::max)
    }
}
