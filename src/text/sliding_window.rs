use std::fmt;

use super::counts::{self, RateOf};
use super::error::ParseError;
use super::reader::{Clause, Reader};
use crate::rate::Rate;
use crate::strategy::{SlidingMethod, SlidingWindow};

/// `sliding log 100/min`
impl Clause for SlidingWindow {
    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        if !reader.eat("sliding") {
            return Ok(None);
        }
        let method = if reader.eat("log") {
            SlidingMethod::Log
        } else if reader.eat("counter") {
            SlidingMethod::Counter
        } else {
            return Err(reader.unexpected());
        };
        let RateOf { rate, mut counts } = reader.require()?;
        counts::option(reader, &mut counts)?;
        Ok(Some(Self { limit: rate.units(), period: rate.period(), method, counts: counts.unwrap_or_default() }))
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, period, method, counts } = *self;
        let method = match method {
            SlidingMethod::Log => "log",
            SlidingMethod::Counter => "counter",
        };
        write!(f, "sliding {method} ")?;
        counts::write_rate(f, Rate::new(limit, period), counts)?;
        counts::write(f, counts, true)
    }
}
