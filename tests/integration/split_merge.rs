//! Permits that are split and merged: each part releases its units, none is lost, and none is released or refunded twice.

use std::time::Duration;

use crate::common::{limiter, ms, queued};
use proptest::prelude::*;
use proptest::sample::Index;
use tokio::time::{Instant, advance};
use tokio_test::{assert_ready_ok, task};
use tollgate::{
    Adapt, FixedWindow, KeyedLimiter, Limit, Limiter, MaxConcurrency, MergeErrorKind, Outcome,
    Permit, Policy, Rate, SlidingWindow, SplitError, Throttle, TokenBucket,
};

#[tokio::test]
async fn each_part_of_a_split_permit_releases_its_units_to_the_waiters() {
    let limiter = limiter(MaxConcurrency::new(5));
    let mut permit = limiter.try_acquire_many(5).unwrap();
    let part = permit.split(2).unwrap();
    assert_eq!((permit.id(), permit.fence()), (part.id(), part.fence()));
    let (mut two, mut three) = (
        queued(limiter.acquire_many(2)),
        task::spawn(limiter.acquire_many(3)),
    );
    tokio_test::assert_pending!(three.poll());
    drop(part);
    let two = assert_ready_ok!(two.poll());
    tokio_test::assert_pending!(three.poll());
    drop(permit);
    drop((two, assert_ready_ok!(three.poll())));
    assert_eq!(limiter.available(), 5);
}

#[test]
fn a_part_has_at_least_one_unit_and_leaves_one() {
    let limiter = limiter(MaxConcurrency::new(5));
    let mut permit = limiter.try_acquire_many(3).unwrap();
    for units in [0, 3, 4, u64::MAX] {
        assert_eq!(
            permit.split(units).unwrap_err(),
            SplitError::OutOfRange { units, cost: 3 }
        );
    }
    assert_eq!((permit.cost(), limiter.available()), (3, 2));
    let part = permit.split(2).unwrap();
    assert_eq!(
        permit.split(1).unwrap_err(),
        SplitError::OutOfRange { units: 1, cost: 1 }
    );
    part.forget();
    drop(permit);
    assert_eq!(
        limiter.available(),
        3,
        "a part that is forgotten is lost, and only it"
    );
}

#[tokio::test(start_paused = true)]
async fn permits_of_rates_of_a_ttl_and_of_named_units_are_not_split() {
    let of_rate = [
        Limit::from(Throttle::every(ms(1)).burst(5)),
        FixedWindow::new(5, ms(1)).into(),
        SlidingWindow::log(5, ms(1)).into(),
    ];
    let rates = of_rate
        .into_iter()
        .map(|limit| (Policy::from(limit), SplitError::NoPlace));
    let ttl = (MaxConcurrency::new(5).ttl(ms(1)).into(), SplitError::HasTtl);
    let units = [
        "5 concurrent per request",
        "9 tokens/min",
        "5 concurrent and 9 tokens/min",
    ];
    let units = units.map(|text| (text.parse().unwrap(), SplitError::CountsByUnit));
    for (policy, error) in rates.chain([ttl]).chain(units) {
        let limiter = limiter(policy.clone());
        let acquire = || {
            limiter
                .request()
                .cost(2)
                .cost_of("tokens", 2)
                .try_acquire()
                .unwrap()
        };
        let (mut permit, other) = (acquire(), acquire());
        assert_eq!(permit.split(1).unwrap_err(), error, "{policy}");
        let refused = permit.merge(other).unwrap_err();
        assert_eq!(
            (refused.kind, refused.permit.cost()),
            (MergeErrorKind::Indivisible(error), 2),
            "{policy}"
        );
        assert_eq!(permit.cost(), 2);
    }
}

