//! The timers that run a manager when time matters.
//!
//! | timer | serves | runs in |
//! |---|---|---|
//! | a [driver] of its own | one [`Limiter`](crate::Limiter) | each runtime with a waiter |
//! | a [shared driver](super::shared_driver) | all active keys of a [`KeyedLimiter`](crate::KeyedLimiter) | each runtime with a waiter |
//! | the [timekeeper] | all limiters that ask for it, before their drivers | one thread |
//! | a caller that blocks its thread | the limiter whose queue it is at the front of | the caller's thread |

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::driven::Driven;
use super::driver;
use super::shared_driver::SharedDriver;
use super::timekeeper;

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
                driver::spawn(driven, &runtime, wakeup, *precise);
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

#[cfg(test)]
mod tests {
    use std::panic::resume_unwind;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::time::Duration;

    use tokio::runtime;
    use tokio::task::yield_now;
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::manager::time::driven::Next;

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
}
