//! The timers that run a manager when time matters.
//!
//! | timer | serves | runs in |
//! |---|---|---|
//! | a driver of its own | one [`Limiter`](crate::Limiter) | each runtime with a waiter |
//! | a [shared driver](SharedDriver) | all active keys of a [`KeyedLimiter`](crate::KeyedLimiter) | each runtime with a waiter |
//! | the [timekeeper] | all limiters that ask for it, before their drivers | one thread |
//! | a caller that blocks its thread | the limiter whose queue it is at the front of | the caller's thread |
//!
//! A driver is one task with one timer, in one runtime. It sleeps until the next instant that matters, or without a timer, and is
//! woken early when that instant changes. It holds what it drives only during a run, and ends when what it drives was dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::runtime::{self, Handle};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Duration, Instant, timeout_at};

use super::{Driven, Next, runtimes, timekeeper};
use crate::contain_panic::contain_panic;

#[derive(Debug)]
pub(crate) enum TimerHost<D: Driven> {
    /// A driver of its own in each runtime.
    Own {
        /// Wakes the drivers before their timers do.
        wakeup: Arc<Notify>,
        /// Whether the [timekeeper] comes before them.
        precise: bool,
    },
    SharedDriver(Arc<SharedDriver<D>>),
}

impl<D: Driven> TimerHost<D> {
    pub(crate) fn own(precise: bool) -> Self {
        Self::Own {
            wakeup: Arc::default(),
            precise,
        }
    }

    /// Starts a driver in the runtime. Must be called in that runtime, outside every lock: a runtime that is shutting down drops the
    /// driver at once, and its drop locks.
    #[cold]
    pub(in crate::manager) fn start(&self, driven: &Arc<D>, runtime: Handle) {
        match self {
            Self::Own { wakeup, precise } => {
                spawn(driven, &runtime, wakeup, *precise);
            }
            Self::SharedDriver(shared_driver) => shared_driver.enlist(driven, &runtime),
        }
    }

    /// Wakes the drivers before their timers do.
    pub(in crate::manager) fn wake(&self, driven: &D) {
        match self {
            Self::Own { wakeup, .. } => wakeup.notify_waiters(),
            Self::SharedDriver(shared_driver) => shared_driver.call(driven),
        }
    }

    /// Removes a manager that was dropped.
    pub(in crate::manager) fn dismiss(&self, driven: &D) {
        match self {
            Self::Own { wakeup, precise } => {
                wakeup.notify_waiters(); // the drivers then find no manager and end
                if *precise {
                    timekeeper::dismiss(driven, None);
                }
            }
            Self::SharedDriver(shared_driver) => shared_driver.dismiss(driven),
        }
    }
}

/// Starts a driver. `precise`: the [timekeeper] acts before it.
fn spawn<D: Driven>(driven: &Arc<D>, runtime: &Handle, wakeup: &Arc<Notify>, precise: bool) {
    let driver = Driver {
        driven: Arc::downgrade(driven),
        runtime: runtime.id(),
        wakeup: Arc::clone(wakeup),
        precise,
    };
    runtime.spawn(drive(driver));
}

/// Its drop reports that the driver has ended: its runtime was shut down, perhaps before the first poll, or has no timers and tokio
/// panicked.
#[derive(Debug)]
struct Driver<D: Driven> {
    driven: Weak<D>,
    runtime: runtime::Id,
    wakeup: Arc<Notify>,
    precise: bool,
}

async fn drive<D: Driven>(driver: Driver<D>) {
    loop {
        // The wake-up is registered before `run_due`. Otherwise a wake-up between `run_due` and the sleep would be missed.
        let woken = driver.wakeup.notified();
        let Some(driven) = driver.driven.upgrade() else {
            return;
        };
        match driven.run_due_contained() {
            // Endless panics, too, must not occupy the runtime's worker for ever.
            None | Some(Next::Continue) => yield_now().await,
            Some(Next::Sleep(Some(_))) if runtimes::lacks_timers(driver.runtime) => return,
            Some(Next::Sleep(Some(at))) => {
                if driver.precise {
                    timekeeper::run_at(at, driver.driven.clone(), &driver.wakeup);
                }
                drop(timeout_at(at, woken).await);
            }
            Some(Next::Sleep(None)) => woken.await,
            Some(Next::End) => return,
        }
    }
}

