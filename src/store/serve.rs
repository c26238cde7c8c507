//! The task that receives messages about releases, for the listeners of a store.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::background::background;
use super::{Listeners, ReleaseListener};

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
    /// Adds a listener. If no task receives messages, a new one is started. It runs the futures that `follow` makes, one after
    /// another. Each future connects to the server, and passes messages on until the connection breaks or no listener is left.
    /// Returns whether the task runs.
    pub(super) fn add<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        limiter: &Arc<str>,
        listener: ReleaseListener,
        follow: impl Fn(Arc<Self>) -> F + Clone + Send + Sync + 'static,
    ) -> bool {
        self.listeners.add(limiter, listener);
        self.added.notify_one();
        if std::mem::replace(&mut *self.is_served.lock(), true) {
            return true;
        }
        let this = Arc::clone(self);
        serve(move || Arc::clone(&this).receive(follow.clone()))
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

    /// Whether a listener is left. If not, the task ends, and another task serves the next listener.
    fn is_wanted(&self) -> bool {
        let mut is_served = self.is_served.lock();
        *is_served = !self.listeners.limiters().is_empty();
        *is_served
    }
}

/// Runs the future that `task` makes in the caller's runtime, so that no other thread is needed to wake a waiter there. If there
/// is no runtime, or it has no threads of its own and so might not be polled, the future runs in the background. If the runtime
/// ends before the future, `task` makes another future, which runs in the background. Returns whether the future runs.
fn serve<F: Future<Output = ()> + Send + 'static>(task: impl Fn() -> F + Send + 'static) -> bool {
    let Some(background) = background() else {
        return false;
    };
    let here = Handle::try_current().ok();
    let here = here.filter(|here| here.runtime_flavor() != RuntimeFlavor::CurrentThread);
    let running = here.map(|here| here.spawn(task()));
    background.spawn(async move {
        let has_ended = match running {
            Some(running) => running.await.is_ok(),
            None => false,
        };
        if !has_ended {
            task().await;
        }
    });
    true
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;

    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;
    use tokio::runtime;

    use super::*;

    /// A task that sends the name of the thread that polls it, and goes on for ever.
    fn thread_names() -> (
        impl Fn() -> BoxFuture<'static, ()>,
        Receiver<Option<String>>,
    ) {
        let (began, begins) = channel();
        let task = move || {
            let began = began.clone();
            let run = async move {
                began
                    .send(thread::current().name().map(str::to_owned))
                    .unwrap();
                std::future::pending::<()>().await;
            };
            run.boxed()
        };
        (task, begins)
    }

    #[test]
    fn a_task_goes_on_in_the_background_when_the_runtime_ends() {
        let (task, begins) = thread_names();
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("runtime that ends")
            .build()
            .unwrap();
        assert!(runtime.block_on(async { serve(task) }));
        assert_eq!(begins.recv().unwrap().as_deref(), Some("runtime that ends"));
        drop(runtime);
        assert_eq!(
            begins.recv().unwrap().as_deref(),
            Some("tollgate-background")
        );
    }

    #[test]
    fn a_runtime_that_might_not_be_polled_is_not_relied_on() {
        let (task, begins) = thread_names();
        let runtime = runtime::Builder::new_current_thread().build().unwrap();
        assert!(runtime.block_on(async { serve(task) }));
        assert_eq!(
            begins.recv().unwrap().as_deref(),
            Some("tollgate-background")
        );
    }
}
