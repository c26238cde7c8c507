//! W5: one decision for one key of many; the memory of the keys; the longest call while the keys expire.

use std::hint::black_box;
use std::thread::sleep;
use std::time::{Duration, Instant};

use governor::clock::MonotonicClock;
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DefaultKeyedStateStore;
use governor::{Quota, RateLimiter};
use tollgate::{
    FixedWindow, KeyedLimiter, MaxConcurrency, Penalty, Policy, Rate, SlidingWindow, Throttle,
    TokenBucket, TryAcquireError,
};

use crate::decision::several_limits;
use crate::heap::bytes_kept_by;
use crate::rounds::{Contest, batch_of, nanos_each};
use crate::scatter::{key, scatter};
use crate::table::{Bar, Row, Unit};

const ROUNDS: usize = 101;
const BATCH: u32 = 50_000;
const MILLION: usize = 1_000_000;
const HOUR: Duration = Duration::from_secs(3_600);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
/// More units than a case takes of any key. Refilling them takes less than a century, the longest time that a limiter accepts.
pub(crate) const MANY: u32 = 50_000_000;

type Governor =
    RateLimiter<u64, DefaultKeyedStateStore<u64>, MonotonicClock, NoOpMiddleware<Instant>>;

pub(crate) fn one_decision() -> Vec<Row> {
    let cases = [
        ("1 key", 1, Spread::Uniform, 0.7),
        ("1,000 keys, zipf", 1_000, Spread::Zipf, 0.7),
        ("1,000,000 keys, zipf", MILLION, Spread::Zipf, 0.75),
        ("1,000,000 keys, uniform", MILLION, Spread::Uniform, 0.8),
    ];
    let mut rows: Vec<Row> = cases
        .into_iter()
        .flat_map(|(case, keys, spread, bar)| granted(case, keys, spread, Bar::AtMost(bar)))
        .collect();
    rows.extend(returning());
    rows.extend(denied());
    rows.extend(of_several_limits());
    rows
}

/// Measures the steady state: no key becomes idle and is forgotten.
fn granted(case: &str, keys: usize, spread: Spread, bar: Bar) -> Vec<Row> {
    eprintln!("  {case}");
    let limiter = KeyedLimiter::new(slow()).expect("a sound policy");
    let governor = governor(
        Quota::with_period(MINUTE)
            .expect("not zero")
            .allow_burst(MANY.try_into().expect("not zero")),
    );
    (0..keys).for_each(|number| {
        assert!(
            limiter.try_acquire(&key(number)).is_ok() && governor.check_key(&key(number)).is_ok()
        );
    });
    let sequence = spread.sequence(keys);
    Contest::new(
        ("W5", &format!("{case}: try_acquire()")),
        Unit::Nanos,
        batch_of(BATCH, &sequence, |key| {
            assert!(limiter.try_acquire(key).is_ok());
        }),
    )
    .against(
        "governor check_key(), same clock",
        Some(bar),
        batch_of(BATCH, &sequence, |key| {
            assert!(governor.check_key(key).is_ok());
        }),
    )
    .run(ROUNDS)
}

/// Each of a million keys comes back after it was forgotten. tollgate forgets on the way; governor is told to once they all have come.
fn returning() -> Vec<Row> {
    const PERIOD: Duration = Duration::from_micros(1);
    const ROUNDS: usize = 21;
    let case = "1,000,000 forgotten keys come back";
    eprintln!("  {case}");
    let limiter = KeyedLimiter::new(Throttle::every(PERIOD)).expect("a sound policy");
    let governor = governor(Quota::with_period(PERIOD).expect("not zero"));
    let keys: Vec<u64> = (0..MILLION).map(key).collect();
    let each = |operation: &dyn Fn()| {
        let start = Instant::now();
        operation();
        start.elapsed().as_nanos() as f64 / MILLION as f64
    };
    let rows = Contest::new(
        ("W5", &format!("{case}: try_acquire()")),
        Unit::Nanos,
        || {
            each(&|| {
                keys.iter()
                    .for_each(|key| assert!(limiter.try_acquire(key).is_ok()));
            })
        },
    )
    .against(
        "governor check_key(), same clock",
        Some(Bar::AtMost(1.0)),
        || {
            each(&|| {
                keys.iter()
                    .for_each(|key| assert!(governor.check_key(key).is_ok()));
                governor.retain_recent();
            })
        },
    )
    .run(ROUNDS);
    assert!(
        limiter.len() < MILLION / 2,
        "they are forgotten: {}",
        limiter.len()
    );
    rows
}

