//! The load on a store: three processes, each with a connection of its own, share limits of several kinds and keys.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tollgate::store::{OnStoreDown, Store, StoreError};
use tollgate::{AcquireError, Permit, SharedLimiter, TryAcquireError};

use super::{SOON, agree, ms, permits};
use crate::holder::{Habit, hold};
use crate::reference::{Reference, Rule, watch};
use crate::run::Run;
use crate::tally::{Counts, Tally, add};

const PROCESSES: u64 = 3;
/// The tasks of each process for each limiter.
const TASKS: usize = 4;
const KEYS: usize = 4;
/// The TTL of the leases in the policies.
pub(super) const LEASE: Duration = ms(6_000);
/// Shorter than the time after which a process gives up a lease that it cannot renew, so that a leaked place is taken for this long.
const MAX_HOLD: Duration = ms(1_500);
const DEADLINE: Duration = ms(1_000);
const SECOND: Duration = ms(1_000);

struct Spec {
    name: &'static str,
    /// One of them is in force. The others come and go at run time, and admit less.
    policies: &'static [&'static str],
    places: Option<u64>,
    rules: &'static [Rule],
    on_store_down: fn() -> OnStoreDown,
}

/// While the store does not answer, each process grants by this. Around its return the grants of the store are added.
const LOCAL: &str = "20/s burst 5";

const SPECS: &[Spec] = &[
    Spec {
        name: "places",
        policies: &["3 concurrent ttl 6s"],
        places: Some(3),
        rules: &[],
        on_store_down: || OnStoreDown::Error,
    },
    Spec {
        name: "both",
        policies: &["4 concurrent ttl 6s and sliding log 60/s"],
        places: Some(4),
        rules: &[Rule::sliding_log(60, SECOND)],
        on_store_down: || OnStoreDown::Deny,
    },
    Spec {
        name: "log",
        policies: &["sliding log 50/s", "sliding log 30/s"],
        places: None,
        rules: &[Rule::sliding_log(50, SECOND)],
        on_store_down: || OnStoreDown::Error,
    },
    Spec {
        name: "window",
        policies: &["window 40/500ms from first grant"],
        places: None,
        rules: &[Rule::window(40, ms(500))],
        on_store_down: || OnStoreDown::Deny,
    },
    Spec {
        name: "bucket",
        policies: &["50/s burst 20"],
        places: None,
        rules: &[Rule::bucket(
            50 + 20 * PROCESSES,
            SECOND,
            20 + 5 * PROCESSES,
        )],
        on_store_down: || OnStoreDown::Local(LOCAL.parse().expect("a sound policy")),
    },
];

/// A limiter as one process sees it.
struct Process {
    limiter: SharedLimiter,
    /// They are kept to the end: a key without a handle is forgotten, with the permits of it that were leaked.
    keys: Vec<SharedLimiter>,
    counts: Arc<Counts>,
}

/// A limiter in the store.
struct Shared {
    spec: &'static Spec,
    processes: Vec<Process>,
    keys: Vec<(String, Arc<Reference>)>,
    /// How much earlier than its call the store may count a grant.
    earlier: Duration,
}

pub(super) struct Load {
    shared: Vec<Arc<Shared>>,
    tasks: JoinSet<()>,
    tally: Arc<Tally>,
}

