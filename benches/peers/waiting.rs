//! W6: a thousand tasks that wait in a loop at a given rate, for three seconds. That is long enough for a single run of each.

use std::convert::Infallible;
use std::future::{Future, pending, poll_fn, ready};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cpu_time::ProcessTime;
use governor::Quota;
use tokio::runtime::Runtime;
use tokio::task::coop::has_budget_remaining;
use tollgate::{AcquireError, Limiter, Throttle};
use tower::{ServiceBuilder, ServiceExt};

use crate::gaps::Gaps;
use crate::setup::{governor, limiter, two_workers};
use crate::table::{Bar, Row, Unit};
use crate::trace::{Grant, Trace, Turn};

const TASKS: usize = 1_000;
const SPAN: Duration = Duration::from_secs(3);
const WINDOW: Duration = Duration::from_millis(10);
/// The interval without a burst whose gaps between grants are drawn.
const DRAWN: Duration = Duration::from_millis(1);

struct Run {
    trace: Trace,
    cpu: f64,
}

pub(crate) fn at_a_rate() -> Vec<Row> {
    // The bars are for the CPU, against governor and against leaky-bucket.
    let rates = [
        (1_000, 0.1, None),
        (10_000, 0.05, Some(Bar::AtMost(1.5))),
        (100_000, 0.1, None),
    ];
    let rows = |(rate, governor, leaky_bucket)| {
        [
            with_burst(rate, Bar::AtMost(governor), leaky_bucket),
            without_burst(rate),
        ]
    };
    let rows = rates.into_iter().flat_map(rows).flatten();
    // The intervals without a burst, with bars for the rate error and for the CPU.
    let precise = [
        (1_000, 1.0, Some(0.3)),
        (500, 2.0, Some(0.6)),
        (100, 10.0, None),
    ];
    rows.chain(
        precise
            .into_iter()
            .flat_map(|(micros, error, cpu)| precisely(Duration::from_micros(micros), error, cpu)),
    )
    .collect()
}

/// A pace without a burst, with the precise timer.
fn precisely(interval: Duration, error_bar: f64, cpu_bar: Option<f64>) -> Vec<Row> {
    eprintln!("  every {interval:?}, no burst, precise");
    let precise = Limiter::builder(Throttle::every(interval))
        .precise_timer()
        .build()
        .expect("a sound policy");
    let precise: &'static Limiter = Box::leak(Box::new(precise));
    let ours = run(interval, 1, move || turn(precise));
    let case = |what: &str| format!("every {interval:?}, no burst, precise: {what}");
    let error = |run: &Run| run.trace.rate_error().abs();
    let mut rows = Vec::new();
    let whole_millis = interval.subsec_micros().is_multiple_of(1_000); // leaky-bucket has no shorter interval
    let leaky_bucket = whole_millis.then(|| ("leaky-bucket", of_leaky_bucket(interval, 1)));
    let governor = ("governor", of_governor(interval, 1));
    let peers: Vec<_> = [
        Some(governor),
        leaky_bucket,
        Some(("tower", of_tower(interval))),
    ]
    .into_iter()
    .flatten()
    .collect();
    for (peer, theirs) in &peers {
        let row = |what, unit, of: &dyn Fn(&Run) -> f64, bar: Option<f64>| {
            Row::figure(
                ("W6", &case(what)),
                unit,
                of(&ours),
                Some((peer, of(theirs))),
                bar.map(Bar::AtMost),
            )
        };
        rows.push(row("rate error", Unit::Percent, &error, Some(error_bar)));
        rows.push(row("CPU", Unit::CpuSeconds, &|run| run.cpu, cpu_bar));
    }
    rows.extend(kept(&case(""), &ours.trace));
    if interval == DRAWN {
        rows.push(gaps("tollgate, precise_timer()", &ours.trace));
        rows.extend(peers.iter().map(|(peer, theirs)| gaps(peer, &theirs.trace)));
    }
    rows
}

