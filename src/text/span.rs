use std::fmt;
use std::time::Duration;

use super::error::ParseErrorKind;
use super::reader::{Word, WordError};
use crate::strategy::MAX_SPAN_NANOS;

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 24 * 3_600 * SECOND;

/// The nanoseconds of each unit, the name that stands for one of it in a rate, and the names that are read.
const UNITS: [(u64, &str, &[&str]); 8] = [
    (1, "ns", &["ns"]),
    (1_000, "us", &["us", "µs", "μs"]), // the micro sign and the Greek letter
    (1_000_000, "ms", &["ms"]),
    (SECOND, "s", &["s", "sec", "secs", "second", "seconds"]),
    (60 * SECOND, "min", &["m", "min", "mins", "minute", "minutes"]),
    (3_600 * SECOND, "h", &["h", "hour", "hours"]),
    (DAY, "day", &["d", "day", "days"]),
    (7 * DAY, "week", &["w", "week", "weeks"]),
];

/// The units as an error lists them.
pub(super) const CHOICES: [&str; 8] = ["`ns`", "`us`", "`ms`", "`s`", "`min`", "`h`", "`day`", "`week`"];

fn unit(name: &str) -> Option<u64> {
    let named = |names: &[&str]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
    UNITS.iter().find(|(.., names)| named(names)).map(|(nanos, ..)| *nanos)
}

/// The time that a unit's name alone stands for.
pub(super) fn named(name: &str) -> Option<Duration> {
    unit(name).map(Duration::from_nanos)
}

/// The name of a unit of just this time.
pub(super) fn name(time: Duration) -> Option<&'static str> {
    UNITS.iter().find(|(nanos, ..)| Duration::from_nanos(*nanos) == time).map(|(_, name, _)| *name)
}

/// A time as text, to the nanosecond: `100ms`, `1.5s`, `1h30m`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span(pub(crate) Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.0.as_secs(), u64::from(self.0.subsec_nanos()));
        for (count, unit) in [(seconds / 86_400, "d"), (seconds / 3_600 % 24, "h"), (seconds / 60 % 60, "m")] {
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

/// Prints `parts` of which a unit has `whole`, a power of ten.
fn decimal(f: &mut fmt::Formatter<'_>, parts: u64, whole: u64, unit: &str) -> fmt::Result {
    let fraction = format!("{:01$}", parts % whole, whole.ilog10() as usize);
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    write!(f, "{}{point}{fraction}{unit}", parts / whole)
}

impl Word for Duration {
    const WHAT: &'static str = "a time such as `1.5s` or `1h30m`";

    fn read(word: &str) -> Result<Option<Self>, WordError> {
        if !word.starts_with(|first: char| first.is_ascii_digit()) {
            return Ok(None);
        }
        let mut total = 0_u128;
        let mut start = 0;
        while start < word.len() {
            let number = number(&word[start..]);
            let name_at = start + number.len();
            let end = word[name_at..].find(|next: char| next.is_ascii_digit()).map_or(word.len(), |len| name_at + len);
            let Some(unit) = unit(&word[name_at..end]) else { return Err(WordError::unexpected(name_at..end, CHOICES)) };
            let nanos = nanos(number, unit).map_err(|kind| WordError::new(start..end, kind))?;
            total = total.saturating_add(nanos);
            start = end;
        }
        let seconds = u64::try_from(total / u128::from(SECOND)).map_err(|_| WordError::new(0..word.len(), too_long()))?;
        Ok(Some(Self::new(seconds, (total % u128::from(SECOND)) as u32)))
    }
}

/// The digits at the front of a text, with a decimal point when digits follow it.
fn number(text: &str) -> &str {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let whole = digits(text);
    let fraction = text[whole..].strip_prefix('.').map_or(0, digits);
    if fraction == 0 { &text[..whole] } else { &text[..whole + 1 + fraction] }
}

/// The nanoseconds of so many units, nothing rounded.
fn nanos(number: &str, unit: u64) -> Result<u128, ParseErrorKind> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = whole.parse::<u128>().ok().and_then(|whole| whole.checked_mul(u128::from(unit))).ok_or_else(too_long)?;
    let fraction = fraction.trim_end_matches('0');
    // A week, the longest unit, has 2¹⁶ as its largest power of two and 5¹¹ of five: it is not whole beyond 16 digits.
    if fraction.len() > 16 {
        return Err(ParseErrorKind::DurationTooFine);
    }
    let scale = 10_u128.pow(fraction.len() as u32);
    let parts = fraction.parse::<u128>().unwrap_or(0) * u128::from(unit);
    if parts.is_multiple_of(scale) { Ok(whole.saturating_add(parts / scale)) } else { Err(ParseErrorKind::DurationTooFine) }
}

const fn too_long() -> ParseErrorKind {
    ParseErrorKind::DurationTooLong { max: Duration::from_nanos(MAX_SPAN_NANOS) }
}
