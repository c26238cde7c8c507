//! Tests of the rules by which a limit adapts.

mod server;

use proptest::prelude::*;

use self::server::{Seen, Server};
use super::*;
use crate::strategy::Moment;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

#[track_caller]
fn within(seen: &Seen, low: f64, high: f64) {
    assert!(
        low <= seen.low && seen.high <= high,
        "{seen:?} is not within {low}..={high}"
    );
}

fn aimd() -> Adapt {
    Adapt::aimd().timeout(Duration::from_millis(12))
}

#[test]
fn gradient_finds_the_knee_from_both_sides_and_stays() {
    for initial in [4, 50, 200] {
        for refuses in [true, false] {
            let mut server = Server {
                refuses,
                ..Server::new(Adapt::gradient().between(1, 200), initial, 50)
            };
            server.run(5 * SECOND);
            let seen = server.run(60 * SECOND);
            within(&seen, 80.0, 95.0); // settles at 1.5 × 50 + √limit = 84
            assert!(seen.throughput > 0.96, "{seen:?}");
        }
    }
}

#[test]
fn gradient_finds_small_and_large_knees_and_a_lower_tolerance_stays_closer() {
    for (tolerance, workers, low, high) in [
        (1_500, 1, 1.0, 5.0),
        (1_500, 2, 2.0, 7.0),
        (1_500, 5, 5.0, 12.0),
        (1_500, 400, 400.0, 700.0),
        (1_100, 50, 50.0, 70.0),
    ] {
        let mut server = Server::new(Adapt::gradient().tolerance(tolerance), 10, workers);
        server.run(10 * SECOND);
        within(&server.run(20 * SECOND), low, high);
    }
}

#[test]
fn gradient_bears_service_times_that_vary_as_much_as_their_mean() {
    for initial in [4, 200] {
        let mut server = Server {
            jitter: true,
            ..Server::new(Adapt::gradient().between(1, 200), initial, 50)
        };
        server.run(10 * SECOND);
        let seen = server.run(60 * SECOND);
        within(&seen, 50.0, 130.0);
        assert!(seen.throughput > 0.9, "{seen:?}");
    }
}

/// A fixed bug: one stuck call during a probe raised the baseline so far that the limit rose to where the server refuses.
#[test]
fn gradient_bears_calls_that_take_an_hour() {
    for stuck in [97, 1_003] {
        let mut server = Server {
            stuck,
            ..Server::new(Adapt::gradient().between(1, 200), 20, 50)
        };
        server.run(10 * SECOND);
        let seen = server.run(60 * SECOND);
        within(&seen, 75.0, 100.0);
        assert!(seen.throughput > 0.95, "{seen:?}");
    }
}

#[test]
fn aimd_swings_below_the_limit_at_which_its_timeout_passes() {
    for initial in [4, 200] {
        let mut server = Server::new(aimd().between(1, 200), initial, 50);
        server.run(5 * SECOND);
        let seen = server.run(60 * SECOND);
        within(&seen, 45.0, 55.0); // the 51st waits for up to 10 ms
        assert!(seen.throughput > 0.96, "{seen:?}");
    }
}

#[test]
fn aimd_swings_below_the_limit_at_which_the_server_refuses() {
    for initial in [4, 200] {
        let mut server = Server::new(Adapt::aimd().between(1, 1_000), initial, 50);
        server.run(10 * SECOND);
        within(&server.run(60 * SECOND), 120.0, 152.0); // refuses the 151st
    }
}

/// A report of the permit with this fence, when as many were granted as `latest_fence` says.
fn sample(outcome: Outcome, fence: u64, latest_fence: u64) -> Sample {
    Sample {
        outcome,
        rtt_nanos: Some(MS),
        cost: 1,
        in_flight: latest_fence - fence + 1,
        fence,
        latest_fence,
    }
}

#[test]
fn many_refused_at_once_are_one_overload() {
    for adapt in [Adapt::aimd(), Adapt::gradient()] {
        for cost in [1, 10] {
            let mut state = adapt.initial(100);
            for fence in 1..=100 / cost {
                let refused = Sample {
                    cost,
                    ..sample(Outcome::Overloaded, fence, 100 / cost)
                };
                state = adapt.update(state, Moment::START, refused);
            }
            assert_eq!(state.limit(), 90);
            state = adapt.update(state, Moment::START, sample(Outcome::Overloaded, 101, 101));
            assert_eq!(state.limit(), 81);
        }
    }
}

