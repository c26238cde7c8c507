use std::panic::Location;
use std::time::Duration;

use uuid::Uuid;

use crate::priority::Priority;

/// Something that a limiter did on its own. [`LimiterBuilder::on_event`](crate::LimiterBuilder::on_event) has an example.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum LimiterEvent {
    /// A permit was reclaimed: its TTL has passed.
    Reclaimed {
        /// The [id](crate::Permit::id) of the permit.
        id: Uuid,
        /// The [fence](crate::Permit::fence) of the permit.
        fence: u64,
        /// The units of the permit.
        cost: u64,
        /// From its grant to the end of its TTL, renewals included.
        held: Duration,
        /// Where in the program the permit was asked for.
        acquired_in: &'static Location<'static>,
    },
    /// A request was dropped from a full queue, or refused.
    Shed {
        /// The units of the request.
        cost: u64,
        /// The priority of the request.
        priority: Priority,
        /// Why it was shed.
        reason: ShedReason,
        /// Where in the program the request was made.
        requested_in: &'static Location<'static>,
    },
}

/// Why a request was shed. [`LimiterEvent::Shed`] carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ShedReason {
    /// The queue was full when the request arrived.
    QueueFull,
    /// It waited in the queue and was dropped for another request, or together with all others: see [`Overflow`](crate::Overflow).
    Dropped,
    /// It arrived while the limiter accepted no request: see [`Overflow::Block`](crate::Overflow::Block).
    Blocked,
}

/// The id of a permit: the limiter's random part and the permit's fence.
pub(crate) fn permit_id(id_prefix: u64, fence: u64) -> Uuid {
    let bytes = (u128::from(id_prefix) << 64 | u128::from(fence)).to_be_bytes();
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}
