use std::time::Duration;

/// What an upstream said about its own limit: fed to [`Limiter::apply_upstream_signal`](crate::Limiter::apply_upstream_signal), it makes all callers heed it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, MaxConcurrency, UpstreamSignal};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(MaxConcurrency::new(8))?;
/// // HTTP 429 with `Retry-After: 30`
/// limiter.apply_upstream_signal(&UpstreamSignal::new().limited().retry_after(Duration::from_secs(30)));
/// let start = tokio::time::Instant::now();
/// let _permit = limiter.acquire().await?;
/// assert_eq!(start.elapsed(), Duration::from_secs(30));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use = "a signal does nothing until a limiter observes it"]
pub struct UpstreamSignal {
    pub(crate) limited: bool,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) remaining: Option<u64>,
    pub(crate) reset_after: Option<Duration>,
}

impl UpstreamSignal {
    /// What is assumed of a denial that does not say when to come back.
    pub(crate) const UNKNOWN: Duration = Duration::from_secs(1);

    /// A signal that says nothing yet. See the [type's example](UpstreamSignal#examples).
    pub const fn new() -> Self {
        Self { limited: false, retry_after: None, remaining: None, reset_after: None }
    }

    /// It denied: everybody waits until [`retry_after`](Self::retry_after), or else until [`reset_after`](Self::reset_after), or
    /// else for a second. See the [type's example](UpstreamSignal#examples).
    pub const fn limited(self) -> Self {
        Self { limited: true, ..self }
    }

    /// It said when to come back: everybody waits for so long, denied or not. See the [type's example](UpstreamSignal#examples).
    pub const fn retry_after(self, after: Duration) -> Self {
        Self { retry_after: Some(after), ..self }
    }

    /// It said how many units are left of its quota. With [`reset_after`](Self::reset_after): with none left, everybody waits for
    /// the reset; with few left they are spread over the time until then, if the limiter
    /// [was asked to](crate::LimiterBuilder::spread_below), which shows an example.
    pub const fn remaining(self, units: u64) -> Self {
        Self { remaining: Some(units), ..self }
    }

    /// It said when its quota is new. See [`remaining`](Self::remaining).
    pub const fn reset_after(self, after: Duration) -> Self {
        Self { reset_after: Some(after), ..self }
    }

    /// For how long nobody is to call.
    pub(crate) fn pause(&self) -> Option<Duration> {
        let spent = self.reset_after.filter(|_| self.remaining == Some(0));
        let denied = self.limited.then(|| self.retry_after.or(self.reset_after).unwrap_or(Self::UNKNOWN));
        [self.retry_after, spent, denied].into_iter().flatten().max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_all_that_it_says_the_longest_pause_counts() {
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        let signal = UpstreamSignal::new();
        assert_eq!(signal.pause(), None);
        assert_eq!(signal.remaining(1).reset_after(minute).pause(), None);
        assert_eq!(signal.limited().pause(), Some(UpstreamSignal::UNKNOWN));
        assert_eq!(signal.limited().reset_after(minute).pause(), Some(minute));
        assert_eq!(signal.limited().retry_after(second).reset_after(minute).pause(), Some(second));
        assert_eq!(signal.retry_after(Duration::ZERO).remaining(0).reset_after(minute).pause(), Some(minute));
    }
}
