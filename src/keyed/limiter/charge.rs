//! What changes the usage of a key without a request.

use std::hash::Hash;

use super::KeyedLimiter;
use crate::keyed::any_table::with_table;

impl<K: Hash + Eq + Clone + Send + Sync + 'static> KeyedLimiter<K> {
    /// Charges the key `units`, whether or not its limits admit them: later requests wait for them. A [`Penalty`](crate::Penalty)
    /// is raised up to its ceiling, and bans only at a denied attempt; a [`MaxConcurrency`](crate::MaxConcurrency) is not
    /// charged. Returns whether the key is known now; a full table may have no room for it.
    ///
    /// ```
    /// # use tollgate::{KeyedLimiter, Penalty, Rate};
    /// let per_client = KeyedLimiter::new(Penalty::new(10, Rate::per_second(1)))?;
    /// assert!(per_client.penalize(&"eve", 10)); // a wrong password
    /// assert!(per_client.try_acquire(&"eve").is_err());
    /// per_client.reward(&"eve", 10); // it was a typo
    /// assert!(per_client.try_acquire(&"eve").is_ok());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use = "`false` says that the key was not charged, because there is no room for it"]
    pub fn penalize<Q>(&self, key: &Q, units: u64) -> bool
    where
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        with_table!(&*self.table, |table| table.penalize(key, units))
    }

    /// Refunds up to `units` of recent usage, the latest first. Permits in flight keep their places, and a ban stays
    /// ([`reset`](Self::reset) ends it). See [`KeyedLimiter::penalize`].
    pub fn reward<Q>(&self, key: &Q, units: u64)
    where
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        with_table!(&*self.table, |table| table.reward(key, units));
    }

    /// Resets the key: its whole budget is back. Permits in flight keep their places, and waiting requests their position.
    /// Returns whether the key was known.
    ///
    /// ```
    /// # use tollgate::{KeyedLimiter, Rate, TokenBucket};
    /// let per_client = KeyedLimiter::new(TokenBucket::new(Rate::per_minute(1), 1))?;
    /// assert!(per_client.try_acquire(&"eve").is_ok() && per_client.try_acquire(&"eve").is_err());
    /// assert!(per_client.reset(&"eve") && per_client.try_acquire(&"eve").is_ok());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn reset<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        with_table!(&*self.table, |table| table.reset(key))
    }
}
