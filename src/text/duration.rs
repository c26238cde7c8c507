use std::time::Duration;

use super::error::{ParseError, ParseErrorKind};
use super::number::digits;
use super::reader::{Reader, Value, WordError};
use super::span::{SECOND, UNIT_CHOICES, unit_nanos};
use crate::strategy::MAX_SPAN_NANOS;

/// `1h30m`, `1 hour 30 minutes`
impl Value for Duration {
    const DESCRIPTION: &'static str = "a time such as `1.5s` or `1h30m`";

    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        let start = reader.mark();
        let mut total = None::<Self>;
        while let Some(part) = two_words(reader)?.map_or_else(|| one_word(reader, total.is_some()), |part| Ok(Some(part)))? {
            let sum = total.unwrap_or_default().checked_add(part);
            total = Some(sum.ok_or_else(|| reader.error(WordError::new(start..reader.mark(), too_long())))?);
        }
        Ok(total)
    }
}

/// `30 s`
fn two_words(reader: &mut Reader<'_>) -> Result<Option<Duration>, ParseError> {
    let start = reader.mark();
    let whole = |word| Ok(Some(number(word)).filter(|number| !number.is_empty() && number.len() == word.len()));
    let Some(number) = reader.word(whole)? else { return Ok(None) };
    let Some(unit) = reader.word(|word| Ok(unit_nanos(word)))? else {
        reader.back_to(start);
        return Ok(None);
    };
    let time = nanos(number, unit).and_then(duration);
    time.map(Some).map_err(|kind| reader.error(WordError::new(start..reader.mark(), kind)))
}

/// `1h30m`. Words that are no time are left alone `after` others that are: an option may follow.
fn one_word(reader: &mut Reader<'_>, after: bool) -> Result<Option<Duration>, ParseError> {
    reader.word(|word| match parts(word) {
        Err(_) if after => Ok(None),
        time => time,
    })
}

fn parts(word: &str) -> Result<Option<Duration>, WordError> {
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
    duration(total).map(Some).map_err(|kind| WordError::new(0..word.len(), kind))
}

fn duration(nanos: u128) -> Result<Duration, ParseErrorKind> {
    let seconds = u64::try_from(nanos / u128::from(SECOND)).map_err(|_| too_long())?;
    Ok(Duration::new(seconds, (nanos % u128::from(SECOND)) as u32))
}

/// The digits at the front of a text, and a decimal point where digits follow it.
fn number(text: &str) -> &str {
    let whole = digits(text).len();
    match text[whole..].strip_prefix('.').map_or(0, |fraction| digits(fraction).len()) {
        0 => &text[..whole],
        fraction => &text[..whole + 1 + fraction],
    }
}

/// Multiplies a decimal number by the nanoseconds of a unit. Nothing is rounded.
fn nanos(number: &str, unit: u64) -> Result<u128, ParseErrorKind> {
    let number = number.replace('_', "");
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
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
