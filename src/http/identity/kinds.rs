//! How a layer asks for the key of a request: not at all, at once, or by a future.

use std::future::{Future, Pending};
use std::sync::Arc;

use http::Request;

use super::{FoundKey, Identity, NoIdentity};

/// No identity: one limit for all requests together. Limiters without keys take it in place of a key.
/// [`LimitLayer::new`](crate::http::LimitLayer::new) uses it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct NoKey;

/// Limits each key of an [`Identity`]. Made by [`LimitLayer::by`](crate::http::LimitLayer::by).
#[derive(Clone)]
pub struct KeyedBy<I>(pub(in crate::http) I);

/// Limits each key that a future finds. Made by [`LimitLayer::by_future`](crate::http::LimitLayer::by_future).
#[derive(Clone)]
pub struct KeyedByFuture<F>(pub(in crate::http) F);

/// Gives one key to all requests whose key is unknown. Made by [`LimitLayer::or_shared`](crate::http::LimitLayer::or_shared).
#[derive(Clone)]
pub struct OrShared<I, K> {
    pub(in crate::http) inner: I,
    pub(in crate::http) key: K,
}

/// A key, or the future that finds it.
#[derive(Debug)]
pub enum Identified<K, F> {
    Now(Result<K, NoIdentity>),
    Later(F),
}

/// How a [`LimitLayer`](crate::http::LimitLayer) finds the key of a request. Implement [`Identity`] instead: only [`NoKey`],
/// [`KeyedBy`], [`KeyedByFuture`] and [`OrShared`] implement this trait.
pub trait Identifies<B>: FindsKey<B, SealedKey = Self::Key> {
    /// The key of the limits.
    type Key;
}

impl<B, I: FindsKey<B>> Identifies<B> for I {
    type Key = I::SealedKey;
}

/// Seals [`Identifies`]: the module of this trait is private.
pub trait FindsKey<B> {
    /// Whether there are several keys.
    const HAS_KEYS: bool = true;

    type SealedKey;
    type Future: Future<Output: FoundKey<Key = Self::SealedKey>>;

    fn key_of(&self, request: &Request<B>) -> Identified<Self::SealedKey, Self::Future>;

    /// The key that all requests with an unknown key share.
    fn shared_key(&self) -> Option<Self::SealedKey> {
        None
    }
}

impl<B> FindsKey<B> for NoKey {
    const HAS_KEYS: bool = false;

    type SealedKey = Self;
    type Future = Pending<Option<Self>>;

    fn key_of(&self, _: &Request<B>) -> Identified<Self, Self::Future> {
        Identified::Now(Ok(Self))
    }
}

impl<B, I: Identity<B>> FindsKey<B> for KeyedBy<I> {
    type SealedKey = I::Key;
    type Future = Pending<Option<I::Key>>;

    fn key_of(&self, request: &Request<B>) -> Identified<I::Key, Self::Future> {
        Identified::Now(self.0.identify(request))
    }
}

impl<B, R: FoundKey, G: Future<Output = R>, F: Fn(&Request<B>) -> G> FindsKey<B>
    for KeyedByFuture<F>
{
    type SealedKey = R::Key;
    type Future = G;

    fn key_of(&self, request: &Request<B>) -> Identified<R::Key, G> {
        Identified::Later((self.0)(request))
    }
}

impl<B, K: Clone, I: FindsKey<B, SealedKey = K>> FindsKey<B> for OrShared<Arc<I>, K> {
    type SealedKey = K;
    type Future = I::Future;

    fn key_of(&self, request: &Request<B>) -> Identified<K, I::Future> {
        self.inner.key_of(request)
    }

    fn shared_key(&self) -> Option<K> {
        Some(self.key.clone())
    }
}

debug_fields! { [I] KeyedBy<I> }

debug_fields! { [F] KeyedByFuture<F> }

debug_fields! { [I: std::fmt::Debug, K] OrShared<I, K>, |shared| inner = shared.inner }
