use std::panic::Location;

use crate::priority::Priority;
use crate::strategy::Moment;

/// The line of the program that asks for a permit.
pub(crate) type Caller = &'static Location<'static>;

/// What a waiter asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) cost: u64,
    pub(crate) priority: Priority,
    /// [`Moment::NEVER`]: none.
    pub(crate) deadline: Moment,
    pub(crate) caller: Caller,
    /// The caller blocks its own thread, and keeps the time there while it is at the front.
    pub(crate) blocking: bool,
}
