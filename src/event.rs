use std::panic::Location;
use std::time::Duration;

use uuid::Uuid;

use crate::priority::Priority;

/// Something that a limiter did of its own accord. See [`Builder::on_event`](crate::LimiterBuilder::on_event) for an example.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum LimiterEvent {
    /// A permit was taken back by force because its TTL passed.
    Reclaimed {
        /// The permit: what its [`Permit::id`](crate::Permit::id) tells.
        id: Uuid,
        /// What its [`Permit::fence`](crate::Permit::fence) tells.
        fence: u64,
        /// The units that came back.
        cost: u64,
        /// From its grant to the end of its TTL, renewals included.
        held: Duration,
        /// The line of the program that asked for it.
        acquired_in: &'static Location<'static>,
    },
    /// A request was dropped from a full queue, or turned away.
    Shed {
        /// The units that it asked for.
        cost: u64,
        /// How urgent it was.
        priority: Priority,
        /// Why it had to go.
        reason: ShedReason,
        /// The line of the program that asked.
        requested_in: &'static Location<'static>,
    },
}

/// Why a request was shed. See [`Builder::on_event`](crate::LimiterBuilder::on_event) for how it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ShedReason {
    /// The queue was full, and the newcomer was turned away.
    QueueFull,
    /// It waited, and was dropped in favour of another, or with all others: see [`Overflow`](crate::Overflow).
    Dropped,
    /// It came while the limiter accepted nobody: see [`Overflow::Block`](crate::Overflow::Block).
    Blocked,
}

/// The id of a permit: the limiter's random part and the permit's fence.
pub(crate) fn permit_id(id_prefix: u64, fence: u64) -> Uuid {
    let bytes = (u128::from(id_prefix) << 64 | u128::from(fence)).to_be_bytes();
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}
