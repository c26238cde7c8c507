//! Decisions for a request that does not wait while others do.

use proptest::prelude::*;

use super::*;
use crate::core::suspension::PauseScope;
use crate::policy::Limit;
use crate::rate::Rate;
use crate::strategy::{Align, Penalty, TokenBucket};

#[derive(Debug, Clone)]
enum Step {
    TryAcquire {
        cost: u64,
    },
    Request {
        cost: u64,
        priority: u8,
        timeout: Option<u64>,
    },
    Pause(u64),
    Spread {
        units: u64,
        nanos: u64,
    },
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1_u64..7).prop_map(|cost| Step::TryAcquire { cost }),
        6 => (1_u64..7, 0_u8..3, prop::option::weighted(0.2, 0_u64..120))
            .prop_map(|(cost, priority, timeout)| Step::Request { cost, priority, timeout }),
        1 => (0_u64..90).prop_map(Step::Pause),
        1 => (0_u64..9, 0_u64..200).prop_map(|(units, nanos)| Step::Spread { units, nanos }),
        3 => (0_u64..60).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..40)
}

fn policies() -> impl Strategy<Value = Policy> {
    let limit = prop_oneof![
        (1_u64..50, 1_u64..7).prop_map(|(interval, burst)| Limit::from(
            Throttle::every(nanos(interval)).burst(burst)
        )),
        (
            1_u64..7,
            1_u64..80,
            prop_oneof![
                Just(Align::Creation),
                Just(Align::FirstGrant),
                Just(Align::WallClock)
            ]
        )
            .prop_map(|(limit, period, align)| Limit::from(
                FixedWindow::new(limit, nanos(period)).align(align)
            )),
        (1_u64..6, 1_u64..80, 1_u64..7).prop_map(|(units, period, burst)| {
            Limit::from(TokenBucket::new(Rate::new(units, nanos(period)), burst))
        }),
        (1_u64..7, 1_u64..80)
            .prop_map(|(limit, period)| Limit::from(SlidingWindow::log(limit, nanos(period)))),
        (1_u64..7, 1_u64..80)
            .prop_map(|(limit, period)| Limit::from(SlidingWindow::counter(limit, nanos(period)))),
        (1_u64..7, 1_u64..4, 1_u64..80).prop_map(|(threshold, units, period)| Limit::from(
            Penalty::new(threshold, Rate::new(units, nanos(period)))
        )),
        (3_u64..12, prop::option::of(1_u64..90)).prop_map(|(limit, ttl)| {
            let concurrency = MaxConcurrency::new(limit);
            Limit::from(ttl.map_or(concurrency, |ttl| concurrency.ttl(nanos(ttl))))
        }),
    ];
    prop::collection::vec(limit, 1..4).prop_map(|limits| {
        limits
            .into_iter()
            .map(Policy::from)
            .reduce(Policy::and)
            .unwrap()
    })
}

/// A schedule after these steps, and when.
fn after(policy: &Policy, steps: &[Step]) -> (Driven, u64) {
    let mut driven = Driven::with(
        policy.clone(),
        Options {
            spread_below: 10,
            ..Options::default()
        },
    );
    let mut now = 0;
    for step in steps {
        match *step {
            Step::TryAcquire { cost } => drop(driven.try_acquire(now, cost)),
            Step::Request {
                cost,
                priority,
                timeout,
            } => {
                let priority = Priority::new(priority).unwrap();
                drop(driven.request(
                    now,
                    Request {
                        priority,
                        ..request(cost, timeout.map(|timeout| now + timeout))
                    },
                ));
            }
            Step::Pause(nanos) => {
                driven.at(now, |schedule, now, effects| {
                    schedule.pause(now, PauseScope::Limiter, now.plus(nanos), effects);
                });
            }
            Step::Spread { units, nanos } => {
                driven.at(now, |schedule, now, effects| {
                    schedule.spread(now, units, now.plus(nanos), effects);
                });
            }
            Step::Pass(nanos) => {
                now += nanos;
                driven.advance(now);
            }
        }
    }
    (driven, now)
}

proptest! {
    #![proptest_config(crate::replay::cases(6_000))]

    /// Invariant 7: denied one nanosecond before, granted at it if no other request comes; whatever waits.
    #[test]
    fn a_retry_after_is_exact_however_many_wait(policy in policies(), steps in steps(), cost in 1_u64..7) {
        let (driven, now) = after(&policy, &steps);
        let decision = driven.0.outlook().check(at(now), Costs::plain(cost));
        let waiting = driven.0.waiters.queue.len();
        if waiting > 0 {
            prop_assert!(!decision.is_allowed());
            prop_assert_eq!(decision.remaining(), 0);
        }
        let Some(retry_after) = decision.retry_after() else { return Ok(()) };
        let retry = now + retry_after.as_nanos() as u64;
        for (at, granted) in [(retry - 1, false), (retry, true)] {
            let (mut driven, _) = after(&policy, &steps);
            driven.advance(at);
            prop_assert_eq!(driven.try_acquire(at, cost).is_ok(), granted, "{} of {}, {} waiting", at, retry, waiting);
        }
    }
}

/// With many waiters, it is a lower bound.
#[test]
fn behind_a_long_queue_it_is_a_lower_bound() {
    let mut driven = Driven::new(FixedWindow::new(3, nanos(100)));
    driven.try_acquire(0, 3).unwrap();
    for _ in 0..64 {
        driven.queued(0, 2, None);
    }
    assert_eq!(driven.retry_after(0, 2), Some(6_500), "one a window");
    driven.queued(0, 2, None);
    let bound = driven.retry_after(0, 2).unwrap();
    assert!((4_400..6_600).contains(&bound), "{bound}");
}

#[test]
fn a_release_that_a_request_waits_for_is_not_foreseen() {
    let mut driven =
        Driven::new(Policy::from(MaxConcurrency::new(2)).and(FixedWindow::new(3, nanos(100))));
    driven.try_acquire(0, 1).unwrap();
    driven.queued(0, 2, Some(50));
    assert_eq!(
        driven.retry_after(0, 1),
        None,
        "it may be granted before its deadline"
    );
}

/// A fixed bug: the units that the forecast had granted overflowed.
#[test]
fn the_forecast_of_a_log_counts_beyond_the_largest_number() {
    let mut driven = Driven::new(SlidingWindow::log(u64::MAX, nanos(100)));
    driven.try_acquire(0, u64::MAX).unwrap();
    driven.queued(0, u64::MAX, None);
    driven.queued(0, 1 << 63, None);
    assert_eq!(
        driven.retry_after(0, 1),
        Some(200),
        "beside the second waiter"
    );
    assert_eq!(
        driven.retry_after(0, 1 << 63),
        Some(300),
        "a period after the second waiter"
    );
    driven.advance(299);
    assert!(driven.try_acquire(299, 1 << 63).is_err());
    assert!(driven.try_acquire(300, 1 << 63).is_ok());
}
