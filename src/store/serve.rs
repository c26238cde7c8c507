//! Where the listeners of a store are served.

use std::future::Future;
use std::thread;

use tokio::runtime::{self, Handle, RuntimeFlavor};

/// Runs what `task` makes: in the caller's runtime, so that whoever waits there is woken without another thread between. In a thread
/// of that name where the runtime has no threads of its own, and might not be polled, and when it ends before the task. Returns whether it runs.
pub(super) fn serve<F: Future<Output = ()> + Send + 'static>(
    thread: &'static str,
    task: impl Fn() -> F + Send + 'static,
) -> bool {
    match Handle::try_current() {
        Ok(runtime) if runtime.runtime_flavor() != RuntimeFlavor::CurrentThread => {
            let guest = Guest { thread, task: Some(task) };
            runtime.spawn(async move {
                let mut guest = guest;
                if let Some(task) = &guest.task {
                    task().await;
                }
                guest.task = None;
            });
            true
        }
        _ => serve_in_a_thread(thread, task),
    }
}

fn serve_in_a_thread<F: Future<Output = ()>>(name: &'static str, task: impl Fn() -> F + Send + 'static) -> bool {
    let Ok(runtime) = runtime::Builder::new_current_thread().enable_all().build() else { return false };
    thread::Builder::new().name(name.to_owned()).spawn(move || runtime.block_on(task())).is_ok()
}

/// A task in a runtime that may end before it does.
struct Guest<F: Future<Output = ()>, T: Fn() -> F + Send + 'static> {
    thread: &'static str,
    /// Until it has ended.
    task: Option<T>,
}

impl<F: Future<Output = ()>, T: Fn() -> F + Send + 'static> Drop for Guest<F, T> {
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
            began.send(thread::current().name().map(str::to_owned)).unwrap();
            std::future::pending()
        };
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).thread_name("guest of").build().unwrap();
        assert!(runtime.block_on(async { serve("alone", task) }));
        assert_eq!(begins.recv().unwrap().as_deref(), Some("guest of"));
        drop(runtime);
        assert_eq!(begins.recv().unwrap().as_deref(), Some("alone"));
    }

    #[test]
    fn a_runtime_that_might_not_be_polled_is_not_relied_on() {
        let (began, begins) = channel();
        let task = move || {
            began.send(thread::current().name().map(str::to_owned)).unwrap();
            std::future::pending()
        };
        let runtime = runtime::Builder::new_current_thread().build().unwrap();
        assert!(runtime.block_on(async { serve("alone", task) }));
        assert_eq!(begins.recv().unwrap().as_deref(), Some("alone"));
    }
}
