//! A random delay before a request asks.

use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::BuildHasher;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep};

use crate::contain_panic::contain_panic;
use crate::error::AcquireError;

/// The delay of one request, while it lasts.
#[derive(Debug, Default)]
pub(super) struct Delay(Option<Pin<Box<Sleep>>>);

impl Delay {
    /// Waits for a time from 0 to `max`, from the first poll on. Once that is over, another poll begins another delay.
    pub(super) fn poll(&mut self, max: Duration, waker: &Waker) -> Poll<Result<(), AcquireError>> {
        let Some(delay) = self.0.take().or_else(|| start(random_up_to(max))) else {
            return Poll::Ready(Err(AcquireError::NoRuntime));
        };
        let delay = self.0.insert(delay);
        let mut polled = Poll::Ready(());
        // It panics if its runtime is gone; then the delay is over.
        contain_panic(|| polled = delay.as_mut().poll(&mut Context::from_waker(waker)));
        if polled.is_ready() {
            self.0 = None;
        }
        polled.map(Ok)
    }
}

/// `None`: there is no runtime with timers.
fn start(delay: Duration) -> Option<Pin<Box<Sleep>>> {
    Handle::try_current().ok()?;
    let mut started = None;
    contain_panic(|| started = Some(Box::pin(sleep(delay))));
    started
}

/// Uniform, to the nanosecond. Each `RandomState` has other keys than the last.
pub(crate) fn random_up_to(max: Duration) -> Duration {
    let nanos = u64::try_from(max.as_nanos()).unwrap_or(u64::MAX);
    let random = RandomState::new().hash_one(());
    Duration::from_nanos(((u128::from(random) * (u128::from(nanos) + 1)) >> 64) as u64)
}
