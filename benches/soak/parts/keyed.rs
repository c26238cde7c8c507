//! Limiters of keys that come, are used by several tasks, and are forgotten again; some of them come back later.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::{AcquireError, KeyedLimiter, TryAcquireError};

use super::{SOON, agree, failures, ms, permits};
use crate::holder::{Habit, granted_between, hold};
use crate::reference::{Reference, Rule};
use crate::run::Run;
use crate::tally::{Counts, Tally, add};

const TASKS: usize = 12;
/// How many new keys come in a second, to each limiter.
const NEW_KEYS: u64 = 500;
/// How many keys are in use at the same time.
const IN_USE: u64 = 64;
/// How far back a key is that comes back. It has been forgotten, or must be known still.
const BACK: u64 = 2_000;
/// A key is idle for longer than any limit remembers. Then it is equal to a new one.
const FORGOTTEN: Duration = ms(4_000);
/// Far more keys than are in use or still remember a grant.
const MOST_KEYS: usize = 10_000;

struct Spec {
    policies: &'static [&'static str],
    places: Option<u64>,
    rules: &'static [Rule],
    leaks: bool,
}

const SPECS: &[Spec] = &[
    Spec {
        policies: &["50/s burst 5", "30/s burst 5"],
        places: None,
        rules: &[Rule::bucket(50, ms(1_000), 5)],
        leaks: false,
    },
    Spec {
        policies: &["2 concurrent"],
        places: Some(2),
        rules: &[],
        leaks: false,
    },
    Spec {
        policies: &["2 concurrent ttl 500ms"],
        places: Some(2),
        rules: &[],
        leaks: true,
    },
    Spec {
        policies: &["2 concurrent ttl 500ms and sliding log 6/200ms"],
        places: Some(2),
        rules: &[Rule::sliding_log(6, ms(200))],
        leaks: true,
    },
];

struct Load {
    spec: &'static Spec,
    limiter: KeyedLimiter<String>,
    references: Mutex<HashMap<u64, Arc<Reference>>>,
    counts: Arc<Counts>,
    tally: Arc<Tally>,
    run: Arc<Run>,
}

pub(crate) async fn run(run: Arc<Run>, tally: Arc<Tally>) {
    let mut tasks = JoinSet::new();
    let mut loads = Vec::new();
    for spec in SPECS {
        let counts = tally.counts();
        let builder = KeyedLimiter::builder(spec.policies[0]).on_event(counts.observer());
        let limiter = builder.build().expect("a sound policy");
        let (run, tally) = (Arc::clone(&run), Arc::clone(&tally));
        let load = Arc::new(Load {
            spec,
            limiter,
            references: Mutex::default(),
            counts,
            tally,
            run,
        });
        for _ in 0..TASKS {
            tasks.spawn(Arc::clone(&load).ask());
        }
        tasks.spawn(Arc::clone(&load).retire());
        loads.push(load);
    }
    tally
        .within(
            run.left() + 2 * SOON,
            "a task of a keyed limiter",
            tasks.join_all(),
        )
        .await;
    for load in loads {
        load.end().await;
    }
}

impl Load {
    /// The number of a key, and its account.
    fn key(&self) -> (u64, Arc<Reference>) {
        let newest = self.run.began.elapsed().as_millis() as u64 * NEW_KEYS / 1_000;
        let back = if fastrand::u32(..50) == 0 {
            BACK
        } else {
            IN_USE
        };
        let number = newest.saturating_sub(fastrand::u64(..back));
        let mut references = self.references.lock().unwrap();
        let reference = references.entry(number).or_insert_with(|| {
            Reference::new(
                format!("{} of a key", self.spec.policies[0]),
                &self.tally,
                self.spec.places,
                self.spec.rules,
            )
        });
        (number, Arc::clone(reference))
    }

