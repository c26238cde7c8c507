//! The task that receives messages about releases, for the listeners of a store.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::runtime::{self, Handle, RuntimeFlavor};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::ReleaseListener;
use super::listeners::Listeners;

/// How often the task checks that its connection answers, and that a listener is left.
pub(super) const ASK_AFTER: Duration = Duration::from_secs(5);

/// How long the task waits before it connects again: at first, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Listeners for which one task receives the messages of a server, until no listener is left.
#[derive(Debug, Default)]
pub(super) struct ServedListeners {
    pub(super) listeners: Listeners,
    is_served: Mutex<bool>,
    /// Signals that a listener was added.
    pub(super) added: Notify,
}

impl ServedListeners {
    /// Adds a listener. If no task receives messages, one begins to. It does what `follow` makes, again and again: that connects to
    /// the server, and passes messages on until the connection breaks or no listener is left. Returns whether the task runs.
    pub(super) fn add<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        limiter: &Arc<str>,
        listener: ReleaseListener,
        thread: &'static str,
        follow: impl Fn(Arc<Self>) -> F + Clone + Send + Sync + 'static,
    ) -> bool {
        self.listeners.add(limiter, listener);
        self.added.notify_one();
        if std::mem::replace(&mut *self.is_served(), true) {
            return true;
        }
        let this = Arc::clone(self);
        serve(thread, move || Arc::clone(&this).receive(follow.clone()))
    }

    async fn receive<F: Future<Output = ()>>(self: Arc<Self>, follow: impl Fn(Arc<Self>) -> F) {
        let mut pause = PAUSES.0;
        while self.is_wanted() {
            let began = Instant::now();
            follow(Arc::clone(&self)).await;
            if began.elapsed() > PAUSES.1 {
                pause = PAUSES.0;
            }
            sleep(pause).await;
            pause = (2 * pause).min(PAUSES.1);
        }
    }

    fn is_served(&self) -> MutexGuard<'_, bool> {
        self.is_served
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a listener is left. If not, the task ends, and the next listener is served by another one.
    fn is_wanted(&self) -> bool {
        let mut is_served = self.is_served();
        *is_served = !self.listeners.limiters().is_empty();
        *is_served
    }
}

/// Runs what `task` makes: in the caller's runtime, so that a task that waits there is woken without another thread between. If
/// the runtime has no threads of its own, and so might not be polled, the task runs in a thread of that name. It also does when
/// the runtime ends before the task. Returns whether the task runs.
fn serve<F: Future<Output = ()> + Send + 'static>(
    thread: &'static str,
    task: impl Fn() -> F + Send + 'static,
) -> bool {
    match Handle::try_current() {
        Ok(runtime) if runtime.runtime_flavor() != RuntimeFlavor::CurrentThread => {
            let respawn = RespawnOnDrop {
                thread,
                task: Some(task),
            };
            runtime.spawn(async move {
                let mut respawn = respawn;
                if let Some(task) = &respawn.task {
                    task().await;
                }
                respawn.task = None;
            });
            true
        }
        _ => serve_in_a_thread(thread, task),
    }
}

fn serve_in_a_thread<F: Future<Output = ()>>(
    name: &'static str,
    task: impl Fn() -> F + Send + 'static,
) -> bool {
    let Ok(runtime) = runtime::Builder::new_current_thread().enable_all().build() else {
        return false;
    };
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || runtime.block_on(task()))
        .is_ok()
}

/// A task in a runtime that may end before it does.
struct RespawnOnDrop<F: Future<Output = ()>, T: Fn() -> F + Send + 'static> {
    thread: &'static str,
    /// Until it has ended.
    task: Option<T>,
}

impl<F: Future<Output = ()>, T: Fn() -> F + Send + 'static> Drop for RespawnOnDrop<F, T> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            serve_in_a_thread(self.thread, task);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_task_goes_on_in_a_thread_when_the_runtime_ends() {
        let (began, begins) = channel();
        let task = move || {
            began
                .send(thread::current().name().map(str::to_owned))
                .unwrap();
            std::future::pending()
        };
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("respawn of")
            .build()
            .unwrap();
        assert!(runtime.block_on(async { serve("alone", task) }));
        assert_eq!(begins.recv().unwrap().as_deref(), Some("respawn of"));
        drop(runtime);
        assert_eq!(begins.recv().unwrap().as_deref(), Some("alone"));
    }

    #[test]
    fn a_runtime_that_might_not_be_polled_is_not_relied_on() {
        let (began, begins) = channel();
        let task = move || {
            began
                .send(thread::current().name().map(str::to_owned))
                .unwrap();
            std::future::pending()
        };
        let runtime = runtime::Builder::new_current_thread().build().unwrap();
        assert!(runtime.block_on(async { serve("alone", task) }));
        assert_eq!(begins.recv().unwrap().as_deref(), Some("alone"));
    }
}
