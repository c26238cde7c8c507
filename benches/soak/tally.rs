//! What the parts count, and the faults that they find.

use std::fmt::Display;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use indicatif::HumanCount;
use tokio::time::timeout;
use tollgate::{EventKind, LimiterEvent};

/// How many faults of a part are kept as text.
const KEPT: usize = 10;

/// What the callers of one limiter have seen.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) granted: AtomicU64,
    pub(crate) denied: AtomicU64,
    /// Futures that were dropped while they were pending.
    pub(crate) cancelled: AtomicU64,
    /// Requests that timed out.
    pub(crate) timed_out: AtomicU64,
    /// Requests that a store did not answer.
    pub(crate) failed: AtomicU64,
    /// Permits that were forgotten.
    pub(crate) leaked: AtomicU64,
    /// Events of permits whose TTL has passed.
    pub(crate) reclaimed: AtomicU64,
    /// Events of permits that were dropped after their TTL.
    pub(crate) late: AtomicU64,
    /// Holders that panicked.
    pub(crate) panicked: AtomicU64,
}

impl Counts {
    /// An observer that counts what only events show.
    pub(crate) fn observer(self: &Arc<Self>) -> impl Fn(&LimiterEvent<'_>) + Send + Sync + 'static {
        let this = Arc::clone(self);
        move |event| match event.kind {
            EventKind::Reclaimed { .. } => add(&this.reclaimed),
            EventKind::ReleasedLate { .. } => add(&this.late),
            _ => {}
        }
    }

    fn all(&self) -> [&AtomicU64; 9] {
        let Self {
            granted,
            denied,
            cancelled,
            timed_out,
            failed,
            leaked,
            reclaimed,
            late,
            panicked,
        } = self;
        [
            granted, denied, cancelled, timed_out, failed, leaked, reclaimed, late, panicked,
        ]
    }
}

pub(crate) fn add(count: &AtomicU64) {
    count.fetch_add(1, Relaxed);
}

pub(crate) fn read(count: &AtomicU64) -> u64 {
    count.load(Relaxed)
}

/// The counts and the faults of a part.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) name: &'static str,
    limiters: Mutex<Vec<Arc<Counts>>>,
    faults: Mutex<(u64, Vec<String>)>,
    /// What the part reports at its end.
    notes: Mutex<Vec<String>>,
}

impl Tally {
    pub(crate) fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Self {
            name,
            limiters: Mutex::default(),
            faults: Mutex::default(),
            notes: Mutex::default(),
        })
    }

    /// The counts of one more limiter.
    pub(crate) fn counts(&self) -> Arc<Counts> {
        let counts = Arc::<Counts>::default();
        self.limiters.lock().unwrap().push(Arc::clone(&counts));
        counts
    }

    /// The counts of all limiters.
    pub(crate) fn sum(&self) -> Counts {
        let sum = Counts::default();
        for counts in self.limiters.lock().unwrap().iter() {
            for (sum, count) in sum.all().into_iter().zip(counts.all()) {
                sum.fetch_add(read(count), Relaxed);
            }
        }
        sum
    }

    pub(crate) fn fault(&self, fault: impl Display) {
        let (count, texts) = &mut *self.faults.lock().unwrap();
        *count += 1;
        if texts.len() < KEPT {
            texts.push(fault.to_string());
        }
    }

    /// The number of faults, and the first ones.
    pub(crate) fn faults(&self) -> (u64, Vec<String>) {
        self.faults.lock().unwrap().clone()
    }

    pub(crate) fn note(&self, note: impl Display) {
        self.notes.lock().unwrap().push(note.to_string());
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap().clone()
    }

    /// What the future returns. It is a fault if that takes longer than `limit`.
    pub(crate) async fn within<T>(
        &self,
        limit: Duration,
        what: &str,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        let done = timeout(limit, future).await.ok();
        if done.is_none() {
            self.fault(format_args!("hangs for {limit:?}: {what}"));
        }
        done
    }

    /// Waits until a condition holds. It is a fault if that takes longer than `limit`.
    pub(crate) async fn until(&self, limit: Duration, what: &str, holds: impl Fn() -> bool) {
        let reached = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        self.within(limit, what, reached).await;
    }
}

impl Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = [
            "granted",
            "denied",
            "cancelled",
            "timed out",
            "failed",
            "leaked",
            "reclaimed",
            "late",
            "panicked",
        ];
        let mut counts = names
            .into_iter()
            .zip(self.all())
            .filter(|(name, count)| *name == "granted" || read(count) > 0);
        counts.try_for_each(|(name, count)| write!(f, "{} {name}  ", HumanCount(read(count))))
    }
}