#[test]
fn permits_of_other_limiters_and_of_other_keys_are_given_back() {
    let (one, other) = (
        limiter(MaxConcurrency::new(5)),
        limiter(MaxConcurrency::new(5)),
    );
    let mut permit = one.try_acquire().unwrap();
    let refused = permit
        .merge(other.try_acquire_many(2).unwrap())
        .unwrap_err();
    assert_eq!(
        (refused.kind, other.available()),
        (MergeErrorKind::OtherLimiter, 3)
    );
    drop(refused);
    assert_eq!((other.available(), permit.cost()), (5, 1));

    let keyed = KeyedLimiter::new(MaxConcurrency::new(5)).unwrap();
    let mut permit = keyed.try_acquire_many(&"a", 3).unwrap();
    let part = permit.split(2).unwrap();
    drop(permit);
    let mut same = keyed.try_acquire_many(&"a", 3).unwrap();
    assert_eq!(
        same.merge(keyed.try_acquire(&"b").unwrap())
            .unwrap_err()
            .kind,
        MergeErrorKind::OtherLimiter
    );
    same.merge(part).unwrap();
    assert_eq!((same.cost(), keyed.check(&"a", 1).remaining()), (5, 0));
    drop(same);
    assert_eq!(keyed.check(&"a", 1).remaining(), 5);
}

#[tokio::test(start_paused = true)]
async fn permits_of_two_grants_are_merged_only_where_their_time_does_not_matter() {
    let plain = limiter(MaxConcurrency::new(5));
    let with_rate = limiter(MaxConcurrency::new(5).and(Throttle::every(ms(1)).burst(5)));
    let adaptive = limiter(MaxConcurrency::new(5).adapt(Adapt::aimd().between(5, 9)));
    let timed = Limiter::builder(MaxConcurrency::new(5))
        .record_grant_time()
        .build()
        .unwrap();
    for (limiter, are_merged) in [
        (plain, true),
        (with_rate, false),
        (adaptive, false),
        (timed, false),
    ] {
        let (mut one, other) = (
            limiter.try_acquire_many(2).unwrap(),
            limiter.try_acquire().unwrap(),
        );
        let merged = one.merge(other).map_err(|error| error.kind);
        assert_eq!(
            merged,
            if are_merged {
                Ok(())
            } else {
                Err(MergeErrorKind::OtherGrant)
            }
        );
        assert_eq!(limiter.snapshot().in_flight, one.cost());
        let part = one.split(1).unwrap();
        one.merge(part).unwrap();
        assert_eq!(limiter.snapshot().in_flight, one.cost());
    }
}

#[test]
fn parts_outlive_a_change_of_what_the_policy_counts() {
    let limiter = limiter(MaxConcurrency::new(5));
    let mut permit = limiter.try_acquire_many(5).unwrap();
    limiter.set_policy("5 concurrent per request").unwrap();
    let part = permit.split(2).unwrap();
    drop(permit);
    assert_eq!(limiter.snapshot().in_flight, 2);
    limiter.set_policy(MaxConcurrency::new(9)).unwrap();
    drop(part);
    assert_eq!(limiter.snapshot().in_flight, 0);
}

#[derive(Debug, Clone)]
enum Step {
    Acquire(u64),
    Split(Index, u64),
    Merge(Index, Index),
    Drop(Index),
    /// Settles a permit at this number of units, or at its cost if that is less.
    Settle(Index, u64),
    Report(Index),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = any::<Index>;
    let step = prop_oneof![
        4 => (1_u64..7).prop_map(Step::Acquire),
        4 => (index(), 0_u64..5).prop_map(|(permit, units)| Step::Split(permit, units)),
        3 => (index(), index()).prop_map(|(one, other)| Step::Merge(one, other)),
        2 => index().prop_map(Step::Drop),
        3 => (index(), 0_u64..6).prop_map(|(permit, used)| Step::Settle(permit, used)),
        1 => index().prop_map(Step::Report),
        2 => (1_u64..40).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..60)
}

/// The most units that a rate admits in a span of this many milliseconds.
type MostIn = fn(millis: u64) -> u64;

/// Policies of at most seven places, each with the most units that its rate admits in a span. Policies without a rate have no bound.
fn policies() -> Vec<(Policy, MostIn)> {
    let places = MaxConcurrency::new(7);
    vec![
        (places.into(), |_| u64::MAX),
        (places.and(MaxConcurrency::new(9)), |_| u64::MAX),
        (
            MaxConcurrency::new(7)
                .adapt(Adapt::aimd().between(7, 7))
                .into(),
            |_| u64::MAX,
        ),
        (places.and(Throttle::every(ms(10)).burst(10)), |millis| {
            10 + millis / 10
        }),
        (
            places.and(TokenBucket::new(Rate::per_second(100), 10)),
            |millis| 10 + millis / 10,
        ),
        (places.and(SlidingWindow::log(10, ms(50))), |millis| {
            10 * (1 + millis / 50)
        }),
        (places.and(FixedWindow::new(10, ms(50))), |millis| {
            20 + 10 * (millis / 50)
        }),
    ]
}

