//! Futures that wait for a permit of a key.

use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::task::coop;

use super::admitted::Admitted;
use super::any_table::{AnyTable, with_table};
use super::key_ref::KeyRef;
use crate::acquire::AcquireOwned;
use crate::error::AcquireError;
use crate::manager::RequestOptions;
use crate::permit::Permit;

/// A future that waits for a permit of a key. [`KeyedLimiter::acquire`](crate::KeyedLimiter::acquire), which has an example, returns
/// it.
///
/// Its cancel safety, and what happens while it is not polled, are those of [`Acquire`](crate::Acquire).
#[must_use = "futures do nothing unless polled"]
pub struct KeyedAcquire<'a, K, Q: ?Sized = K> {
    table: &'a Arc<AnyTable<K>>,
    key: &'a Q,
    stage: Stage,
}

/// A [`KeyedAcquire`] that borrows nothing: it has a key of its own.
/// [`KeyedLimiter::acquire_owned`](crate::KeyedLimiter::acquire_owned), which has an example, returns it.
#[must_use = "futures do nothing unless polled"]
pub struct KeyedAcquireOwned<K> {
    table: Arc<AnyTable<K>>,
    key: K,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    New(RequestOptions),
    /// At the key's manager.
    Waiting(AcquireOwned),
    Done,
}

impl<'a, K, Q: ?Sized> KeyedAcquire<'a, K, Q> {
    pub(super) fn new(table: &'a Arc<AnyTable<K>>, key: &'a Q, options: RequestOptions) -> Self {
        Self { table, key, stage: Stage::New(options) }
    }
}

impl<K> KeyedAcquireOwned<K> {
    pub(super) fn new(table: Arc<AnyTable<K>>, key: K, options: RequestOptions) -> Self {
        Self { table, key, stage: Stage::New(options) }
    }
}

impl Stage {
    fn poll<K: Hash + Eq + Clone + Send + Sync + 'static>(
        &mut self,
        table: &AnyTable<K>,
        key: &(impl KeyRef<K> + ?Sized),
        cx: &mut Context<'_>,
    ) -> Poll<Result<Permit, AcquireError>> {
        if let Self::New(options) = self {
            // A task that acquires in a loop must let its neighbours have a turn.
            ready!(coop::poll_proceed(cx)).made_progress();
            match with_table!(table, |table| table.admit(key, options)) {
                Ok(Admitted::ToManager(manager)) => *self = Self::Waiting(AcquireOwned::new(manager, options.clone())),
                Ok(Admitted::Granted(permit)) => {
                    *self = Self::Done;
                    return Poll::Ready(Ok(permit));
                }
                Err(error) => {
                    *self = Self::Done;
                    return Poll::Ready(Err(error));
                }
            }
        }
        let Self::Waiting(acquire) = self else { panic!("an acquire future was polled after it had completed") };
        let answer = ready!(Pin::new(acquire).poll(cx));
        *self = Self::Done;
        Poll::Ready(answer)
    }
}

impl<K, Q> Future for KeyedAcquire<'_, K, Q>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
{
    type Output = Result<Permit, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { table, key, stage } = &mut *self;
        stage.poll(table, *key, cx)
    }
}

/// The key is never pinned.
impl<K> Unpin for KeyedAcquireOwned<K> {}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> Future for KeyedAcquireOwned<K> {
    type Output = Result<Permit, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { table, key, stage } = &mut *self;
        stage.poll(table, key, cx)
    }
}

impl<K, Q: ?Sized> fmt::Debug for KeyedAcquire<'_, K, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedAcquire").field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl<K> fmt::Debug for KeyedAcquireOwned<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedAcquireOwned").field("stage", &self.stage).finish_non_exhaustive()
    }
}
