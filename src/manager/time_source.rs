//! Where a limiter reads the time by which it decides.
//!
//! That is [tokio's clock](tokio_clock), or with the feature `quanta` and by choice the [fast clock](fast_clock). Timers always
//! follow tokio's clock, so an instant at which one is to fire is [translated](TimeSource::on_tokio_clock).

#[cfg(feature = "quanta")]
mod either_clock;
#[cfg(feature = "quanta")]
mod fast_clock;
mod tokio_clock;

#[cfg(feature = "quanta")]
pub(crate) use self::either_clock::{Reading, TimeSource};
#[cfg(not(feature = "quanta"))]
pub(crate) use self::tokio_clock::{Reading, TimeSource};