/// A fixed bug: a number of reports was skipped after a cut. Where some permits reported nothing, later reports were skipped.
#[test]
fn permits_that_are_dropped_do_not_delay_what_later_ones_report() {
    for outcome in [None, Some(Outcome::Ignored)] {
        let adapt = Adapt::aimd();
        let mut state = adapt.update(
            adapt.initial(100),
            Moment::START,
            sample(Outcome::Overloaded, 1, 100),
        );
        for fence in 2..=100 {
            state = outcome.map_or(state, |outcome| {
                adapt.update(state, Moment::START, sample(outcome, fence, 100))
            });
        }
        state = adapt.update(state, Moment::START, sample(Outcome::Overloaded, 101, 190));
        assert_eq!(state.limit(), 81, "{outcome:?}");
    }
}

/// A fixed bug: a round counted reports, while the limit counts units. It is one round trip, whatever a call costs.
#[test]
fn a_round_counts_units() {
    for cost in [1, 5] {
        let mut server = Server {
            cost,
            ..Server::new(aimd().between(5, 1_000), 10 * cost, 50)
        };
        let risen = server.run(20 * server.base).high - (10 * cost) as f64;
        assert!(
            (18.0..=20.0).contains(&risen),
            "one more in each round: {risen} with a cost of {cost}"
        );
    }
    let mut server = Server {
        cost: 5,
        ..Server::new(Adapt::gradient().between(5, 1_000), 20, 50)
    };
    server.run(10 * SECOND);
    within(&server.run(20 * SECOND), 375.0, 420.0); // settles at 1.5 × 250 + √limit
}

/// The state after the next permit reports that it took this long.
fn done(adapt: &Adapt, state: AdaptState, in_flight: u64, rtt_nanos: u64) -> AdaptState {
    let fence = state.skip + 1;
    let sample = Sample {
        rtt_nanos: Some(rtt_nanos),
        in_flight,
        ..sample(Outcome::Ok, fence, fence)
    };
    adapt.update(state, Moment::START, sample)
}

#[test]
fn a_round_has_as_many_units_as_the_limit_and_ten_reports() {
    let adapt = Adapt::gradient();
    for (limit, reports) in [(4, 10), (10, 10), (11, 11)] {
        let mut state = adapt.initial(limit);
        for report in 1..=reports {
            assert_eq!((state.round.reports, state.rounds), (report - 1, 0));
            state = done(&adapt, state, limit, MS);
        }
        assert_eq!((state.round, state.rounds), (Round::default(), 1));
    }
}

/// A round with less than half of the limit in use raises nothing, and is as good as a probe.
#[test]
fn half_of_the_limit_is_in_use() {
    let (gradient, aimd) = (Adapt::gradient(), Adapt::aimd());
    let new = gradient.initial(10);
    let round =
        |state, in_flight| (0..10).fold(state, |state, _| done(&gradient, state, in_flight, MS));
    for (in_flight, rises) in [(4, false), (5, true)] {
        assert_eq!(done(&aimd, new, in_flight, MS).estimate > 10.0, rises);
        assert_eq!(round(new, in_flight).estimate > 10.0, rises);
        assert_eq!(
            round(round(new, 10), in_flight).rounds,
            if rises { 2 } else { 0 }
        );
    }
}

#[test]
fn an_overload_ends_a_probe_and_begins_a_round() {
    let adapt = Adapt::gradient();
    let mut state = adapt.initial(20);
    while !state.probing {
        state = done(&adapt, state, state.limit, MS);
    }
    while state.round.reports < 2 {
        let estimate = state.estimate * 900.0 / 1e3;
        let cut = AdaptState {
            estimate,
            limit: estimate as u64,
            skip: state.skip + 9,
            settling: 0,
            probing: false,
            rounds: 0,
            round: Round::default(),
            ..state
        };
        let refused = sample(Outcome::Overloaded, state.skip + 1, state.skip + 9);
        assert_eq!(adapt.update(state, Moment::START, refused), cut);
        state = done(&adapt, state, state.limit, MS);
    }
}

#[test]
fn an_overload_takes_one_at_least() {
    let mut state = Adapt::aimd().initial(5);
    for fence in 1..=5 {
        state = Adapt::aimd().update(
            state,
            Moment::START,
            sample(Outcome::Overloaded, fence, fence),
        );
        assert_eq!(state.limit(), 5_u64.saturating_sub(fence).max(1));
    }
}

