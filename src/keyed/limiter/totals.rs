//! Sums over all keys.

use std::hash::Hash;

use super::KeyedLimiter;
use crate::keyed::any_table::with_table;
use crate::snapshot::KeyTotals;

impl<K: Hash + Eq + Clone + Send + Sync + 'static> KeyedLimiter<K> {
    /// Sums over all keys, also over those that were forgotten: grants, denials, units in flight and more.
    ///
    /// It locks one part of the keys at a time, and goes through those that are [active](KeyedLimiter#memory), which takes up to a
    /// microsecond for each; idle keys, however many, take no time. The numbers of one part are of one moment, those of different parts
    /// are not. A permit whose TTL has passed is reclaimed by a timer or by the next call for its key, and counts as in flight until then.
    ///
    /// ```
    /// use tollgate::{KeyedLimiter, Rate, TokenBucket, WhenFull};
    ///
    /// let builder = KeyedLimiter::builder(TokenBucket::new(Rate::per_minute(1), 1)).max_keys(1);
    /// let per_client = builder.when_full(WhenFull::EvictSoonestReset).build()?;
    /// for client in ["alice", "alice", "bob"] {
    ///     let _ = per_client.try_acquire(&client);
    /// }
    /// let totals = per_client.totals();
    /// assert_eq!((per_client.len(), totals.granted, totals.denied), (1, 2, 1));
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn totals(&self) -> KeyTotals {
        with_table!(&*self.table, |table| table.totals())
    }
}
