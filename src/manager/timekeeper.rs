//! A thread that is punctual, for limiters that ask for it.
//!
//! Tokio's timer has steps of a millisecond, and a pace without a burst loses its lateness at each grant. This thread, one in a
//! process, sleeps until a little before the instant that matters next, by how late its sleeps have been, and spins for the rest.
//! Then it does what is due, as a [driver](super::driver) does. While no limiter waits for an instant it sleeps.
//!
//! It comes before the drivers, not in their place: they keep their timers. So nothing is lost where it does not act: where it could
//! not be started, or where the clock of the limiter's runtime is not the system's, because a test pauses or advances it.
//!
//! Crates that sleep precisely do not fit, since such a sleep does not end when an earlier instant is announced.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use std::{hint, thread};

use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::shared_driver::Driven;

/// One appointment of a manager.
#[derive(Debug)]
struct Appointment {
    driven: Weak<dyn Driven>,
    /// Its clock is the manager's.
    runtime: Handle,
    /// Wakes the drivers.
    wakeup: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Calendar {
    timeline: BTreeMap<(Instant, usize), Appointment>,
    /// When each manager, by its address, is in the timeline: once at most.
    instants: HashMap<usize, Instant>,
}

#[derive(Debug, Default)]
struct Timekeeper {
    calendar: Mutex<Calendar>,
    changed: Condvar,
    /// Tells the thread of an earlier instant while it spins, as `changed` does while it sleeps.
    has_changed: AtomicBool,
}

/// How much before an instant the thread ends its sleep: the mean of its lateness and the mean deviation from that (estimated as by
/// Jacobson, "Congestion avoidance and control", 1988, for round trips). More of it takes more CPU than it gains.
#[derive(Debug)]
struct Lead {
    mean: Duration,
    deviation: Duration,
}

/// `None` if the thread cannot be started.
static TIMEKEEPER: LazyLock<Option<Arc<Timekeeper>>> = LazyLock::new(|| {
    let timekeeper = Arc::<Timekeeper>::default();
    let kept = Arc::clone(&timekeeper);
    let thread = thread::Builder::new().name("tollgate-timekeeper".into());
    thread.spawn(move || kept.keep()).is_ok().then_some(timekeeper)
});

/// Runs the manager at that instant of the present runtime's clock, if that is the system's. A later call for the same manager
/// replaces the instant.
pub(super) fn run_at<D: Driven>(at: tokio::time::Instant, driven: Weak<D>, wakeup: &Arc<Notify>) {
    if let (true, Ok(runtime), Some(timekeeper)) = (clock_is_real(), Handle::try_current(), &*TIMEKEEPER) {
        timekeeper.announce(at.into_std(), Appointment { driven, runtime, wakeup: Arc::clone(wakeup) });
    }
}

/// Whether tokio's clock is the system's in this context. A paused one stands still before or after the present.
fn clock_is_real() -> bool {
    let before = Instant::now();
    let shown = tokio::time::Instant::now().into_std();
    before <= shown && shown <= Instant::now()
}

impl Appointment {
    /// No other manager has the same one as long as a `Weak` to this one is kept.
    fn address(&self) -> usize {
        self.driven.as_ptr().cast::<()>() as usize
    }

    /// Returns when the manager is to be run next.
    fn keep(&self) -> Option<Instant> {
        let _in_runtime = self.runtime.enter();
        let driven = self.driven.upgrade()?;
        if !clock_is_real() {
            self.wakeup.notify_waiters();
            return None;
        }
        match catch_unwind(AssertUnwindSafe(|| driven.run_due())) {
            Ok(next) => next.map(tokio::time::Instant::into_std),
            Err(panic) => {
                std::mem::forget(panic); // its drop may panic too
                self.wakeup.notify_waiters();
                None
            }
        }
    }
}

impl Calendar {
    fn enter(&mut self, at: Instant, appointment: Appointment) {
        let address = appointment.address();
        if let Some(former) = self.instants.insert(address, at) {
            self.timeline.remove(&(former, address));
        }
        self.timeline.insert((at, address), appointment);
    }

    fn next(&self) -> Option<Instant> {
        self.timeline.first_key_value().map(|(&(at, _), _)| at)
    }

    fn take_due(&mut self, now: Instant) -> Option<Appointment> {
        let first = self.timeline.first_entry().filter(|first| first.key().0 <= now)?;
        let ((_, address), appointment) = first.remove_entry();
        self.instants.remove(&address);
        Some(appointment)
    }
}

impl Timekeeper {
    fn lock(&self) -> MutexGuard<'_, Calendar> {
        self.calendar.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self, at: Instant, appointment: Appointment) {
        let mut calendar = self.lock();
        let is_first = calendar.next().is_none_or(|next| at < next);
        calendar.enter(at, appointment);
        if is_first {
            self.has_changed.store(true, Relaxed);
            self.changed.notify_one();
        }
    }

    fn keep(&self) {
        let mut lead = Lead::at_first();
        let mut calendar = self.lock();
        loop {
            if let Some(due) = calendar.take_due(Instant::now()) {
                drop(calendar);
                let next = due.keep();
                calendar = self.lock();
                // If a driver has announced it meanwhile, that is as new: it was after the same run or a later one.
                if let Some(at) = next.filter(|_| !calendar.instants.contains_key(&due.address())) {
                    calendar.enter(at, due);
                }
                continue;
            }
            calendar = match calendar.next() {
                None => self.changed.wait(calendar).unwrap_or_else(PoisonError::into_inner),
                Some(at) => self.wait_until(at, calendar, &mut lead),
            };
        }
    }

    /// Waits until that instant, or until an earlier one is announced.
    fn wait_until<'a>(&'a self, at: Instant, calendar: MutexGuard<'a, Calendar>, lead: &mut Lead) -> MutexGuard<'a, Calendar> {
        let early = at.checked_sub(lead.time()).unwrap_or(at);
        let asleep = early.saturating_duration_since(Instant::now());
        if !asleep.is_zero() {
            let waited = self.changed.wait_timeout(calendar, asleep).unwrap_or_else(PoisonError::into_inner);
            if waited.1.timed_out() {
                lead.learn(early.elapsed());
            }
            return waited.0;
        }
        self.has_changed.store(false, Relaxed);
        drop(calendar);
        while Instant::now() < at && !self.has_changed.load(Relaxed) {
            hint::spin_loop();
        }
        self.lock()
    }
}

impl Lead {
    const MIN: Duration = Duration::from_micros(10);
    /// After sleeps that were later than this, by a busy machine, it would spin most of the time.
    const MAX: Duration = Duration::from_micros(250);

    const fn at_first() -> Self {
        Self { mean: Duration::from_micros(60), deviation: Duration::from_micros(10) }
    }

    fn time(&self) -> Duration {
        (self.mean + self.deviation).clamp(Self::MIN, Self::MAX)
    }

    fn learn(&mut self, late: Duration) {
        let late = late.min(Self::MAX);
        self.deviation = (3 * self.deviation + late.abs_diff(self.mean)) / 4;
        self.mean = (7 * self.mean + late) / 8;
    }
}
