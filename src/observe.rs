use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::time::Duration;

use uuid::Uuid;

use crate::queue::Priority;

/// Something that a limiter did of its own accord. See [`Builder::on_event`](crate::Builder::on_event) for an example.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
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

/// Why a request was shed. See [`Builder::on_event`](crate::Builder::on_event) for how it is told.
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

/// Who is told of events, outside every lock.
pub(crate) struct Observer(Option<Box<Callback>>);

type Callback = dyn Fn(&Event) + Send + Sync;

impl Observer {
    pub(crate) const NONE: Self = Self(None);

    pub(crate) fn new(observer: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(observer)))
    }

    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn tell(&self, event: &Event) {
        if let Some(observer) = &self.0 {
            contain_panic(|| observer(event));
        }
    }
}

/// Runs other people's code, an observer or a waker, whose panic goes no further: it may run inside a permit's drop, in the task
/// that everybody waits for, or before others are served.
#[inline]
pub(crate) fn contain_panic(act: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(act)) {
        std::mem::forget(panic); // whose drop may panic in turn
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_some() { "Observer(..)" } else { "Observer(none)" })
    }
}

/// The id of a permit: the limiter's random part and the permit's fence.
pub(crate) fn permit_id(seed: u64, fence: u64) -> Uuid {
    let bytes = (u128::from(seed) << 64 | u128::from(fence)).to_be_bytes();
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}
