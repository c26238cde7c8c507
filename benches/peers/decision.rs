//! W4: one decision of one limit, granted or denied.

use std::hint::black_box;
use std::time::Duration;

use governor::clock::{Clock, MonotonicClock};
use governor::{Quota, RateLimiter};
use tollgate::{
    FixedWindow, Limiter, Penalty, Policy, Rate, SlidingWindow, Throttle, TokenBucket,
    TryAcquireError,
};

use crate::rounds::{Contest, nanos_each};
use crate::setup::{PLENTY, governor, limiter, never_waiting, never_waiting_quota};
use crate::table::{Bar, Row, Unit};

const ROUNDS: usize = 101;
const BATCH: u32 = 50_000;
const HOUR: Duration = Duration::from_secs(3_600);
/// The bar for limits that are decided in one atomic word.
const GRANTED: Bar = Bar::AtMost(1.0);
const DENIED: Bar = Bar::AtMost(1.1);
/// The bar for grants of limits that are decided under the lock.
const LOCKED: Bar = Bar::AtMost(1.5);

pub(crate) fn one_decision() -> Vec<Row> {
    let mut rows = throttle();
    // The interval is 142,857,142.857… ns, not a whole number. The burst is more than all rounds take.
    let seven_a_second = TokenBucket::new(Rate::per_second(7), 8_000_000);
    let many = u32::MAX.into();
    // A period so short that the log stays small, and a limit so large that no loop reaches it.
    let log = SlidingWindow::log(many, Duration::from_micros(100));
    rows.extend(granted(
        "FixedWindow",
        FixedWindow::new(many, HOUR),
        GRANTED,
    ));
    rows.extend(granted(
        "TokenBucket",
        TokenBucket::new(Rate::per_second(PLENTY.into()), PLENTY.into()),
        GRANTED,
    ));
    rows.extend(granted("TokenBucket, 7 a second", seven_a_second, GRANTED));
    rows.extend(granted("SlidingWindow::log", log, LOCKED));
    rows.extend(granted(
        "SlidingWindow::counter",
        SlidingWindow::counter(many, HOUR),
        LOCKED,
    ));
    rows.extend(granted(
        "Penalty",
        Penalty::new(many, Rate::per_second(1)),
        LOCKED,
    ));
    rows.extend(denied("Throttle", Throttle::every(HOUR), DENIED));
    rows.extend(denied("FixedWindow", FixedWindow::new(1, HOUR), DENIED));
    rows.extend(denied(
        "TokenBucket",
        TokenBucket::new(Rate::per_hour(1), 1),
        DENIED,
    ));
    rows.extend(denied(
        "TokenBucket, 7 an hour",
        TokenBucket::new(Rate::per_hour(7), 1),
        DENIED,
    ));
    rows.extend(denied(
        "SlidingWindow::log",
        SlidingWindow::log(1, HOUR),
        DENIED,
    ));
    rows.extend(denied(
        "SlidingWindow::counter",
        SlidingWindow::counter(1, HOUR),
        DENIED,
    ));
    rows.extend(denied(
        "Penalty",
        Penalty::new(1, Rate::per_hour(1)),
        DENIED,
    ));
    rows
}

/// Decisions of two and of three limits, compared with one of a single limit under the lock.
pub(crate) fn of_several_limits() -> Vec<Row> {
    let [one, two, three] = several_limits();
    // Exact refunds keep a policy of one rate under the lock, and record what those of several limits record.
    let one = Limiter::builder(one)
        .exact_refunds()
        .build()
        .expect("a sound policy");
    let one: &'static Limiter = Box::leak(Box::new(one));
    let [two, three] = [two, three].map(limiter);
    let batch = |limiter: &'static Limiter| {
        move || nanos_each(BATCH, || assert!(limiter.try_acquire().is_ok()))
    };
    [
        ("Limiter, 2 limits", two, 1.15),
        ("Limiter, 3 limits", three, 1.3),
    ]
    .into_iter()
    .flat_map(|(case, limiter, bar)| {
        Contest::new(("W4", case), Unit::Nanos, batch(limiter))
            .against(
                "itself, 1 limit under the lock",
                Some(Bar::AtMost(bar)),
                batch(one),
            )
            .run(ROUNDS)
    })
    .collect()
}

/// Policies of one, two and three limits that admit everything.
pub(crate) fn several_limits() -> [Policy; 3] {
    let limit = |seconds| Throttle::every(Duration::from_secs(seconds)).burst(PLENTY.into());
    let [one, two] = [1, 2].map(|seconds| Policy::from(limit(seconds)));
    [
        one.clone(),
        one.clone().and(two.clone()),
        one.and(two).and(limit(3)),
    ]
}

fn throttle() -> Vec<Row> {
    let limiter = limiter(never_waiting());
    let governor = governor(never_waiting_quota());
    let with_counter_register = RateLimiter::direct(never_waiting_quota());
    let plenty = 1 << 40;
    let leaky_bucket = leaky_bucket::RateLimiter::builder()
        .max(plenty)
        .initial(plenty)
        .refill(plenty)
        .build();
    let per_second = 1_000_000_000;
    let ratelimit = ratelimit::Ratelimiter::builder(per_second)
        .initial_available(per_second)
        .build()
        .expect("sound options");

    Contest::new(("W4", "Throttle try_acquire()"), Unit::Nanos, || {
        nanos_each(BATCH, || assert!(limiter.try_acquire().is_ok()))
    })
    .against("governor check(), same clock", Some(GRANTED), || {
        nanos_each(BATCH, || assert!(governor.check().is_ok()))
    })
    .against("governor check(), counter register", None, || {
        nanos_each(BATCH, || assert!(with_counter_register.check().is_ok()))
    })
    .against("leaky-bucket try_acquire(1)", None, || {
        nanos_each(BATCH, || assert!(leaky_bucket.try_acquire(1)))
    })
    .against("ratelimit try_wait()", None, || {
        nanos_each(BATCH, || assert!(ratelimit.try_wait().is_ok()))
    })
    .run(ROUNDS)
}

fn granted(name: &str, limit: impl Into<Policy>, bar: Bar) -> Vec<Row> {
    let limiter = limiter(limit);
    let governor = governor(never_waiting_quota());
    let case = format!("{name} try_acquire()");
    Contest::new(("W4", &case), Unit::Nanos, || {
        nanos_each(BATCH, || assert!(limiter.try_acquire().is_ok()))
    })
    .against("governor check(), same clock", Some(bar), || {
        nanos_each(BATCH, || assert!(governor.check().is_ok()))
    })
    .run(ROUNDS)
}

fn denied(name: &str, limit: impl Into<Policy>, bar: Bar) -> Vec<Row> {
    let limiter = limiter(limit);
    let governor = governor(Quota::with_period(HOUR).expect("not zero"));
    assert!(limiter.try_acquire().is_ok() && governor.check().is_ok());
    let case = format!("{name} denied, with the wait");
    Contest::new(("W4", &case), Unit::Nanos, || {
        nanos_each(BATCH, || {
            let Err(TryAcquireError::Denied(decision)) = limiter.try_acquire() else {
                panic!("too soon")
            };
            black_box(decision.retry_after());
        })
    })
    .against("governor check(), same clock", Some(bar), || {
        nanos_each(BATCH, || {
            let not_until = governor.check().expect_err("too soon");
            black_box(not_until.wait_time_from(MonotonicClock.now()));
        })
    })
    .run(ROUNDS)
}
