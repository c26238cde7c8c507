//! The signal of an upstream about its own limit.

use std::time::Duration;

/// What a response of an upstream states about the upstream's own limit. Pass it to
/// [`Limiter::apply_upstream_signal`](crate::Limiter::apply_upstream_signal), and every caller of the limiter slows down.
///
/// Set the values that the response has. A signal without values changes nothing. Each setter replaces only its own value.
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
#[must_use = "a signal does nothing until it is applied to a limiter"]
pub struct UpstreamSignal {
    pub(crate) limited: bool,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) remaining: Option<u64>,
    pub(crate) reset_after: Option<Duration>,
    pub(crate) malformed: Option<&'static str>,
}

impl UpstreamSignal {
    /// How long to pause after a denial that states no time.
    pub(crate) const UNKNOWN: Duration = Duration::from_secs(1);

    /// A signal without values. See the [type's example](UpstreamSignal#examples).
    pub const fn new() -> Self {
        Self {
            limited: false,
            retry_after: None,
            remaining: None,
            reset_after: None,
            malformed: None,
        }
    }

    setters! { const:
        /// The upstream denied a request (HTTP 429 or 503). The limiter pauses for [`retry_after`](Self::retry_after); without it, for
        /// [`reset_after`](Self::reset_after); without either, for one second. See the [type's example](UpstreamSignal#examples).
        pub limited() => limited = true;

        /// The time until the upstream allows a retry: any duration from now. The limiter pauses for it, also without
        /// [`limited`](Self::limited). See the [type's example](UpstreamSignal#examples).
        pub retry_after(after: Duration) => retry_after = Some(after);

        /// How many units of the upstream's quota are left. This has an effect only together with
        /// [`reset_after`](Self::reset_after): at 0 units the limiter pauses until the reset; below
        /// [`spread_below`](crate::LimiterBuilder::spread_below), which has an example, it spreads the units evenly until the
        /// reset.
        pub remaining(units: u64) => remaining = Some(units);

        /// The time until the upstream's quota resets: any duration from now. See [`remaining`](Self::remaining).
        pub reset_after(after: Duration) => reset_after = Some(after);

        /// The response had a malformed header field of this name, which was ignored. This changes nothing, but is reported to
        /// [observers](crate::EventKind::UpstreamMalformed).
        ///
        /// ```
        /// use tollgate::{EventKind, Limiter, MaxConcurrency, UpstreamSignal};
        ///
        /// let (events, seen) = std::sync::mpsc::channel();
        /// let builder = Limiter::builder(MaxConcurrency::new(8)).name("mail");
        /// let limiter = builder.on_event(move |event| events.send(format!("{:?}", event.kind)).unwrap()).build()?;
        /// limiter.apply_upstream_signal(&UpstreamSignal::new().malformed("retry-after"));
        /// assert_eq!(seen.try_recv()?, r#"UpstreamMalformed { field: "retry-after" }"#);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub malformed(field: &'static str) => malformed = Some(field);
    }

    /// How long the limiter must pause, if at all.
    pub(crate) fn pause(&self) -> Option<Duration> {
        let spent = self.reset_after.filter(|_| self.remaining == Some(0));
        let denied = self.limited.then(|| {
            self.retry_after
                .or(self.reset_after)
                .unwrap_or(Self::UNKNOWN)
        });
        [self.retry_after, spent, denied]
            .into_iter()
            .flatten()
            .max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pause_that_a_signal_asks_for_counts() {
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        let signal = UpstreamSignal::new();
        assert_eq!(signal.pause(), None);
        assert_eq!(signal.remaining(1).reset_after(minute).pause(), None);
        assert_eq!(signal.limited().pause(), Some(UpstreamSignal::UNKNOWN));
        assert_eq!(signal.limited().reset_after(minute).pause(), Some(minute));
        assert_eq!(
            signal
                .limited()
                .retry_after(second)
                .reset_after(minute)
                .pause(),
            Some(second)
        );
        assert_eq!(
            signal
                .retry_after(Duration::ZERO)
                .remaining(0)
                .reset_after(minute)
                .pause(),
            Some(minute)
        );
    }
}
