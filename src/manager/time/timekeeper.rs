//! A thread that grants on time, within microseconds, for limiters with `precise_timer()`.
//!
//! Tokio's timer has steps of a millisecond, and a pace without a burst loses its lateness at each grant. This thread, one in a
//! process, sleeps until a little before the instant that matters next, by how late its sleeps have been, and spins for the rest.
//! Then it does what is due, as a [driver](super::driver) does. While no limiter waits for an instant it sleeps.
//!
//! It acts before the drivers and does not replace them: they keep their timers. So nothing is lost where it does not act: if it
//! could not be started, or if the clock of the limiter's runtime is not the system's, because a test pauses or advances it.
//!
//! Crates that sleep precisely do not fit, since such a sleep does not end when an earlier instant is announced.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, Instant};
use std::{hint, thread};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::runtime::{self, Handle};
use tokio::sync::Notify;

use super::{Driven, Next};

/// One appointment of a manager.
#[derive(Debug)]
struct Appointment {
    driven: Weak<dyn Driven>,
    /// The manager reads the clock of this runtime.
    runtime: Handle,
    /// Wakes the drivers.
    wakeup: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Calendar {
    timeline: BTreeMap<(Instant, Address), Appointment>,
    /// The instant of each manager in the timeline, by the manager's address. A manager has one appointment at most.
    instants: HashMap<Address, Instant>,
    /// The appointment that the thread keeps at present, unless it was dismissed.
    kept: Option<(Address, runtime::Id)>,
}

/// The address of a manager: no other manager has the same one as long as a `Weak` to it is kept.
type Address = usize;

#[derive(Debug, Default)]
struct Timekeeper {
    calendar: Mutex<Calendar>,
    changed: Condvar,
    /// Ends the spinning of the thread when an earlier instant is announced. `changed` ends its sleep.
    has_changed: AtomicBool,
}

/// How much before an instant the thread ends its sleep: the mean of its lateness and the mean deviation from that (estimated as by
/// Jacobson, "Congestion avoidance and control", 1988, for round trips). A longer lead costs more CPU time than it gains.
#[derive(Debug)]
struct Lead {
    mean: Duration,
    deviation: Duration,
}

static TIMEKEEPER: LazyLock<Timekeeper> = LazyLock::new(Timekeeper::default);

/// Whether the thread could be started, which the first appointment does.
static HAS_THREAD: LazyLock<bool> = LazyLock::new(|| {
    let thread = thread::Builder::new().name("tollgate-timekeeper".into());
    thread.spawn(|| TIMEKEEPER.keep()).is_ok()
});

/// Runs the manager at that instant of the present runtime's clock, if that is the system's. If several instants were announced,
/// the manager runs at the earliest one: another thread may have announced it.
pub(in crate::manager) fn run_at<D: Driven>(
    at: tokio::time::Instant,
    driven: Weak<D>,
    wakeup: &Arc<Notify>,
) {
    if clock_is_real()
        && let Ok(runtime) = Handle::try_current()
        && *HAS_THREAD
    {
        TIMEKEEPER.announce(
            at.into_std(),
            Appointment {
                driven,
                runtime,
                wakeup: Arc::clone(wakeup),
            },
        );
    }
}

/// Ends the appointment of a manager, if it is in this runtime; `None` stands for any runtime.
pub(in crate::manager) fn dismiss<D>(driven: *const D, runtime: Option<runtime::Id>) {
    let address = driven.cast::<()>() as Address;
    let dismissed = TIMEKEEPER.calendar.lock().dismiss(address, runtime);
    drop(dismissed); // without the lock: this may be the last handle
}

/// Whether tokio's clock is the system's in this context. A paused one stands still before or after the present.
pub(in crate::manager) fn clock_is_real() -> bool {
    let before = Instant::now();
    let shown = tokio::time::Instant::now().into_std();
    before <= shown && shown <= Instant::now()
}

impl Appointment {
    fn address(&self) -> Address {
        self.driven.as_ptr().cast::<()>() as Address
    }

