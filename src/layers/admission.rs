//! How a layer asks each kind of limiter.

use std::hash::Hash;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::answer::Refusal;
use super::identity::NoKey;
use crate::acquire::PermitRequest;
use crate::core::request::Caller;
use crate::error::TryAcquireError;
use crate::event::EventKind;
use crate::keyed::KeyedLimiter;
use crate::limiter::{Handle, Limiter};
use crate::manager::RequestOptions;
use crate::permit::Permit;
use crate::shared::SharedLimiter;
use crate::snapshot::LimitStatus;

/// A limiter that a [`LimitLayer`](super::LimitLayer) or an [`OutboundLayer`](super::OutboundLayer::by_key) can ask for this key.
/// Only limiters implement this trait.
///
/// | limiter | keys |
/// |---|---|
/// | [`Limiter`] | [`NoKey`] |
/// | [`KeyedLimiter<K>`](KeyedLimiter) | `K` |
/// | [`SharedLimiter`] | [`NoKey`], or a [`StoreKey`]: each has [limits of its own](SharedLimiter::key) |
/// | [`ChosenLimiter`] | the keys of its function |
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not limit by keys of the type `{K}`",
    note = "a `KeyedLimiter<K>` limits by its own `K`, and a `SharedLimiter` by each `StoreKey`; a `Limiter` has no keys, so a layer of it has no `by`"
)]
pub trait Admits<K>: AsksLimiter<K> {}

#[diagnostic::do_not_recommend]
impl<K, L: AsksLimiter<K>> Admits<K> for L {}

/// Seals [`Admits`]: the module of this trait is private.
pub trait AsksLimiter<K> {
    fn ask(&self, key: &K, terms: &AskTerms) -> Admission;

    /// The limiter of this key.
    fn limiter_of(&self, key: &K) -> Result<Limiter, TryAcquireError>;

    fn penalize(&self, key: &K, units: u64) {
        if let Ok(limiter) = self.limiter_of(key) {
            limiter.penalize(units);
        }
    }

    /// Reports an event to the observers, if there are any. `key` is `None` for a request whose key is unknown.
    fn tell(&self, key: Option<&K>, event: impl FnOnce() -> EventKind) {
        if let Some(Ok(limiter)) = key.map(|key| self.limiter_of(key)) {
            limiter.manager().report_if_observed(event);
        }
    }
}

/// A limiter that a layer takes, as a value or as a reference, which is cloned. Only the limiters that have
/// [`Admits`] implement this trait.
///
/// ```
/// use tollgate::Limiter;
/// use tollgate::layers::{LimitLayer, OutboundLayer};
///
/// let limiter = Limiter::new("100/min")?;
/// let (inbound, outbound) = (LimitLayer::new(&limiter), OutboundLayer::new(limiter)); // share the limiter
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limiter",
    label = "expected a `Limiter`, a `KeyedLimiter` or a `SharedLimiter`, as a value or a reference"
)]
pub trait IntoLimiter: Sealed {
    /// The limiter.
    type Limiter;

    /// The limiter, or a clone of it.
    fn into_limiter(self) -> Self::Limiter;
}

/// The module of this trait is private.
pub trait Sealed {}

macro_rules! into_limiter {
    ($([$($generic:ident)?] $limiter:ty;)*) => {$(
        impl<$($generic)?> Sealed for $limiter {}

        impl<$($generic)?> Sealed for &$limiter {}

        impl<$($generic)?> IntoLimiter for $limiter {
            type Limiter = Self;

            fn into_limiter(self) -> Self {
                self
            }
        }

        impl<$($generic)?> IntoLimiter for &$limiter {
            type Limiter = $limiter;

            fn into_limiter(self) -> $limiter {
                self.clone()
            }
        }
    )*};
}

into_limiter! {
    [] Limiter;
    [K] KeyedLimiter<K>;
    [] SharedLimiter;
    [F] ChosenLimiter<F>;
}

/// How a layer asks its limiter for a request.
#[derive(Debug, Clone)]
pub struct AskTerms {
    /// The place where the layer was made is recorded as the origin of its requests.
    pub(super) options: RequestOptions,
    pub(super) wait: Option<Duration>,
    /// Whether the answer has the state of each limit. After a wait it always does, because a refusal is made from that state.
    pub(super) is_explained: bool,
}

impl AskTerms {
    pub(super) fn new(caller: Caller) -> Self {
        Self {
            options: RequestOptions::new(1, caller),
            wait: None,
            is_explained: true,
        }
    }

    /// The answer of a limiter that decides now.
    #[inline(always)]
    fn at_once(
        &self,
        try_request: impl FnOnce(
            &RequestOptions,
            Option<&mut Vec<LimitStatus>>,
        ) -> Result<Permit, TryAcquireError>,
    ) -> Admission {
        let mut limits = Vec::new();
        let wanted = self.is_explained.then_some(&mut limits);
        Admission::Now(match try_request(&self.options, wanted) {
            Ok(permit) => Ok((permit, limits)),
            Err(error) => Err(Box::new(Refusal::at_once(error, limits))),
        })
    }

    fn request<T>(&self, target: T) -> PermitRequest<T> {
        PermitRequest {
            target,
            options: self.options.clone(),
        }
    }
}

pub(super) type Answer = Result<(Permit, Vec<LimitStatus>), Box<Refusal>>;

/// The answer of a limiter, or its future. The future is in a box, so that the future of a layer stays small: most requests are
/// decided at once.
pub enum Admission {
    Now(Answer),
    Later(Pin<Box<dyn Future<Output = Answer> + Send>>),
}

