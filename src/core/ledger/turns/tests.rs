use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::core::gate::plan::Plan;

const MS: u64 = 1_000_000;
const NOW: Moment = Moment::from_nanos(1_000_000 * MS);
const CALLER: Caller = Caller {
    holder: 0,
    polls_every: 0,
    returns: false,
};

fn limits(policy: &str, used: &[u64]) -> Vec<LimitState> {
    let plan = Arc::new(Plan::new(policy.parse().unwrap(), Duration::ZERO).unwrap());
    let mut limits: Vec<_> = plan
        .rules()
        .iter()
        .map(|rule| LimitState::new(rule, NOW))
        .collect();
    for (limit, used) in limits.iter_mut().zip(used) {
        limit.charge(NOW, *used);
    }
    limits
}

fn left(limits: &[LimitState]) -> Vec<u64> {
    limits
        .iter()
        .map(|limit| limit.report(NOW, 0, 1).remaining)
        .collect()
}

fn ticket() -> impl Strategy<Value = TurnTicket> {
    (
        0..4_u64,
        prop::array::uniform2(0..4_u64),
        0..12_u64,
        0..5_u64,
    )
        .prop_map(|(wanted, costs, granted, held)| TurnTicket {
            wanted,
            costs: costs.into(),
            granted,
            held,
            asked_at: NOW.minus(5 * MS),
            ..TurnTicket::default()
        })
}

/// The number of asks of the caller for which there is room: all asks are lined up one by one, each time that of the lowest rank.
fn naive_room(
    turns: &Turns,
    caller: Turn,
    limits: &[LimitState],
    costs: &[u64],
    count: u64,
) -> u64 {
    let mut others: Vec<_> = turns
        .tickets
        .iter()
        .enumerate()
        .filter(|(_, ticket)| ticket.holder != caller.holder)
        .map(|(came, ticket)| (ticket.rank(came), ticket.wanted, ticket.costs.clone()))
        .collect();
    let (mut rank, mut taken, mut left) = (
        caller.rank,
        0,
        left(limits).into_iter().map(i128::from).collect::<Vec<_>>(),
    );
    let advance = |rank: &mut Rank, costs: &[u64]| {
        let places = limits
            .iter()
            .zip(costs)
            .filter(|(limit, _)| limit.places().is_some());
        rank.held += places.map(|(_, cost)| *cost).sum::<u64>();
        rank.granted += costs.iter().copied().max().unwrap().max(1);
    };
    while taken < count {
        let first = others
            .iter_mut()
            .filter(|(other, wanted, _)| *wanted > 0 && *other < rank)
            .min_by_key(|(other, ..)| *other);
        let costs = match &first {
            Some((_, _, costs)) => costs.clone(),
            None => costs.into(),
        };
        for (left, cost) in left.iter_mut().zip(&costs) {
            *left -= i128::from(*cost);
        }
        match first {
            Some((rank, wanted, costs)) => {
                *wanted -= 1;
                advance(rank, &costs.clone());
            }
            None => {
                if left
                    .iter()
                    .zip(&costs)
                    .any(|(left, cost)| *cost > 0 && *left < 0)
                {
                    break;
                }
                taken += 1;
                advance(&mut rank, &costs);
            }
        }
    }
    taken
}

proptest! {
    #![proptest_config(crate::replay::cases(2_000))]

    #[test]
    fn room_is_what_remains_when_all_asks_are_lined_up(
        tickets in prop::collection::vec(ticket(), 0..6), own in prop::option::of(0_usize..6), used in prop::array::uniform2(0..9_u64),
        costs in prop::array::uniform2(0..4_u64), count in 1..9_u64, held in 0..5_u64, keeps in any::<bool>(),
        policy in prop::sample::select(&["12 concurrent and 12/s", "window 12/s and 12/s", "12 concurrent and 12 concurrent"]),
    ) {
        prop_assume!(costs != [0, 0]);
        let limits = limits(policy, &used);
        let mut turns = Turns { tickets, tail: Moment::START };
        for (index, ticket) in turns.tickets.iter_mut().enumerate() {
            ticket.holder = if own == Some(index) { 0 } else { 1 + index as u64 };
        }
        let places = |holder| turns.tickets.iter().find(|ticket| ticket.holder == holder).map_or(held, |ticket| ticket.held);
        let places: Vec<_> = (0..7).map(places).collect();
        let caller = Caller { returns: keeps, ..CALLER };
        if keeps && let Some(own) = own && let Some(ticket) = turns.tickets.get_mut(own) {
            ticket.turn_began = NOW;
        }
        let turn = turns.begin(NOW, caller, |holder| places[holder as usize]);
        let Some(turn) = turn else { return Ok(()) };
        let expected = naive_room(&turns, turn, &limits, &costs, count);
        prop_assert_eq!(turns.room(&limits, turn, NOW, &costs, count), expected);
    }
}

