//! How a layer asks each kind of limiter.

use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project::pin_project;

use super::answer::Refusal;
use super::identity::Everyone;
use crate::acquire::AcquireExplained;
use crate::core::request::Caller;
use crate::error::{AcquireError, TryAcquireError};
use crate::event::EventKind;
use crate::keyed::KeyedLimiter;
use crate::limiter::{Handle, Limiter};
use crate::permit::Permit;
use crate::shared::{SharedLimiter, TryAcquireShared};
use crate::snapshot::LimitStatus;

/// A limiter that a [`LimitLayer`](super::LimitLayer) or an [`OutboundLayer`](super::OutboundLayer::by_key) can ask for this key. Limiters
/// implement it, and other types cannot.
///
/// | limiter | keys |
/// |---|---|
/// | [`Limiter`] | [`Everyone`] |
/// | [`KeyedLimiter<K>`](KeyedLimiter) | `K` |
/// | [`SharedLimiter`] | [`Everyone`], or a [`StoreKey`]: each has [limits of its own](SharedLimiter::key) |
/// | [`Chosen`] | those of its function |
pub trait Admits<K>: Asks<K> {}

impl<K, L: Asks<K>> Admits<K> for L {}

/// Seals [`Admits`], because its module is private.
pub trait Asks<K> {
    fn ask(&self, key: &K, terms: Terms) -> Asked;

    /// The limiter of this key.
    fn limiter_of(&self, key: &K) -> Result<Limiter, TryAcquireError>;

    fn penalize(&self, key: &K, units: u64);

    /// Tells the observers, if there are any. Without a key it is of a request whose key is unknown.
    fn tell(&self, key: Option<&K>, event: impl FnOnce() -> EventKind);
}

/// What a layer asks for each request.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    pub(super) cost: u64,
    pub(super) wait: Option<Duration>,
    /// Whether the answer says what each limit said. One after a wait always does: a refusal is told by it.
    pub(super) is_explained: bool,
    /// Where the layer was made.
    pub(super) caller: Caller,
}

type Answer = Result<(Permit, Vec<LimitStatus>), Box<Refusal>>;

#[derive(Debug)]
pub enum Asked {
    Now(Answer),
    Later(Asking),
}

/// An answer that is awaited.
#[pin_project(project = AskingProjection)]
pub enum Asking {
    Waiting(#[pin] AcquireExplained),
    Store(#[pin] TryAcquireShared),
    Boxed(Pin<Box<dyn Future<Output = Answer> + Send>>),
}

impl Future for Asking {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        Poll::Ready(match self.project() {
            AskingProjection::Waiting(acquire) => after_wait(ready!(acquire.poll(cx))),
            AskingProjection::Store(acquire) => at_once((ready!(acquire.poll(cx)), Vec::new())),
            AskingProjection::Boxed(acquire) => ready!(acquire.as_mut().poll(cx)),
        })
    }
}

fn after_wait((granted, limits): (Result<Permit, AcquireError>, Vec<LimitStatus>)) -> Answer {
    match granted {
        Ok(permit) => Ok((permit, limits)),
        Err(error) => Err(Box::new(Refusal::of_wait(error, limits))),
    }
}

fn at_once((granted, limits): (Result<Permit, TryAcquireError>, Vec<LimitStatus>)) -> Answer {
    match granted {
        Ok(permit) => Ok((permit, limits)),
        Err(error) => Err(Box::new(Refusal::at_once(error, limits))),
    }
}

impl Asks<Everyone> for Limiter {
    fn ask(&self, _: &Everyone, terms: Terms) -> Asked {
        let request = self.request().cost(terms.cost).requested_in(terms.caller);
        match (terms.wait, terms.is_explained) {
            (None, true) => Asked::Now(at_once(request.try_acquire_explained())),
            (None, false) => Asked::Now(at_once((request.try_acquire(), Vec::new()))),
            (Some(wait), _) => Asked::Later(Asking::Waiting(request.timeout(wait).acquire_explained())),
        }
    }

    fn limiter_of(&self, _: &Everyone) -> Result<Limiter, TryAcquireError> {
        Ok(self.clone())
    }

    fn penalize(&self, _: &Everyone, units: u64) {
        Self::penalize(self, units); // the limiter's own method
    }

