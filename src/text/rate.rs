use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::error::ParseError;
use super::number::whole;
use super::reader::{Reader, Value, WordError};
use super::span::{self, Span};
use crate::rate::Rate;

/// What is counted. The names mean nothing: a unit is what a cost counts.
pub(super) const NOUNS: [&str; 15] = [
    "r", "req", "reqs", "request", "requests", "query", "queries", "call", "calls", "token", "tokens", "unit", "units", "permit",
    "permits",
];

/// Reads `100/min` or `3/250ms`. See the [type's example](Rate#examples).
impl FromStr for Rate {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Reader::parse(text, Reader::require)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = self.units();
        match span::unit_name(self.period()) {
            Some(name) => write!(f, "{units}/{name}"),
            None => write!(f, "{units}/{}", Span(self.period())),
        }
    }
}

/// `100/min`, `100 requests per 2 s`, `100 rps`
impl Value for Rate {
    const DESCRIPTION: &'static str = "a rate such as `100/min`";

    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        let start = reader.mark();
        let Some((units, noun)) = reader.word(units)? else { return Ok(None) };
        let noun = if noun.is_some() { noun } else { reader.word(|word| Ok(Noun::read(word)))? };
        let period = if let Some(Noun::Per(period)) = noun { Some(period) } else { period(reader)? };
        if period.is_none() {
            reader.back_to(start);
        }
        Ok(period.map(|period| Self::new(units, period)))
    }
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
        let [b'r' | b'q' | b't', b'p', unit] = word.to_ascii_lowercase().into_bytes()[..] else { return None };
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
    if !(reader.eat("/") || reader.eat("per") || reader.eat_synonym(&["a", "an"])) {
        return Ok(None);
    }
    if let Some(nanos) = reader.word(|word| Ok(span::unit_nanos(word)))? {
        return Ok(Some(Duration::from_nanos(nanos)));
    }
    span::UNIT_CHOICES.into_iter().for_each(|unit| reader.also_expect(unit));
    reader.require().map(Some)
}
