use std::fmt;
use std::str::FromStr;

use super::counts::{self, RateOf};
use super::error::ParseError;
use super::rate::NOUNS;
use super::reader::{Clause, Reader};
use super::span::Span;
use crate::policy::Limit;
use crate::rate::Rate;
use crate::strategy::{Align, FixedWindow, MaxConcurrency, Penalty, SlidingWindow, Throttle, TokenBucket};

/// Reads one limit. See [`Policy`](crate::Policy) for an example and for the grammar.
impl FromStr for Limit {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Reader::parse(text, Self::require)
    }
}

macro_rules! one_of {
    ($($limit:ident),*) => {
        impl Clause for Limit {
            fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
                $(if let Some(limit) = $limit::read(reader)? {
                    return Ok(Some(Self::$limit(limit)));
                })*
                Ok(None)
            }

            fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$limit(limit) => limit.write(f)),*
                }
            }
        }
    };
}

macro_rules! display {
    ($($limit:ident),*) => {$(
        /// Prints it as its [`Limit`] does.
        impl fmt::Display for $limit {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.write(f)
            }
        }
    )*};
}

display!(Limit, TokenBucket, MaxConcurrency, Throttle, FixedWindow, SlidingWindow, Penalty);

// An error lists them in this order.
one_of!(TokenBucket, MaxConcurrency, Throttle, FixedWindow, SlidingWindow, Penalty);

/// `20/s burst 40 refilled each period initial 0`, `rate 20/s`
impl Clause for TokenBucket {
    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        let rate = if reader.eat_synonym(&["rate"]) { Some(reader.require()?) } else { reader.take()? };
        let Some(RateOf { rate, mut counts }) = rate else { return Ok(None) };
        let (mut burst, mut each_period, mut initial) = (None, false, None);
        while reader.option("burst", &mut burst)?
            || reader.flag("refilled each period", &mut each_period)?
            || reader.option("initial", &mut initial)?
            || counts::option(reader, &mut counts)?
        {}
        let (burst, counts) = (burst.unwrap_or(rate.units()), counts.unwrap_or_default());
        Ok(Some(Self { rate, burst, each_period, initial, counts }))
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate, burst, each_period, initial, counts } = *self;
        counts::write_rate(f, rate, counts)?;
        if burst != rate.units() {
            write!(f, " burst {burst}")?;
        }
        if each_period {
            write!(f, " refilled each period")?;
        }
        if let Some(initial) = initial {
            write!(f, " initial {initial}")?;
        }
        counts::write(f, counts, true)
    }
}

/// `8 concurrent ttl 30s gradient from 4 to 200`, `8 concurrent requests`
impl Clause for MaxConcurrency {
    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        let Some(limit) = reader.take_described("a concurrency such as `8 concurrent`")? else { return Ok(None) };
        if !reader.eat("concurrent") {
            return Err(reader.unexpected());
        }
        reader.eat_synonym(&NOUNS);
        let (mut ttl, mut adapt, mut counts) = (None, None, None);
        while reader.option("ttl", &mut ttl)? || reader.clause(&mut adapt)? || counts::option(reader, &mut counts)? {}
        Ok(Some(Self { limit, ttl, adapt, counts: counts.unwrap_or_default() }))
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, ttl, adapt, counts } = *self;
        write!(f, "{limit} concurrent")?;
        if let Some(ttl) = ttl {
            write!(f, " ttl {}", Span(ttl))?;
        }
        if let Some(adapt) = adapt {
            write!(f, " ")?;
            adapt.write(f)?;
        }
        counts::write(f, counts, false)
    }
}

/// `throttle every 100ms burst 5`
impl Clause for Throttle {
    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        if !(reader.eat_all("throttle every")? || reader.eat("every")) {
            return Ok(None);
        }
        let interval = reader.require()?;
        let (mut burst, mut counts) = (None, None);
        while reader.option("burst", &mut burst)? || counts::option(reader, &mut counts)? {}
        Ok(Some(Self { interval, burst: burst.unwrap_or(1), counts: counts.unwrap_or_default() }))
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interval, burst, counts } = *self;
        write!(f, "throttle every {}", Span(interval))?;
        if burst != 1 {
            write!(f, " burst {burst}")?;
        }
        counts::write(f, counts, false)
    }
}

/// `window 100/min wall clock`
impl Clause for FixedWindow {
    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        if !(reader.eat_all("fixed window")? || reader.eat("window")) {
            return Ok(None);
        }
        let RateOf { rate, mut counts } = reader.require()?;
        let align = if reader.eat_all("from first grant")? {
            Align::FirstGrant
        } else if reader.eat_all("wall clock")? {
            Align::WallClock
        } else {
            Align::Creation
        };
        counts::option(reader, &mut counts)?;
        Ok(Some(Self { limit: rate.units(), period: rate.period(), align, counts: counts.unwrap_or_default() }))
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, period, align, counts } = *self;
        let align = match align {
            Align::Creation => "",
            Align::FirstGrant => " from first grant",
            Align::WallClock => " wall clock",
        };
        write!(f, "window ")?;
        counts::write_rate(f, Rate::new(limit, period), counts)?;
        write!(f, "{align}")?;
        counts::write(f, counts, true)
    }
}