fn denied() -> Vec<Row> {
    let limiter = KeyedLimiter::new(Throttle::every(HOUR)).expect("a sound policy");
    let governor = governor(Quota::with_period(HOUR).expect("not zero"));
    assert!(limiter.try_acquire(&1).is_ok() && governor.check_key(&1).is_ok());
    Contest::new(("W5", "1 key: denied"), Unit::Nanos, || {
        nanos_each(BATCH, || {
            let Err(TryAcquireError::Denied(decision)) = limiter.try_acquire(&1) else {
                panic!("too soon")
            };
            black_box(decision.retry_after());
        })
    })
    .against(
        "governor check_key(), same clock",
        Some(Bar::AtMost(1.1)),
        || {
            nanos_each(BATCH, || {
                black_box(governor.check_key(&1).expect_err("too soon"));
            })
        },
    )
    .run(ROUNDS)
}

fn of_several_limits() -> Vec<Row> {
    let sequence = Spread::Zipf.sequence(1_000);
    let limiters =
        several_limits().map(|policy| KeyedLimiter::new(policy).expect("a sound policy"));
    let batch = |nth: usize| {
        batch_of(BATCH, &sequence, {
            let limiter = &limiters[nth];
            move |key| {
                assert!(limiter.try_acquire(key).is_ok());
            }
        })
    };
    let row = |case, nth| {
        Contest::new(("W5", case), Unit::Nanos, batch(nth))
            .against("itself, 1 limit", None, batch(0))
            .run(ROUNDS)
    };
    let mut rows = row("1,000 keys, zipf: 2 limits", 1);
    rows.extend(row("1,000 keys, zipf: 3 limits", 2));
    rows
}

pub(crate) fn memory() -> Vec<Row> {
    eprintln!("  memory");
    let (theirs, _) = bytes_each(|| {
        let governor = governor(Quota::with_period(HOUR).expect("not zero"));
        (0..MILLION).for_each(|number| assert!(governor.check_key(&key(number)).is_ok()));
        governor
    });
    let policies: [(&str, Policy); 5] = [
        ("Throttle", Throttle::every(HOUR).into()),
        ("TokenBucket", TokenBucket::new(Rate::per_hour(1), 1).into()),
        ("FixedWindow", FixedWindow::new(1, HOUR).into()),
        (
            "SlidingWindow::counter",
            SlidingWindow::counter(1, HOUR).into(),
        ),
        ("Penalty", Penalty::new(1, Rate::per_hour(1)).into()),
    ];
    let row = |(name, policy): (&str, Policy)| {
        let (ours, _) = bytes_each(|| {
            let limiter = KeyedLimiter::new(policy).expect("a sound policy");
            (0..MILLION).for_each(|number| assert!(limiter.try_acquire(&key(number)).is_ok()));
            limiter
        });
        let case = format!("heap per key, 1,000,000 keys: {name}");
        Row::figure(
            ("W5", &case),
            Unit::Bytes,
            ours,
            Some(("governor", theirs)),
            Some(Bar::AtMost(34.0)),
        )
    };
    policies
        .into_iter()
        .map(row)
        .chain([places_out()])
        .collect()
}

/// The heap of a limiter that must keep each key, because its place is out. The permits are not counted.
fn places_out() -> Row {
    const KEYS: usize = 100_000;
    let mut permits = Vec::with_capacity(KEYS);
    let (bytes, _limiter) = bytes_kept_by(|| {
        let limiter = KeyedLimiter::new(MaxConcurrency::new(2)).expect("a sound policy");
        permits.extend((0..KEYS).map(|number| limiter.try_acquire(&key(number)).expect("a place")));
        limiter
    });
    let case = "heap per key, 100,000 keys: MaxConcurrency, a place out";
    Row::figure(
        ("W5", case),
        Unit::Bytes,
        bytes as f64 / KEYS as f64,
        None,
        Some(Bar::AtMost(96.0)),
    )
}

fn bytes_each<T>(fill: impl FnOnce() -> T) -> (f64, T) {
    let (bytes, filled) = bytes_kept_by(fill);
    (bytes as f64 / MILLION as f64, filled)
}

/// A million keys become idle at the same time. The calls after that are timed until the table has forgotten the keys.
pub(crate) fn longest_call() -> Vec<Row> {
    const PERIOD: Duration = Duration::from_secs(2);
    const BURST: u32 = 1_000_000;
    eprintln!("  the longest call");
    let mut rows = Vec::new();
    let filled = || {
        let limiter = KeyedLimiter::new(Throttle::every(PERIOD / BURST).burst(BURST.into()))
            .expect("a sound policy");
        (0..MILLION).for_each(|number| {
            assert!(limiter.try_acquire_many(&key(number), BURST.into()).is_ok());
        });
        sleep(PERIOD);
        limiter
    };

    let limiter = filled();
    let mut new = 0;
    let calls = timed(|call| {
        black_box(limiter.try_acquire(&key(MILLION + call)).is_ok());
        new = call + 1;
        limiter.len() > new
    });
    rows.extend(calls.rows("1,000,000 keys expire, calls with new keys"));

    let limiter = filled();
    let known = Spread::Uniform.sequence(MILLION);
    let calls = timed(|call| {
        black_box(limiter.try_acquire(&known[call % known.len()]).is_ok());
        limiter.len() > MILLION / 2
    });
    rows.extend(calls.rows("half of 1,000,000 keys expire, calls with known keys"));

    let governor = governor(Quota::with_period(PERIOD).expect("not zero"));
    (0..MILLION).for_each(|number| assert!(governor.check_key(&key(number)).is_ok()));
    sleep(PERIOD);
    let start = Instant::now();
    governor.retain_recent();
    let theirs = start.elapsed().as_secs_f64() * 1e6;
    let start = Instant::now();
    governor.shrink_to_fit();
    let shrunk = start.elapsed().as_secs_f64() * 1e6;
    rows.push(Row::figure(
        ("W5", "1,000,000 keys expire: governor's retain_recent()"),
        Unit::Micros,
        theirs,
        None,
        None,
    ));
    rows.push(Row::figure(
        ("W5", "1,000,000 keys expire: governor's shrink_to_fit()"),
        Unit::Micros,
        shrunk,
        None,
        None,
    ));
    rows
}

