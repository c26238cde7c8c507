//! A runtime of the crate's own, with one thread. It is available when there is no other runtime, and tasks of the program do not
//! block it.

use std::sync::LazyLock;
use std::thread;

use tokio::runtime::{Builder, Handle};

/// The runtime. `None` if it cannot be started.
pub(crate) fn background() -> Option<Handle> {
    static BACKGROUND: LazyLock<Option<Handle>> = LazyLock::new(|| {
        let runtime = Builder::new_current_thread().enable_all().build().ok()?;
        let handle = runtime.handle().clone();
        let run = move || runtime.block_on(std::future::pending::<()>());
        let thread = thread::Builder::new().name("tollgate-background".to_owned());
        thread.spawn(run).ok().map(|_| handle)
    });
    BACKGROUND.clone()
}