/// A grant, and the number of its units that were not refunded.
struct Granted {
    at: Instant,
    fence: u64,
    kept: u64,
}

proptest! {
    #![proptest_config(crate::common::replay::cases(1_000))]

    /// For any splits, merges, releases and settlements in any order, the units in flight are those of the permits that are held,
    /// and the units that count never exceed what the rate admits in any span of time.
    #[test]
    fn split_and_merge_lose_no_unit_and_never_exceed_a_limit(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        for (policy, most) in policies() {
            runtime.block_on(run(&policy, most, &steps))?;
        }
    }
}

async fn run(policy: &Policy, most: MostIn, steps: &[Step]) -> Result<(), TestCaseError> {
    let limiter = limiter(policy.clone());
    let (mut held, mut granted) = (Vec::<Permit>::new(), Vec::<Granted>::new());
    for step in steps {
        match *step {
            Step::Acquire(cost) => {
                let free = 7 - limiter.snapshot().in_flight;
                if let Ok(permit) = limiter.try_acquire_many(cost) {
                    prop_assert!(cost <= free, "over the limit");
                    granted.push(Granted {
                        at: Instant::now(),
                        fence: permit.fence(),
                        kept: cost,
                    });
                    held.push(permit);
                }
            }
            Step::Pass(millis) => advance(Duration::from_millis(millis)).await,
            _ if held.is_empty() => {}
            Step::Split(permit, units) => {
                let permit = permit.get_mut(&mut held);
                let cost = permit.cost();
                match permit.split(units) {
                    Ok(part) => {
                        prop_assert_eq!((part.cost(), permit.cost()), (units, cost - units));
                        held.push(part);
                    }
                    Err(error) => prop_assert_eq!(error, SplitError::OutOfRange { units, cost }),
                }
            }
            Step::Merge(one, other) => {
                let other = held.swap_remove(other.index(held.len()));
                if held.is_empty() {
                    held.push(other);
                    continue;
                }
                let (one, cost) = (one.get_mut(&mut held), other.cost());
                let before = one.cost();
                match one.merge(other) {
                    Ok(()) => prop_assert_eq!(one.cost(), before + cost),
                    Err(error) => {
                        prop_assert_eq!(
                            (error.kind, one.cost(), error.permit.cost()),
                            (MergeErrorKind::OtherGrant, before, cost)
                        );
                        prop_assert!(one.fence() != error.permit.fence());
                        held.push(error.permit);
                    }
                }
            }
            Step::Drop(permit) => drop(held.swap_remove(permit.index(held.len()))),
            Step::Report(permit) => prop_assert!(
                held.swap_remove(permit.index(held.len()))
                    .report(Outcome::Ok)
            ),
            Step::Settle(permit, used) => {
                let permit = held.swap_remove(permit.index(held.len()));
                let (unused, fence) = (permit.cost().saturating_sub(used), permit.fence());
                prop_assert!(permit.settle(used.min(7)) || unused == 0);
                // Several grants of plain places may be merged; no rate counts them.
                if let Some(grant) = granted.iter_mut().find(|grant| grant.fence == fence) {
                    grant.kept = grant.kept.saturating_sub(unused);
                }
            }
        }
        prop_assert_eq!(
            limiter.snapshot().in_flight,
            held.iter().map(Permit::cost).sum::<u64>()
        );
        for (from, first) in granted.iter().enumerate() {
            let mut sum = 0;
            for last in &granted[from..] {
                sum += last.kept;
                let millis = (last.at - first.at).as_millis() as u64;
                prop_assert!(sum <= most(millis), "{sum} in {millis} ms under {policy}");
            }
        }
    }
    drop(held);
    prop_assert_eq!(limiter.snapshot().in_flight, 0);
    Ok(())
}
