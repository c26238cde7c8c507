//! Limiters of each kind, in this process: holders that panic or leak, requests that are cancelled or time out, costs, pauses, and
//! policies that change.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::poll;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout};
use tollgate::{AcquireError, Limiter, Outcome, Permit, TryAcquireError};

use super::{SOON, ms, settle};
use crate::holder::{Habit, granted_between, hold};
use crate::reference::{Reference, Rule, watch};
use crate::run::Run;
use crate::tally::{Counts, Tally, add};

const TASKS: usize = 12;
const MAX_COST: u64 = 3;

/// A limiter, and what its policies mean for its account.
struct Spec {
    /// One of them is in force, each with its places, or 0. The rules are those of the larger one.
    policies: &'static [(&'static str, u64)],
    rules: &'static [Rule],
    leaks: bool,
    /// The longest pause of a task between two requests.
    idle: Duration,
}

impl Spec {
    const fn new(policies: &'static [(&'static str, u64)], rules: &'static [Rule]) -> Self {
        Self {
            policies,
            rules,
            leaks: false,
            idle: ms(8),
        }
    }

    const fn leaks(self) -> Self {
        Self {
            leaks: true,
            ..self
        }
    }

    const fn idle(self, idle: Duration) -> Self {
        Self { idle, ..self }
    }
}

/// Each leak is of `TTL`.
const SPECS: &[Spec] = &[
    Spec::new(&[("8 concurrent", 8)], &[]),
    Spec::new(
        &[("8 concurrent ttl 500ms", 8), ("5 concurrent ttl 500ms", 5)],
        &[],
    )
    .leaks(),
    Spec::new(
        &[("20 concurrent ttl 500ms aimd from 4 to 30 timeout 5ms", 30)],
        &[],
    )
    .leaks(),
    Spec::new(
        &[("throttle every 500us burst 20", 0)],
        &[Rule::bucket(1, Duration::from_micros(500), 20)],
    ),
    Spec::new(
        &[("2000/s burst 50", 0), ("1000/s burst 30", 0)],
        &[Rule::bucket(2_000, ms(1_000), 50)],
    ),
    Spec::new(
        &[("400/200ms burst 500 refilled each period", 0)],
        &[Rule::steps(400, ms(200), 500)],
    ),
    Spec::new(
        &[("window 300/200ms", 0), ("window 200/200ms", 0)],
        &[Rule::window(300, ms(200))],
    ),
    Spec::new(
        &[("window 300/200ms from first grant", 0)],
        &[Rule::window(300, ms(200))],
    ),
    Spec::new(
        &[("sliding log 300/200ms", 0), ("sliding log 200/200ms", 0)],
        &[Rule::sliding_log(300, ms(200))],
    ),
    Spec::new(
        &[("sliding counter 300/200ms", 0)],
        &[Rule::sliding_counter(300, ms(200))],
    ),
    // Denied attempts raise it: if there were too many, none would be granted.
    Spec::new(
        &[("penalty 200 falling 200/100ms ceiling 300", 0)],
        &[Rule::steps(200, ms(100), 200)],
    )
    .idle(ms(40)),
    Spec::new(
        &[
            (
                "6 concurrent ttl 500ms and sliding log 300/200ms and 2000/s burst 60",
                6,
            ),
            (
                "4 concurrent ttl 500ms and sliding log 200/200ms and 1500/s burst 60",
                4,
            ),
        ],
        &[
            Rule::sliding_log(300, ms(200)),
            Rule::bucket(2_000, ms(1_000), 60),
        ],
    )
    .leaks(),
];

/// One limiter under load.
struct Load {
    spec: &'static Spec,
    limiter: Limiter,
    reference: Arc<Reference>,
    counts: Arc<Counts>,
    tally: Arc<Tally>,
    run: Arc<Run>,
}

pub(crate) async fn run(run: Arc<Run>, tally: Arc<Tally>) {
    let loads: Vec<_> = SPECS
        .iter()
        .map(|spec| Load::new(spec, &run, &tally))
        .collect();
    let mut tasks = JoinSet::new();
    for load in &loads {
        for _ in 0..TASKS {
            tasks.spawn(Arc::clone(load).ask());
        }
        tasks.spawn(Arc::clone(load).change());
    }
    watch(&run, || {
        loads
            .iter()
            .map(|load| Arc::clone(&load.reference))
            .collect()
    })
    .await;
    tally
        .within(SOON, "a task of a limiter", tasks.join_all())
        .await;
    for load in loads {
        load.end().await;
    }
}

impl Load {
    fn new(spec: &'static Spec, run: &Arc<Run>, tally: &Arc<Tally>) -> Arc<Self> {
        let counts = tally.counts();
        let (policy, places) = spec.policies[0];
        let limiter = Limiter::builder(policy)
            .on_event(counts.observer())
            .build()
            .expect("a sound policy");
        let reference = Reference::new(policy, tally, (places > 0).then_some(places), spec.rules);
        Arc::new(Self {
            spec,
            limiter,
            reference,
            counts,
            tally: Arc::clone(tally),
            run: Arc::clone(run),
        })
    }

