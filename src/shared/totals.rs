//! Sums over all keys of this process.

use super::SharedLimiter;
use crate::snapshot::KeyTotals;

impl SharedLimiter {
    /// Sums over all keys that this process uses or has used: grants, denials, units in flight and more. It calls no store, and goes
    /// through the keys that are in use.
    ///
    /// ```
    /// use tollgate::SharedLimiter;
    /// use tollgate::store::MemoryStore;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let api = SharedLimiter::new(MemoryStore::new(), "api", "2 concurrent")?;
    /// api.key("alice").acquire().await?.release();
    /// let _held = api.key("bob").acquire().await?;
    /// assert_eq!((api.totals().granted, api.totals().in_flight), (2, 1));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn totals(&self) -> KeyTotals {
        self.shared.keys.totals(|| *self.shared.link.counted())
    }
}
