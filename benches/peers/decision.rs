//! W4: one rate decision in place, granted or denied.

use std::hint::black_box;
use std::time::Duration;

use governor::clock::{Clock, MonotonicClock};
use governor::{Quota, RateLimiter};
use tollgate::{FixedWindow, Throttle, TryAcquireError};

use crate::rounds::{Contest, nanos_each};
use crate::setup::{governor, limiter, never_waiting, never_waiting_quota};
use crate::table::{Bar, Row, Unit};

const ROUNDS: usize = 101;
const BATCH: u32 = 50_000;
const HOUR: Duration = Duration::from_secs(3_600);
const BAR: Option<Bar> = Some(Bar::AtMost(1.2));

pub(crate) fn one_decision() -> Vec<Row> {
    [throttle(), fixed_window(), denied()].into_iter().flatten().collect()
}

fn throttle() -> Vec<Row> {
    let limiter = limiter(never_waiting());
    let governor = governor(never_waiting_quota());
    let with_counter_register = RateLimiter::direct(never_waiting_quota());
    let plenty = 1 << 40;
    let leaky_bucket = leaky_bucket::RateLimiter::builder().max(plenty).initial(plenty).refill(plenty).build();
    let per_second = 1_000_000_000;
    let ratelimit = ratelimit::Ratelimiter::builder(per_second).initial_available(per_second).build().expect("sound options");

    Contest::new(("W4", "Throttle try_acquire()"), Unit::Nanos, || nanos_each(BATCH, || assert!(limiter.try_acquire().is_ok())))
        .against("governor check(), same clock", BAR, || nanos_each(BATCH, || assert!(governor.check().is_ok())))
        .against("governor check(), counter register", None, || {
            nanos_each(BATCH, || assert!(with_counter_register.check().is_ok()))
        })
        .against("leaky-bucket try_acquire(1)", None, || nanos_each(BATCH, || assert!(leaky_bucket.try_acquire(1))))
        .against("ratelimit try_wait()", None, || nanos_each(BATCH, || assert!(ratelimit.try_wait().is_ok())))
        .run(ROUNDS)
}

fn fixed_window() -> Vec<Row> {
    let limiter = limiter(FixedWindow::new(u64::MAX / 2, HOUR));
    let governor = governor(never_waiting_quota());
    Contest::new(("W4", "FixedWindow try_acquire()"), Unit::Nanos, || {
        nanos_each(BATCH, || assert!(limiter.try_acquire().is_ok()))
    })
    .against("governor check(), same clock", BAR, || nanos_each(BATCH, || assert!(governor.check().is_ok())))
    .run(ROUNDS)
}

fn denied() -> Vec<Row> {
    let limiter = limiter(Throttle::every(HOUR));
    let governor = governor(Quota::with_period(HOUR).expect("not zero"));
    assert!(limiter.try_acquire().is_ok() && governor.check().is_ok());
    Contest::new(("W4", "Throttle denied, with the wait"), Unit::Nanos, || {
        nanos_each(BATCH, || {
            let Err(TryAcquireError::Denied(decision)) = limiter.try_acquire() else { panic!("too soon") };
            black_box(decision.retry_after());
        })
    })
    .against("governor check(), same clock", None, || {
        nanos_each(BATCH, || {
            let not_until = governor.check().expect_err("too soon");
            black_box(not_until.wait_time_from(MonotonicClock.now()));
        })
    })
    .run(ROUNDS)
}