#[test]
fn a_round_trip_as_long_as_the_timeout_is_in_time() {
    let timeout = 12 * MS;
    let new = aimd().initial(10);
    assert!(done(&aimd(), new, 10, timeout).estimate > 10.0);
    assert_eq!(done(&aimd(), new, 10, timeout + 1).limit(), 9);
}

#[test]
fn a_round_trip_that_is_not_known_counts_with_an_overload_only() {
    for adapt in [Adapt::gradient(), aimd()] {
        let unknown = |outcome| Sample {
            rtt_nanos: None,
            ..sample(outcome, 1, 20)
        };
        let state = adapt.initial(20);
        assert_eq!(
            adapt.update(state, Moment::START, unknown(Outcome::Ok)),
            state
        );
        assert_eq!(
            adapt
                .update(state, Moment::START, unknown(Outcome::Overloaded))
                .limit(),
            18
        );
    }
}

#[test]
fn bounds_that_meet_hold_the_limit_and_work_that_takes_no_time_raises_it_to_the_ceiling() {
    for adapt in [Adapt::gradient(), aimd()] {
        let mut server = Server::new(adapt.between(20, 20), 20, 5);
        within(&server.run(20 * SECOND), 20.0, 20.0);
        let adapt = adapt.between(1, 200);
        let mut state = adapt.initial(20);
        for fence in 1..40_000 {
            let at_once = Sample {
                rtt_nanos: Some(0),
                in_flight: state.limit(),
                ..sample(Outcome::Ok, fence, fence)
            };
            state = adapt.update(state, Moment::START, at_once);
        }
        assert_eq!(state.estimate, 200.0);
    }
}

/// Reset: after ten minutes without a report, or when no report has changed anything.
#[test]
fn an_idle_limit_starts_again_ten_minutes_after_its_last_report() {
    const TEN_MINUTES: u64 = 600 * SECOND;
    let at = Moment::from_nanos;
    for adapt in [Adapt::gradient(), aimd()] {
        let new = adapt.initial(20);
        assert_eq!(adapt.reset_at(&new, at(7)), at(7));
        let unused = if adapt.rule == AdaptRule::Aimd {
            Outcome::Ok
        } else {
            Outcome::Ignored
        };
        assert_eq!(adapt.update(new, at(7), sample(unused, 1, 1)), new);

        let first = adapt.update(new, at(1), sample(Outcome::Overloaded, 1, 1));
        let last = adapt.update(first, at(5), sample(Outcome::Ok, 2, 2));
        assert_eq!(
            adapt.update(last, at(9), sample(Outcome::Ignored, 3, 3)),
            last
        );
        assert_eq!(adapt.reset_at(&last, at(9)), at(5 + TEN_MINUTES));
        assert_eq!(adapt.while_idle(last, at(4 + TEN_MINUTES)), last);
        assert_eq!(adapt.while_idle(last, at(5 + TEN_MINUTES)), new);
        assert_eq!(adapt.while_idle(last, Moment::NEVER), new);
    }
}

#[test]
fn the_limit_follows_a_server_that_loses_half_its_workers_and_gets_them_back() {
    for (adapt, whole, half) in [
        (Adapt::gradient(), (50.0, 95.0), (25.0, 52.0)),
        (aimd(), (45.0, 55.0), (21.0, 29.0)),
    ] {
        let mut server = Server::new(adapt, 20, 50);
        for (workers, (low, high)) in [(50, whole), (25, half), (50, whole)] {
            server.workers(workers);
            server.run(3 * SECOND);
            within(&server.run(20 * SECOND), low, high);
        }
    }
}

#[test]
fn gradient_learns_that_the_work_itself_became_slower() {
    let mut server = Server::new(Adapt::gradient(), 20, 50);
    for base in [10, 40, 10] {
        server.base = base * MS;
        server.run(30 * SECOND);
        within(&server.run(20 * SECOND), 50.0, 95.0);
    }
}

#[test]
fn a_limit_that_is_not_used_does_not_rise() {
    for adapt in [Adapt::gradient(), aimd()] {
        let mut server = Server {
            callers: 9,
            ..Server::new(adapt, 20, 50)
        };
        within(&server.run(10 * SECOND), 20.0, 20.0);
        server.callers = u64::MAX;
        assert!(
            server.run(10 * SECOND).high > 45.0,
            "and rises when it is used"
        );
    }
}

