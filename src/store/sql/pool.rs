//! Connections that serve one caller at a time.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::StoreError;
use crate::lock::Lock;

pub(in crate::store) struct Pool<C> {
    idle: Lock<Vec<C>>,
    permits: Arc<Semaphore>,
}

/// A connection of one caller. It is closed unless it is put back.
pub(in crate::store) struct Taken<C> {
    pub(in crate::store) connection: C,
    /// Whether the connection has been used before. If so, the server may have closed it meanwhile.
    pub(in crate::store) was_idle: bool,
    _permit: Option<OwnedSemaphorePermit>,
}

impl<C> Pool<C> {
    /// A pool of at most `max` connections.
    pub(in crate::store) fn new(max: usize) -> Self {
        Self {
            idle: Lock::default(),
            permits: Arc::new(Semaphore::new(max)),
        }
    }

    /// An idle connection, or a new one.
    pub(in crate::store) async fn take(
        &self,
        connect: impl Future<Output = Result<C, StoreError>>,
    ) -> Result<Taken<C>, StoreError> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let idle = self.idle.lock().pop();
        Ok(Taken {
            was_idle: idle.is_some(),
            connection: match idle {
                Some(connection) => connection,
                None => connect.await?,
            },
            _permit: permit.ok(), // the semaphore is never closed
        })
    }

    pub(in crate::store) fn put_back(&self, taken: Taken<C>) {
        self.idle.lock().push(taken.connection);
    }

    /// Closes the idle connections.
    #[cfg(feature = "mysql")]
    pub(in crate::store) fn clear(&self) {
        self.idle.lock().clear();
    }
}
