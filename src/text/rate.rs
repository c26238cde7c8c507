use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::error::ParseError;
use super::number::whole;
use super::reader::{Reader, Value, WordError};
use super::span::{self, Span};
use crate::rate::Rate;
use crate::strategy::Unit;

/// Names of what a cost counts, which mean nothing more. Another name is a [unit](Unit) of its own.
pub(super) const NOUNS: [&str; 13] =
    ["r", "req", "reqs", "request", "requests", "query", "queries", "call", "calls", "unit", "units", "permit", "permits"];

/// What stands before a period.
const BEGIN_PERIOD: [&str; 4] = ["/", "per", "a", "an"];

/// Reads `100/min` or `3/250ms`. See the [type's example](Rate#examples).
impl FromStr for Rate {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Reader::parse(text, Reader::require)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.units())?;
        write_per_period(f, *self)
    }
}

/// Prints the `/min` of a rate.
pub(super) fn write_per_period(f: &mut fmt::Formatter<'_>, rate: Rate) -> fmt::Result {
    match span::unit_name(rate.period()) {
        Some(name) => write!(f, "/{name}"),
        None => write!(f, "/{}", Span(rate.period())),
    }
}

/// `100/min`, `100 requests per 2 s`, `100 rps`
impl Value for Rate {
    const DESCRIPTION: &'static str = "a rate such as `100/min`";

    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        Ok(read(reader, false)?.map(|(rate, _)| rate))
    }
}

/// Reads a rate. One that `may_name_a_unit` can be `100000 tokens/min`.
pub(super) fn read(reader: &mut Reader<'_>, may_name_a_unit: bool) -> Result<Option<(Rate, Option<Unit>)>, ParseError> {
    let start = reader.mark();
    let Some((units, noun)) = reader.word(units)? else { return Ok(None) };
    let noun = if noun.is_some() { noun } else { reader.word(|word| Ok(Noun::read(word)))? };
    let names_a_unit = may_name_a_unit && noun.is_none() && reader.is_word_after_next(&BEGIN_PERIOD);
    let unit =
        if names_a_unit { reader.word(|word| Ok(Some(Unit::new(word)).filter(|unit| fits_into_rate(*unit))))? } else { None };
    let period = if let Some(Noun::Per(period)) = noun { Some(period) } else { period(reader)? };
    if period.is_none() {
        reader.back_to(start);
    }
    Ok(period.map(|period| (Rate::new(units, period), unit)))
}

/// Whether the name of a unit can stand in a rate, because it means nothing else there. (`8 concurrent per request` is no rate.)
pub(super) fn fits_into_rate(unit: Unit) -> bool {
    let name = unit.as_str();
    unit.is_valid() && Noun::read(name).is_none() && !BEGIN_PERIOD.contains(&name) && name != "concurrent"
}

/// What stands between the units and the period.
enum Noun {
    Unit,
    /// `rps`, `qpm`: the period too.
    Per(Duration),
}

impl Noun {
    fn read(word: &str) -> Option<Self> {
        if NOUNS.iter().any(|noun| noun.eq_ignore_ascii_case(word)) {
            return Some(Self::Unit);
        }
        let [b'r' | b'q', b'p', unit] = word.to_ascii_lowercase().into_bytes()[..] else { return None };
        let unit = ["s", "m", "h", "d"].into_iter().find(|name| name.as_bytes() == [unit])?;
        span::unit_nanos(unit).map(|nanos| Self::Per(Duration::from_nanos(nanos)))
    }
}

/// `100`, `100r`, `100rps`
fn units(word: &str) -> Result<Option<(u64, Option<Noun>)>, WordError> {
    let end = word.find(|char: char| !char.is_ascii_digit() && !['_', ','].contains(&char)).unwrap_or(word.len());
    let (units, noun) = (whole(&word[..end])?, Noun::read(&word[end..]));
    Ok(units.filter(|_| noun.is_some() || end == word.len()).map(|units| (units, noun)))
}

/// `/min`, `per 2 s`, `a minute`
fn period(reader: &mut Reader<'_>) -> Result<Option<Duration>, ParseError> {
    if !(reader.eat("/") || reader.eat("per") || reader.eat_synonym(&BEGIN_PERIOD)) {
        return Ok(None);
    }
    if let Some(nanos) = reader.word(|word| Ok(span::unit_nanos(word)))? {
        return Ok(Some(Duration::from_nanos(nanos)));
    }
    span::UNIT_CHOICES.into_iter().for_each(|unit| reader.also_expect(unit));
    reader.require().map(Some)
}