/// The share of gaps near the interval. All gaps go to the drawing.
fn gaps(whose: &str, trace: &Trace) -> Row {
    let gaps = Gaps::new(whose, DRAWN, trace.gaps());
    let case = format!("every {DRAWN:?}, no burst: gaps within 10 %, {whose}");
    Row::figure(
        ("W6", &case),
        Unit::Percent,
        100.0 * gaps.share_within(0.1),
        None,
        None,
    )
    .drawn(gaps)
}

fn with_burst(rate: u32, governor_bar: Bar, leaky_bucket_bar: Option<Bar>) -> Vec<Row> {
    eprintln!("  {rate} a second, 10 ms of burst");
    let interval = Duration::from_secs(1) / rate;
    let burst = rate / 100;
    let ours = of_limiter(
        Throttle::every(interval).burst(burst.into()),
        interval,
        burst,
    );
    let governor = of_governor(interval, burst);
    let leaky_bucket = of_leaky_bucket(interval, burst);

    let case = |what: &str| format!("{rate}/s, burst {burst}: {what}");
    let figure = |what, unit, of: &dyn Fn(&Run) -> f64, bar| {
        Row::figure(
            ("W6", &case(what)),
            unit,
            of(&ours),
            Some(("governor", of(&governor))),
            bar,
        )
    };
    let cpu = |peer, run: &Run, bar| {
        Row::against(
            ("W6", &case("CPU")),
            Unit::CpuSeconds,
            ours.cpu,
            (peer, run.cpu),
            ours.cpu / run.cpu,
            bar,
        )
    };
    let error = |run: &Run| run.trace.rate_error();
    let bare_error = case("rate error, leaky-bucket's");
    let mut rows = vec![
        figure(
            "rate error",
            Unit::Percent,
            &|run| error(run).abs(),
            Some(Bar::AtMost(0.1)),
        ),
        Row::figure(
            ("W6", &bare_error),
            Unit::Percent,
            error(&ours),
            Some(("leaky-bucket", error(&leaky_bucket))),
            None,
        ),
        cpu("governor", &governor, Some(governor_bar)),
        cpu("leaky-bucket", &leaky_bucket, leaky_bucket_bar),
        figure(
            "tasks unserved",
            Unit::Plain(0),
            &|run| run.trace.unserved() as f64,
            Some(Bar::AtMost(0.0)),
        ),
        figure(
            "max - min per task",
            Unit::Plain(0),
            &|run| run.trace.spread() as f64,
            None,
        ),
    ];
    rows.extend(kept(&case(""), &ours.trace));
    rows
}

/// Without a burst, idle time earns nothing: the rate is what the timers allow, and has no bar.
fn without_burst(rate: u32) -> Vec<Row> {
    eprintln!("  {rate} a second, no burst");
    let interval = Duration::from_secs(1) / rate;
    let ours = of_limiter(Throttle::every(interval), interval, 1);
    let case = format!("{rate}/s, no burst: ");
    let mut rows = kept(&case, &ours.trace);
    rows.push(Row::figure(
        ("W6", &format!("{case}rate error")),
        Unit::Percent,
        ours.trace.rate_error(),
        None,
        None,
    ));
    rows.push(Row::figure(
        ("W6", &format!("{case}CPU")),
        Unit::CpuSeconds,
        ours.cpu,
        None,
        None,
    ));
    if interval == DRAWN {
        rows.push(gaps("tollgate, tokio's timer", &ours.trace));
    }
    rows
}

/// The checks at every rate: never over the limit, always in order.
fn kept(case: &str, trace: &Trace) -> Vec<Row> {
    let figure = |what, figure, bar| {
        Row::figure(
            ("W6", &format!("{case}{what}")),
            Unit::Plain(0),
            figure,
            None,
            Some(Bar::AtMost(bar)),
        )
    };
    vec![
        figure(
            "worst 10 ms",
            trace.most_within(WINDOW) as f64,
            trace.allowed_within(WINDOW) as f64,
        ),
        figure("over, in any span", trace.over().max(0.0).ceil(), 0.0),
        figure("out of order", trace.out_of_order() as f64, 0.0),
    ]
}

fn of_limiter(throttle: Throttle, interval: Duration, burst: u32) -> Run {
    let limiter = limiter(throttle);
    run(interval, burst, move || turn(limiter))
}

