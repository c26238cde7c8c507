//! What changes all keys while they are in use: their policy, pauses, closing.
//!
//! A change goes to one part of the keys after the other, each under its own lock, so that no call waits for all of them.

use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

use super::KeyedLimiter;
use crate::carry_over::UsageCarryOver;
use crate::error::ConfigError;
use crate::keyed::any_table::with_table;
use crate::keyed::drain::drained;
use crate::policy::Policy;

impl<K: Hash + Eq + Clone + Send + Sync + 'static> KeyedLimiter<K> {
    /// Replaces the policy of all keys, known and new ones, while they are in use. See [`KeyedLimiter::set_policy_with`].
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when a limit of the policy is invalid, or its text is; [`ConfigError::HasTiers`]. Then nothing changes.
    pub fn set_policy(&self, policy: impl TryInto<Policy, Error: Into<ConfigError>>) -> Result<(), ConfigError> {
        self.set_policy_with(policy, UsageCarryOver::AsIs)
    }

    /// Replaces the policy of all keys, known and new ones, while they are in use. For each key, queued requests keep their
    /// position and usage carries over, by the rules of [`Limiter::set_policy_with`](crate::Limiter::set_policy_with). A policy
    /// that was set at a key's own [`limiter`](KeyedLimiter::limiter) is replaced, too.
    ///
    /// It takes about half a microsecond for each known key. Meanwhile other calls go on: a part of the keys at a time is locked,
    /// 1,536 on average of a full limiter. A call that runs at the same time finds the former policy or the new one.
    ///
    /// A key keeps the size that it was built with: one word, two or four, whichever the limits of the first policy need. Where the
    /// limits of a later one need more, all keys with usage become [active](KeyedLimiter#memory), which takes two microseconds.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when a limit of the policy is invalid, or its text is. [`ConfigError::HasTiers`] where keys have
    /// [tiers](crate::KeyedLimiterBuilder::tiers): their function says the policy of each key, and may change its answer at any
    /// time. In both cases nothing changes.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{FixedWindow, KeyedLimiter, UsageCarryOver};
    ///
    /// let per_minute = |units| FixedWindow::new(units, Duration::from_secs(60));
    /// let per_user = KeyedLimiter::<u64>::new(per_minute(100))?;
    /// let _used = per_user.try_acquire_many(&7, 60)?;
    /// per_user.set_policy(per_minute(200))?;
    /// assert_eq!((per_user.check(&7, 1).remaining(), per_user.check(&8, 1).remaining()), (140, 200));
    /// per_user.set_policy_with(per_minute(20), UsageCarryOver::InProportion)?;
    /// assert_eq!((per_user.check(&7, 1).remaining(), per_user.check(&8, 1).remaining()), (14, 20));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_policy_with(
        &self,
        policy: impl TryInto<Policy, Error: Into<ConfigError>>,
        carry: UsageCarryOver,
    ) -> Result<(), ConfigError> {
        let policy = policy.try_into().map_err(Into::into)?;
        with_table!(&*self.table, |table| table.set_policy(policy, carry))
    }

    /// The present policy: the one that the limiter was built with, or that [`KeyedLimiter::set_policy`] set last. With
    /// [tiers](crate::KeyedLimiterBuilder::tiers), that of the builder.
    ///
    /// ```
    /// use tollgate::{KeyedLimiter, MaxConcurrency};
    ///
    /// let per_user = KeyedLimiter::<u64>::new(MaxConcurrency::new(8))?;
    /// per_user.set_policy("8 concurrent and 100/min")?;
    /// assert_eq!(per_user.policy().to_string(), "8 concurrent and 100/min");
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn policy(&self) -> Policy {
        with_table!(&*self.table, |table| table.policy())
    }

    /// Grants nothing for `duration`, for all keys, known and new ones: requests wait, in order, and
    /// [`try_acquire`](KeyedLimiter::try_acquire) is denied.
    ///
    /// Zero changes nothing; [`Duration::MAX`] lasts until [`KeyedLimiter::resume`]. Of several pauses, the one that ends last
    /// counts. Permits in flight stay valid, and their TTLs run on.
    ///
    /// A single key is paused at its own [`limiter`](KeyedLimiter::limiter). A key is served when neither it nor the whole is
    /// paused: resuming one does not end the other's pause. Keys that are idle when the pause begins take no more memory for it;
    /// a key with permits in flight becomes as large as any [active](KeyedLimiter#memory) one.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{KeyedLimiter, Rate, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let per_user = KeyedLimiter::<u64>::new(TokenBucket::new(Rate::per_second(10), 10))?;
    /// per_user.pause_for(Duration::from_secs(30));
    /// assert!(per_user.check(&7, 1).is_paused());
    /// let start = tokio::time::Instant::now();
    /// let _permit = per_user.acquire(&8).await?;
    /// assert_eq!(start.elapsed(), Duration::from_secs(30));
    /// # Ok(())
    /// # }
    /// ```
    pub fn pause_for(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        if nanos > 0 {
            with_table!(&*self.table, |table| table.pause(nanos));
        }
    }

    /// Grants nothing before `instant` on tokio's clock, for all keys. An instant that has passed changes nothing. See
    /// [`KeyedLimiter::pause_for`].
    pub fn pause_until(&self, instant: Instant) {
        self.pause_for(instant.saturating_duration_since(Instant::now()));
    }

    /// Ends the pauses of all keys now. A pause of a key's own [`limiter`](KeyedLimiter::limiter) goes on.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{KeyedLimiter, MaxConcurrency};
    /// let per_user = KeyedLimiter::<u64>::new(MaxConcurrency::new(8))?;
    /// per_user.pause_for(Duration::MAX);
    /// assert!(per_user.try_acquire(&7).is_err());
    /// per_user.resume();
    /// assert!(per_user.try_acquire(&7).is_ok());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn resume(&self) {
        with_table!(&*self.table, |table| table.resume());
    }

    /// Refuses all waiting and all later requests, of all keys, with [`AcquireError::Closed`](crate::AcquireError::Closed); a key
    /// that is not known stays so. Permits in flight stay valid. See [`KeyedLimiter::drained`] for an example.
    pub fn close(&self) {
        with_table!(&*self.table, |table| table.close());
    }

    /// Refuses all later requests, of all keys, with [`AcquireError::Closed`](crate::AcquireError::Closed), and serves those that wait.
    /// They can still be refused by [`KeyedLimiter::close`]. A key that is not known stays so. [`KeyedLimiter::drained`] returns when
    /// all of them are served and their permits are back.
    ///
    /// ```
    /// use tollgate::{AcquireError, KeyedLimiter, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let per_user = KeyedLimiter::<u64>::new(MaxConcurrency::new(1))?;
    /// let permit = per_user.acquire(&7).await?;
    /// let waiting = tokio::spawn(per_user.acquire_owned(&7));
    /// tokio::task::yield_now().await;
    /// per_user.close_to_new();
    /// assert_eq!(per_user.acquire(&8).await.unwrap_err(), AcquireError::Closed);
    /// drop(permit);
    /// drop(waiting.await??); // served
    /// per_user.drained().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn close_to_new(&self) {
        with_table!(&*self.table, |table| table.close_to_new());
    }

    /// Whether [`KeyedLimiter::close`] or [`KeyedLimiter::close_to_new`] was called on this handle or on a clone, and has reached all
    /// keys. See [`KeyedLimiter::drained`] for an example.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        with_table!(&*self.table, |table| table.is_closed())
    }

    /// Waits for an instant at which no request of any key waits and every permit that holds a place was released or reclaimed;
    /// it is there already if nothing is in use. After [`KeyedLimiter::close`] that lasts. While the limiter is open, new requests
    /// may come at any time, also before the caller goes on.
    ///
    /// Only permits of a [`MaxConcurrency`](crate::MaxConcurrency) hold a place; it does not wait for those of other limits.
    ///
    /// Grants and releases take no longer for it: it waits for one key in use after the other, and then makes sure, by two looks at
    /// all keys, that none was granted a place in between. So while the limiter is open and places are granted all the time, it may
    /// miss an instant that is shorter than such a look.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped and called again at any time.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{AcquireError, KeyedLimiter, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let per_user = KeyedLimiter::<u64>::new(MaxConcurrency::new(2))?;
    /// let permit = per_user.acquire(&7).await?;
    /// tokio::spawn(async move { permit.release() });
    /// per_user.close();
    /// assert!(per_user.is_closed());
    /// assert_eq!(per_user.acquire(&8).await.unwrap_err(), AcquireError::Closed);
    /// per_user.drained().await;
    /// assert!(per_user.snapshots().all(|(_, user)| user.in_flight == 0));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn drained(&self) {
        drained(&self.table).await;
    }
}