    fn tell(&self, _: Option<&Everyone>, event: impl FnOnce() -> EventKind) {
        self.manager().tell_if_observed(event);
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> Asks<K> for KeyedLimiter<K> {
    fn ask(&self, key: &K, terms: Terms) -> Asked {
        let request = self.request(key).cost(terms.cost).requested_in(terms.caller);
        match (terms.wait, terms.is_explained) {
            (None, true) => Asked::Now(at_once(request.try_acquire_explained())),
            (None, false) => Asked::Now(at_once((request.try_acquire(), Vec::new()))),
            (Some(wait), _) => {
                let acquire = request.timeout(wait).acquire_explained();
                Asked::Later(Asking::Boxed(Box::pin(async { after_wait(acquire.await) })))
            }
        }
    }

    fn limiter_of(&self, key: &K) -> Result<Limiter, TryAcquireError> {
        self.limiter(key)
    }

    fn penalize(&self, key: &K, units: u64) {
        let _is_known = Self::penalize(self, key, units); // the limiter's own method
    }

    fn tell(&self, key: Option<&K>, event: impl FnOnce() -> EventKind) {
        Self::tell(self, key, event); // the limiter's own method
    }
}

impl Asks<Everyone> for SharedLimiter {
    fn ask(&self, _: &Everyone, terms: Terms) -> Asked {
        let request = self.request().cost(terms.cost).requested_in(terms.caller);
        Asked::Later(match (terms.wait, terms.is_explained) {
            (None, true) => {
                let acquire = request.try_acquire_explained();
                Asking::Boxed(Box::pin(async { at_once(acquire.await) }))
            }
            (None, false) => Asking::Store(request.try_acquire()),
            (Some(wait), _) => Asking::Waiting(request.timeout(wait).acquire_explained()),
        })
    }

    fn limiter_of(&self, _: &Everyone) -> Result<Limiter, TryAcquireError> {
        Ok(self.handle())
    }

    fn penalize(&self, _: &Everyone, units: u64) {
        Self::penalize(self, units); // the limiter's own method
    }

    fn tell(&self, _: Option<&Everyone>, event: impl FnOnce() -> EventKind) {
        Self::tell(self, self.key_bytes(), event); // the limiter's own method
    }
}

impl<K: StoreKey> Asks<K> for SharedLimiter {
    fn ask(&self, key: &K, terms: Terms) -> Asked {
        of_key(self, key).ask(&Everyone, terms)
    }

    fn limiter_of(&self, key: &K) -> Result<Limiter, TryAcquireError> {
        Ok(of_key(self, key).handle())
    }

    fn penalize(&self, key: &K, units: u64) {
        of_key(self, key).penalize(units);
    }

    fn tell(&self, key: Option<&K>, event: impl FnOnce() -> EventKind) {
        Self::tell(self, &key.map(bytes_of).unwrap_or_default(), event); // the limiter's own method
    }
}

fn of_key(limiter: &SharedLimiter, key: &impl StoreKey) -> SharedLimiter {
    limiter.key(bytes_of(key))
}

fn bytes_of(key: &impl StoreKey) -> Vec<u8> {
    let mut bytes = Vec::new();
    key.append_to(&mut bytes);
    bytes
}

/// A limiter for each key, by a function. See [`LimitLayer::choose`](super::LimitLayer::choose).
pub struct Chosen<F>(pub(super) Arc<F>);

impl<K, L: Admits<Everyone>, F: Fn(&K) -> L> Asks<K> for Chosen<F> {
    fn ask(&self, key: &K, terms: Terms) -> Asked {
        (self.0)(key).ask(&Everyone, terms)
    }

    fn limiter_of(&self, key: &K) -> Result<Limiter, TryAcquireError> {
        (self.0)(key).limiter_of(&Everyone)
    }

    fn penalize(&self, key: &K, units: u64) {
        (self.0)(key).penalize(&Everyone, units);
    }

    /// Without a key there is no limiter whose observers could be told.
    fn tell(&self, key: Option<&K>, event: impl FnOnce() -> EventKind) {
        if let Some(key) = key {
            (self.0)(key).tell(Some(&Everyone), event);
        }
    }
}

impl<F> Clone for Chosen<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<F> fmt::Debug for Chosen<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Chosen(..)")
    }
}

impl fmt::Debug for Asking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Asking(..)")
    }
}

/// A key of a [`SharedLimiter`] in a [`LimitLayer`](super::LimitLayer) or an [`OutboundLayer`](super::OutboundLayer::by_key), as the bytes
/// that its store gets.
///
/// ```
/// use tollgate::http::StoreKey;
///
/// let mut bytes = Vec::new();
/// std::net::IpAddr::from([192, 0, 2, 1]).append_to(&mut bytes);
/// assert_eq!(bytes, b"192.0.2.1");
/// ```
///
/// A type of another crate gets a type around it:
///
/// ```
/// use tollgate::http::StoreKey;
/// use uuid::Uuid;
///
/// #[derive(Clone, Copy)]
/// struct Account(Uuid); // for `by(|request| … Some(Account(id)))`
///
/// impl StoreKey for Account {
///     fn append_to(&self, bytes: &mut Vec<u8>) {
///         bytes.extend_from_slice(self.0.as_bytes());
///     }
/// }
/// ```
pub trait StoreKey {
    /// Appends the bytes of the key. Two keys of a type are the same if their bytes are.
    fn append_to(&self, bytes: &mut Vec<u8>);
}

macro_rules! store_keys {
    ($bytes_of:expr; $($key:ty),*) => {$(
        impl StoreKey for $key {
            fn append_to(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(($bytes_of)(self).as_ref());
            }
        }
    )*};
}

store_keys!(AsRef::<[u8]>::as_ref; Vec<u8>, Arc<[u8]>);
store_keys!(str::as_bytes; String, Arc<str>, &'static str);
store_keys!(ToString::to_string; IpAddr, i32, i64, u32, u64, u128);

/// The first key, with its length before it, so that no two pairs have the same bytes.
impl<One: StoreKey, Other: StoreKey> StoreKey for (One, Other) {
    fn append_to(&self, bytes: &mut Vec<u8>) {
        let mut first = Vec::new();
        self.0.append_to(&mut first);
        bytes.extend_from_slice(format!("{}:", first.len()).as_bytes());
        bytes.extend_from_slice(&first);
        self.1.append_to(bytes);
    }
}
