//! Measures single operations of tollgate, to see the effect of a change. `peers` compares tollgate with others.

mod services;

use std::num::NonZeroU32;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinSet, yield_now};
use tollgate::layers::RateLimitStyle;
use tollgate::{FixedWindow, Limiter, MaxConcurrency, Policy, Throttle};

const PLACES: MaxConcurrency = MaxConcurrency::new(1_000);
const LONG: Duration = Duration::from_secs(3_600);

fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

fn limiter(policy: impl Into<Policy>) -> Limiter {
    Limiter::new(policy).expect("a sound policy")
}

fn never_waiting() -> Throttle {
    Throttle::every(Duration::from_nanos(1)).burst(1_000_000_000)
}

fn uncontended(c: &mut Criterion) {
    let runtime = runtime();
    let plain = limiter(PLACES);
    let with_ttl = limiter(PLACES.ttl(LONG));
    for (name, limiter) in [("acquire", plain), ("acquire, ttl", with_ttl)] {
        c.bench_function(name, |b| b.to_async(&runtime).iter(|| limiter.acquire()));
    }
    let policies = [
        ("try_acquire", limiter(PLACES)),
        ("try_acquire, throttle", limiter(never_waiting())),
        (
            "try_acquire, window",
            limiter(FixedWindow::new(u64::MAX / 2, LONG)),
        ),
    ];
    for (name, limiter) in &policies {
        c.bench_function(name, |b| b.iter(|| limiter.try_acquire()));
    }
}

fn policies(c: &mut Criterion) {
    let one = Policy::from(PLACES);
    let two = one.clone().and(never_waiting());
    let three = two.clone().and(FixedWindow::new(u64::MAX / 2, LONG));
    for (name, policy) in [
        ("policy of 1", one),
        ("policy of 2", two),
        ("policy of 3", three),
    ] {
        let limiter = limiter(policy);
        c.bench_function(name, |b| b.iter(|| limiter.try_acquire()));
    }
}

fn denied(c: &mut Criterion) {
    let limiter = limiter(Throttle::every(LONG));
    assert!(limiter.try_acquire().is_ok());
    c.bench_function("denied", |b| b.iter(|| limiter.try_acquire().is_err()));
}

/// 8 tasks with 64 turns each and one place. Every permit but the first is handed from one task to the next.
fn handed_over(c: &mut Criterion) {
    let runtime = runtime();
    let limiter = limiter(MaxConcurrency::new(1));
    c.bench_function("512 hand-offs", |b| {
        b.to_async(&runtime).iter(async || {
            let mut tasks = JoinSet::new();
            for _ in 0..8 {
                let limiter = limiter.clone();
                tasks.spawn(async move {
                    for _ in 0..64 {
                        let permit = limiter.acquire().await;
                        yield_now().await;
                        drop(permit);
                    }
                });
            }
            tasks.join_all().await
        });
    });
}

fn behind_a_layer(c: &mut Criterion) {
    const MANY: u32 = 1_000_000; // more requests than are sent from any client
    let granting = || Throttle::every(Duration::from_secs(60)).burst(MANY.into());
    c.bench_function("a request", |b| b.iter(services::client(services::Hello)));
    for (name, style) in [
        ("no fields", RateLimitStyle::None),
        ("fields", RateLimitStyle::Draft10),
    ] {
        c.bench_function(&format!("a request through LimitLayer, {name}"), |b| {
            b.iter(services::limited(granting(), style));
        });
    }
    for (name, with_fields) in [("no fields", false), ("fields", true)] {
        let name = format!("a request through tower_governor, {name}");
        c.bench_function(&name, |b| {
            b.iter(services::governed(
                Duration::from_secs(60),
                MANY,
                with_fields,
            ));
        });
    }
    let many = NonZeroU32::new(MANY).expect("not 0");
    c.bench_function("a request through axum-governor, fields", |b| {
        b.iter(services::governed_by_axum(Duration::from_secs(60), many));
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    targets = uncontended, policies, denied, handed_over, behind_a_layer
}
criterion_main!(benches);
