//! Limits as short text, for configuration files: what is printed parses back to the same value.
//!
//! A text is words with whitespace between them. A [`Reader`] walks over them and keeps what it looked for in vain, so that an
//! error can list the choices; [`Word`] is what one word can hold (a number, a time, a rate), [`Clause`] what several can.

mod adapt;
mod error;
mod limit;
mod penalty;
mod reader;
#[cfg(feature = "serde")]
mod serde;
mod sliding_window;
mod span;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub use error::{ParseError, ParseErrorKind};

pub(crate) use span::Span;

use crate::policy::{Limit, Policy};
use crate::rate::Rate;
use limit::Clause;
use reader::{Reader, Word, WordError};

/// Reads `100/min` or `3/250ms`. See the [type's example](Rate#examples).
impl FromStr for Rate {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut reader = Reader::new(text);
        let rate = reader.want()?;
        reader.end()?;
        Ok(rate)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = self.units();
        match span::name(self.period()) {
            Some(name) => write!(f, "{units}/{name}"),
            None => write!(f, "{units}/{}", Span(self.period())),
        }
    }
}

impl Word for Rate {
    const WHAT: &'static str = "a rate such as `100/min`";

    fn read(word: &str) -> Result<Option<Self>, WordError> {
        let Some((units, period)) = word.split_once('/') else { return Ok(None) };
        let Some(units) = u64::read(units)? else { return Err(WordError::unexpected(0..units.len(), [u64::WHAT])) };
        let start = word.len() - period.len();
        if let Some(period) = span::named(period) {
            return Ok(Some(Self::new(units, period)));
        }
        match Duration::read(period).map_err(|error| error.behind(start))? {
            Some(period) => Ok(Some(Self::new(units, period))),
            None => Err(WordError::unexpected(start..word.len(), span::CHOICES.into_iter().chain([Duration::WHAT]))),
        }
    }
}

/// Reads one limit. See [`Policy`] for an example and for the grammar.
impl FromStr for Limit {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut reader = Reader::new(text);
        let limit = Self::want(&mut reader)?;
        reader.end()?;
        Ok(limit)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f)
    }
}

/// Reads limits joined by `and`. See the [type's example](Policy#as-text).
impl FromStr for Policy {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut reader = Reader::new(text);
        let mut policy = Self::from(Limit::want(&mut reader)?);
        while reader.eat("and") {
            policy = policy.and(Limit::want(&mut reader)?);
        }
        reader.end()?;
        Ok(policy)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, limit) in self.limits().iter().enumerate() {
            let and = if index == 0 { "" } else { " and " };
            write!(f, "{and}{limit}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