impl<D: Driven> Drop for Driver<D> {
    fn drop(&mut self) {
        runtimes::driver_ended(self.runtime);
        if self.precise {
            timekeeper::dismiss(self.driven.as_ptr(), Some(self.runtime));
        }
        if let Some(driven) = self.driven.upgrade() {
            driven.driver_gone(self.runtime);
        }
    }
}

/// How many managers run before the task yields the runtime's worker.
const BATCH: usize = 64;

/// The drivers of the active keys of a keyed limiter: in each runtime, one task runs each manager when it is due.
#[derive(Debug)]
pub(crate) struct SharedDriver<D: Driven> {
    runtimes: Mutex<Vec<RuntimeTimers<D>>>,
    /// Whether the [timekeeper] comes before the tasks.
    precise: bool,
}

/// What the driver of one runtime drives.
#[derive(Debug)]
struct Task<D: Driven> {
    shared_driver: Weak<SharedDriver<D>>,
    runtime: runtime::Id,
    /// Wakes it before its timer does.
    wakeup: Arc<Notify>,
}

/// What the task of one runtime has to do.
#[derive(Debug)]
struct RuntimeTimers<D: Driven> {
    task: Arc<Task<D>>,
    /// An instant on the runtime's clock, before all due times.
    start: Instant,
    /// A tree: growing a large hash table would delay all its keys. Its entries are small: each of a million keys may have one.
    managers: BTreeMap<ManagerAddr, (Weak<D>, Option<Due>)>,
    /// The managers that have a due time, each once, with the same time as in `managers`.
    timeline: BTreeSet<(Due, ManagerAddr)>,
    /// The number of the latest call.
    calls: NonZeroU64,
}

/// When a manager is to be run next: the number of a call, or nanoseconds after [`RuntimeTimers::start`], which are offset by
/// [`Due::START`].
///
/// A call means now. It is not an instant, because the caller's clock may differ from the runtime's. Calls are numbered, so that
/// managers run in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Due(NonZeroU64);

impl Due {
    const START: NonZeroU64 = NonZeroU64::MIN.saturating_add(u64::MAX / 2);

    fn at(start: Instant, at: Instant) -> Self {
        let nanos =
            u64::try_from(at.saturating_duration_since(start).as_nanos()).unwrap_or(u64::MAX);
        Self(Self::START.saturating_add(nanos))
    }

    /// `None` for a call.
    fn instant(self, start: Instant) -> Option<Instant> {
        Some(start + Duration::from_nanos(self.0.get().checked_sub(Self::START.get())?))
    }
}

/// The address of a manager: no other manager has the same one as long as a `Weak` to it is kept.
type ManagerAddr = usize;

fn addr<D>(manager: &D) -> ManagerAddr {
    std::ptr::from_ref(manager) as ManagerAddr
}

impl<D: Driven> SharedDriver<D> {
    pub(crate) fn new(precise: bool) -> Arc<Self> {
        Arc::new(Self {
            runtimes: Mutex::new(Vec::new()),
            precise,
        })
    }

    /// Registers the manager with the runtime's task, to be run now for the first time. Must be called in that runtime.
    fn enlist(self: &Arc<Self>, manager: &Arc<D>, runtime: &Handle) {
        let addr = addr(&**manager);
        let mut runtimes = self.runtimes.lock();
        let known = runtimes
            .iter()
            .position(|timers| timers.task.runtime == runtime.id());
        if known.is_none() {
            runtimes.push(RuntimeTimers {
                task: Arc::new(Task {
                    shared_driver: Arc::downgrade(self),
                    runtime: runtime.id(),
                    wakeup: Arc::default(),
                }),
                start: Instant::now(),
                managers: BTreeMap::new(),
                timeline: BTreeSet::new(),
                calls: NonZeroU64::MIN,
            });
        }
        let nth = known.unwrap_or(runtimes.len() - 1);
        let timers = &mut runtimes[nth];
        let new = || (Arc::downgrade(manager), None);
        timers.managers.entry(addr).or_insert_with(new);
        timers.call(addr);
        let task = Arc::clone(&timers.task);
        drop(runtimes);
        if known.is_none() {
            // Outside the lock: a runtime that is shutting down drops the driver at once, and its drop locks.
            spawn(&task, runtime, &task.wakeup, self.precise);
        } else {
            task.wakeup.notify_waiters();
        }
    }

    /// Makes the manager due now in every runtime that serves it.
    fn call(&self, manager: &D) {
        let addr = addr(manager);
        for timers in self.runtimes.lock().iter_mut() {
            if timers.call(addr) {
                timers.task.wakeup.notify_waiters();
            }
        }
    }