debug_fields! { Admission }

impl Admission {
    fn later<E: 'static>(
        refusal_of: fn(E, Vec<LimitStatus>) -> Refusal,
        acquire: impl Future<Output = (Result<Permit, E>, Vec<LimitStatus>)> + Send + 'static,
    ) -> Self {
        Self::Later(Box::pin(
            async move { explained(refusal_of, acquire.await) },
        ))
    }
}

/// Converts the answer of a limiter into that of a layer.
#[inline]
fn explained<E>(
    refusal_of: fn(E, Vec<LimitStatus>) -> Refusal,
    (granted, limits): (Result<Permit, E>, Vec<LimitStatus>),
) -> Answer {
    match granted {
        Ok(permit) => Ok((permit, limits)),
        Err(error) => Err(Box::new(refusal_of(error, limits))),
    }
}

impl AsksLimiter<NoKey> for Limiter {
    fn ask(&self, _: &NoKey, terms: &AskTerms) -> Admission {
        let Some(wait) = terms.wait else {
            let channel = self.manager().in_channel();
            return terms.at_once(|options, limits| channel.try_request(options, limits, None));
        };
        let request = terms.request(self).timeout(wait);
        Admission::later(Refusal::of_wait, request.acquire_explained())
    }

    fn limiter_of(&self, _: &NoKey) -> Result<Limiter, TryAcquireError> {
        Ok(self.clone())
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> AsksLimiter<K> for KeyedLimiter<K> {
    fn ask(&self, key: &K, terms: &AskTerms) -> Admission {
        let Some(wait) = terms.wait else {
            return terms.at_once(|options, limits| self.try_request(key, options, limits));
        };
        let request = terms.request((self, key)).timeout(wait);
        Admission::later(Refusal::of_wait, request.acquire_explained())
    }

    fn limiter_of(&self, key: &K) -> Result<Limiter, TryAcquireError> {
        self.limiter(key)
    }

    /// The limiter's own method charges a key without making a manager for it.
    fn penalize(&self, key: &K, units: u64) {
        let _is_known = Self::penalize(self, key, units);
    }

    fn tell(&self, key: Option<&K>, event: impl FnOnce() -> EventKind) {
        self.observers().tell(key, event);
    }
}

impl AsksLimiter<NoKey> for SharedLimiter {
    fn ask(&self, _: &NoKey, terms: &AskTerms) -> Admission {
        let request = terms.request(self);
        match (terms.wait, terms.is_explained) {
            (None, true) => Admission::later(Refusal::at_once, request.try_acquire_explained()),
            (None, false) => {
                let acquire = request.try_acquire();
                Admission::later(Refusal::at_once, async { (acquire.await, Vec::new()) })
            }
            (Some(wait), _) => {
                Admission::later(Refusal::of_wait, request.timeout(wait).acquire_explained())
            }
        }
    }

    fn limiter_of(&self, _: &NoKey) -> Result<Limiter, TryAcquireError> {
        Ok(self.handle())
    }
}

impl<K: StoreKey> AsksLimiter<K> for SharedLimiter {
    fn ask(&self, key: &K, terms: &AskTerms) -> Admission {
        of_key(self, key).ask(&NoKey, terms)
    }

    fn limiter_of(&self, key: &K) -> Result<Limiter, TryAcquireError> {
        Ok(of_key(self, key).handle())
    }

    fn tell(&self, key: Option<&K>, event: impl FnOnce() -> EventKind) {
        let limiter = self.key(key.map(bytes_of).unwrap_or_default());
        limiter.handle().tell(Some(&NoKey), event);
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

/// Chooses a limiter for each key by a function. See [`LimitLayer::choose`](super::LimitLayer::choose).
pub struct ChosenLimiter<F>(pub(super) Arc<F>);

impl<K, L: Admits<NoKey>, F: Fn(&K) -> L> AsksLimiter<K> for ChosenLimiter<F> {
    fn ask(&self, key: &K, terms: &AskTerms) -> Admission {
        (self.0)(key).ask(&NoKey, terms)
    }

    fn limiter_of(&self, key: &K) -> Result<Limiter, TryAcquireError> {
        (self.0)(key).limiter_of(&NoKey)
    }
}

impl<F> Clone for ChosenLimiter<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

debug_fields! { [F] ChosenLimiter<F> }

/// A key of a [`SharedLimiter`] in a [`LimitLayer`](super::LimitLayer) or an [`OutboundLayer`](super::OutboundLayer::by_key), as the bytes
/// that its store gets.
///
/// ```
/// use tollgate::layers::StoreKey;
///
/// let mut bytes = Vec::new();
/// std::net::IpAddr::from([192, 0, 2, 1]).append_to(&mut bytes);
/// assert_eq!(bytes, b"192.0.2.1");
/// ```
///
/// Wrap a type of another crate in a type of your own:
///
/// ```
/// use tollgate::layers::StoreKey;
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
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key of a store",
    note = "take a string, an integer, an address, or a tuple of them, or implement `StoreKey` for your type"
)]
pub trait StoreKey {
    /// Appends the bytes of the key. Two keys of a type are equal if their bytes are equal.
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

/// The length of the first key comes before it, so that no two pairs have the same bytes.
impl<One: StoreKey, Other: StoreKey> StoreKey for (One, Other) {
    fn append_to(&self, bytes: &mut Vec<u8>) {
        let mut first = Vec::new();
        self.0.append_to(&mut first);
        bytes.extend_from_slice(format!("{}:", first.len()).as_bytes());
        bytes.extend_from_slice(&first);
        self.1.append_to(bytes);
    }
}
