use std::fmt;

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
        let rate = reader.require::<Rate>()?;
        Ok(Some(Self { limit: rate.units(), period: rate.period(), method }))
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, period, method } = *self;
        let method = match method {
            SlidingMethod::Log => "log",
            SlidingMethod::Counter => "counter",
        };
        write!(f, "sliding {method} {}", Rate::new(limit, period))
    }
}