    /// Removes a manager that was dropped.
    fn dismiss(&self, manager: &D) {
        let addr = addr(manager);
        for timers in self.runtimes.lock().iter_mut() {
            if let Some((_, Some(due))) = timers.managers.remove(&addr) {
                timers.timeline.remove(&(due, addr));
            }
        }
    }

    /// The next manager that is due, or else when the next one will be due.
    fn next(&self, runtime: runtime::Id) -> Result<Arc<D>, Option<Instant>> {
        let mut runtimes = self.runtimes.lock();
        let Some(timers) = timers_in(&mut runtimes, runtime) else {
            return Err(None);
        };
        loop {
            let &(due, addr) = timers.timeline.first().ok_or(None)?;
            if let Some(at) = due.instant(timers.start).filter(|at| *at > Instant::now()) {
                return Err(Some(at));
            }
            timers.timeline.pop_first();
            let Some((manager, due)) = timers.managers.get_mut(&addr) else {
                continue;
            };
            *due = None;
            // A manager that is being dropped is skipped: it is about to be dismissed.
            if let Some(manager) = manager.upgrade() {
                return Ok(manager);
            }
        }
    }

    /// Makes the manager due again at that time, unless it was called after its run. If the task and the timekeeper run the
    /// manager at once, the earlier of their two times is kept.
    fn plan(&self, runtime: runtime::Id, manager: &D, at: Option<Instant>) {
        if let Some(at) = at
            && let Some(timers) = timers_in(&mut self.runtimes.lock(), runtime)
        {
            timers.plan(addr(manager), Due::at(timers.start, at));
        }
    }
}

fn timers_in<D: Driven>(
    runtimes: &mut [RuntimeTimers<D>],
    runtime: runtime::Id,
) -> Option<&mut RuntimeTimers<D>> {
    runtimes
        .iter_mut()
        .find(|timers| timers.task.runtime == runtime)
}

impl<D: Driven> RuntimeTimers<D> {
    /// Makes the manager due now. Returns whether it is registered here.
    fn call(&mut self, addr: ManagerAddr) -> bool {
        self.calls = self.calls.saturating_add(1);
        self.plan(addr, Due(self.calls))
    }

    /// Makes the manager due at that time, unless it is due sooner. Returns whether it is registered here.
    fn plan(&mut self, addr: ManagerAddr, due: Due) -> bool {
        let Some((_, planned)) = self.managers.get_mut(&addr) else {
            return false;
        };
        if planned.is_none_or(|planned| due < planned) {
            if let Some(former) = planned.replace(due) {
                self.timeline.remove(&(former, addr));
            }
            self.timeline.insert((due, addr));
        }
        true
    }
}

impl<D: Driven> Drop for SharedDriver<D> {
    fn drop(&mut self) {
        for RuntimeTimers { task, .. } in self.runtimes.lock().iter() {
            task.wakeup.notify_waiters(); // the driver then finds no `SharedDriver` and ends
            if self.precise {
                timekeeper::dismiss(Arc::as_ptr(task), None);
            }
        }
    }
}

impl<D: Driven> Driven for Task<D> {
    /// Runs the managers that are due, at most [`BATCH`].
    fn run_due(self: Arc<Self>) -> Next {
        for _ in 0..BATCH {
            let Some(shared_driver) = self.shared_driver.upgrade() else {
                return Next::End;
            };
            let manager = match shared_driver.next(self.runtime) {
                Ok(manager) => manager,
                Err(at) => return Next::Sleep(at),
            };
            let run = Arc::clone(&manager).run_due_contained();
            let at = match run {
                Some(Next::Sleep(at)) => at,
                Some(Next::End) => None,
                // After a panic, it is run after the managers that are late.
                Some(Next::Continue) | None => Some(Instant::now()),
            };
            shared_driver.plan(self.runtime, &*manager, at);
            // These may be the last handles: then the key is dropped with them, and its drop may panic.
            contain_panic(|| drop((manager, shared_driver)));
            if run.is_none() {
                break; // endless panics must not occupy the runtime's worker for ever
            }
        }
        Next::Continue
    }