    /// Returns when the manager is to be run next.
    fn keep(&self) -> Option<Instant> {
        let _in_runtime = self.runtime.enter();
        let driven = self.driven.upgrade()?;
        if !clock_is_real() {
            self.wakeup.notify_waiters();
            return None;
        }
        match driven.run_due_contained() {
            Some(Next::Sleep(next)) => next.map(tokio::time::Instant::into_std),
            Some(Next::Continue) => Some(Instant::now()),
            Some(Next::End) => None,
            None => {
                self.wakeup.notify_waiters();
                None
            }
        }
    }
}

impl Calendar {
    /// Enters an appointment. If the manager has one already, keeps the earlier one and returns the other.
    fn enter(&mut self, at: Instant, appointment: Appointment) -> Option<Appointment> {
        let address = appointment.address();
        let mut former = None;
        if let Some(instant) = self.instants.get(&address).copied() {
            if instant < at {
                return Some(appointment);
            }
            former = self.timeline.remove(&(instant, address));
        }
        self.instants.insert(address, at);
        self.timeline.insert((at, address), appointment);
        former
    }

    fn dismiss(&mut self, address: Address, runtime: Option<runtime::Id>) -> Option<Appointment> {
        let is_it = |of: runtime::Id| runtime.is_none_or(|runtime| runtime == of);
        self.kept = self.kept.filter(|kept| kept.0 != address || !is_it(kept.1));
        let key = (*self.instants.get(&address)?, address);
        self.timeline
            .get(&key)
            .filter(|appointment| is_it(appointment.runtime.id()))?;
        self.instants.remove(&address);
        self.timeline.remove(&key)
    }

    fn next(&self) -> Option<Instant> {
        self.timeline.first_key_value().map(|(&(at, _), _)| at)
    }

    fn take_due(&mut self, now: Instant) -> Option<Appointment> {
        let first = self
            .timeline
            .first_entry()
            .filter(|first| first.key().0 <= now)?;
        let ((_, address), appointment) = first.remove_entry();
        self.instants.remove(&address);
        self.kept = Some((address, appointment.runtime.id()));
        Some(appointment)
    }
}

impl Timekeeper {
    fn announce(&self, at: Instant, appointment: Appointment) {
        let mut calendar = self.calendar.lock();
        let is_first = calendar.next().is_none_or(|next| at < next);
        let superseded = calendar.enter(at, appointment);
        if is_first {
            self.has_changed.store(true, Relaxed);
            self.changed.notify_one();
        }
        drop(calendar);
        drop(superseded);
    }

    fn keep(&self) {
        let mut lead = Lead::FIRST;
        loop {
            let mut calendar = self.calendar.lock();
            let Some(due) = calendar.take_due(Instant::now()) else {
                self.wait(calendar, &mut lead);
                continue;
            };
            drop(calendar);
            let next = due.keep();
            let mut calendar = self.calendar.lock();
            let stands = calendar.kept.take().is_some();
            let ended = match next.filter(|_| stands) {
                Some(at) => calendar.enter(at, due),
                None => Some(due),
            };
            drop(calendar);
            drop(ended);
        }
    }

    /// Waits until the next appointment, or until an earlier one is announced.
    fn wait(&self, mut calendar: MutexGuard<'_, Calendar>, lead: &mut Lead) {
        let Some(at) = calendar.next() else {
            self.changed.wait(&mut calendar);
            return;
        };
        let early = at.checked_sub(lead.time()).unwrap_or(at);
        let asleep = early.saturating_duration_since(Instant::now());
        if !asleep.is_zero() {
            if self.changed.wait_for(&mut calendar, asleep).timed_out() {
                lead.learn(early.elapsed());
            }
            return;
        }
        self.has_changed.store(false, Relaxed);
        drop(calendar);
        while Instant::now() < at && !self.has_changed.load(Relaxed) {
            hint::spin_loop();
        }
    }
}

impl Lead {
    const FIRST: Self = Self {
        mean: Duration::from_micros(60),
        deviation: Duration::from_micros(10),
    };
    const MIN: Duration = Duration::from_micros(10);
    /// If a busy machine ends sleeps later than this, the thread would spin most of the time.
    const MAX: Duration = Duration::from_micros(250);

    fn time(&self) -> Duration {
        (self.mean + self.deviation).clamp(Self::MIN, Self::MAX)
    }

