use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::coop;

use super::acquire::{KeyedAcquire, KeyedAcquireOwned};
use super::admitted::Admitted;
use super::any_table::{AnyTable, with_table};
use crate::acquire::{AcquireExplained, Reservation, Run, blocking_acquire, check_clock, request_setters};
use crate::decision::Decision;
use crate::error::{AcquireError, TryAcquireError};
use crate::manager::RequestOptions;
use crate::permit::Permit;
use crate::priority::Priority;
use crate::snapshot::LimitStatus;

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
#[must_use = "a request does nothing until it is awaited, or `acquire` is called"]
pub struct KeyedPermitRequest<'a, K, Q: ?Sized = K> {
    pub(super) table: &'a Arc<AnyTable<K>>,
    pub(super) key: &'a Q,
    pub(super) options: RequestOptions,
}

impl<'a, K, Q> KeyedPermitRequest<'a, K, Q>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
{
    request_setters!(with requested_in);

    /// Waits for the permit. See [`KeyedLimiter::acquire`](crate::KeyedLimiter::acquire).
    ///
    /// # Errors
    ///
    /// Those of [`KeyedLimiter::acquire`](crate::KeyedLimiter::acquire) and of [`PermitRequest::acquire`](crate::PermitRequest::acquire).
    pub fn acquire(self) -> KeyedAcquire<'a, K, Q> {
        KeyedAcquire::new(self.table, self.key, self.options)
    }

    /// [`KeyedPermitRequest::acquire`] as a future that borrows nothing. See
    /// [`KeyedLimiter::acquire_owned`](crate::KeyedLimiter::acquire_owned).
    ///
    /// # Errors
    ///
    /// Those of [`KeyedPermitRequest::acquire`].
    pub fn acquire_owned(self) -> KeyedAcquireOwned<K> {
        KeyedAcquireOwned::new(Arc::clone(self.table), self.key.to_owned(), self.options)
    }

    /// Waits for the permit, and runs the future while it holds it. See [`KeyedLimiter::run`](crate::KeyedLimiter::run).
    ///
    /// # Errors
    ///
    /// Those of [`KeyedLimiter::run`](crate::KeyedLimiter::run) and of [`KeyedPermitRequest::acquire`].
    pub fn run<F: Future>(self, future: F) -> Run<F, KeyedAcquireOwned<K>> {
        Run::new(self.acquire_owned(), future)
    }

    /// Takes what the request costs now, or nothing. See [`PermitRequest::try_acquire`](crate::PermitRequest::try_acquire).
    ///
    /// # Errors
    ///
    /// Those of [`PermitRequest::try_acquire`](crate::PermitRequest::try_acquire), and those of
    /// [`KeyedLimiter::try_acquire`](crate::KeyedLimiter::try_acquire).
    pub fn try_acquire(self) -> Result<Permit, TryAcquireError> {
        with_table!(&**self.table, |table| table.try_request(self.key, &self.options))
    }

    /// [`KeyedPermitRequest::try_acquire`], with what each limit of the key says right after the decision. See
    /// [`PermitRequest::try_acquire_explained`](crate::PermitRequest::try_acquire_explained).
    ///
    /// ```
    /// # use tollgate::KeyedLimiter;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let per_user = KeyedLimiter::new("10/min and 100/h").unwrap();
    /// let (answer, limits) = per_user.request(&"alice").cost(3).try_acquire_explained();
    /// assert_eq!((answer.is_ok(), limits[0].remaining, limits[1].remaining), (true, 7, 97));
    /// # }
    /// ```
    pub fn try_acquire_explained(self) -> (Result<Permit, TryAcquireError>, Vec<LimitStatus>) {
        with_table!(&**self.table, |table| table.try_request_explained(self.key, &self.options))
    }

    /// [`KeyedPermitRequest::acquire_owned`], with what each limit of the key said when the permit was granted, or the request refused. See
    /// [`PermitRequest::acquire_explained`](crate::PermitRequest::acquire_explained). There are no limits if the key was not admitted.
    ///
    /// # Errors
    ///
    /// Those of [`KeyedPermitRequest::acquire`].
    pub fn acquire_explained(self) -> impl Future<Output = (Result<Permit, AcquireError>, Vec<LimitStatus>)> + use<K, Q> {
        let (table, key, options) = (Arc::clone(self.table), self.key.to_owned(), self.options);
        async move {
            // A task that acquires in a loop must let its neighbours have a turn.
            coop::consume_budget().await;
            match with_table!(&*table, |table| table.admit_explained(&key, &options)) {
                Ok((Admitted::Granted(permit), limits)) => (Ok(permit), limits),
                Ok((Admitted::ToManager(manager), _)) => AcquireExplained::new(manager, options).await,
                Err(error) => (Err(error), Vec::new()),
            }
        }
    }

    /// Joins the queue of the key now. See [`Limiter::reserve`](crate::Limiter::reserve). Of a key whose permits have
    /// [no handle of their limiter](crate::KeyedLimiter#permits), a reservation that was granted at once cannot be given back.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{KeyedLimiter, Throttle};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let per_host = KeyedLimiter::new(Throttle::every(Duration::from_secs(1)))?;
    /// let (first, second) = (per_host.request(&"a").reserve()?, per_host.request(&"a").reserve()?);
    /// assert_eq!((first.ready_in(), second.ready_in()), (Some(Duration::ZERO), Some(Duration::from_secs(1))));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`KeyedPermitRequest::acquire`] that are known at once.
    pub fn reserve(self) -> Result<Reservation, AcquireError> {
        match with_table!(&**self.table, |table| table.admit(self.key, &self.options))? {
            Admitted::Granted(permit) => Ok(Reservation::granted(permit)),
            Admitted::ToManager(manager) => Reservation::new(manager, self.options),
        }
    }

    /// What [`KeyedPermitRequest::try_acquire`] would answer now; it takes nothing. See
    /// [`KeyedLimiter::check`](crate::KeyedLimiter::check).
    pub fn check(self) -> Decision {
        with_table!(&**self.table, |table| table.check(self.key, self.options.costs()))
    }

    /// Blocks the thread until it has the permit. See [`KeyedLimiter::blocking_acquire`](crate::KeyedLimiter::blocking_acquire).
    ///
    /// # Panics
    ///
    /// In a task, like the blocking functions of tokio: use `acquire` there, or `tokio::task::spawn_blocking`.
    ///
    /// # Errors
    ///
    /// Those of [`KeyedPermitRequest::acquire`]; [`AcquireError::NoRuntime`] only where
    /// [`Limiter::blocking_acquire`](crate::Limiter::blocking_acquire) says.
    #[track_caller]
    pub fn blocking_acquire(self) -> Result<Permit, AcquireError> {
        check_clock()?;
        match with_table!(&**self.table, |table| table.admit(self.key, &self.options))? {
            Admitted::Granted(permit) => Ok(permit),
            Admitted::ToManager(manager) => blocking_acquire(&manager, self.options),
        }
    }
}

/// [`KeyedPermitRequest::acquire`], so that a request can be awaited itself.
impl<'a, K, Q> IntoFuture for KeyedPermitRequest<'a, K, Q>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
{
    type Output = Result<Permit, AcquireError>;
    type IntoFuture = KeyedAcquire<'a, K, Q>;

    fn into_future(self) -> KeyedAcquire<'a, K, Q> {
        self.acquire()
    }
}

impl<K, Q: ?Sized> fmt::Debug for KeyedPermitRequest<'_, K, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedPermitRequest").field("options", &self.options).finish_non_exhaustive()
    }
}
