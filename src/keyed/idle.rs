//! An entry of a key in a table: idle (only the state of its limits) or active (a manager). And the lookup of a key.

use std::any::TypeId;
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use foldhash::quality::SeedableRandomState;

use super::idle_state::KeyWord;
use crate::manager::Manager;

/// The entry of a key in a table of its shard.
#[derive(Debug)]
pub(super) struct KeyEntry<K, V, H> {
    pub(super) key: K,
    /// The words of an idle key, or the manager of an active one.
    pub(super) value: V,
    hash: H,
}

/// A key with only the state of its limits. Where keys have tiers, the last word is the number of the tier.
pub(super) type Idle<K, const W: usize, H> = KeyEntry<K, [KeyWord; W], H>;

/// A key with a manager.
pub(super) type Active<K, H> = KeyEntry<K, Arc<Manager>, H>;

impl<K: Hash + Eq, V, H: KeptHash> KeyEntry<K, V, H> {
    pub(super) fn new(hash: u64, key: K, value: V) -> Self {
        let hash = H::keep(hash);
        Self { key, value, hash }
    }

    #[inline(always)]
    pub(super) fn is(&self, hash: u64, key: &(impl KeyRef<K> + ?Sized)) -> bool {
        self.hash.may_be(hash) && key.is(&self.key)
    }

    pub(super) fn hash(&self, hasher: &SeedableRandomState) -> u64 {
        self.hash.of(&self.key, hasher)
    }
}

/// The hash that a table keeps beside a key, if any.
///
/// A table that moves keys needs their hashes under its lock. No foreign code may run there: it could panic halfway through, or
/// use the limiter. A lookup compares a key with several others, and each comparison of strings can be a cache miss. So the hash
/// is kept, and `Eq` is called only for keys with equal hashes. The hash takes 8 bytes a key, which makes the smallest entries
/// half as large again. [Numbers and addresses](is_plain) run no foreign code and lie in the table as a whole, so their hashes
/// are not kept.
pub(super) trait KeptHash: Copy + std::fmt::Debug + Send + 'static {
    /// Whether a method of the key may run foreign code, or copying the key may take long.
    const FOREIGN: bool;

    fn keep(hash: u64) -> Self;
    /// Whether a key with the hash `hash` may equal this key.
    fn may_be(self, hash: u64) -> bool;
    fn of<K: Hash>(self, key: &K, hasher: &SeedableRandomState) -> u64;
}

impl KeptHash for () {
    const FOREIGN: bool = false;

    fn keep(_: u64) -> Self {}

    #[inline(always)]
    fn may_be(self, _: u64) -> bool {
        true
    }

    fn of<K: Hash>(self, key: &K, hasher: &SeedableRandomState) -> u64 {
        hasher.hash_one(key)
    }
}

impl KeptHash for u64 {
    const FOREIGN: bool = true;

    fn keep(hash: u64) -> Self {
        hash
    }

    #[inline(always)]
    fn may_be(self, hash: u64) -> bool {
        self == hash
    }

    fn of<K: Hash>(self, _: &K, _: &SeedableRandomState) -> u64 {
        self
    }
}

/// Whether a key is a number or an address of the standard library.
pub(super) fn is_plain<K: 'static>() -> bool {
    macro_rules! any_of {
        ($($key:ty),*) => { [$(TypeId::of::<$key>()),*].contains(&TypeId::of::<K>()) };
    }
    any_of!(
        u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, bool, char, IpAddr,
        Ipv4Addr, Ipv6Addr, SocketAddr
    )
}

/// A borrowed form of a key: the key itself, or a type that it borrows as, such as `str` for a `String`.
pub(super) trait KeyRef<K>: Hash {
    /// Compares by the `Eq` of the borrowed form.
    fn is(&self, key: &K) -> bool;

    fn to_key(&self) -> K;
}

impl<Q: Hash + Eq + ToOwned + ?Sized> KeyRef<Q::Owned> for Q {
    #[inline(always)]
    fn is(&self, key: &Q::Owned) -> bool {
        let key: &Self = key.borrow();
        key == self
    }

    fn to_key(&self) -> Q::Owned {
        self.to_owned()
    }
}
