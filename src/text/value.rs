//! Reads numbers, times and rates, and prints rates with the unit that a rate counts.

use std::fmt;
use std::time::Duration;

use super::error::{ParseError, ParseErrorKind};
use super::reader::{Reader, Value, WordError};
use super::span::{DurationText, SECOND, UNITS, time_of_unit, unit_of_time};
use crate::rate::Rate;
use crate::strategy::{Counts, MAX_SPAN_NANOS, Unit};

/// Names for what a plain cost counts. Another name is a [unit](Unit) of its own.
pub(super) const NOUNS: [&str; 13] = [
    "r", "req", "reqs", "request", "requests", "query", "queries", "call", "calls", "unit",
    "units", "permit", "permits",
];

/// What stands before a period.
const BEGIN_PERIOD: [&str; 4] = ["/", "per", "a", "an"];

impl Value for u64 {
    const DESCRIPTION: &'static str = "a whole number";

    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        reader.word(whole)
    }
}

/// Reads `100000`, `100_000` or `100,000`.
pub(super) fn whole(word: &str) -> Result<Option<u64>, WordError> {
    if digits(word).len() != word.len() && !is_grouped(word) || word.is_empty() {
        return Ok(None);
    }
    // The word has digits only, so the one possible error is that the number is too large.
    let too_large = |_| WordError {
        at: 0..word.len(),
        kind: ParseErrorKind::NumberTooLarge { max: u64::MAX },
    };
    word.replace(['_', ','], "")
        .parse()
        .map(Some)
        .map_err(too_large)
}

/// The digits at the front of a text, with `_` between them.
fn digits(text: &str) -> &str {
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        return "";
    }
    let end = text
        .find(|char: char| !char.is_ascii_digit() && char != '_')
        .unwrap_or(text.len());
    text[..end].trim_end_matches('_')
}

/// Whether commas stand between thousands. `1,5` and `0,500` are fractions to some readers.
fn is_grouped(word: &str) -> bool {
    let is_number = |group: &str| group.bytes().all(|byte| byte.is_ascii_digit());
    word.split_once(',').is_some_and(|(first, others)| {
        (1..=3).contains(&first.len())
            && is_number(first)
            && !first.starts_with('0')
            && others
                .split(',')
                .all(|group| group.len() == 3 && is_number(group))
    })
}

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

/// `100/min`, `100 requests per 2 s`, `100 rps`
impl Value for Rate {
    const DESCRIPTION: &'static str = "a rate such as `100/min`";

    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        Ok(read(reader, false)?.map(|RateOf(rate, _)| rate))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", RateOf(*self, Counts::Cost))
    }
}

/// A rate that may name what it counts: `100000 tokens/min`.
pub(super) struct RateOf(pub(super) Rate, pub(super) Counts);

impl Value for RateOf {
    const DESCRIPTION: &'static str = Rate::DESCRIPTION;

    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        read(reader, true)
    }
}

impl fmt::Display for RateOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(rate, counts) = self;
        let (units, period) = (rate.units(), rate.period());
        match *counts {
            Counts::Unit(unit) if fits_into_rate(unit) => write!(f, "{units} {unit}/")?,
            _ => write!(f, "{units}/")?,
        }
        match unit_of_time(period) {
            Some(name) => f.write_str(name),
            None => write!(f, "{}", DurationText(period)),
        }
    }
}

impl Value for Unit {
    const DESCRIPTION: &'static str = "the name of a unit, such as `tokens`";

    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        reader.word(|word| Ok(Some(Self::new(word)).filter(Self::is_valid)))
    }
}

fn read(reader: &mut Reader<'_>, may_name_a_unit: bool) -> Result<Option<RateOf>, ParseError> {
    let start = reader.mark();
    let Some((units, noun)) = reader.word(units)? else {
        return Ok(None);
    };
    let noun = match noun {
        Some(noun) => Some(noun),
        None => reader.word(|word| Ok(Noun::read(word)))?,
    };
    let names_a_unit =
        may_name_a_unit && noun.is_none() && reader.is_word_after_next(&BEGIN_PERIOD);
    let unit = match names_a_unit {
        true => {
            reader.word(|word| Ok(Some(Unit::new(word)).filter(|unit| fits_into_rate(*unit))))?
        }
        false => None,
    };
    let period = match noun {
        Some(Noun::Per(period)) => Some(period),
        _ => period(reader)?,
    };
    if period.is_none() {
        reader.back_to(start);
    }
    let counts = unit.map_or(Counts::Cost, Counts::Unit);
    Ok(period.map(|period| RateOf(Rate::new(units, period), counts)))
}

/// Whether the name of a unit can stand in a rate, because it means nothing else there. (`8 concurrent per request` is not a rate.)
pub(super) fn fits_into_rate(unit: Unit) -> bool {
    let name = unit.as_str();
    unit.is_valid()
        && Noun::read(name).is_none()
        && !BEGIN_PERIOD.contains(&name)
        && name != "concurrent"
}

/// What stands between the units and the period.
enum Noun {
    Unit,
    /// `rps`, `qpm`: the period too.
    Per(Duration),
}

impl Noun {
    fn read(word: &str) -> Option<Self> {
        let word = word.to_ascii_lowercase();
        if NOUNS.contains(&word.as_str()) {
            return Some(Self::Unit);
        }
        let period = word
            .strip_prefix("rp")
            .or_else(|| word.strip_prefix("qp"))?;
        let is_letter = ["s", "m", "h", "d"].contains(&period);
        time_of_unit(period).filter(|_| is_letter).map(Self::Per)
    }
}

/// `100`, `100r`, `100rps`
fn units(word: &str) -> Result<Option<(u64, Option<Noun>)>, WordError> {
    let end = word
        .find(|char: char| !char.is_ascii_digit() && !['_', ','].contains(&char))
        .unwrap_or(word.len());
    let (units, noun) = (whole(&word[..end])?, Noun::read(&word[end..]));
    Ok(units
        .filter(|_| noun.is_some() || end == word.len())
        .map(|units| (units, noun)))
}

/// `/min`, `per 2 s`, `a minute`
fn period(reader: &mut Reader<'_>) -> Result<Option<Duration>, ParseError> {
    if !(reader.eat("/") || reader.eat("per") || reader.eat_synonym(&BEGIN_PERIOD)) {
        return Ok(None);
    }
    if let Some(period) = reader.word(|word| Ok(time_of_unit(word)))? {
        return Ok(Some(period));
    }
    for (_, unit, _) in UNITS {
        reader.also_expect(format!("`{unit}`"));
    }
    reader.require().map(Some)
}
