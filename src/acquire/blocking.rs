//! Blocks a thread outside every runtime until its request is answered.

use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::thread::{self, Thread};

use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::ticket::{Ticket, random_up_to};
use crate::contain_panic::contain_panic;
use crate::error::AcquireError;
use crate::manager::{Manager, RequestOptions};
use crate::permit::Permit;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Panics if the thread drives tasks of a runtime. Blocking such a thread stops its tasks, possibly for ever. Only tokio knows
/// which threads these are, and its own blocking calls panic there.
///
/// The check is made only inside a runtime. In the destructor of a thread-local, the thread-locals that tokio needs may be gone.
/// Tokio would then panic, which aborts the process in a destructor.
#[track_caller]
fn refuse_to_block_tasks() {
    if Handle::try_current().is_ok() {
        drop(Mutex::const_new(()).blocking_lock());
    }
}

/// Refuses the request if the time cannot be read. Tokio's clock panics in a thread whose thread-locals are gone, if a clock was
/// ever paused in this process (with tokio's feature `test-util`).
pub(crate) fn check_clock() -> Result<(), AcquireError> {
    if Handle::try_current()
        .err()
        .is_none_or(|error| !error.is_thread_local_destroyed())
    {
        return Ok(());
    }
    let mut read = Err(AcquireError::NoRuntime);
    contain_panic(|| {
        Instant::now();
        read = Ok(());
    });
    read
}

/// Blocks the thread until the request is answered, so its ticket is never given up.
#[track_caller]
pub(crate) fn acquire(
    manager: &Arc<Manager>,
    mut options: RequestOptions,
) -> Result<Permit, AcquireError> {
    refuse_to_block_tasks();
    check_clock()?;
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    if let Some(max) = options.jitter() {
        thread::sleep(random_up_to(max));
        options.forgo_jitter();
    }
    let mut ticket = Ticket::new(RequestOptions {
        blocking: true,
        ..options
    });
    loop {
        if let Poll::Ready(answer) = ticket.poll_with(manager, &waker) {
            return answer;
        }
        let Some(id) = ticket.queued() else { continue };
        // An answer that comes before the park leaves a token, so that the park returns at once.
        match manager.run_due_on_blocked_thread(id) {
            Some(at) => thread::park_timeout(at.saturating_duration_since(Instant::now())),
            None => thread::park(),
        }
    }
}