#[test]
fn an_ignored_outcome_changes_nothing() {
    for adapt in [Adapt::gradient(), aimd()] {
        let mut server = Server::new(adapt, 20, 50);
        for _ in 0..100 {
            server.run(37 * MS);
            for rtt_nanos in [0, 20 * MS, u64::MAX] {
                let ignored = Sample {
                    rtt_nanos: Some(rtt_nanos),
                    ..sample(Outcome::Ignored, u64::MAX, u64::MAX)
                };
                assert_eq!(
                    adapt.update(server.state, Moment::NEVER, ignored),
                    server.state
                );
            }
        }
    }
}

#[test]
fn the_defaults_are_valid_and_a_number_out_of_range_is_not() {
    assert!(Adapt::aimd().check().is_ok() && Adapt::gradient().check().is_ok());
    for bad in [
        Adapt::aimd().between(0, 1),
        Adapt::aimd().between(2, 1),
        Adapt::aimd().backoff(0),
        Adapt::aimd().backoff(1_000),
        Adapt::gradient().tolerance(999),
        Adapt::gradient().smoothing(0),
    ] {
        assert!(bad.check().is_err(), "{bad:?}");
    }
}

fn any_number() -> impl Strategy<Value = u64> {
    prop_oneof![0..4_u64, 0..300_u64, 0..u64::MAX, Just(u64::MAX)]
}

fn any_adapt() -> impl Strategy<Value = Adapt> {
    let rule = prop_oneof![
        Just(Adapt::aimd()),
        (any::<u32>(), any::<u32>()).prop_map(|(t, s)| Adapt::gradient().tolerance(t).smoothing(s)),
        (1_000..3_000_u32, 1..=1_000_u32)
            .prop_map(|(t, s)| Adapt::gradient().tolerance(t).smoothing(s)),
    ];
    (
        rule,
        any_number(),
        any_number(),
        prop_oneof![any::<u32>(), 1..1_000_u32],
        any_number(),
    )
        .prop_map(|(adapt, floor, ceiling, backoff, timeout)| {
            adapt
                .between(floor, ceiling)
                .backoff(backoff)
                .timeout(Duration::from_nanos(timeout))
        })
}

fn any_sample() -> impl Strategy<Value = Sample> {
    let outcome = prop_oneof![8 => Just(Outcome::Ok), 1 => Just(Outcome::Overloaded), 1 => Just(Outcome::Ignored)];
    let fences = prop_oneof![8 => Just((1, 0)), 1 => (any_number(), any_number())]; // the first counts after any other
    (
        outcome,
        prop::option::of(any_number()),
        any_number(),
        any_number(),
        fences,
    )
        .prop_map(
            |(outcome, rtt_nanos, cost, in_flight, (fence, latest_fence))| Sample {
                outcome,
                rtt_nanos,
                cost,
                in_flight,
                fence,
                latest_fence,
            },
        )
}

proptest! {
    #![proptest_config(crate::replay::cases(256))]

    #[test]
    fn no_parameters_and_no_reports_lead_out_of_the_bounds(
        adapt in any_adapt(),
        initial in any_number(),
        samples in prop::collection::vec((any_sample(), any_number()), 0..200),
    ) {
        let floor = adapt.floor.max(1);
        let bounds = floor..=adapt.ceiling.max(floor);
        let (new, mut now) = (adapt.initial(initial), Moment::START);
        let mut state = new;
        prop_assert!(bounds.contains(&state.limit()));
        for (sample, pause) in samples {
            now = now.plus(pause);
            state = adapt.update(state, now, sample);
            prop_assert!(bounds.contains(&state.limit()));
            prop_assert!(state.estimate.is_finite() && state.estimate >= 1.0);
            prop_assert!(state.baseline.is_none_or(|baseline| baseline.is_finite() && baseline >= 1.0));
            prop_assert!(state.round.rtt_sum.is_finite());

            let reset_at = adapt.reset_at(&state, now);
            prop_assert!(adapt.while_idle(state, reset_at) == new);
            if state != new {
                prop_assert!(adapt.while_idle(state, reset_at.minus(1)) == state);
            }
        }
    }
}
