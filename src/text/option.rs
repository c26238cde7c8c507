//! Clauses with their options: one list of a clause's options serves to read and to print them.

use std::fmt;
use std::time::Duration;

use super::error::ParseError;
use super::reader::Reader;
use super::span::DurationText;
use super::value::fits_into_rate;
use crate::strategy::{Adapt, Counts};

/// A limit, or a part of one: a head, and options behind it. Each option may be given once, in any order; they are printed in the
/// order of the list.
pub(super) trait Clause: Copy {
    /// Reads the head, and sets each option to its default. Returns `None` when the next word does not begin such a clause.
    fn read_head(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError>;

    fn write_head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// The options of this clause, with the fields that they set.
    fn options(&mut self) -> Vec<LimitOption<'_>>;

    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        let Some(mut clause) = Self::read_head(reader)? else {
            return Ok(None);
        };
        let mut options = clause.options();
        let mut next = 0;
        while let Some(option) = options.get_mut(next) {
            if option.read(reader)? {
                options.remove(next);
                next = 0;
            } else {
                next += 1;
            }
        }
        Ok(Some(clause))
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_head(f)?;
        let mut clause = *self;
        let options = clause.options();
        options.iter().try_for_each(|option| option.write(f))
    }
}

/// The words of an option, and the field that it sets.
pub(super) enum LimitOption<'a> {
    /// The last value is the default, which is not printed.
    Number(&'static str, &'a mut u64, Option<u64>),
    /// The last value is the default, which is not printed.
    PerMille(&'static str, &'a mut u32, Option<u32>),
    OptionalNumber(&'static str, &'a mut Option<u64>),
    OptionalTime(&'static str, &'a mut Option<Duration>),
    /// The words set the field.
    Flag(&'static str, &'a mut bool),
    Adapt(&'a mut Option<Adapt>),
    /// `per request` or `counting bytes`.
    Counts(&'a mut Counts),
    /// The same for a clause whose head has a rate: a unit that can be named in the rate is printed there.
    CountsUnlessInRate(&'a mut Counts),
}

impl LimitOption<'_> {
    /// Takes the option if the next words are its words.
    fn read(&mut self, reader: &mut Reader<'_>) -> Result<bool, ParseError> {
        match self {
            Self::Number(words, number, _) => reader.option(words, |given| **number = given),
            // A number that does not fit becomes the largest, which is out of range: building a limiter reports it.
            Self::PerMille(words, number, _) => reader.option(words, |given: u64| {
                **number = u32::try_from(given).unwrap_or(u32::MAX);
            }),
            Self::OptionalNumber(words, number) => {
                reader.option(words, |given| **number = Some(given))
            }
            Self::OptionalTime(words, time) => reader.option(words, |given| **time = Some(given)),
            Self::Flag(words, flag) => {
                **flag = reader.eat_all(words)?;
                Ok(**flag)
            }
            Self::Adapt(adapt) => {
                **adapt = Adapt::read(reader)?;
                Ok(adapt.is_some())
            }
            Self::Counts(counts) | Self::CountsUnlessInRate(counts) => {
                if **counts != Counts::Cost {
                    return Ok(false); // the rate names a unit
                }
                if reader.eat_all("per request")? {
                    **counts = Counts::Requests;
                    return Ok(true);
                }
                reader.option("counting", |unit| **counts = Counts::Unit(unit))
            }
        }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(words, number, hidden) if Some(**number) != *hidden => {
                write!(f, " {words} {number}")
            }
            Self::PerMille(words, number, hidden) if Some(**number) != *hidden => {
                write!(f, " {words} {number}")
            }
            Self::OptionalNumber(words, Some(number)) => write!(f, " {words} {number}"),
            Self::OptionalTime(words, Some(time)) => write!(f, " {words} {}", DurationText(*time)),
            Self::Flag(words, true) => write!(f, " {words}"),
            Self::Adapt(Some(adapt)) => {
                f.write_str(" ")?;
                adapt.write(f)
            }
            Self::CountsUnlessInRate(Counts::Unit(unit)) if fits_into_rate(*unit) => Ok(()),
            Self::Counts(counts) | Self::CountsUnlessInRate(counts) => match counts {
                Counts::Cost => Ok(()),
                Counts::Requests => write!(f, " per request"),
                Counts::Unit(unit) => write!(f, " counting {unit}"),
            },
            _ => Ok(()),
        }
    }
}
