//! Reads and prints rates, with the unit that a rate counts.

use std::fmt;
use std::time::Duration;

use super::error::ParseError;
use super::number::whole;
use super::reader::{Reader, Value, WordError};
use super::span::{DurationText, UNITS, time_of_unit, unit_of_time};
use crate::rate::Rate;
use crate::strategy::{Counts, Unit};

/// Names for what a plain cost counts. Another name is a [unit](Unit) of its own.
pub(super) const NOUNS: [&str; 13] = [
    "r", "req", "reqs", "request", "requests", "query", "queries", "call", "calls", "unit",
    "units", "permit", "permits",
];

/// What stands before a period.
const BEGIN_PERIOD: [&str; 4] = ["/", "per", "a", "an"];

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