fn of_governor(interval: Duration, burst: u32) -> Run {
    let burst_size = burst.try_into().expect("not zero");
    let governor = governor(
        Quota::with_period(interval)
            .expect("not zero")
            .allow_burst(burst_size),
    );
    run(interval, burst, move || {
        let governor = Arc::clone(&governor);
        async move {
            governor.until_ready().await;
            Grant::now()
        }
    })
}

/// A run of leaky-bucket, which refills at most once per tick of tokio's timer. It is closest to its rate if it refills rarely.
fn of_leaky_bucket(interval: Duration, burst: u32) -> Run {
    let size = burst as usize;
    let bucket = leaky_bucket::RateLimiter::builder()
        .max(size)
        .initial(size)
        .refill(size)
        .interval(interval * burst)
        .build();
    let bucket = Arc::new(bucket);
    run(interval, burst, move || {
        let bucket = Arc::clone(&bucket);
        async move {
            bucket.acquire_one().await;
            Grant::now()
        }
    })
}

/// How tower shares one rate among tasks: a `RateLimit` alone cannot be cloned, so it runs in the worker of a `Buffer`, which has a
/// place for each task. Each request clones the handle. The service behind it answers at once.
fn of_tower(interval: Duration) -> Run {
    let runtime = two_workers();
    let entered = runtime.enter(); // the worker is spawned here
    let service = ServiceBuilder::new()
        .buffer(TASKS)
        .rate_limit(1, interval)
        .service_fn(|()| ready(Ok::<_, Infallible>(())));
    drop(entered);
    run_in(runtime, interval, 1, move || {
        let service = service.clone();
        async move {
            if service.oneshot(()).await.is_err() {
                pending::<()>().await; // the runtime shuts down, and ended the worker before this task
            }
            Grant::now()
        }
    })
}

async fn turn(limiter: &Limiter) -> Grant {
    let mut acquire = pin!(limiter.acquire());
    let asked = Instant::now();
    let mut queued = None;
    let permit = poll_fn(|cx| {
        let in_budget = has_budget_remaining(); // without budget, the poll returns before it reaches the queue
        let answer = acquire.as_mut().poll(cx);
        if in_budget {
            queued.get_or_insert_with(Instant::now);
        }
        answer
    });
    let permit = match permit.await {
        Err(AcquireError::NoRuntime) => return pending().await, // the runtime shuts down, and ended the driver before this task
        permit => permit.expect("a permit"),
    };
    let got = Instant::now();
    let turn = queued.map(|queued| Turn {
        asked,
        queued,
        fence: permit.fence(),
    });
    Grant {
        at: permit
            .acquired_at()
            .expect("a rate records its grant times")
            .into_std(),
        got,
        turn,
    }
}

fn run<F>(interval: Duration, burst: u32, turn: impl Fn() -> F + Clone + Send + 'static) -> Run
where
    F: Future<Output = Grant> + Send,
{
    run_in(two_workers(), interval, burst, turn)
}

fn run_in<F>(
    runtime: Runtime,
    interval: Duration,
    burst: u32,
    turn: impl Fn() -> F + Clone + Send + 'static,
) -> Run
where
    F: Future<Output = Grant> + Send,
{
    let grants: Arc<[Mutex<Vec<Grant>>]> = (0..TASKS).map(|_| Mutex::default()).collect();
    let cpu = ProcessTime::now();
    for task in 0..TASKS {
        let (grants, turn) = (Arc::clone(&grants), turn.clone());
        runtime.spawn(async move {
            loop {
                let grant = turn().await;
                grants[task]
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(grant);
            }
        });
    }
    thread::sleep(SPAN);
    let cpu = cpu.elapsed().as_secs_f64();
    runtime.shutdown_timeout(SPAN);
    let tasks = grants
        .iter()
        .map(|grants| std::mem::take(&mut *grants.lock().unwrap_or_else(PoisonError::into_inner)));
    Run {
        trace: Trace::new(tasks.collect(), interval, burst.into()),
        cpu,
    }
}
