use std::borrow::Borrow;
use std::hash::Hash;

/// A borrowed form of a key: the key itself, or what it is made of, as `str` for a `String`.
pub(super) trait KeyRef<K>: Hash {
    /// The `Eq` of the borrowed form.
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
