use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::coop;

use super::key_table::{Admitted, KeyTable};
use crate::acquire::{OwnedTicket, request_setters};
use crate::error::AcquireError;
use crate::manager::RequestOptions;
use crate::permit::Permit;
use crate::priority::Priority;

/// A request for a key with more than a cost: what [`KeyedLimiter::request`](crate::KeyedLimiter::request) returns.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{KeyedLimiter, Priority, Throttle};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let per_host = KeyedLimiter::new(Throttle::every(Duration::from_secs(1)).burst(3))?;
/// let request = per_host.request(&"a").cost(3).priority(Priority::HIGH).timeout(Duration::from_secs(5));
/// let _permit = request.acquire().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a request does nothing until `acquire` is called"]
pub struct KeyedPermitRequest<'a, K> {
    pub(super) table: &'a Arc<dyn KeyTable<K>>,
    pub(super) key: &'a K,
    pub(super) options: RequestOptions,
}

impl<K: Sync> KeyedPermitRequest<'_, K> {
    request_setters!();

    /// Waits for the permit. See [`KeyedLimiter::acquire`](crate::KeyedLimiter::acquire).
    ///
    /// # Errors
    ///
    /// Those of [`KeyedLimiter::acquire`](crate::KeyedLimiter::acquire) and of [`PermitRequest::acquire`](crate::PermitRequest::acquire).
    pub async fn acquire(self) -> Result<Permit, AcquireError> {
        // A task that acquires in a loop must let its neighbours have a turn.
        coop::consume_budget().await;
        match self.table.admit(self.key, &self.options)? {
            Admitted::Granted(permit) => Ok(permit),
            Admitted::ToManager(manager) => OwnedTicket::new(manager, self.options).await,
        }
    }
}

impl<K> fmt::Debug for KeyedPermitRequest<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedPermitRequest").field("options", &self.options).finish_non_exhaustive()
    }
}