impl Load {
    /// Starts the load. `open` opens a store as one process does. The store may count a grant by so much `earlier` than its call.
    pub(super) fn begin<S: Store>(
        run: &Arc<Run>,
        tally: &Arc<Tally>,
        earlier: Duration,
        open: impl Fn() -> S,
    ) -> Self {
        let (mut shared, mut tasks) = (Vec::new(), JoinSet::new());
        for spec in SPECS {
            // Another run may use the same server.
            let name = format!("soak-{}-{}", std::process::id(), spec.name);
            let process = |_| {
                let counts = tally.counts();
                let builder = SharedLimiter::builder(open(), &*name, spec.policies[0]);
                let builder = builder
                    .deadline(DEADLINE)
                    .max_hold(MAX_HOLD)
                    .on_store_down((spec.on_store_down)());
                let limiter = builder
                    .on_event(counts.observer())
                    .build()
                    .expect("a sound policy");
                let keys = (0..KEYS)
                    .map(|number| limiter.key(format!("k{number}")))
                    .collect();
                Process {
                    limiter,
                    keys,
                    counts,
                }
            };
            let processes: Vec<_> = (0..PROCESSES).map(process).collect();
            let key = |number| {
                let key = format!("k{number}");
                let reference = Reference::new(
                    format!("{} {key}", spec.policies[0]),
                    tally,
                    spec.places,
                    spec.rules,
                );
                (key, reference)
            };
            let this = Arc::new(Shared {
                spec,
                processes,
                keys: (0..KEYS).map(key).collect(),
                earlier,
            });
            for index in (0..PROCESSES as usize).flat_map(|index| [index; TASKS]) {
                tasks.spawn(ask(
                    Arc::clone(&this),
                    index,
                    Arc::clone(run),
                    Arc::clone(tally),
                ));
            }
            if spec.policies.len() > 1 {
                tasks.spawn(change(
                    Arc::clone(&this),
                    Arc::clone(run),
                    Arc::clone(tally),
                ));
            }
            shared.push(this);
        }
        let mut this = Self {
            shared,
            tasks,
            tally: Arc::clone(tally),
        };
        let (references, run) = (this.references(), Arc::clone(run));
        this.tasks.spawn(async move {
            watch(&run, || {
                references
                    .iter()
                    .map(|(_, _, reference)| Arc::clone(reference))
                    .collect()
            })
            .await;
        });
        this
    }

    /// The name of each limiter and key, and its account.
    pub(super) fn references(&self) -> Vec<(String, String, Arc<Reference>)> {
        let of = |shared: &Arc<Shared>| {
            let name = shared.processes[0].limiter.name().to_owned();
            let keys = shared.keys.iter().cloned();
            keys.map(move |(key, reference)| (name.clone(), key, reference))
                .collect::<Vec<_>>()
        };
        self.shared.iter().flat_map(of).collect()
    }

    /// Whether the store decides again for each process, soon after it is back.
    pub(super) async fn is_served_again(&self) {
        for shared in &self.shared {
            for process in &shared.processes {
                let limiter = &process.keys[0];
                let decides = async {
                    while limiter.check(1).await.is_err() {
                        sleep(ms(50)).await;
                    }
                };
                let what = format!("{} after the store is back", shared.spec.name);
                self.tally.within(SOON, &what, decides).await;
            }
        }
    }

    /// Waits until the run stops. Then checks that all places have come back, and that all numbers agree.
    pub(super) async fn end(self, run: &Run) {
        let references = self.references();
        let Self {
            shared,
            tasks,
            tally,
        } = self;
        while run.pause(SOON).await {}
        tally
            .within(SOON, "a task of a store", tasks.join_all())
            .await;
        references
            .iter()
            .for_each(|(_, _, reference)| reference.check_sum());
        for shared in shared {
            shared.end(&tally).await;
        }
    }
}

async fn ask(shared: Arc<Shared>, process: usize, run: Arc<Run>, tally: Arc<Tally>) {
    let Process { keys, counts, .. } = &shared.processes[process];
    let habit = Habit {
        longest: ms(10),
        leaks: if shared.spec.places.is_some() { 400 } else { 0 },
        panics: 400,
    };
    while run.goes_on() {
        let index = fastrand::usize(..KEYS);
        let (limiter, reference) = (&keys[index], &shared.keys[index].1);
        let asked = Instant::now();
        let Some(answer) = tally
            .within(SOON, shared.spec.name, request(limiter, counts))
            .await
        else {
            return;
        };
        match answer {
            Ok(Some(permit)) => {
                // The store has granted it after it was asked, and its process keeps it for `MAX_HOLD` from then on.
                let until = shared.spec.places.map(|_| asked + MAX_HOLD);
                hold(
                    (permit, (asked - shared.earlier, Instant::now()), until),
                    reference,
                    (&tally, counts),
                    habit,
                )
                .await;
            }
            Ok(None) => {}
            Err(fault) => tally.fault(format_args!("{}: {fault}", shared.spec.name)),
        }
        sleep(ms(40).mul_f64(fastrand::f64())).await;
    }
}

