//! Many flows at one limiter: one that floods it, many that come and go, and a small one, whose requests must not be overtaken much.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tollgate::{AcquireError, Limiter};

use super::{SOON, ms, settle};
use crate::holder::{Habit, granted_between, hold};
use crate::reference::{Reference, Rule, watch};
use crate::run::Run;
use crate::tally::{Counts, Tally, add};

const FLOOD: usize = 40;
/// The tasks whose requests are each of another flow.
const OTHERS: u64 = 20;
/// A request of a flow that has nothing is passed at most by the flows that came before it, once by each, and each of these may have
/// begun to wait only then. The flood is one of them.
const MOST_OVERTAKEN: u64 = 2 * (OTHERS + 1);

const HABIT: Habit = Habit {
    longest: ms(8),
    leaks: 0,
    panics: 500,
};

struct Load {
    name: &'static str,
    limiter: Limiter,
    reference: Arc<Reference>,
    counts: Arc<Counts>,
    tally: Arc<Tally>,
    run: Arc<Run>,
    next_flow: AtomicU64,
    /// The most grants to others while a request of the small flow waited.
    overtaken: AtomicU64,
    longest_wait: AtomicU64,
}

pub(crate) async fn run(run: Arc<Run>, tally: Arc<Tally>) {
    let rate = [Rule::bucket(1_000, ms(1_000), 10)];
    let specs: [(&str, Option<u64>, &[Rule]); 2] = [
        ("8 concurrent", Some(8), &[]),
        ("1000/s burst 10", None, &rate),
    ];
    let mut tasks = JoinSet::new();
    let mut loads = Vec::new();
    for (name, places, rules) in specs {
        let counts = tally.counts();
        let limiter = Limiter::builder(name)
            .on_event(counts.observer())
            .build()
            .expect("a sound policy");
        let load = Arc::new(Load {
            name,
            limiter,
            reference: Reference::new(format!("{name}, flows"), &tally, places, rules),
            counts,
            tally: Arc::clone(&tally),
            run: Arc::clone(&run),
            next_flow: AtomicU64::new(0),
            overtaken: AtomicU64::new(0),
            longest_wait: AtomicU64::new(0),
        });
        (0..FLOOD).for_each(|_| _ = tasks.spawn(Arc::clone(&load).flood()));
        (0..OTHERS).for_each(|_| _ = tasks.spawn(Arc::clone(&load).come_and_go()));
        tasks.spawn(Arc::clone(&load).small());
        loads.push(load);
    }
    watch(&run, || {
        loads
            .iter()
            .map(|load| Arc::clone(&load.reference))
            .collect()
    })
    .await;
    tally
        .within(SOON, "a task of a flow", tasks.join_all())
        .await;
    for load in loads {
        load.end().await;
    }
}

impl Load {
    async fn hold(&self, permit: tollgate::Permit, asked: Instant) {
        let times = granted_between(&permit, asked, &self.tally);
        hold(
            (permit, times, None),
            &self.reference,
            (&self.tally, &self.counts),
            HABIT,
        )
        .await;
    }

    async fn flood(self: Arc<Self>) {
        while self.run.goes_on() {
            let asked = Instant::now();
            let request = self.limiter.request().flow("flood").acquire();
            match self.tally.within(SOON, "the flood", request).await {
                Some(Ok(permit)) => self.hold(permit, asked).await,
                Some(Err(error)) => self.tally.fault(error),
                None => return,
            }
        }
    }

    async fn come_and_go(self: Arc<Self>) {
        while self.run.goes_on() {
            let flow = self.next_flow.fetch_add(1, Relaxed);
            let (asked, weight) = (Instant::now(), 1 + flow % 3);
            let request = self.limiter.request().flow(flow).weight(weight);
            let patience = ms(fastrand::u64(..200));
            if flow.is_multiple_of(2) {
                match request.timeout(patience).await {
                    Ok(permit) => self.hold(permit, asked).await,
                    Err(AcquireError::TimedOut { .. }) => add(&self.counts.timed_out),
                    Err(error) => self.tally.fault(error),
                }
            } else {
                match timeout(patience, request.acquire()).await {
                    Ok(Ok(permit)) => self.hold(permit, asked).await,
                    Ok(Err(error)) => self.tally.fault(error),
                    Err(_) => add(&self.counts.cancelled),
                }
            }
            // Fewer new flows come than the limits admit, or they alone would take all units, each its own.
            sleep(ms(120).mul_f64(fastrand::f64())).await;
        }
    }

    async fn small(self: Arc<Self>) {
        while self.run.pause(ms(20)).await {
            let asked = Instant::now();
            let reserved = match self.limiter.request().flow("small").reserve() {
                Ok(reserved) => reserved,
                Err(error) => {
                    self.tally.fault(error);
                    continue;
                }
            };
            // Read when the request has its place in the queue, so that grants before that do not count.
            let before = self.limiter.snapshot().granted;
            match self.tally.within(SOON, "the small flow", reserved).await {
                Some(Ok(permit)) => {
                    // Fences count grants.
                    let overtaken = permit.fence().saturating_sub(before + 1);
                    if overtaken > MOST_OVERTAKEN {
                        self.tally.fault(format_args!(
                            "{}: {overtaken} grants to others while the small flow waited",
                            self.name
                        ));
                    }
                    self.overtaken.fetch_max(overtaken, Relaxed);
                    self.longest_wait
                        .fetch_max(asked.elapsed().as_millis() as u64, Relaxed);
                    self.hold(permit, asked).await;
                }
                Some(Err(error)) => self.tally.fault(error),
                None => return,
            }
        }
    }

    async fn end(&self) {
        let Self {
            name,
            limiter,
            tally,
            ..
        } = self;
        settle(name, tally, &self.counts, limiter, &self.reference).await;
        let (overtaken, wait) = (
            self.overtaken.load(Relaxed),
            Duration::from_millis(self.longest_wait.load(Relaxed)),
        );
        tally.note(format_args!("{name}: at most {overtaken} grants passed a request of the small flow, which waited {wait:?} at most"));
    }
}
