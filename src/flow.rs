//! The names of flows.

use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::num::NonZeroU64;
use std::sync::OnceLock;

/// Names a [flow](crate::PermitRequest::flow) in events and in [`Limiter::flows`](crate::Limiter::flows): a hash of its value, with
/// a seed of this process. It prints as 16 hexadecimal digits.
///
/// A limiter does not keep the values of its flows. To know which flow an event is about, keep the ids of those that you look for.
/// The ids of another process differ. If the hashes of two flows collide, which takes about four billion flows, the two are one flow.
///
/// ```
/// use tollgate::{FlowId, Limiter, MaxConcurrency};
///
/// let limiter = Limiter::new(MaxConcurrency::new(8))?;
/// let _permit = limiter.request().flow("alice").try_acquire()?;
/// let flows = limiter.flows(10);
/// assert_eq!((flows[0].id, flows[0].in_flight), (FlowId::of("alice"), 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowId(
    // The last bit tells a parent from a flow: if their hashes collide, they are still two participants.
    NonZeroU64,
);

/// The id of a flow whose hash is 0.
const ZERO: NonZeroU64 = NonZeroU64::new(2).expect("not 0");

impl FlowId {
    /// The id of a flow without a parent. See the [type's example](Self). A reference has the id of its value.
    #[must_use]
    pub fn of(flow: impl Hash) -> Self {
        Self::new(flow, false)
    }

    /// The id of a parent.
    ///
    /// ```
    /// use tollgate::FlowId;
    ///
    /// assert_ne!(FlowId::of_parent("acme"), FlowId::of("acme"));
    /// ```
    #[must_use]
    pub fn of_parent(parent: impl Hash) -> Self {
        Self::new(parent, true)
    }

    /// The id of a flow within a parent. The same value within another parent is another flow.
    ///
    /// ```
    /// use tollgate::FlowId;
    ///
    /// assert_ne!(FlowId::within("acme", "alice"), FlowId::within("example", "alice"));
    /// ```
    #[must_use]
    pub fn within(parent: impl Hash, flow: impl Hash) -> Self {
        Self::of_parent(parent).with(flow)
    }

    /// The id of a flow within this parent.
    pub(crate) fn with(self, flow: impl Hash) -> Self {
        Self::new((self, flow), false)
    }

    fn new(value: impl Hash, is_parent: bool) -> Self {
        static SEED: OnceLock<RandomState> = OnceLock::new();
        let hash = SEED.get_or_init(RandomState::new).hash_one(value);
        let id = if is_parent { hash | 1 } else { hash & !1 };
        Self(NonZeroU64::new(id).unwrap_or(ZERO))
    }
}

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
