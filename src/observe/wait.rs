//! The waits of requests, as observers see them.

use std::cell::Cell;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use super::ObservedKey;
use crate::contain_panic::contain_panic;
use crate::error::AcquireError;
use crate::priority::Priority;

/// A request that begins to wait: the argument of [`Observer::wait_begins`](crate::Observer::wait_begins).
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct WaitStart<'a> {
    /// The [name](crate::LimiterBuilder::name) of the limiter, if it has one.
    pub limiter: Option<&'a Arc<str>>,
    /// The key of a keyed or a shared limiter.
    pub key: Option<ObservedKey<'a>>,
    /// The units of the request.
    pub cost: u64,
    /// The priority of the request.
    pub priority: Priority,
    /// How long it waits at most, if it has a timeout.
    pub timeout: Option<Duration>,
    /// Where in the program the request was made.
    pub requested_in: &'static Location<'static>,
}

/// How a wait ended.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum WaitEnd<'a> {
    /// The request has its permit.
    #[non_exhaustive]
    Granted {
        /// The [fence](crate::Permit::fence) of the permit.
        fence: u64,
    },
    /// The request failed with this error.
    Refused(&'a AcquireError),
    /// The future was dropped before the request was answered.
    Cancelled,
}

/// A wait that goes on: what an observer [keeps with a request](crate::Observer::wait_begins) while it waits.
///
/// It is called, and dropped, outside every lock. A panic in it is caught.
///
/// # Examples
///
/// ```
/// use std::sync::mpsc::{Sender, channel};
/// use tollgate::{Limiter, MaxConcurrency, LimiterEvent, Observer, OpenWait, WaitEnd, WaitStart};
///
/// struct Waits(Sender<String>);
/// struct Open(Sender<String>);
///
/// impl Observer for Waits {
///     fn observe(&self, _: &LimiterEvent<'_>) {}
///     fn wait_begins(&self, wait: &WaitStart<'_>) -> Option<Box<dyn OpenWait>> {
///         self.0.send(format!("waits for {}", wait.cost)).unwrap();
///         Some(Box::new(Open(self.0.clone())))
///     }
/// }
/// impl OpenWait for Open {
///     fn end(self: Box<Self>, end: WaitEnd<'_>) {
///         self.0.send(format!("{end:?}")).unwrap();
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (sender, seen) = channel();
/// let limiter = Limiter::builder(MaxConcurrency::new(8)).observer(Waits(sender)).build()?;
/// let permit = limiter.acquire_many(8).await?; // it does not wait
/// let mut waiting = tokio_test::task::spawn(limiter.acquire_many(3));
/// assert!(waiting.poll().is_pending());
/// drop(permit);
/// let _permit = waiting.await?;
/// assert_eq!(seen.try_iter().collect::<Vec<_>>(), ["waits for 3", "Granted { fence: 2 }"]);
/// # Ok(())
/// # }
/// ```
pub trait OpenWait: Send + Sync + 'static {
    /// The wait is over. It is called once, in the task or thread of the request.
    fn end(self: Box<Self>, end: WaitEnd<'_>);
}

/// The waits that observers keep with one request. They end when it is dropped, if not before.
pub(crate) struct WaitSpan(Option<Box<dyn OpenWait>>);

impl WaitSpan {
    pub(crate) fn new(wait: Box<dyn OpenWait>) -> Self {
        Self(Some(wait))
    }

    #[cold]
    pub(crate) fn end(mut self, end: WaitEnd<'_>) {
        self.end_once(end);
    }

    fn end_once(&mut self, end: WaitEnd<'_>) {
        if let Some(wait) = self.0.take() {
            call(|| wait.end(end));
        }
    }
}

impl Drop for WaitSpan {
    fn drop(&mut self) {
        self.end_once(WaitEnd::Cancelled);
    }
}

/// Calls an observer. An observer that calls a limiter may cause an event, for which it is called again. Without a bound, such
/// calls would overflow the stack.
pub(super) fn call(observer: impl FnOnce()) {
    /// The most calls of observers within one another. An observer that causes n events at each one is called n + 1 times, not
    /// for ever.
    const DEEPEST: u8 = 2;
    thread_local! {
        static DEPTH: Cell<u8> = const { Cell::new(0) };
    }
    let depth = DEPTH.get();
    if depth < DEEPEST {
        DEPTH.set(depth + 1);
        contain_panic(observer);
        DEPTH.set(depth);
    } else {
        contain_panic(|| drop(observer));
    }
}

debug_fields! { WaitSpan }
