//! W4, W5 and W11 with the processor's counter as the clock of both sides.

use governor::{Quota, RateLimiter};
use tollgate::layers::RateLimitStyle;
use tollgate::{KeyedLimiter, Limiter, Throttle};
use tower::Layer as _;

use crate::http;
use crate::keyed::{MANY, MINUTE, Spread, slow};
use crate::rounds::{Contest, batch_of, nanos_each};
use crate::services::{Hello, client, governed, layer_of};
use crate::setup::{never_waiting, never_waiting_quota};
use crate::table::{Bar, Row, Unit};

const ROUNDS: usize = 101;
const BATCH: u32 = 50_000;

pub(crate) fn one_decision() -> Vec<Row> {
    let builder = |limit: Throttle| Limiter::builder(limit);
    let limiter = builder(never_waiting())
        .fast_clock()
        .build()
        .expect("a sound policy");
    let by_tokio = builder(never_waiting()).build().expect("a sound policy");
    let governor = RateLimiter::direct(never_waiting_quota());
    Contest::new(
        ("W4", "Throttle try_acquire(), fast_clock()"),
        Unit::Nanos,
        || nanos_each(BATCH, || assert!(limiter.try_acquire().is_ok())),
    )
    .against("governor check(), quanta", Some(Bar::AtMost(1.05)), || {
        nanos_each(BATCH, || assert!(governor.check().is_ok()))
    })
    .against("itself, tokio's clock", None, || {
        nanos_each(BATCH, || assert!(by_tokio.try_acquire().is_ok()))
    })
    .run(ROUNDS)
}

pub(crate) fn one_decision_of_a_key() -> Vec<Row> {
    const KEYS: usize = 1_000;
    let limiter = KeyedLimiter::builder(slow())
        .fast_clock()
        .build()
        .expect("a sound policy");
    let by_tokio = KeyedLimiter::new(slow()).expect("a sound policy");
    let quota = Quota::with_period(MINUTE)
        .expect("not zero")
        .allow_burst(MANY.try_into().expect("not zero"));
    let governor = RateLimiter::dashmap(quota);
    let sequence = Spread::Zipf.sequence(KEYS);
    Contest::new(
        ("W5", "1,000 keys, zipf: try_acquire(), fast_clock()"),
        Unit::Nanos,
        batch_of(BATCH, &sequence, |key| {
            assert!(limiter.try_acquire(key).is_ok());
        }),
    )
    .against(
        "governor check_key(), quanta",
        Some(Bar::AtMost(0.7)),
        batch_of(BATCH, &sequence, |key| {
            assert!(governor.check_key(key).is_ok());
        }),
    )
    .against(
        "itself, tokio's clock",
        None,
        batch_of(BATCH, &sequence, |key| {
            assert!(by_tokio.try_acquire(key).is_ok());
        }),
    )
    .run(ROUNDS)
}

/// W11: a layer in front of a service, whose peer reads the counter.
pub(crate) fn a_layer() -> Vec<Row> {
    let granting = || Throttle::every(http::MINUTE).burst(http::MANY.into());
    let governed = |with_fields| {
        Some((
            "tower_governor",
            governed(http::MINUTE, http::MANY, with_fields),
        ))
    };
    let limited = |style| {
        let limiter = KeyedLimiter::builder(granting()).fast_clock().build();
        client(layer_of(limiter.expect("a sound policy"), style).layer(Hello))
    };
    let plain = limited(RateLimitStyle::None);
    let with_fields = limited(RateLimitStyle::Draft10);
    vec![
        http::added(
            "added to a request, without fields, fast_clock()",
            Box::new(plain),
            governed(false),
        ),
        http::added(
            "added to a request, fields of draft-10, fast_clock()",
            Box::new(with_fields),
            governed(true),
        ),
    ]
}
