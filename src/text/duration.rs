use std::time::Duration;

use super::error::ParseErrorKind;
use super::reader::{Word, WordError};
use super::span::{SECOND, UNIT_CHOICES, unit_nanos};
use crate::strategy::MAX_SPAN_NANOS;

impl Word for Duration {
    const DESCRIPTION: &'static str = "a time such as `1.5s` or `1h30m`";

    fn read(word: &str) -> Result<Option<Self>, WordError> {
        if !word.starts_with(|first: char| first.is_ascii_digit()) {
            return Ok(None);
        }
        let mut total = 0_u128;
        let mut start = 0;
        while start < word.len() {
            let number = number(&word[start..]);
            let unit_at = start + number.len();
            let end = word[unit_at..].find(|next: char| next.is_ascii_digit()).map_or(word.len(), |len| unit_at + len);
            let Some(unit) = unit_nanos(&word[unit_at..end]) else {
                return Err(WordError::unexpected(unit_at..end, UNIT_CHOICES));
            };
            let nanos = nanos(number, unit).map_err(|kind| WordError::new(start..end, kind))?;
            total = total.saturating_add(nanos);
            start = end;
        }
        let seconds = u64::try_from(total / u128::from(SECOND)).map_err(|_| WordError::new(0..word.len(), too_long()))?;
        Ok(Some(Self::new(seconds, (total % u128::from(SECOND)) as u32)))
    }
}

/// The digits at the front of a text, and a decimal point where digits follow it.
fn number(text: &str) -> &str {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let whole = digits(text);
    let fraction = text[whole..].strip_prefix('.').map_or(0, digits);
    if fraction == 0 { &text[..whole] } else { &text[..whole + 1 + fraction] }
}

/// Multiplies a decimal number by the nanoseconds of a unit. Nothing is rounded.
fn nanos(number: &str, unit: u64) -> Result<u128, ParseErrorKind> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = whole.parse::<u128>().ok().and_then(|whole| whole.checked_mul(u128::from(unit))).ok_or_else(too_long)?;
    let fraction = fraction.trim_end_matches('0');
    // A fraction of d digits is whole in nanoseconds only if 10^d divides it times the unit. The longest unit, a week, has the
    // factors 2^16 and 5^11, so no fraction of more than 16 digits is whole.
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
