//! What a limit counts: in its rate, as in `100000 tokens/min`, or behind the limit, as in `per request` and `counting bytes`.

use std::fmt;

use super::error::ParseError;
use super::rate::{self, fits_into_rate, write_per_period};
use super::reader::{Reader, Value};
use crate::rate::Rate;
use crate::strategy::{Counts, Unit};

/// A rate that may say what it counts.
pub(super) struct RateOf {
    pub(super) rate: Rate,
    pub(super) counts: Option<Counts>,
}

impl Value for RateOf {
    const DESCRIPTION: &'static str = Rate::DESCRIPTION;

    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        let counted = rate::read(reader, true)?;
        Ok(counted.map(|(rate, unit)| Self { rate, counts: unit.map(Counts::Unit) }))
    }
}

impl Value for Unit {
    const DESCRIPTION: &'static str = "the name of a unit, such as `tokens`";

    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        reader.word(|word| Ok(Some(Self::new(word)).filter(Self::is_valid)))
    }
}

/// Takes what a limit counts, if the next words say it and it was not said before.
pub(super) fn option(reader: &mut Reader<'_>, counts: &mut Option<Counts>) -> Result<bool, ParseError> {
    let (mut per_request, mut unit) = (false, None);
    let found = counts.is_none() && (reader.flag("per request", &mut per_request)? || reader.option("counting", &mut unit)?);
    if found {
        *counts = Some(unit.map_or(Counts::Requests, Counts::Unit));
    }
    Ok(found)
}

/// Prints a rate, with the unit that it counts if that can stand in it.
pub(super) fn write_rate(f: &mut fmt::Formatter<'_>, rate: Rate, counts: Counts) -> fmt::Result {
    match counts {
        Counts::Unit(unit) if fits_into_rate(unit) => {
            write!(f, "{} {unit}", rate.units())?;
            write_per_period(f, rate)
        }
        _ => write!(f, "{rate}"),
    }
}

/// Prints what a limit counts behind it, unless it is printed in its rate.
pub(super) fn write(f: &mut fmt::Formatter<'_>, counts: Counts, has_rate: bool) -> fmt::Result {
    match counts {
        Counts::Cost => Ok(()),
        Counts::Requests => write!(f, " per request"),
        Counts::Unit(unit) if has_rate && fits_into_rate(unit) => Ok(()),
        Counts::Unit(unit) => write!(f, " counting {unit}"),
    }
}