    fn learn(&mut self, late: Duration) {
        let late = late.min(Self::MAX);
        self.deviation = (3 * self.deviation + late.abs_diff(self.mean)) / 4;
        self.mean = (7 * self.mean + late) / 8;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::{KeyedLimiter, Limiter, Throttle};

    const HOUR: Duration = Duration::from_secs(3_600);
    const MILLI: Duration = Duration::from_millis(1);

    fn runtime() -> runtime::Runtime {
        runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    }

    /// How many appointments have a handle of the runtime.
    fn appointments(runtime: runtime::Id) -> usize {
        TIMEKEEPER
            .calendar
            .lock()
            .timeline
            .values()
            .filter(|appointment| appointment.runtime.id() == runtime)
            .count()
    }

    /// A limiter for which a request waited in the runtime for a moment.
    fn waited_at(runtime: &runtime::Runtime) -> Limiter {
        let limiter = Limiter::builder(Throttle::every(HOUR))
            .precise_timer()
            .build()
            .unwrap();
        runtime.block_on(async {
            drop(limiter.acquire().await.unwrap());
            assert!(
                tokio::time::timeout(Duration::from_millis(5), limiter.acquire())
                    .await
                    .is_err()
            );
        });
        limiter
    }

    fn waited_at_key(runtime: &runtime::Runtime) -> KeyedLimiter<u64> {
        let keyed = KeyedLimiter::<u64>::builder(Throttle::every(HOUR))
            .precise_timer()
            .build()
            .unwrap();
        runtime.block_on(async {
            drop(keyed.acquire(&1).await.unwrap());
            assert!(
                tokio::time::timeout(Duration::from_millis(5), keyed.acquire(&1))
                    .await
                    .is_err()
            );
        });
        keyed
    }

    #[test]
    fn an_appointment_ends_with_its_runtime() {
        let runtimes = [runtime(), runtime()];
        let ids = runtimes.each_ref().map(|runtime| runtime.handle().id());
        let limiters = (waited_at(&runtimes[0]), waited_at_key(&runtimes[1]));
        assert_eq!(ids.map(appointments), [1, 1]);
        drop(runtimes);
        assert_eq!(ids.map(appointments), [0, 0]);
        drop(limiters);
    }

    /// The runtime need not run for that.
    #[test]
    fn an_appointment_ends_with_its_limiter() {
        let runtimes = [runtime(), runtime()];
        let ids = runtimes.each_ref().map(|runtime| runtime.handle().id());
        let limiters = (waited_at(&runtimes[0]), waited_at_key(&runtimes[1]));
        assert_eq!(ids.map(appointments), [1, 1]);
        drop(limiters);
        assert_eq!(ids.map(appointments), [0, 0]);
    }

    #[derive(Debug)]
    struct Slow {
        runs: Sender<()>,
        may_end: Mutex<Receiver<()>>,
    }

    impl Driven for Slow {
        fn run_due(self: Arc<Self>) -> Next {
            self.runs.send(()).unwrap();
            self.may_end.lock().unwrap().recv().unwrap();
            Next::Sleep(Some(tokio::time::Instant::now() + HOUR))
        }

        fn driver_gone(&self, _: runtime::Id) {}
    }

    #[test]
    fn an_appointment_that_is_dismissed_while_it_is_kept_has_ended() {
        let (runtime, (runs, ran), (end, may_end)) = (runtime(), channel(), channel());
        let (id, slow) = (
            runtime.handle().id(),
            Arc::new(Slow {
                runs,
                may_end: Mutex::new(may_end),
            }),
        );
        for dismissed in [true, false] {
            runtime.block_on(async {
                run_at(
                    tokio::time::Instant::now(),
                    Arc::downgrade(&slow),
                    &Arc::default(),
                );
            });
            ran.recv().unwrap();
            if dismissed {
                dismiss(Arc::as_ptr(&slow), Some(id));
            }
            end.send(()).unwrap();
            while TIMEKEEPER
                .calendar
                .lock()
                .kept
                .is_some_and(|kept| kept.1 == id)
            {}
            thread::sleep(Duration::from_millis(5)); // dropped without the lock
            assert_eq!(appointments(id), usize::from(!dismissed));
        }
        dismiss(Arc::as_ptr(&slow), None);
        assert_eq!(appointments(id), 0);
    }

    #[derive(Debug)]
    struct Idle;

    impl Driven for Idle {
        fn run_due(self: Arc<Self>) -> Next {
            Next::End
        }

        fn driver_gone(&self, _: runtime::Id) {}
    }

    fn appointment(driven: &Arc<Idle>, runtime: &runtime::Runtime) -> Appointment {
        let driven = Arc::downgrade(driven);
        Appointment {
            driven,
            runtime: runtime.handle().clone(),
            wakeup: Arc::default(),
        }
    }

    #[test]
    fn of_two_instants_of_a_manager_the_earlier_one_is_kept() {
        let (runtime, driven, now) = (runtime(), Arc::new(Idle), Instant::now());
        let mut calendar = Calendar::default();
        for (at, earliest) in [(3, 3), (2, 2), (4, 2)] {
            drop(calendar.enter(now + at * HOUR, appointment(&driven, &runtime)));
            assert_eq!(calendar.next(), Some(now + earliest * HOUR));
            assert_eq!(calendar.timeline.len(), 1);
        }
    }

    #[test]
    fn a_dismissal_ends_what_is_kept_for_its_manager_in_its_runtime_only() {
        let (runtimes, now) = ([runtime(), runtime()], Instant::now());
        let ids = runtimes.each_ref().map(|runtime| runtime.handle().id());
        let (driven, other) = (Arc::new(Idle), Arc::new(Idle));
        let mut calendar = Calendar::default();
        calendar.enter(now, appointment(&driven, &runtimes[0]));
        let address = calendar.take_due(now).unwrap().address();
        for (of, runtime) in [
            (appointment(&other, &runtimes[0]).address(), ids[0]),
            (address, ids[1]),
        ] {
            calendar.dismiss(of, Some(runtime));
            assert_eq!(calendar.kept, Some((address, ids[0])));
        }
        calendar.dismiss(address, Some(ids[0]));
        assert_eq!(calendar.kept, None);
    }

    #[test]
    fn an_instant_before_all_others_ends_the_wait() {
        let (runtime, now) = (runtime(), Instant::now());
        let timekeeper = Timekeeper::default();
        let managers = [(); 4].map(|()| Arc::new(Idle));
        for (driven, (at, ends)) in
            managers
                .iter()
                .zip([(3, true), (4, false), (2, true), (2, false)])
        {
            timekeeper.has_changed.store(false, Relaxed);
            timekeeper.announce(now + at * HOUR, appointment(driven, &runtime));
            assert_eq!(timekeeper.has_changed.load(Relaxed), ends, "{at}");
        }
    }

    #[test]
    fn the_thread_sleeps_until_a_lead_before_an_instant_and_spins_for_the_rest() {
        let (runtime, driven) = (runtime(), Arc::new(Idle));
        let timekeeper = Timekeeper::default();
        let due = [(); 2].map(|()| appointment(&driven, &runtime));
        let (ended, end) = channel();
        thread::spawn(move || {
            let [due_after_sleep, due_at_once] = due;
            let (mut lead, mut waits) = (Lead::FIRST, 0);
            let at = Instant::now() + 20 * MILLI;
            timekeeper.announce(at, due_after_sleep);
            while Instant::now() < at {
                timekeeper.wait(timekeeper.calendar.lock(), &mut lead);
                waits += 1;
            }
            drop(timekeeper.calendar.lock().take_due(at));
            lead.mean = Lead::MAX;
            let at = Instant::now() + Lead::MAX / 2;
            timekeeper.announce(at, due_at_once);
            timekeeper.wait(timekeeper.calendar.lock(), &mut lead);
            ended.send((waits, Instant::now() >= at)).unwrap();
        });
        let (waits, spun) = end.recv_timeout(10_000 * MILLI).unwrap();
        assert!(waits <= 5 && spun, "{waits} {spun}");
    }

    #[test]
    fn the_lead_follows_how_late_sleeps_are_and_varies_with_them() {
        let lead_after = |late: [u64; 2]| {
            let mut lead = Lead::FIRST;
            for late in late.iter().cycle().take(100) {
                lead.learn(Duration::from_micros(*late));
            }
            lead.time().as_micros()
        };
        assert_eq!(Lead::FIRST.time(), Duration::from_micros(70));
        assert_eq!([0, 200].map(|late| lead_after([late; 2])), [10, 200]);
        assert_eq!(lead_after([1_000; 2]), Lead::MAX.as_micros());
        assert!(lead_after([50, 150]) > 140, "{}", lead_after([50, 150]));
    }
}
