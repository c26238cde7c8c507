//! How a caller waits for a permit: as a future, or blocking its thread.

mod blocking;
mod future;
mod request;
mod reservation;
mod run;
mod ticket;
mod try_shared;

pub(crate) use self::blocking::{acquire as blocking_acquire, check_clock};
pub use self::future::{Acquire, AcquireExplained, AcquireOwned};
pub use self::request::PermitRequest;
pub use self::reservation::Reservation;
pub use self::run::Run;
pub(crate) use self::ticket::OwnedTicket;
#[cfg(feature = "http")]
pub(crate) use self::ticket::random_up_to;
pub use self::try_shared::TryAcquireShared;
