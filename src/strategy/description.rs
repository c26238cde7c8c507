//! What the other modules need of a limit besides its rule: its properties, and the check of its parameters, with the faults that it
//! finds. Each limit implements them in its own file.

use std::time::Duration;

use super::MAX_SPAN_NANOS;
use super::usage::quotient;
use crate::rate::Rate;

/// What a limit guards. It decides what a denial by the limit means to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guards {
    /// The units that a client may use in a time.
    Quota,
    /// What a server can do at the same time. The limit counts units in flight.
    Capacity,
    /// The behaviour of a client, which may be banned.
    Conduct,
}

/// The properties of a limit that are not needed at each decision.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Description {
    /// The name in the labels of metrics.
    #[cfg_attr(not(feature = "metrics"), allow(dead_code))]
    pub(crate) name: &'static str,
    pub(crate) guards: Guards,
    /// The name of the [capacity](crate::Limit::capacity) in messages.
    pub(crate) name_of_capacity: &'static str,
    /// The time after which a permit is reclaimed.
    pub(crate) lease_ttl: Option<Duration>,
    /// Whether the limit moves with the outcomes of the work, which one process knows.
    pub(crate) adapts: bool,
    /// Whether a denial may start a ban.
    #[cfg_attr(not(feature = "http"), allow(dead_code, reason = "of header fields"))]
    pub(crate) bans: bool,
}

impl Description {
    /// For a limit that neither leases nor adapts nor bans.
    pub(super) const fn new(
        name: &'static str,
        guards: Guards,
        name_of_capacity: &'static str,
    ) -> Self {
        Self {
            name,
            guards,
            name_of_capacity,
            lease_ttl: None,
            adapts: false,
            bans: false,
        }
    }
}

/// The time in which the rate brings `units`.
pub(super) fn time_to_bring(units: u64, rate: Rate) -> Duration {
    let nanos = rate.period().as_nanos().saturating_mul(units.into());
    Duration::from_nanos(quotient(nanos, rate.units().max(1)))
}

/// What other modules need from a limit besides its decisions: its description, its check, and its times for header fields.
pub(crate) trait Describe {
    /// Converts into a [`LimitRule`](super::LimitRule).
    type Rule;

    fn description(&self) -> Description;

    /// Checks the parameters. `since_epoch` is the wall clock at [`Moment::START`](super::Moment::START).
    fn checked(&self, since_epoch: Duration) -> Result<Self::Rule, Fault>;

    /// How long this capacity takes to come back: the window of a quota in header fields. `None` if no time can be given.
    #[cfg_attr(not(feature = "http"), allow(dead_code, reason = "of header fields"))]
    fn window(&self, capacity: u64) -> Option<Duration>;

    /// How much of `reset_after` a client that still has units left may have to wait.
    #[cfg_attr(not(feature = "http"), allow(dead_code, reason = "of header fields"))]
    fn until_reset(&self, reset_after: Duration, _capacity: u64) -> Duration {
        reset_after
    }

    /// Limits of this kind as text, in which each option occurs. Tests that enumerate all limits use them.
    #[cfg(test)]
    fn samples() -> &'static [&'static str]
    where
        Self: Sized;
}

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
