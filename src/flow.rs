//! The names of flows.

use std::hash::{BuildHasher, Hash, RandomState};
use std::num::NonZeroU64;
use std::sync::OnceLock;

/// Names a flow or a parent, by a hash of its value with a seed of this process. If two hashes collide, which takes about four
/// billion flows, these two flows are one.
///
/// The last bit tells a parent from a flow: if their hashes collide, they are still two participants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FlowId(NonZeroU64);

/// The id of a flow whose hash is 0.
const ZERO: NonZeroU64 = NonZeroU64::new(2).expect("not 0");

impl FlowId {
    /// A flow that is within no parent.
    pub(crate) fn of(flow: &(impl Hash + ?Sized)) -> Self {
        Self::new(flow, false)
    }

    /// A parent, and a flow within it. The same value within another parent is another flow.
    pub(crate) fn within(
        parent: &(impl Hash + ?Sized),
        flow: &(impl Hash + ?Sized),
    ) -> (Self, Self) {
        let parent = Self::new(parent, true);
        (parent, Self::new(&(parent, flow), false))
    }

    fn new(value: &(impl Hash + ?Sized), is_parent: bool) -> Self {
        static SEED: OnceLock<RandomState> = OnceLock::new();
        let hash = SEED.get_or_init(RandomState::new).hash_one(value);
        let id = if is_parent { hash | 1 } else { hash & !1 };
        Self(NonZeroU64::new(id).unwrap_or(ZERO))
    }
}