/// Whether a store that is down, or too busy, fails like this.
const fn is_outage(error: &StoreError) -> bool {
    use StoreError::{Refused, TooLate, Unanswered, Unreachable};
    matches!(
        error,
        Unreachable { .. } | Unanswered { .. } | Refused { .. } | TooLate { .. }
    )
}

/// A permit, if it was granted; or what must not happen.
async fn request(limiter: &SharedLimiter, counts: &Counts) -> Result<Option<Permit>, String> {
    let answer = match fastrand::u32(..8) {
        0..4 => match limiter.try_acquire().await {
            Ok(permit) => return Ok(Some(permit)),
            Err(TryAcquireError::Denied(_)) => {
                add(&counts.denied);
                return Ok(None);
            }
            Err(TryAcquireError::Store(error)) if is_outage(&error) => {
                add(&counts.failed);
                return Ok(None);
            }
            Err(error) => return Err(error.to_string()),
        },
        4 => match timeout(ms(fastrand::u64(..20)), limiter.acquire()).await {
            Ok(answer) => answer,
            Err(_) => {
                add(&counts.cancelled);
                return Ok(None);
            }
        },
        _ => {
            limiter
                .request()
                .timeout(ms(fastrand::u64(..2_000)))
                .acquire()
                .await
        }
    };
    match answer {
        Ok(permit) => return Ok(Some(permit)),
        Err(AcquireError::TimedOut { .. }) => add(&counts.timed_out),
        Err(AcquireError::Store(error)) if is_outage(&error) => add(&counts.failed),
        Err(error) => return Err(error.to_string()),
    }
    Ok(None)
}

/// Changes the policy for all processes. A store that does not answer may have changed it.
async fn change(shared: Arc<Shared>, run: Arc<Run>, tally: Arc<Tally>) {
    while run.pause(ms(fastrand::u64(2_000..6_000))).await {
        let process = &shared.processes[fastrand::usize(..shared.processes.len())];
        let policy = shared.spec.policies[fastrand::usize(..shared.spec.policies.len())];
        let changed = process.limiter.set_policy(policy);
        if let Some(Err(error)) = tally.within(SOON, "a change of the policy", changed).await
            && !is_outage(&error)
        {
            tally.fault(format_args!("{}: {error}", shared.spec.name));
        }
    }
}

impl Shared {
    async fn end(&self, tally: &Tally) {
        for Process {
            limiter, counts, ..
        } in &self.processes
        {
            let rests = || {
                let totals = limiter.totals();
                (totals.in_flight, totals.queued) == (0, 0)
            };
            tally
                .until(
                    SOON,
                    &format!("permits of a process: {}", self.spec.name),
                    rests,
                )
                .await;
            let found = limiter.totals();
            agree(
                self.spec.name,
                tally,
                permits(counts, [found.granted, found.refunded, found.reclaimed]),
            );
        }
        for ((key, _), limiter) in self.keys.iter().zip(&self.processes[0].keys) {
            let is_whole = async {
                loop {
                    match limiter.limits().await {
                        Ok(limits)
                            if limits.iter().all(|limit| limit.remaining == limit.capacity) =>
                        {
                            return;
                        }
                        _ => sleep(ms(20)).await,
                    }
                }
            };
            tally
                .within(
                    SOON,
                    &format!("units that have not come back: {} {key}", self.spec.name),
                    is_whole,
                )
                .await;
        }
    }
}
