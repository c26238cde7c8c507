use super::Limiter;

/// A limiter that streams and sinks wait for: a [`Limiter`] or a [`SharedLimiter`](crate::SharedLimiter).
///
/// ```
/// use futures_util::stream::{self, StreamExt};
/// use std::time::Duration;
/// use tollgate::store::MemoryStore;
/// use tollgate::{SharedLimiter, StreamLimitExt, Throttle};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = SharedLimiter::new(MemoryStore::new(), "mail", Throttle::every(Duration::from_millis(100)))?;
/// let start = tokio::time::Instant::now();
/// let sent: Vec<_> = stream::iter(0..5).throttled(&limiter).collect().await;
/// assert_eq!((sent.len(), start.elapsed()), (5, Duration::from_millis(400)));
/// # Ok(())
/// # }
/// ```
pub trait AnyLimiter: Handle {}

impl<L: Handle> AnyLimiter for L {}

/// Not to be named by others: what waits for the permits of a limiter in a store must not ask it anything else without waiting.
pub trait Handle {
    fn handle(&self) -> Limiter;
}

impl Handle for Limiter {
    fn handle(&self) -> Limiter {
        self.clone()
    }
}
