use std::time::Duration;

use super::MAX_SPAN_NANOS;

/// What is wrong with the parameters of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    ZeroLimit,
    ZeroRate,
    ZeroDuration,
    OutOfRange,
    /// It spans more than [`MAX_SPAN_NANOS`].
    TooLong,
}

/// The nanoseconds of a duration of a limit: 1 to [`MAX_SPAN_NANOS`].
pub(super) fn span(duration: Duration) -> Result<u64, Fault> {
    match u64::try_from(duration.as_nanos()) {
        Ok(0) => Err(Fault::ZeroDuration),
        Ok(nanos) if nanos <= MAX_SPAN_NANOS => Ok(nanos),
        _ => Err(Fault::TooLong),
    }
}

/// A limit, burst or threshold, which must admit something.
pub(super) fn at_least_one(units: u64) -> Result<u64, Fault> {
    if units == 0 { Err(Fault::ZeroLimit) } else { Ok(units) }
}

/// The units of a rate.
pub(super) fn rate_units(units: u64) -> Result<u64, Fault> {
    if units == 0 { Err(Fault::ZeroRate) } else { Ok(units) }
}
