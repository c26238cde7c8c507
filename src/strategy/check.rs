//! Checks of the parameters of limits, with the faults that they find.

use std::time::Duration;

use super::MAX_SPAN_NANOS;

/// What is wrong with the parameters of a limit, with the name of the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    ZeroLimit(&'static str),
    ZeroRate,
    ZeroDuration(&'static str),
    /// The number was `given`, and must be `min` to `max`.
    OutOfRange {
        number: &'static str,
        given: u64,
        min: u64,
        max: u64,
    },
    /// The duration is longer than [`MAX_SPAN_NANOS`].
    TooLong(&'static str),
    /// The limit counts a unit whose name is not valid.
    InvalidUnit,
}

/// The fault of a pace that takes too long to refill.
pub(super) const TOO_SLOW: Fault = Fault::TooLong("time to refill the burst");

/// The nanoseconds of a duration of a limit: 1 to [`MAX_SPAN_NANOS`].
pub(super) fn span(number: &'static str, duration: Duration) -> Result<u64, Fault> {
    match u64::try_from(duration.as_nanos()) {
        Ok(0) => Err(Fault::ZeroDuration(number)),
        Ok(nanos) if nanos <= MAX_SPAN_NANOS => Ok(nanos),
        _ => Err(Fault::TooLong(number)),
    }
}

/// The units of a limit or of a rate: of none, it is this fault.
pub(super) fn not_zero(units: u64, fault: Fault) -> Result<u64, Fault> {
    if units == 0 { Err(fault) } else { Ok(units) }
}

/// A number with bounds.
pub(super) fn in_range(number: &'static str, given: u64, min: u64, max: u64) -> Result<u64, Fault> {
    if (min..=max).contains(&given) {
        Ok(given)
    } else {
        Err(Fault::OutOfRange {
            number,
            given,
            min,
            max,
        })
    }
}
