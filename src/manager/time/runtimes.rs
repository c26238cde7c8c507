//! The runtimes that a manager has had a driver in, and which runtimes were built without timers.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::runtime::{self, Handle};

/// The runtimes that a manager has had a driver in. Most limiters have one; a limiter in a `static` may see several, and the
/// first need not be the one that is polled.
///
/// It is small, because each of a million keys may have one.
#[derive(Debug)]
pub(in crate::manager) enum Runtimes {
    /// A driver runs there.
    One(Option<runtime::Id>),
    /// Each with whether a driver runs there. If not, the runtime has ended, or has no timers.
    Several(Box<[(runtime::Id, bool)]>),
}

impl Runtimes {
    pub(in crate::manager) const NONE: Self = Self::One(None);

    /// Whether any runtime has a driver.
    #[inline]
    pub(in crate::manager) fn has_driver(&self) -> bool {
        match self {
            Self::One(one) => one.is_some(),
            Self::Several(_) => self.drivers() > 0,
        }
    }

    /// The number of runtimes with a driver.
    pub(in crate::manager) fn drivers(&self) -> usize {
        self.known().filter(|(_, runs)| *runs).count()
    }

    /// Whether the runtime has a driver, or can no longer have one.
    pub(in crate::manager) fn knows(&self, runtime: runtime::Id) -> bool {
        self.known().any(|(known, _)| known == runtime)
    }

    /// Records that a driver starts in the runtime.
    pub(in crate::manager) fn enter(&mut self, runtime: runtime::Id) {
        self.change(|known| known.push((runtime, true)));
    }

    /// The driver in the runtime has ended.
    pub(in crate::manager) fn leave(&mut self, runtime: runtime::Id) {
        /// Large enough that a future that is still polled in an ended runtime finds it here, and a bound on the size of a
        /// limiter.
        const REMEMBERED: usize = 32;
        self.change(|known| {
            known.retain(|(known, _)| *known != runtime);
            if known.iter().filter(|(_, runs)| !runs).count() == REMEMBERED
                && let Some(oldest) = known.iter().position(|(_, runs)| !runs)
            {
                known.remove(oldest);
            }
            known.push((runtime, false));
        });
    }

    fn change(&mut self, change: impl FnOnce(&mut Vec<(runtime::Id, bool)>)) {
        let mut known = self.known().collect();
        change(&mut known);
        *self = match known[..] {
            [(only, true)] => Self::One(Some(only)),
            _ => Self::Several(known.into()),
        };
    }

    fn known(&self) -> impl Iterator<Item = (runtime::Id, bool)> {
        let (one, several) = match self {
            Self::One(one) => (*one, &[][..]),
            Self::Several(several) => (None, &several[..]),
        };
        one.map(|only| (only, true))
            .into_iter()
            .chain(several.iter().copied())
    }
}

/// More than a program has at the same time. In a runtime that is forgotten, a timer panics once more.
const MAX_WITHOUT_TIMERS: usize = 32;

/// Which runtimes were built without timers; the latest come last.
///
/// Tokio has no call that reports this: a timer that is made there panics, and the panic hook runs. The result is kept for all
/// limiters and keys, so that the panic happens once in each such runtime.
static WITHOUT_TIMERS: Mutex<Vec<runtime::Id>> = Mutex::new(Vec::new());
/// Whether there is any, so that drivers need not lock.
static ANY: AtomicBool = AtomicBool::new(false);

/// Whether the runtime is known to have no timers.
pub(in crate::manager) fn lacks_timers(runtime: runtime::Id) -> bool {
    ANY.load(Relaxed) && WITHOUT_TIMERS.lock().contains(&runtime)
}

/// The caller's runtime, if it has timers.
pub(in crate::manager) fn with_timers_here() -> Option<Handle> {
    Handle::try_current()
        .ok()
        .filter(|here| !lacks_timers(here.id()))
}

/// Records that a driver in the runtime has ended. If it panicked, the timer panicked, because the driver catches all other
/// panics; or the runtime is being dropped by a panic, and nothing will wait there any more.
pub(in crate::manager) fn driver_ended(runtime: runtime::Id) {
    if !std::thread::panicking() || lacks_timers(runtime) {
        return;
    }
    let mut without_timers = WITHOUT_TIMERS.lock();
    let forgotten = (without_timers.len() + 1).saturating_sub(MAX_WITHOUT_TIMERS);
    without_timers.drain(..forgotten);
    without_timers.push(runtime);
    ANY.store(true, Relaxed);
}

#[cfg(test)]
mod tests {
    use std::panic::{catch_unwind, resume_unwind};

    use super::*;

    fn id(_nth: usize) -> runtime::Id {
        let runtime = runtime::Builder::new_current_thread().build().unwrap();
        runtime.handle().id()
    }

    #[test]
    fn the_oldest_of_more_than_32_ended_runtimes_is_forgotten_and_a_driver_never() {
        let [first, running, last] = [0, 1, 2].map(id);
        let ended: Vec<_> = (0..31).map(id).collect();
        let mut runtimes = Runtimes::NONE;
        for runtime in [first, running].into_iter().chain(ended.iter().copied()) {
            runtimes.enter(runtime);
        }
        for runtime in [first].into_iter().chain(ended.iter().copied()) {
            runtimes.leave(runtime);
        }
        assert!(runtimes.knows(first), "32 have ended");
        runtimes.enter(last);
        assert_eq!(runtimes.drivers(), 2);
        runtimes.leave(last);
        assert!(!runtimes.knows(first));
        assert!(
            ended
                .into_iter()
                .chain([running, last])
                .all(|runtime| runtimes.knows(runtime))
        );
        assert_eq!(runtimes.drivers(), 1);
        runtimes.leave(running);
        assert!(!runtimes.has_driver());
    }

    /// Ends as a driver does.
    struct Driver(runtime::Id);

    impl Drop for Driver {
        fn drop(&mut self) {
            driver_ended(self.0);
        }
    }

    #[test]
    fn the_latest_32_runtimes_without_timers_are_known() {
        let ids: Vec<_> = (0..=MAX_WITHOUT_TIMERS).map(id).collect();
        for runtime in ids.iter().copied() {
            let ends_by_panic = || {
                let _driver = Driver(runtime);
                resume_unwind(Box::new("on purpose, without the noise of the hook"));
            };
            assert!(catch_unwind(ends_by_panic).is_err());
        }
        let (first, last) = (ids[0], ids[MAX_WITHOUT_TIMERS]);
        assert!(lacks_timers(last));
        drop(Driver(first));
        assert!(!lacks_timers(first));
        assert_eq!(WITHOUT_TIMERS.lock().len(), MAX_WITHOUT_TIMERS);
    }
}
