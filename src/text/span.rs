//! The units of time, and durations as text. `error` imports it, so that it imports no other file of the parser.

use std::fmt;
use std::time::Duration;

pub(super) const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 24 * 3_600 * SECOND;

/// For each unit: its nanoseconds, the name that a rate prints for one of it, and the names that are read.
pub(super) const UNITS: [(u64, &str, &str); 8] = [
    (1, "ns", "ns nsec nsecs nano nanos nanosecond nanoseconds"),
    // with the micro sign and with the Greek letter
    (
        1_000,
        "us",
        "us µs μs usec usecs micro micros microsecond microseconds",
    ),
    (
        1_000_000,
        "ms",
        "ms msec msecs milli millis millisecond milliseconds",
    ),
    (SECOND, "s", "s sec secs second seconds"),
    (60 * SECOND, "min", "m min mins minute minutes"),
    (3_600 * SECOND, "h", "h hr hrs hour hours"),
    (DAY, "day", "d day days"),
    (7 * DAY, "week", "w wk wks week weeks"),
];

/// The length of the unit with this name.
pub(super) fn time_of_unit(name: &str) -> Option<Duration> {
    UNITS
        .iter()
        .find(|(.., names)| {
            names
                .split(' ')
                .any(|known| known.eq_ignore_ascii_case(name))
        })
        .map(|(nanos, ..)| Duration::from_nanos(*nanos))
}

/// The name of the unit that is exactly this long.
pub(super) fn unit_of_time(time: Duration) -> Option<&'static str> {
    UNITS
        .iter()
        .find(|(nanos, ..)| Duration::from_nanos(*nanos) == time)
        .map(|(_, name, _)| *name)
}

/// Prints a time exactly, to the nanosecond: `100ms`, `1.5s`, `1h30m`.
#[derive(Debug, Clone, Copy)]
pub(super) struct DurationText(pub(super) Duration);

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.0.as_secs(), u64::from(self.0.subsec_nanos()));
        for (count, unit) in [
            (seconds / 86_400, "d"),
            (seconds / 3_600 % 24, "h"),
            (seconds / 60 % 60, "m"),
        ] {
            if count > 0 {
                write!(f, "{count}{unit}")?;
            }
        }
        match (seconds, nanos) {
            (0, 1..1_000) => write!(f, "{nanos}ns"),
            (0, 1_000..1_000_000) => decimal(f, nanos, 1_000, "us"),
            (0, 1_000_000..) => decimal(f, nanos, 1_000_000, "ms"),
            (1.., 0) if seconds.is_multiple_of(60) => Ok(()),
            _ => decimal(f, seconds % 60 * SECOND + nanos, SECOND, "s"),
        }
    }
}

/// Prints `parts / parts_per_unit` as a decimal number; `parts_per_unit` is a power of ten.
fn decimal(f: &mut fmt::Formatter<'_>, parts: u64, parts_per_unit: u64, unit: &str) -> fmt::Result {
    let fraction = format!(
        "{:01$}",
        parts % parts_per_unit,
        parts_per_unit.ilog10() as usize
    );
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    write!(f, "{}{point}{fraction}{unit}", parts / parts_per_unit)
}
