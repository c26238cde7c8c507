//! How a caller waits for a permit: as a future, or blocking its thread.

mod blocking;
mod future;
mod request;
mod ticket;

pub use self::future::Acquire;
pub use self::request::PermitRequest;
pub(crate) use self::request::request_setters;
pub(crate) use self::ticket::OwnedTicket;