    fn driver_gone(&self, runtime: runtime::Id) {
        let Some(shared_driver) = self.shared_driver.upgrade() else {
            return;
        };
        let mut runtimes = shared_driver.runtimes.lock();
        let is_own = |timers: &mut RuntimeTimers<D>| std::ptr::eq(&*timers.task, self);
        let gone: Vec<_> = runtimes.extract_if(.., is_own).collect();
        drop(runtimes);
        for (manager, _) in gone.iter().flat_map(|timers| timers.managers.values()) {
            if let Some(manager) = manager.upgrade() {
                manager.driver_gone(runtime);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::resume_unwind;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use tokio::time::sleep;

    use super::*;

    /// Panics in its first runs, and is due every second from then on.
    #[derive(Debug)]
    struct PanicsAtFirst {
        panics: u32,
        runs: AtomicU32,
        drivers_gone: AtomicU32,
    }

    impl PanicsAtFirst {
        fn new(panics: u32) -> Arc<Self> {
            Arc::new(Self {
                panics,
                runs: AtomicU32::new(0),
                drivers_gone: AtomicU32::new(0),
            })
        }

        fn counts(&self) -> (u32, u32) {
            (self.runs.load(Relaxed), self.drivers_gone.load(Relaxed))
        }
    }

    /// A panic whose payload panics when it is dropped.
    struct PanicsAgain;

    impl Drop for PanicsAgain {
        fn drop(&mut self) {
            resume_unwind(Box::new("on purpose, without the noise of the hook"));
        }
    }

    impl Driven for PanicsAtFirst {
        fn run_due(self: Arc<Self>) -> Next {
            if self.runs.fetch_add(1, Relaxed) < self.panics {
                resume_unwind(Box::new(PanicsAgain));
            }
            Next::Sleep(Some(Instant::now() + Duration::from_secs(1)))
        }

        fn driver_gone(&self, _: runtime::Id) {
            self.drivers_gone.fetch_add(1, Relaxed);
        }
    }

    fn hosts() -> [TimerHost<PanicsAtFirst>; 2] {
        [
            TimerHost::own(false),
            TimerHost::SharedDriver(SharedDriver::new(false)),
        ]
    }

    #[tokio::test(start_paused = true)]
    async fn a_driver_goes_on_after_a_panic() {
        for host in hosts() {
            let [panics, other] = [3, 0].map(PanicsAtFirst::new);
            for driven in [&panics, &other] {
                host.start(driven, Handle::current());
            }
            sleep(Duration::from_millis(1_500)).await;
            assert_eq!(
                (panics.counts(), other.counts()),
                ((3 + 2, 0), (2, 0)),
                "{host:?}"
            );
        }
    }

    /// Other tasks of a runtime with a single thread get their turns.
    #[tokio::test(start_paused = true)]
    async fn endless_panics_do_not_occupy_the_runtime() {
        for host in hosts() {
            let [panics, other] = [u32::MAX, 0].map(PanicsAtFirst::new);
            for driven in [&panics, &other] {
                host.start(driven, Handle::current());
            }
            for _ in 0..100 {
                yield_now().await;
            }
            let (runs, drivers_gone) = panics.counts();
            assert!(
                (50..=101).contains(&runs),
                "{host:?}: {runs} runs in 100 turns"
            );
            assert_eq!((drivers_gone, other.counts()), (0, (1, 0)), "{host:?}");
        }
    }

    #[test]
    fn calls_come_before_instants_and_instants_are_exact() {
        let start = Instant::now();
        let [first, second] = [1, u64::MAX / 2].map(|call| Due(NonZeroU64::new(call).unwrap()));
        assert!(first < second && second < Due::at(start, start));
        assert_eq!((first.instant(start), second.instant(start)), (None, None));
        for nanos in [0, 1, 100 * 365 * 24 * 3_600 * 1_000_000_000] {
            let at = start + Duration::from_nanos(nanos);
            assert_eq!(Due::at(start, at).instant(start), Some(at));
            assert!(Due::at(start, at) < Due::at(start, at + Duration::from_nanos(1)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_manager_that_was_dropped_is_no_longer_registered() {
        let shared_driver = SharedDriver::new(false);
        let host = TimerHost::SharedDriver(Arc::clone(&shared_driver));
        let managers = [0, 0].map(PanicsAtFirst::new);
        for manager in &managers {
            host.start(manager, Handle::current());
        }
        sleep(Duration::from_millis(10)).await;
        let registered = || {
            let timers = &shared_driver.runtimes.lock()[0];
            (timers.managers.len(), timers.timeline.len())
        };
        assert_eq!(registered(), (2, 2));
        host.dismiss(&managers[0]);
        assert_eq!(registered(), (1, 1));
    }
}
