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

/// The first of these tickets is that of holder 1.
fn present(tickets: impl IntoIterator<Item = TurnTicket>) -> Turns {
    let of_holder = |(holder, ticket)| TurnTicket { holder, ..ticket };
    Turns {
        tickets: (1..).zip(tickets).map(of_holder).collect(),
        tail: Moment::START,
    }
}

fn holders(turns: &Turns) -> Vec<u64> {
    turns.tickets.iter().map(|ticket| ticket.holder).collect()
}

fn waiting(granted: u64) -> TurnTicket {
    TurnTicket {
        wanted: 1,
        costs: [1].into(),
        granted,
        asked_at: NOW,
        ..TurnTicket::default()
    }
}

fn left_of(wanted: u64, granted: u64) -> Left<'static> {
    Left {
        wanted,
        costs: &[1],
        due: Some(NOW.plus(MS)),
        granted,
    }
}

/// It waits for one unit, or for none. While it is keen, all the units that it may have before the caller are set aside: six before the
/// first of the caller, and one more before each of the others.
#[test]
fn a_replica_is_keen_for_two_milliseconds_after_it_asked_or_should_have() {
    let limits = limits("window 12/s", &[]);
    let room = |wanted, asked: u64, due: Option<Moment>| {
        let mut turns = present([TurnTicket {
            wanted,
            asked_at: NOW.minus(asked),
            due,
            ..waiting(0)
        }]);
        let mut turn = turns.begin(NOW, CALLER, |_| 0).unwrap();
        turn.rank.granted = 5;
        turns.room(&limits, turn, NOW, &[1], 12)
    };
    let (of_keen, of_others, of_idle) = (12 - 9, 12 - 1, 12);
    assert_eq!(
        [0, KEEN_FOR - 1, KEEN_FOR].map(|asked| room(1, asked, None)),
        [of_keen, of_keen, of_others]
    );
    let of_due = |due| room(1, 10 * KEEN_FOR, Some(due));
    assert_eq!(
        [
            NOW.plus(1),
            NOW,
            NOW.minus(KEEN_FOR - 1),
            NOW.minus(KEEN_FOR)
        ]
        .map(of_due),
        [of_others, of_keen, of_keen, of_others]
    );
    assert_eq!(room(0, 10 * KEEN_FOR, Some(NOW)), of_idle);
}

#[test]
fn a_replica_without_a_ticket_takes_as_many_as_come_in_a_millisecond() {
    let limits = limits("window 12/s", &[]);
    let most = |others: Vec<TurnTicket>, tail, pause| {
        let mut turns = Turns {
            tail,
            ..present(others)
        };
        let caller = Caller {
            holder: 1,
            ..CALLER
        };
        let mut turn = turns.begin(NOW, caller, |_| 0).unwrap();
        turn.bound(|| pause);
        turns.room(&limits, turn, NOW, &[1], 12)
    };
    for (pause, expected) in [(0, 12), (MS / 10, 10), (MS / 3, 3), (MS, 1), (2 * MS, 1)] {
        assert_eq!(most(vec![], NOW.plus(1), pause), expected, "{pause}");
    }
    assert_eq!(
        most(vec![waiting(0)], NOW.plus(1), MS),
        12,
        "it has a ticket"
    );
    let mut others = vec![waiting(0)];
    others[0].wanted = 0;
    others[0].asked_at = NOW.minus(KEEN_FOR);
    let mut turns = present(others);
    let mut turn = turns.begin(NOW, CALLER, |_| 0).unwrap();
    turn.bound(|| MS);
    assert_eq!(
        turns.room(&limits, turn, NOW, &[1], 12),
        12,
        "it may have one"
    );
}

#[test]
fn a_crowd_ends_at_the_last_instant_that_was_named() {
    for (tail, is_crowded) in [(NOW.plus(1), true), (NOW, false)] {
        let mut turns = Turns {
            tail,
            ..Turns::default()
        };
        assert_eq!(turns.begin(NOW, CALLER, |_| 0).is_some(), is_crowded);
    }
}

/// A request that did not wait has an instant at which it would be admitted, too.
#[test]
fn a_replica_that_waits_for_nothing_is_forgotten_by_when_it_asked() {
    let mut turns = present([waiting(0)]);
    turns.end(NOW, CALLER, 0, left_of(0, 0), 0);
    assert_eq!(holders(&turns), [1, 0]);
    let forgotten_at = turns.forgettable_at();
    assert_eq!(forgotten_at, NOW.plus(KEPT_FOR));
    turns.begin(forgotten_at.minus(1), CALLER, |_| 0);
    assert_eq!(holders(&turns), [1, 0]);
    turns.begin(forgotten_at, CALLER, |_| 0);
    assert!(turns.tickets.is_empty());
}

#[test]
fn a_replica_that_does_not_come_in_its_turn_waits_for_nothing() {
    for (late, wanted) in [(PATIENCE, 1), (PATIENCE + 1, 0)] {
        let mut turns = present([TurnTicket {
            due: Some(NOW),
            ..waiting(0)
        }]);
        turns.begin(NOW.plus(late), CALLER, |_| 0);
        assert_eq!(turns.tickets[0].wanted, wanted, "{late}");
    }
}

#[test]
fn a_replica_that_comes_starts_with_the_fewest_grants_of_those_present() {
    let mut turns = present([waiting(9), waiting(7)]);
    let turn = turns.begin(NOW, CALLER, |_| 0).unwrap();
    assert_eq!(turn.rank.granted, 7);
    turns.end(NOW, CALLER, 0, left_of(1, 2), 0);
    assert_eq!(turns.tickets[2].granted, 9);
}

#[test]
fn a_replica_keeps_its_ticket_unless_it_is_granted_units_in_a_crowd() {
    let caller = Caller {
        holder: 1,
        ..CALLER
    };
    for (tail, granted, kept) in [
        (NOW, 0, true),
        (NOW, 1, true),
        (NOW.plus(MS), 0, true),
        (NOW.plus(MS), 1, false),
    ] {
        let mut turns = Turns {
            tail,
            ..present([waiting(0), waiting(0)])
        };
        let named = turns.end(NOW, caller, 0, left_of(1, granted), 0);
        let (expected, next) = if kept {
            (vec![1, 2], None)
        } else {
            (vec![2], Some(NOW.plus(2 * MS)))
        };
        assert_eq!((holders(&turns), named), (expected, next), "{granted}");
    }
}

#[test]
fn a_replica_that_waits_for_nothing_has_a_ticket_only_beside_a_few_others() {
    for (others, tail, comes) in [
        (0, NOW, false),
        (1, NOW, true),
        (1, NOW.plus(1), false),
        (MAX_TICKETS, NOW, false),
        (MAX_TICKETS, NOW.plus(1), false),
    ] {
        let mut turns = Turns {
            tail,
            ..present((0..others).map(|_| waiting(0)))
        };
        let mut expected = holders(&turns);
        expected.extend(comes.then_some(CALLER.holder));
        let named = turns.end(NOW, CALLER, 0, left_of(0, 1), 0);
        assert_eq!((holders(&turns), named), (expected, None), "{others}");
    }
}

#[test]
fn a_free_place_is_offered_although_a_rate_has_no_room() {
    let limits = limits("1 concurrent and 1/s", &[0, 1]);
    let mut turns = present([TurnTicket {
        costs: [1, 1].into(),
        ..waiting(0)
    }]);
    assert_eq!(turns.offer(NOW, &limits, 0).turns, [1]);
}