struct Calls {
    /// The nanoseconds of each call, sorted.
    spans: Vec<u32>,
    /// The same for an empty loop that ran right after, for as long.
    idle: Vec<u32>,
}

impl Calls {
    fn rows(&self, case: &str) -> Vec<Row> {
        let at = |spans: &[u32], share: f64| {
            f64::from(spans[(spans.len() as f64 * share) as usize]) / 1e3
        };
        let longest = |spans: &[u32]| f64::from(spans[spans.len() - 1]) / 1e3;
        let too_long =
            |spans: &[u32]| (spans.len() - spans.partition_point(|span| *span <= 100_000)) as f64;
        let row = |what: &str, unit, of: &dyn Fn(&[u32]) -> f64, bar| {
            let idle = Some(("empty loop", of(&self.idle)));
            Row::figure(
                ("W5", &format!("{case}: {what}")),
                unit,
                of(&self.spans),
                idle,
                bar,
            )
        };
        vec![
            row("calls", Unit::Plain(0), &|spans| spans.len() as f64, None),
            row("p50", Unit::Micros, &|spans| at(spans, 0.5), None),
            row("p99", Unit::Micros, &|spans| at(spans, 0.99), None),
            row("p99.9", Unit::Micros, &|spans| at(spans, 0.999), None),
            row("longest", Unit::Micros, &longest, Some(Bar::AtMost(100.0))),
            row("above 100 µs", Unit::Plain(0), &too_long, None),
        ]
    }
}

/// Times each call, until one returns `false`.
fn timed(mut call: impl FnMut(usize) -> bool) -> Calls {
    const MOST: usize = 20 * MILLION;
    // The memory is filled first, so that no page fault is measured later.
    let mut spans = vec![u32::MAX; MOST];
    let mut measure = |call: &mut dyn FnMut(usize) -> bool| {
        let mut count = 0;
        let mut latest = Instant::now();
        let mut more = true;
        while more && count < MOST {
            more = call(count);
            let now = Instant::now();
            spans[count] = u32::try_from((now - latest).as_nanos()).unwrap_or(u32::MAX);
            (latest, count) = (now, count + 1);
        }
        let mut sorted = spans[..count].to_vec();
        sorted.sort_unstable();
        sorted
    };
    let spans = measure(&mut call);
    // The loop runs for the same time, not for the same number of calls, so the machine interrupts both loops about equally often.
    let end =
        Instant::now() + Duration::from_nanos(spans.iter().map(|span| u64::from(*span)).sum());
    let idle = measure(&mut |_| Instant::now() < end);
    Calls { spans, idle }
}

/// A throttle of one unit a minute, which refills nothing during the run.
pub(crate) fn slow() -> Throttle {
    Throttle::every(MINUTE).burst(MANY.into())
}

fn governor(quota: Quota) -> Governor {
    RateLimiter::dashmap_with_clock(quota, MonotonicClock)
}

/// How often each key is used.
#[derive(Clone, Copy)]
pub(crate) enum Spread {
    Uniform,
    /// The key of rank `n` is used in proportion to `1 / n`.
    Zipf,
}

impl Spread {
    pub(crate) fn sequence(self, keys: usize) -> Vec<u64> {
        const LEN: usize = 1 << 22;
        let mut sums: Vec<f64> = Vec::with_capacity(keys);
        for rank in 1..=keys {
            let weight = match self {
                Self::Uniform => 1.0,
                Self::Zipf => 1.0 / rank as f64,
            };
            sums.push(sums.last().unwrap_or(&0.0) + weight);
        }
        let all = sums[keys - 1];
        let draw = |number: usize| {
            let share = (scatter(number as u64) >> 11) as f64 / (1_u64 << 53) as f64;
            key(sums
                .partition_point(|sum| *sum <= share * all)
                .min(keys - 1))
        };
        (0..LEN).map(draw).collect()
    }
}
