//! A request as it waits in the queue.

use std::panic::Location;

use crate::core::costs::Costs;
use crate::priority::Priority;
use crate::strategy::Moment;

/// The line of the program that requests a permit.
pub(crate) type Caller = &'static Location<'static>;

/// The request of a waiter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) costs: Costs<'a>,
    pub(crate) priority: Priority,
    /// [`Moment::NEVER`]: none.
    pub(crate) deadline: Moment,
    pub(crate) caller: Caller,
    /// The caller blocks its own thread, and runs the timer there while it is at the front.
    pub(crate) blocking: bool,
}
