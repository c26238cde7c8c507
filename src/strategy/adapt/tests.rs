use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// A server in virtual time: `workers` in parallel, a queue before them, and refusal after 1 ms when it holds thrice as many as it
/// can work on. Its callers come back at once: as many as the limit lets, `callers` at most.
struct Server {
    adapt: Adapt,
    state: AdaptState,
    base: u64,
    /// Exponential service times in place of constant ones.
    jitter: bool,
    refuses: bool,
    callers: u64,
    free_at: Vec<u64>,
    /// (back at, granted at, refused)
    out: BinaryHeap<Reverse<(u64, u64, bool)>>,
    now: u64,
    random: u64,
}

/// What a run saw.
#[derive(Debug)]
struct Seen {
    /// The least and the greatest limit found. What is offered dips below for the looks.
    low: f64,
    high: f64,
    /// Done of what the server could have done.
    throughput: f64,
}

impl Server {
    fn new(adapt: Adapt, initial: u64, workers: usize) -> Self {
        Self {
            adapt,
            state: adapt.initial(initial),
            base: 10 * MS,
            jitter: false,
            refuses: true,
            callers: u64::MAX,
            free_at: vec![0; workers],
            out: BinaryHeap::new(),
            now: 0,
            random: 0x9E37_79B9_7F4A_7C15,
        }
    }

