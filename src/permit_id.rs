//! The id of a permit.

use std::fmt;

use uuid::Uuid;

/// A unique id of a grant: a UUID of version 8. It prints as `67e55044-10b1-826f-9247-bb680e5fe0c8`. See
/// [`Permit::id`](crate::Permit::id).
///
/// ```
/// use tollgate::{Limiter, MaxConcurrency};
///
/// let limiter = Limiter::new(MaxConcurrency::new(2))?;
/// let id = limiter.try_acquire()?.id();
/// assert_eq!(id.to_string().len(), 36);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PermitId(Uuid);

impl PermitId {
    /// The id of the permit with a fence, of the limiter that drew this random prefix.
    pub(crate) fn new(prefix: u64, fence: u64) -> Self {
        let bytes = (u128::from(prefix) << 64 | u128::from(fence)).to_be_bytes();
        Self(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }

    /// The 128 bits of the UUID, for a database or a UUID type.
    ///
    /// ```
    /// use tollgate::{Limiter, MaxConcurrency};
    ///
    /// let id = Limiter::new(MaxConcurrency::new(2))?.try_acquire()?.id();
    /// assert_eq!(id.to_string().replace('-', ""), format!("{:032x}", id.as_u128()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn as_u128(&self) -> u128 {
        self.0.as_u128()
    }
}

impl fmt::Display for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// As it prints: the text is what is searched for in logs.
impl fmt::Debug for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
