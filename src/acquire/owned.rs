use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::future::Progress;
use crate::error::AcquireError;
use crate::manager::{Manager, RequestOptions};
use crate::permit::Permit;

/// An [`Acquire`](crate::Acquire) that borrows nothing, so that it can be spawned, or kept in a struct.
/// [`Limiter::acquire_owned`](crate::Limiter::acquire_owned), which has an example, returns it.
///
/// It is `Unpin`. Its cancel safety, and what happens while it is not polled, are those of [`Acquire`](crate::Acquire).
#[must_use = "futures do nothing unless polled"]
pub struct AcquireOwned {
    manager: Arc<Manager>,
    progress: Progress,
}

impl AcquireOwned {
    pub(crate) fn new(manager: Arc<Manager>, options: RequestOptions) -> Self {
        Self { manager, progress: Progress::new(options) }
    }
}

impl Future for AcquireOwned {
    type Output = Result<Permit, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { manager, progress } = &mut *self;
        progress.poll(manager, cx)
    }
}

impl Drop for AcquireOwned {
    fn drop(&mut self) {
        let Self { manager, progress } = self;
        progress.give_up(manager);
    }
}

impl fmt::Debug for AcquireOwned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireOwned").field("progress", &self.progress).finish_non_exhaustive()
    }
}