/// Calls of replicas that take no time. Each asks for `wants` units of cost 1.
struct Replicas {
    turns: Turns,
    limits: Vec<LimitState>,
    held: Vec<u64>,
}

impl Replicas {
    fn new(policy: &str, replicas: usize) -> Self {
        Self {
            turns: Turns::default(),
            limits: limits(policy, &[]),
            held: vec![0; replicas],
        }
    }

    /// Returns the grants, and who is told.
    fn call(&mut self, at: u64, holder: usize, returns: u64, wants: u64) -> (u64, Vec<u64>) {
        let now = NOW.plus(at * MS);
        self.limits[0].release(returns);
        self.held[holder] -= returns;
        let caller = Caller {
            holder: holder as u64,
            polls_every: 0,
            returns: returns > 0,
        };
        let held = self.held.clone();
        let turn = self
            .turns
            .begin(now, caller, |holder| held[holder as usize]);
        let room = wants.min(self.limits[0].report(now, 0, 1).remaining);
        let granted = turn.map_or(room, |turn| {
            self.turns.room(&self.limits, turn, now, &[1], room)
        });
        self.limits[0].charge(now, granted);
        self.held[holder] += granted;
        let left = Left {
            wanted: wants - granted,
            costs: &[1],
            due: None,
            granted,
        };
        if left.wanted > 0 || !self.turns.tickets.is_empty() {
            self.turns.end(now, caller, self.held[holder], left, 0);
        }
        (
            granted,
            self.turns.offer(now, &self.limits, holder as u64).turns,
        )
    }
}

#[test]
fn a_place_goes_to_the_replica_that_holds_the_fewest() {
    let mut replicas = Replicas::new("3 concurrent", 3);
    assert_eq!(replicas.call(0, 0, 0, 5), (3, vec![]), "nobody else waits");
    assert_eq!(replicas.call(1, 1, 0, 5), (0, vec![]));
    assert_eq!(replicas.call(2, 2, 0, 5), (0, vec![]));
    assert_eq!(
        replicas.call(3, 0, 1, 3),
        (0, vec![1]),
        "it keeps two, and the others have none"
    );
    assert_eq!(
        replicas.call(4, 0, 1, 4),
        (0, vec![2]),
        "the place of the first is set aside"
    );
    assert_eq!(replicas.call(5, 2, 0, 5), (1, vec![]));
    assert_eq!(replicas.call(6, 1, 0, 5), (1, vec![]));
}

#[test]
fn a_replica_takes_its_own_places_again_for_a_slice() {
    let mut replicas = Replicas::new("1 concurrent", 2);
    assert_eq!(replicas.call(0, 0, 0, 1).0, 1);
    assert_eq!(replicas.call(0, 1, 0, 2).0, 0);
    assert_eq!(replicas.call(1, 0, 1, 2), (0, vec![1]));
    assert_eq!(replicas.call(2, 1, 0, 2).0, 1, "its turn begins");
    for at in 3..12 {
        assert_eq!(replicas.call(at, 1, 1, 2), (1, vec![]), "at {at} ms");
    }
    assert_eq!(replicas.call(12, 1, 1, 2), (0, vec![0]));
}

#[test]
fn a_replica_that_does_not_come_is_passed_over_until_it_asks() {
    let mut replicas = Replicas::new("1 concurrent", 3);
    assert_eq!(replicas.call(0, 0, 0, 1).0, 1);
    assert_eq!(replicas.call(0, 1, 0, 1).0, 0);
    assert_eq!(replicas.call(1, 0, 1, 0), (0, vec![1]));
    assert_eq!(replicas.call(20, 2, 0, 1).0, 0, "it is still the turn of 1");
    assert_eq!(replicas.call(22, 2, 0, 1).0, 1);
    assert_eq!(replicas.call(23, 1, 0, 1).0, 0);
    assert_eq!(replicas.call(24, 2, 1, 0), (0, vec![1]));
}

#[test]
fn replicas_that_have_gone_are_forgotten() {
    let mut replicas = Replicas::new("1 concurrent", 2);
    replicas.call(0, 0, 0, 1);
    replicas.call(0, 1, 0, 1);
    let waits = replicas.turns.forgettable_at();
    assert_eq!(waits, NOW.plus(KEPT_FOR));
    replicas.call(2_501, 0, 1, 0);
    assert!(
        replicas
            .turns
            .tickets
            .iter()
            .all(|ticket| ticket.holder != 1)
    );
    assert_eq!(replicas.call(6_000, 0, 0, 1).0, 1);
    assert!(replicas.turns.tickets.is_empty());
}

#[test]
fn there_are_at_most_64_tickets() {
    let mut replicas = Replicas::new("1 concurrent", 200);
    for holder in 0..200 {
        replicas.call(holder as u64 / 10, holder, 0, 1);
    }
    assert_eq!(replicas.turns.tickets.len(), MAX_TICKETS);
}
