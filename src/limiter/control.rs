//! What changes a limiter while it is in use: its policy, pauses, an upstream's signals, closing.

use std::time::Duration;

use tokio::time::Instant;

use super::Limiter;
use crate::carry_over::UsageCarryOver;
use crate::error::ConfigError;
use crate::policy::Policy;
use crate::upstream::UpstreamSignal;

impl Limiter {
    /// Replaces the policy while the limiter is in use; it takes what [`Limiter::new`] takes. Queued requests keep their position,
    /// and usage carries over: [`Limiter::set_policy_with`] has the rules and an example.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when a limit of the policy is invalid, or its text is; then nothing changes.
    pub fn set_policy(&self, policy: impl TryInto<Policy, Error: Into<ConfigError>>) -> Result<(), ConfigError> {
        self.set_policy_with(policy, UsageCarryOver::AsIs)
    }

    /// Replaces the policy while the limiter is in use. Queued requests keep their position; one whose cost the new policy can
    /// never admit gets [`AcquireError::ExceedsLimit`](crate::AcquireError::ExceedsLimit), and one that does not name a unit which
    /// the new policy counts gets [`AcquireError::MissingCost`](crate::AcquireError::MissingCost).
    ///
    /// Each new limit takes over the usage of an old one, [as it is or in proportion](UsageCarryOver):
    ///
    /// - A limit that stands in both policies keeps its state.
    /// - Any other takes over from a limit of its own kind, or else from any that is left, if that [counts](crate::Counts) the same.
    ///   The usage then counts in the new limit's present window.
    /// - A [`MaxConcurrency`](crate::MaxConcurrency) takes over only from another one, and no other limit takes over from it. A
    ///   limit without a counterpart starts unused.
    ///
    /// Permits in flight stay valid and count against a new `MaxConcurrency`. When it allows fewer than that, requests wait for
    /// releases. A new TTL counts from each permit's grant or last renewal; a permit that was granted without a TTL gets none. An
    /// earlier permit [refunds](crate::Permit::settle) nothing to a limit that did not grant it. A new `MaxConcurrency` that counts
    /// what none did before takes over the number that another one counts, and each permit gives back what it was taken for.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when a limit of the policy is invalid, or its text is; then nothing changes.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{FixedWindow, Limiter, UsageCarryOver};
    ///
    /// let per_minute = |units| FixedWindow::new(units, Duration::from_secs(60));
    /// let limiter = Limiter::new(per_minute(100))?;
    /// let _used = limiter.try_acquire_many(60)?;
    /// limiter.set_policy(per_minute(200))?;
    /// assert_eq!(limiter.check(1).remaining(), 140);
    /// limiter.set_policy_with(per_minute(20), UsageCarryOver::InProportion)?;
    /// assert_eq!(limiter.check(1).remaining(), 14);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_policy_with(
        &self,
        policy: impl TryInto<Policy, Error: Into<ConfigError>>,
        carry: UsageCarryOver,
    ) -> Result<(), ConfigError> {
        self.manager.set_policy(policy.try_into().map_err(Into::into)?, carry)
    }

    /// The present policy: the one that the limiter was built with, or that [`Limiter::set_policy`] set last.
    ///
    /// ```
    /// use tollgate::{Limiter, MaxConcurrency};
    ///
    /// let limiter = Limiter::new(MaxConcurrency::new(8))?;
    /// limiter.set_policy("8 concurrent and 100/min")?;
    /// assert_eq!(limiter.policy().to_string(), "8 concurrent and 100/min");
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.manager.policy()
    }

    /// Charges `units`, whether or not the limits admit them: later requests wait for them. A [`Penalty`](crate::Penalty) is raised up to
    /// its ceiling, and bans only at a denied attempt; a [`MaxConcurrency`](crate::MaxConcurrency) and limits of a
    /// [unit](crate::Counts::Unit) are not charged. Any number of units.
    ///
    /// ```
    /// use tollgate::{Limiter, Rate, TokenBucket};
    ///
    /// let limiter = Limiter::new(TokenBucket::new(Rate::per_second(10), 40))?;
    /// limiter.penalize(50); // the answer was larger than expected
    /// assert!(limiter.try_acquire().is_err());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn penalize(&self, units: u64) {
        self.manager.charge(units);
    }

    /// Grants nothing for `duration`: requests wait, in order, and [`try_acquire`](Limiter::try_acquire) is denied.
    ///
    /// Zero changes nothing; [`Duration::MAX`] lasts until [`Limiter::resume`]. Of several pauses, the one that ends last counts.
    /// Permits in flight stay valid, and their TTLs run on.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(8))?;
    /// limiter.pause_for(Duration::from_secs(30));
    /// assert!(limiter.check(1).is_paused());
    /// let start = tokio::time::Instant::now();
    /// let _permit = limiter.acquire().await?;
    /// assert_eq!(start.elapsed(), Duration::from_secs(30));
    /// # Ok(())
    /// # }
    /// ```
    pub fn pause_for(&self, duration: Duration) {
        self.manager.pause_for(duration);
    }

    /// Grants nothing before `instant` on tokio's clock. An instant that has passed changes nothing. See [`Limiter::pause_for`].
    pub fn pause_until(&self, instant: Instant) {
        self.manager.pause_for(instant.saturating_duration_since(Instant::now()));
    }

    /// Ends every pause now, and the spreading set by an [upstream's signal](Limiter::apply_upstream_signal).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Limiter, MaxConcurrency};
    /// let limiter = Limiter::new(MaxConcurrency::new(8))?;
    /// limiter.pause_for(Duration::MAX);
    /// assert!(limiter.try_acquire().is_err());
    /// limiter.resume();
    /// assert!(limiter.try_acquire().is_ok());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn resume(&self) {
        self.manager.resume();
    }

    /// Slows down as an upstream's response asks for. See [`UpstreamSignal`] for an example.
    ///
    /// A response that denies, or that leaves nothing of the upstream's quota, [pauses](Limiter::pause_for) the limiter for as long
    /// as the response says. A quota that is nearly spent is spread evenly until its reset, if the limiter was built with
    /// [`spread_below`](crate::LimiterBuilder::spread_below).
    pub fn apply_upstream_signal(&self, signal: &UpstreamSignal) {
        self.manager.apply_upstream_signal(signal);
    }

    /// Refuses all later requests with [`AcquireError::Closed`](crate::AcquireError::Closed), and serves those that wait. They can
    /// still be refused by [`Limiter::close`]. [`Limiter::drained`] returns when all of them are served and their permits are back.
    ///
    /// ```
    /// use tollgate::{AcquireError, Limiter, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(1))?;
    /// let permit = limiter.acquire().await?;
    /// let waiting = tokio::spawn(limiter.acquire_owned());
    /// tokio::task::yield_now().await;
    /// limiter.close_to_new();
    /// assert_eq!(limiter.acquire().await.unwrap_err(), AcquireError::Closed);
    /// drop(permit);
    /// drop(waiting.await??); // served
    /// limiter.drained().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn close_to_new(&self) {
        self.manager.close_to_new();
    }

    /// Refuses all waiting and all later requests with [`AcquireError::Closed`](crate::AcquireError::Closed). Permits in flight
    /// stay valid. See [`Limiter::drained`] for an example.
    pub fn close(&self) {
        self.manager.close();
    }

    /// Whether [`Limiter::close`] was called on this handle or on a clone. See [`Limiter::drained`] for an example.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.manager.is_closed()
    }

    /// Waits for an instant at which no request waits and every permit that holds a place was released or reclaimed; it is there
    /// already if nothing is in use. After [`Limiter::close`] that lasts. While the limiter is open, new requests may come at any
    /// time, also before the caller goes on.
    ///
    /// Only permits of a [`MaxConcurrency`](crate::MaxConcurrency) hold a place; it does not wait for those of other limits.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped and called again at any time.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Limiter, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(8))?;
    /// let permit = limiter.acquire().await?;
    /// tokio::spawn(async move { permit.release() });
    /// limiter.close();
    /// assert!(limiter.is_closed());
    /// limiter.drained().await;
    /// assert_eq!(limiter.snapshot().in_flight, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn drained(&self) {
        self.manager.drained().await;
    }
}
