//! One task with one timer, in each runtime, for the managers of many keys.
//!
//! A limiter has a [driver](super::driver) of its own. The active keys of a keyed limiter share one: in each runtime one task runs
//! each manager when it is due.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::runtime::{self, Handle};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Duration, Instant, timeout_at};

use super::driven::Driven;
use super::{timekeeper, timers};
use crate::contain_panic::contain_panic;

/// How many managers run before the task yields the runtime's worker.
const BATCH: usize = 64;

#[derive(Debug)]
pub(crate) struct SharedDriver<D: Driven> {
    runtimes: Mutex<Vec<RuntimeTimers<D>>>,
    /// Whether the [timekeeper] comes before the tasks.
    precise: bool,
}

/// The task of one runtime. The [timekeeper] runs what is due in its place.
#[derive(Debug)]
struct Task<D: Driven> {
    shared_driver: Weak<SharedDriver<D>>,
    runtime: runtime::Id,
    precise: bool,
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
        let nanos = u64::try_from(at.saturating_duration_since(start).as_nanos()).unwrap_or(u64::MAX);
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
        Arc::new(Self { runtimes: Mutex::default(), precise })
    }

    /// Registers the manager with the runtime's task, to be run now for the first time. Must be called in that runtime.
    pub(super) fn enlist(self: &Arc<Self>, manager: &Arc<D>, runtime: &Handle) {
        let addr = addr(&**manager);
        let mut runtimes = self.lock();
        let found = runtimes.iter().position(|timers| timers.task.runtime == runtime.id());
        let index = found.unwrap_or_else(|| {
            let (shared_driver, wakeup) = (Arc::downgrade(self), Arc::default());
            runtimes.push(RuntimeTimers {
                task: Arc::new(Task { shared_driver, runtime: runtime.id(), precise: self.precise, wakeup }),
                start: Instant::now(),
                managers: BTreeMap::new(),
                timeline: BTreeSet::new(),
                calls: NonZeroU64::MIN,
            });
            runtimes.len() - 1
        });
        let timers = &mut runtimes[index];
        timers.managers.entry(addr).or_insert_with(|| (Arc::downgrade(manager), None));
        timers.call(addr);
        let task = Arc::clone(&timers.task);
        drop(runtimes);
        if found.is_none() {
            // Spawned outside the lock: a runtime that is shutting down drops the task at once, and its `ExitGuard` locks.
            runtime.spawn(keep(ExitGuard(task)));
        } else {
            task.wakeup.notify_waiters();
        }
    }

    /// The manager is due sooner: every runtime that serves it runs it now.
    pub(super) fn call(&self, manager: &D) {
        let addr = addr(manager);
        for timers in self.lock().iter_mut() {
            if timers.call(addr) {
                timers.task.wakeup.notify_waiters();
            }
        }
    }

    /// The manager was dropped.
    pub(super) fn dismiss(&self, manager: &D) {
        let addr = addr(manager);
        for timers in self.lock().iter_mut() {
            if let Some((_, Some(due))) = timers.managers.remove(&addr) {
                timers.timeline.remove(&(due, addr));
            }
        }
    }

    /// The next manager that is due, or else when the next one will be due.
    fn next(&self, runtime: runtime::Id) -> Result<Arc<D>, Option<Instant>> {
        let mut runtimes = self.lock();
        let Some(timers) = runtimes.iter_mut().find(|timers| timers.task.runtime == runtime) else { return Err(None) };
        loop {
            let &(due, addr) = timers.timeline.first().ok_or(None)?;
            if let Some(at) = due.instant(timers.start).filter(|at| *at > Instant::now()) {
                return Err(Some(at));
            }
            timers.timeline.pop_first();
            let Some((manager, due)) = timers.managers.get_mut(&addr) else { continue };
            *due = None;
            // One that is being dropped is passed over: it is about to be dismissed.
            if let Some(manager) = manager.upgrade() {
                return Ok(manager);
            }
        }
    }

    /// The manager is due again at that time, unless it was called after its run. Of two runs at once, in the task and by the
    /// timekeeper, the earlier time stands.
    fn plan(&self, runtime: runtime::Id, manager: &D, at: Option<Instant>) {
        let addr = addr(manager);
        let mut runtimes = self.lock();
        let Some(timers) = runtimes.iter_mut().find(|timers| timers.task.runtime == runtime) else { return };
        if let (Some((_, due)), Some(at)) = (timers.managers.get_mut(&addr), at) {
            let at = Due::at(timers.start, at);
            if due.is_none_or(|due| at < due) {
                if let Some(later) = due.replace(at) {
                    timers.timeline.remove(&(later, addr));
                }
                timers.timeline.insert((at, addr));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RuntimeTimers<D>>> {
        self.runtimes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Driven> RuntimeTimers<D> {
    /// Marks the manager as due now. Returns whether it is registered here.
    fn call(&mut self, addr: ManagerAddr) -> bool {
        let Some((_, due)) = self.managers.get_mut(&addr) else { return false };
        if due.is_none_or(|due| due.0 >= Due::START) {
            self.calls = self.calls.saturating_add(1);
            let called = Due(self.calls);
            if let Some(planned) = due.replace(called) {
                self.timeline.remove(&(planned, addr));
            }
            self.timeline.insert((called, addr));
        }
        true
    }
}

impl<D: Driven> Drop for SharedDriver<D> {
    fn drop(&mut self) {
        for timers in self.lock().iter() {
            timers.task.wakeup.notify_waiters(); // the task then finds no driver and ends
            timers.task.dismiss_timekeeper();
        }
    }
}

/// What a task does next.
enum Next {
    /// The driver was dropped.
    End,
    /// There is more to do.
    Continue,
    Sleep(Option<Instant>),
}

impl<D: Driven> Task<D> {
    /// Runs the managers that are due, at most [`BATCH`].
    fn run_some(&self) -> Next {
        for _ in 0..BATCH {
            let Some(shared_driver) = self.shared_driver.upgrade() else { return Next::End };
            let manager = match shared_driver.next(self.runtime) {
                Ok(manager) => manager,
                Err(at) => return Next::Sleep(at),
            };
            let run = catch_unwind(AssertUnwindSafe(|| Arc::clone(&manager).run_due()));
            // After a panic, it is run after the managers that are late.
            shared_driver.plan(self.runtime, &*manager, run.as_ref().map_or_else(|_| Some(Instant::now()), |at| *at));
            // These may be the last handles: then the key goes with them, whose drop may panic.
            contain_panic(|| drop((manager, shared_driver)));
            if let Err(panic) = run {
                std::mem::forget(panic); // its drop may panic too
                break; // endless panics must not occupy the runtime's worker for ever
            }
        }
        Next::Continue
    }

    fn dismiss_timekeeper(self: &Arc<Self>) {
        if self.precise {
            timekeeper::dismiss(Arc::as_ptr(self), None);
        }
    }
}

impl<D: Driven> Driven for Task<D> {
    fn run_due(self: Arc<Self>) -> Option<Instant> {
        match self.run_some() {
            Next::End => None,
            Next::Continue => Some(Instant::now()),
            Next::Sleep(at) => at,
        }
    }

    fn driver_gone(&self, _: runtime::Id) {}
}

async fn keep<D: Driven>(exit_guard: ExitGuard<D>) {
    let task = &exit_guard.0;
    loop {
        // Registered before the managers run: a wake-up between the last run and the sleep would be missed.
        let woken = task.wakeup.notified();
        let sleep_until = loop {
            match task.run_some() {
                Next::End => return,
                Next::Continue => yield_now().await,
                Next::Sleep(at) => break at,
            }
        };
        match sleep_until {
            Some(_) if timers::are_missing_in(task.runtime) => return,
            Some(at) => {
                if task.precise {
                    timekeeper::run_at(at, Arc::downgrade(task), &task.wakeup);
                }
                drop(timeout_at(at, woken).await);
            }
            None => woken.await,
        }
    }
}

/// Reports on drop that the task of a runtime has ended.
struct ExitGuard<D: Driven>(Arc<Task<D>>);

impl<D: Driven> Drop for ExitGuard<D> {
    fn drop(&mut self) {
        timers::task_ended(self.0.runtime);
        self.0.dismiss_timekeeper();
        let Some(shared_driver) = self.0.shared_driver.upgrade() else { return };
        let mut runtimes = shared_driver.lock();
        let Some(index) = runtimes.iter().position(|timers| Arc::ptr_eq(&timers.task, &self.0)) else { return };
        let timers = runtimes.swap_remove(index);
        drop(runtimes);
        for manager in timers.managers.values().filter_map(|(manager, _)| manager.upgrade()) {
            manager.driver_gone(self.0.runtime);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
