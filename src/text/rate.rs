use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::error::ParseError;
use super::reader::{Reader, Word, WordError};
use super::span::{self, Span};
use crate::rate::Rate;

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

impl Word for Rate {
    const DESCRIPTION: &'static str = "a rate such as `100/min`";

    fn read(word: &str) -> Result<Option<Self>, WordError> {
        let Some((units, period)) = word.split_once('/') else { return Ok(None) };
        let Some(units) = u64::read(units)? else { return Err(WordError::unexpected(0..units.len(), [u64::DESCRIPTION])) };
        let start = word.len() - period.len();
        if let Some(nanos) = span::unit_nanos(period) {
            return Ok(Some(Self::new(units, Duration::from_nanos(nanos))));
        }
        match Duration::read(period).map_err(|error| error.offset_by(start))? {
            Some(period) => Ok(Some(Self::new(units, period))),
            None => {
                let expected = span::UNIT_CHOICES.into_iter().chain([Duration::DESCRIPTION]);
                Err(WordError::unexpected(start..word.len(), expected))
            }
        }
    }
}
