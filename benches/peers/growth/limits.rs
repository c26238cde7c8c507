//! Limits: up to eight throttles in one policy.

use std::hint::black_box;
use std::time::Duration;

use tollgate::{Limiter, Policy, Throttle};

use crate::curve::{Chart, Curve, Points};
use crate::timing::{median, nanos_each};

const SIZES: [usize; 4] = [1, 2, 4, 8];
const BATCH: u32 = 50_000;
const BATCHES: usize = 101;
const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) fn chart() -> Chart {
    let granted = costs(ample, |limiter| assert!(limiter.try_acquire().is_ok()));
    let denied = costs(
        |_| Throttle::every(HOUR),
        |limiter| {
            black_box(
                limiter
                    .try_acquire()
                    .expect_err("the last limit is used up"),
            );
        },
    );
    Chart {
        title: "limits of one policy",
        promise: "The target: two limits take 1.15 times one under the lock, three 1.3 times.",
        unit: "ns",
        curves: vec![
            Curve::new("try_acquire, granted", granted),
            Curve::new("try_acquire, denied by the last limit", denied),
        ],
        bytes: Vec::new(),
    }
}

/// Policies of throttles that admit every request of a run, but for the last one.
fn costs(last: fn(u32) -> Throttle, operation: fn(&Limiter)) -> Points {
    let cost = |size: usize| {
        let last = last(size as u32);
        let policy = (1..size as u32)
            .rev()
            .fold(Policy::from(last), |policy, number| {
                Policy::from(ample(number)).and(policy)
            });
        let limiter = Limiter::new(policy).expect("a sound policy");
        let _ = limiter.try_acquire(); // uses up the last limit where it has one unit
        let batches = (0..BATCHES).map(|_| nanos_each(BATCH, || operation(&limiter)));
        (size, median(batches.collect()))
    };
    SIZES.map(cost).into()
}

/// No two throttles of a policy are equal.
fn ample(number: u32) -> Throttle {
    Throttle::every(Duration::from_secs(number.into())).burst(100_000_000)
}
