//! Closing all members of a group, and waiting until they are drained.

use super::LimiterGroup;
use crate::limiter::Limiter;

impl LimiterGroup {
    /// [Closes](Limiter::close) each member, also for those who use it outside this group: the members are shared handles. Of a member
    /// that is the [limiter of a key](crate::KeyedLimiter::limiter), only that key is closed.
    ///
    /// ```
    /// use tollgate::{Limiter, LimiterGroup, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (disk, network) = (Limiter::new(MaxConcurrency::new(2))?, Limiter::new(MaxConcurrency::new(8))?);
    /// let both = LimiterGroup::new([disk.clone(), network.clone()]);
    /// let permit = both.acquire().await?;
    /// tokio::spawn(async move { permit.release() });
    /// both.close();
    /// assert!(both.acquire().await.unwrap_err().is_closed() && network.is_closed());
    /// both.drained().await;
    /// assert_eq!((disk.snapshot().in_flight, network.snapshot().in_flight), (0, 0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn close(&self) {
        self.members.iter().for_each(Limiter::close);
    }

    /// [Closes each member to new requests](Limiter::close_to_new), as [`LimiterGroup::close`] closes it. Requests that wait at one member
    /// alone are served. A waiting request of a group is a new request to the members that it does not wait for, so it
    /// [fails](LimiterGroup#closing), unless it keeps their permits. See [`LimiterGroup::close`] for an example.
    pub fn close_to_new(&self) {
        self.members.iter().for_each(Limiter::close_to_new);
    }

    /// Whether any member was closed, so that the group refuses every new request. See [`LimiterGroup::close`] for an example.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.members.iter().any(Limiter::is_closed)
    }

    /// Waits until each member [was drained](Limiter::drained), one after the other. If all members are closed, none is in use
    /// then. While a member is open, requests may come at any time, also before the others are drained. See [`LimiterGroup::close`] for an
    /// example.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped and called again at any time.
    pub async fn drained(&self) {
        for member in &self.members {
            member.drained().await;
        }
    }
}
