use super::store_link::CallUnderWay;
use crate::core::waiter::WaiterId;

/// A call of this generation on its way.
#[derive(Debug)]
pub(super) struct Carried {
    pub(super) generation: u64,
    pub(super) call: CallUnderWay,
}

/// The request that carries the next call, or this one: see [`leader`](super::leader).
#[derive(Debug)]
pub(super) struct Leader {
    pub(super) id: WaiterId,
    pub(super) carried: Option<Carried>,
}