    async fn ask(self: Arc<Self>) {
        let Self {
            spec,
            limiter,
            counts,
            tally,
            ..
        } = &*self;
        let habit = Habit {
            longest: ms(10),
            leaks: if spec.leaks { 200 } else { 0 },
            panics: 500,
        };
        while self.run.goes_on() {
            let (number, reference) = self.key();
            let key = number.to_string();
            let asked = Instant::now();
            let permit = match fastrand::u32(..8) {
                0..4 => match limiter.try_acquire(&key) {
                    Ok(permit) => Some(permit),
                    Err(TryAcquireError::Denied(_)) => {
                        add(&counts.denied);
                        None
                    }
                    Err(error) => {
                        tally.fault(error);
                        None
                    }
                },
                4 => match tokio::time::timeout(ms(fastrand::u64(..10)), limiter.acquire(&key))
                    .await
                {
                    Ok(permit) => permit.map_err(|error| tally.fault(error)).ok(),
                    Err(_) => {
                        add(&counts.cancelled);
                        None
                    }
                },
                _ => {
                    let request = limiter.request(&key).timeout(ms(fastrand::u64(..1_000)));
                    match tally
                        .within(SOON, "a request of a key", request.acquire())
                        .await
                    {
                        Some(Ok(permit)) => Some(permit),
                        Some(Err(AcquireError::TimedOut { .. })) => {
                            add(&counts.timed_out);
                            None
                        }
                        Some(Err(error)) => {
                            tally.fault(error);
                            None
                        }
                        None => return,
                    }
                }
            };
            if let Some(permit) = permit {
                let times = granted_between(&permit, asked, tally);
                let until = spec.leaks.then(|| permit.expires_at().unwrap_or(times.1));
                hold((permit, times, until), &reference, (tally, counts), habit).await;
            }
            sleep(ms(5).mul_f64(fastrand::f64())).await;
        }
    }

    /// Checks the accounts of keys, closes those of idle keys, and changes the policy of all keys, until the run stops.
    async fn retire(self: Arc<Self>) {
        while self.run.pause(ms(500)).await {
            let known = self.limiter.len();
            if known > MOST_KEYS {
                self.tally.fault(format_args!(
                    "{known} keys are known: {}",
                    self.spec.policies[0]
                ));
            }
            let policy = self.spec.policies[fastrand::usize(..self.spec.policies.len())];
            if let Err(error) = self.limiter.set_policy(policy) {
                self.tally.fault(error);
            }
            let Some(since) = Instant::now().checked_sub(FORGOTTEN) else {
                continue;
            };
            let all: Vec<_> = self.references.lock().unwrap().values().cloned().collect();
            all.iter().for_each(|reference| reference.check());
            drop(all);
            // A task that has an account keeps it from being closed.
            let mut references = self.references.lock().unwrap();
            references.retain(|_, reference| {
                Arc::strong_count(reference) > 1 || !reference.is_idle_since(since)
            });
            references.shrink_to(2 * MOST_KEYS);
        }
    }

    async fn end(&self) {
        let Self {
            spec,
            limiter,
            counts,
            tally,
            ..
        } = self;
        let name = spec.policies[0];
        let rests = || {
            let totals = limiter.totals();
            (totals.in_flight, totals.queued) == (0, 0)
        };
        tally
            .until(
                SOON,
                &format!("places of keys that have not come back: {name}"),
                rests,
            )
            .await;
        // Each call forgets a few of the keys that are reset.
        let mut asked = 0_u64;
        while !limiter.is_empty() && asked < 1_000_000 {
            let _ = limiter.check(&format!("other {asked}"), 1);
            asked += 1;
            if asked.is_multiple_of(1_000) {
                sleep(ms(5)).await;
            }
        }
        if !limiter.is_empty() {
            tally.fault(format_args!(
                "{} keys are not forgotten: {name}",
                limiter.len()
            ));
        }
        let found = limiter.totals();
        agree(
            name,
            tally,
            permits(counts, [found.granted, found.refunded, found.reclaimed]),
        );
        agree(
            name,
            tally,
            failures(counts, [found.denied, found.timed_out]),
        );
    }
}
