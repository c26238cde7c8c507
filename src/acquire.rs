//! How a caller waits for a permit: as a future, or blocking its thread.

mod blocking;
mod explained;
mod future;
mod jitter;
mod owned;
mod request;
mod reservation;
mod run;
mod ticket;

pub(crate) use self::blocking::{acquire as blocking_acquire, check_clock};
pub use self::explained::AcquireExplained;
pub use self::future::Acquire;
#[cfg(feature = "http")]
pub(crate) use self::jitter::random_up_to;
pub use self::owned::AcquireOwned;
pub use self::request::PermitRequest;
pub(crate) use self::request::request_setters;
pub use self::reservation::Reservation;
pub use self::run::Run;
pub(crate) use self::ticket::OwnedTicket;