    /// Asks for permits until the run stops.
    async fn ask(self: Arc<Self>) {
        let habit = Habit {
            longest: ms(4),
            leaks: if self.spec.leaks { 300 } else { 0 },
            panics: 500,
        };
        while self.run.goes_on() {
            let asked = Instant::now();
            let cost = 1 + fastrand::u64(..MAX_COST);
            let Some(answer) = self
                .tally
                .within(SOON, self.spec.policies[0].0, self.request(cost))
                .await
            else {
                return;
            };
            if let Some(permit) = answer {
                let times = granted_between(&permit, asked, &self.tally);
                // A permit whose TTL has passed already has no such time, and counts for nothing.
                let until = self
                    .spec
                    .leaks
                    .then(|| permit.expires_at().unwrap_or(times.1));
                hold(
                    (permit, times, until),
                    &self.reference,
                    (&self.tally, &self.counts),
                    habit,
                )
                .await;
            }
            sleep(self.spec.idle.mul_f64(fastrand::f64())).await;
        }
    }

    async fn request(&self, cost: u64) -> Option<Permit> {
        let Self {
            limiter, counts, ..
        } = self;
        match fastrand::u32(..16) {
            0..6 => match limiter.try_acquire_many(cost) {
                Ok(permit) => return Some(permit),
                Err(TryAcquireError::Denied(_)) => add(&counts.denied),
                Err(error) => self.tally.fault(error),
            },
            // Cancelled at its first polls, when it may have been granted a permit that it has not taken.
            6 => {
                let mut acquire = pin!(limiter.acquire_many(cost));
                for _ in 0..fastrand::u32(1..4) {
                    if let std::task::Poll::Ready(permit) = poll!(&mut acquire) {
                        return self.answer(permit);
                    }
                    yield_now().await;
                }
                add(&counts.cancelled);
            }
            7 => match timeout(ms(fastrand::u64(..20)), limiter.acquire_many(cost)).await {
                Ok(permit) => return self.answer(permit),
                Err(_) => add(&counts.cancelled),
            },
            8 => match limiter.request().cost(cost).reserve() {
                Ok(reserved) if fastrand::bool() => return self.answer(reserved.await),
                Ok(reserved) => {
                    yield_now().await;
                    drop(reserved);
                    add(&counts.cancelled);
                }
                Err(error) => self.tally.fault(error),
            },
            9..12 => {
                let request = limiter
                    .request()
                    .cost(cost)
                    .timeout(ms(fastrand::u64(..50)));
                return self.answer(request.await);
            }
            _ => return self.answer(limiter.acquire_many(cost).await),
        }
        None
    }

    fn answer(&self, answer: Result<Permit, AcquireError>) -> Option<Permit> {
        match answer {
            Ok(permit) => return Some(permit),
            Err(AcquireError::TimedOut { .. }) => add(&self.counts.timed_out),
            Err(error) => self.tally.fault(error),
        }
        None
    }

    /// Changes the policy, pauses and reports outcomes, until the run stops.
    async fn change(self: Arc<Self>) {
        let Self {
            spec,
            limiter,
            reference,
            tally,
            ..
        } = &*self;
        while self.run.pause(ms(fastrand::u64(20..200))).await {
            match fastrand::u32(..4) {
                0 => limiter.pause_for(ms(fastrand::u64(..5))),
                1 => {
                    limiter.pause_for(Duration::MAX);
                    yield_now().await;
                    limiter.resume();
                }
                2 => {
                    let asked = Instant::now();
                    if let Ok(permit) = limiter.acquire().await {
                        let times = granted_between(&permit, asked, tally);
                        let until = spec.leaks.then(|| permit.expires_at().unwrap_or(asked));
                        add(&self.counts.granted);
                        let hold = reference.enter(1, times, until);
                        sleep(ms(fastrand::u64(..10))).await;
                        drop(hold);
                        permit.report(if fastrand::bool() {
                            Outcome::Ok
                        } else {
                            Outcome::Overloaded
                        });
                    }
                }
                _ => {
                    let (policy, places) = spec.policies[fastrand::usize(..spec.policies.len())];
                    let larger = spec
                        .policies
                        .iter()
                        .map(|(_, places)| *places)
                        .max()
                        .unwrap_or(0);
                    // While permits of the larger policy are out, there are more places than the smaller one has.
                    reference.set_places(larger);
                    if let Err(error) = limiter.set_policy(policy) {
                        tally.fault(error);
                    }
                    if places < larger {
                        let fits = || limiter.snapshot().in_flight <= places;
                        tally.until(SOON, "permits of a former policy", fits).await;
                        reference.set_places(places);
                        sleep(ms(100)).await;
                    }
                }
            }
        }
    }

    /// Checks that every unit has come back, and that all numbers agree.
    async fn end(&self) {
        let Self {
            spec,
            limiter,
            tally,
            ..
        } = self;
        let name = spec.policies[0].0;
        limiter.resume();
        limiter.set_policy(name).expect("a sound policy");
        settle(name, tally, &self.counts, limiter, &self.reference).await;
        let all = limiter
            .policy()
            .limits()
            .iter()
            .map(tollgate::Limit::capacity)
            .min()
            .unwrap_or(0);
        if let Err(error) = limiter.try_acquire_many(all) {
            tally.fault(format_args!("{name}: not all units can be taken: {error}"));
        }
    }
}