    fn service(&mut self) -> u64 {
        if !self.jitter {
            return self.base;
        }
        // xorshift64 (Marsaglia 2003)
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let unit = ((self.random >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        (self.base as f64 * -unit.ln()) as u64
    }

    fn enter(&mut self) {
        let full = 3 * self.free_at.len();
        let holds = || self.out.iter().filter(|Reverse((_, _, refused))| !refused).count();
        if self.refuses && self.out.len() >= full && holds() >= full {
            self.out.push(Reverse((self.now + MS, self.now, true)));
            return;
        }
        let service = self.service();
        let worker = self.free_at.iter_mut().min().expect("a worker");
        *worker = self.now.max(*worker) + service;
        self.out.push(Reverse((*worker, self.now, false)));
    }

    fn run(&mut self, span: u64) -> Seen {
        let (start, until) = (self.now, self.now + span);
        let (mut seen, mut done) = (Seen { low: self.state.found, high: self.state.found, throughput: 0.0 }, 0_u64);
        loop {
            while (self.out.len() as u64) < Adapt::limit(&self.state).min(self.callers) {
                self.enter();
            }
            match self.out.peek() {
                Some(&Reverse((at, ..))) if at <= until => self.now = at,
                _ => break,
            }
            let in_flight = self.out.len() as u64;
            let Some(Reverse((at, from, refused))) = self.out.pop() else { break };
            let outcome = if refused { Outcome::Overloaded } else { Outcome::Ok };
            done += u64::from(!refused);
            self.state = self.adapt.update(self.state, Sample { rtt_nanos: Some(at - from), in_flight, outcome });
            seen.low = seen.low.min(self.state.found);
            seen.high = seen.high.max(self.state.found);
        }
        self.now = until;
        seen.throughput = done as f64 * self.base as f64 / (self.now - start) as f64 / self.free_at.len() as f64;
        seen
    }

    fn workers(&mut self, workers: usize) {
        self.free_at.sort_unstable();
        self.free_at.resize(workers, self.now);
    }
}

#[track_caller]
fn within(seen: &Seen, low: f64, high: f64) {
    assert!(low <= seen.low && seen.high <= high, "{seen:?} is not within {low}..={high}");
}

fn aimd() -> Adapt {
    Adapt::aimd().timeout(Duration::from_millis(12))
}

#[test]
fn gradient_finds_the_knee_from_both_sides_and_stays() {
    for initial in [4, 50, 200] {
        for refuses in [true, false] {
            let mut server = Server { refuses, ..Server::new(Adapt::gradient().between(1, 200), initial, 50) };
            server.run(5 * SECOND);
            let seen = server.run(60 * SECOND);
            within(&seen, 80.0, 95.0); // settles at 1.5 × 50 + √limit = 84
            assert!(seen.throughput > 0.96, "{seen:?}");
        }
    }
}

#[test]
fn gradient_finds_small_and_large_knees_and_a_lower_tolerance_stays_closer() {
    for (tolerance, workers, low, high) in
        [(1_500, 1, 1.0, 5.0), (1_500, 2, 2.0, 7.0), (1_500, 5, 5.0, 12.0), (1_500, 400, 400.0, 700.0), (1_100, 50, 50.0, 70.0)]
    {
        let mut server = Server::new(Adapt::gradient().tolerance(tolerance), 10, workers);
        server.run(10 * SECOND);
        within(&server.run(20 * SECOND), low, high);
    }
}

#[test]
fn gradient_bears_service_times_that_vary_as_much_as_their_mean() {
    for initial in [4, 200] {
        let mut server = Server { jitter: true, ..Server::new(Adapt::gradient().between(1, 200), initial, 50) };
        server.run(10 * SECOND);
        let seen = server.run(60 * SECOND);
        within(&seen, 50.0, 130.0);
        assert!(seen.throughput > 0.9, "{seen:?}");
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

#[test]
fn many_refused_at_once_are_one_overload() {
    for adapt in [Adapt::aimd(), Adapt::gradient()] {
        let mut state = adapt.initial(100);
        for left in (1..=100).rev() {
            state = adapt.update(state, Sample { rtt_nanos: Some(MS), in_flight: left, outcome: Outcome::Overloaded });
        }
        assert_eq!(Adapt::limit(&state), 90);
        state = adapt.update(state, Sample { rtt_nanos: Some(MS), in_flight: 90, outcome: Outcome::Overloaded });
        assert_eq!(Adapt::limit(&state), 81);
    }
}

#[test]
fn the_limit_follows_a_server_that_loses_half_its_workers_and_gets_them_back() {
    for (adapt, whole, half) in [(Adapt::gradient(), (50.0, 95.0), (25.0, 52.0)), (aimd(), (45.0, 55.0), (21.0, 29.0))] {
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
        let mut server = Server { callers: 9, ..Server::new(adapt, 20, 50) };
        within(&server.run(10 * SECOND), 20.0, 20.0);
        server.callers = u64::MAX;
        assert!(server.run(10 * SECOND).high > 45.0, "and rises when it is used");
    }
}

#[test]
fn what_is_ignored_changes_nothing() {
    for adapt in [Adapt::gradient(), aimd()] {
        let mut server = Server::new(adapt, 20, 50);
        for _ in 0..100 {
            server.run(37 * MS);
            for rtt_nanos in [0, 20 * MS, u64::MAX] {
                let sample = Sample { rtt_nanos: Some(rtt_nanos), in_flight: 20, outcome: Outcome::Ignored };
                assert_eq!(adapt.update(server.state, sample), server.state);
            }
        }
    }
}

#[test]
fn the_defaults_are_valid_and_a_number_out_of_range_is_not() {
    assert!(Adapt::aimd().is_valid() && Adapt::gradient().is_valid());
    for bad in [
        Adapt::aimd().between(0, 1),
        Adapt::aimd().between(2, 1),
        Adapt::aimd().backoff(0),
        Adapt::aimd().backoff(1_000),
        Adapt::gradient().tolerance(999),
        Adapt::gradient().smoothing(0),
    ] {
        assert!(!bad.is_valid(), "{bad:?}");
    }
}

fn any_number() -> impl Strategy<Value = u64> {
    prop_oneof![0..4_u64, 0..300_u64, 0..u64::MAX, Just(u64::MAX)]
}

fn any_adapt() -> impl Strategy<Value = Adapt> {
    let rule = prop_oneof![
        Just(Adapt::aimd()),
        (any::<u32>(), any::<u32>()).prop_map(|(t, s)| Adapt::gradient().tolerance(t).smoothing(s)),
        (1_000..3_000_u32, 1..=1_000_u32).prop_map(|(t, s)| Adapt::gradient().tolerance(t).smoothing(s)),
    ];
    (rule, any_number(), any_number(), prop_oneof![any::<u32>(), 1..1_000_u32], any_number()).prop_map(
        |(adapt, floor, ceiling, backoff, timeout)| {
            adapt.between(floor, ceiling).backoff(backoff).timeout(Duration::from_nanos(timeout))
        },
    )
}

fn any_sample() -> impl Strategy<Value = Sample> {
    let outcome = prop_oneof![8 => Just(Outcome::Ok), 1 => Just(Outcome::Overloaded), 1 => Just(Outcome::Ignored)];
    (prop::option::of(any_number()), any_number(), outcome).prop_map(|(rtt_nanos, in_flight, outcome)| Sample {
        rtt_nanos,
        in_flight,
        outcome,
    })
}

proptest! {
    #[test]
    fn no_parameters_and_no_reports_lead_out_of_the_bounds(
        adapt in any_adapt(),
        initial in any_number(),
        samples in prop::collection::vec(any_sample(), 0..600),
    ) {
        let floor = adapt.floor.max(1);
        let bounds = floor..=adapt.ceiling.max(floor);
        let mut state = adapt.initial(initial);
        prop_assert!(bounds.contains(&Adapt::limit(&state)));
        for sample in samples {
            // Nothing out: every report counts, not only those after the last change.
            state = adapt.update(AdaptState { settle: 0, ..state }, sample);
            prop_assert!(bounds.contains(&Adapt::limit(&state)));
            prop_assert!(state.found.is_finite() && state.found >= 1.0);
            prop_assert!(state.baseline.is_none_or(|baseline| baseline.is_finite() && baseline >= 1.0));
            prop_assert!(state.round.rtt_sum.is_finite());
        }
    }
}
