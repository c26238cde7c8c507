//! Reads durations.

use std::time::Duration;

use super::error::{ParseError, ParseErrorKind};
use super::number::digits;
use super::reader::{Reader, Value, WordError};
use super::span::{SECOND, UNITS, time_of_unit};
use crate::strategy::MAX_SPAN_NANOS;

/// `1h30m`, `1 hour 30 minutes`
impl Value for Duration {
    const DESCRIPTION: &'static str = "a time such as `1.5s` or `1h30m`";

    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        let start = reader.mark();
        let mut total = None;
        while let Some(nanos) = read_part(reader, total.is_none())? {
            total = Some(nanos.saturating_add(total.unwrap_or(0)));
        }
        let Some(nanos) = total else {
            return Ok(None);
        };
        let seconds = u64::try_from(nanos / u128::from(SECOND))
            .map_err(|_| reader.error_since(start, too_long()))?;
        let nanos = (nanos % u128::from(SECOND)) as u32;
        Ok(Some(Self::new(seconds, nanos)))
    }
}

/// `30 s` or `1h30m`, in nanoseconds. A word that is not a time is an error only in the first part: an option may follow a time.
fn read_part(reader: &mut Reader<'_>, is_first: bool) -> Result<Option<u128>, ParseError> {
    let start = reader.mark();
    let is_number = |word| {
        let number = number(word);
        Ok((!number.is_empty() && number.len() == word.len()).then_some(number))
    };
    if let Some(number) = reader.word(is_number)? {
        if let Some(unit) = reader.word(|word| Ok(time_of_unit(word)))? {
            let nanos = nanos(number, unit);
            return nanos
                .map(Some)
                .map_err(|kind| reader.error_since(start, kind));
        }
        reader.back_to(start);
    }
    reader.word(|word| match parts_of_word(word) {
        Err(_) if !is_first => Ok(None),
        time => time,
    })
}

fn parts_of_word(word: &str) -> Result<Option<u128>, WordError> {
    if digits(word).is_empty() {
        return Ok(None);
    }
    let mut total = 0_u128;
    let mut start = 0;
    while start < word.len() {
        let number = number(&word[start..]);
        let unit_at = start + number.len();
        let end = word[unit_at..]
            .find(|next: char| next.is_ascii_digit())
            .map_or(word.len(), |len| unit_at + len);
        let unit = time_of_unit(&word[unit_at..end]).ok_or_else(|| WordError {
            at: unit_at..end,
            kind: ParseErrorKind::Unexpected {
                expected: UNITS.map(|(_, unit, _)| format!("`{unit}`")).to_vec(),
            },
        })?;
        let at = start..end;
        let nanos = nanos(number, unit).map_err(|kind| WordError { at, kind })?;
        total = total.saturating_add(nanos);
        start = end;
    }
    Ok(Some(total))
}

/// The digits at the front of a text, and a decimal point where digits follow it.
fn number(text: &str) -> &str {
    let whole = digits(text).len();
    match text[whole..]
        .strip_prefix('.')
        .map_or(0, |fraction| digits(fraction).len())
    {
        0 => &text[..whole],
        fraction => &text[..whole + 1 + fraction],
    }
}

/// Multiplies a decimal number by the nanoseconds of a unit. Nothing is rounded.
fn nanos(number: &str, unit: Duration) -> Result<u128, ParseErrorKind> {
    let (number, unit) = (number.replace('_', ""), unit.as_nanos());
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
    let whole = whole
        .parse::<u128>()
        .ok()
        .and_then(|whole| whole.checked_mul(unit))
        .ok_or_else(too_long)?;
    let fraction = fraction.trim_end_matches('0');
    // A fraction of d digits is whole in nanoseconds only if 10^d divides it times the unit. The longest unit, a week, has the
    // factors 2^16 and 5^11, so no fraction of more than 16 digits is whole.
    if fraction.len() > 16 {
        return Err(ParseErrorKind::DurationTooFine);
    }
    let scale = 10_u128.pow(fraction.len() as u32);
    let parts = fraction.parse::<u128>().unwrap_or(0) * unit;
    if parts.is_multiple_of(scale) {
        Ok(whole.saturating_add(parts / scale))
    } else {
        Err(ParseErrorKind::DurationTooFine)
    }
}

const fn too_long() -> ParseErrorKind {
    ParseErrorKind::DurationTooLong {
        max: Duration::from_nanos(MAX_SPAN_NANOS),
    }
}
