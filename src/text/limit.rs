//! The text of policies and of each limit.

use std::fmt;

use super::error::ParseError;
use super::option::{Clause, LimitOption};
use super::reader::Reader;
use super::span::DurationText;
use super::value::{NOUNS, RateOf, whole};
use crate::policy::{Limit, Policy, all_limits, with_limit};
use crate::rate::Rate;
use crate::strategy::{
    Adapt, AdaptRule, Align, Decay, FixedWindow, MaxConcurrency, Penalty, SlidingMethod,
    SlidingWindow, Throttle, TokenBucket,
};

pub(super) fn read_policy(reader: &mut Reader<'_>) -> Result<Policy, ParseError> {
    // The limits are collected first: `Policy::and` copies all limits, so joining them one by one is quadratic.
    let mut limits = vec![read_limit(reader)?];
    while reader.eat("and") {
        limits.push(read_limit(reader)?);
    }
    Ok(limits.into_iter().collect())
}

pub(super) fn read_limit(reader: &mut Reader<'_>) -> Result<Limit, ParseError> {
    macro_rules! first_of {
        ([$($limit:ident)*]) => {
            $(if let Some(limit) = $limit::read(reader)? {
                return Ok(limit.into());
            })*
        };
    }
    all_limits!(first_of);
    Err(reader.unexpected())
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

/// Prints the limit as its own type does.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        with_limit!(self, |limit| limit.write(f))
    }
}

macro_rules! display {
    ([$($limit:ident)*]) => {$(
        /// Prints it as its [`Limit`] does.
        impl fmt::Display for $limit {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.write(f)
            }
        }
    )*};
}

all_limits!(display);

/// `20/s burst 40 refilled each period initial 0`, `rate 20/s`
impl Clause for TokenBucket {
    fn read_head(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        let rate = if reader.eat_synonym(&["rate"]) {
            Some(reader.require()?)
        } else {
            reader.take()?
        };
        Ok(rate.map(|RateOf(rate, counts)| Self {
            counts,
            ..Self::new(rate, rate.units())
        }))
    }

    fn write_head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", RateOf(self.rate, self.counts))
    }

    fn options(&mut self) -> Vec<LimitOption<'_>> {
        vec![
            LimitOption::Number("burst", &mut self.burst, Some(self.rate.units())),
            LimitOption::Flag("refilled each period", &mut self.each_period),
            LimitOption::OptionalNumber("initial", &mut self.initial),
            LimitOption::CountsUnlessInRate(&mut self.counts),
        ]
    }
}

/// `8 concurrent ttl 30s gradient from 4 to 200`, `8 concurrent requests`
impl Clause for MaxConcurrency {
    fn read_head(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        let Some(limit) = reader.word(whole)? else {
            reader.also_expect("a concurrency such as `8 concurrent`");
            return Ok(None);
        };
        if !reader.eat("concurrent") {
            return Err(reader.unexpected());
        }
        reader.eat_synonym(&NOUNS);
        Ok(Some(Self::new(limit)))
    }

    fn write_head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} concurrent", self.limit)
    }

    fn options(&mut self) -> Vec<LimitOption<'_>> {
        vec![
            LimitOption::OptionalTime("ttl", &mut self.ttl),
            LimitOption::Adapt(&mut self.adapt),
            LimitOption::Counts(&mut self.counts),
        ]
    }
}

/// `gradient from 4 to 200 tolerance 1200`, after the concurrency that it moves
impl Clause for Adapt {
    fn read_head(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        Ok(if reader.eat("gradient") {
            Some(Self::gradient())
        } else if reader.eat("aimd") {
            Some(Self::aimd())
        } else {
            None
        })
    }

    fn write_head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.rule {
            AdaptRule::Aimd => "aimd",
            AdaptRule::Gradient { .. } => "gradient",
        })
    }

    fn options(&mut self) -> Vec<LimitOption<'_>> {
        let is_default = self.rule == Self::gradient().rule;
        let mut options = vec![
            LimitOption::Number("from", &mut self.floor, None),
            LimitOption::Number("to", &mut self.ceiling, None),
            LimitOption::PerMille("backoff", &mut self.backoff, Some(Self::aimd().backoff)),
            LimitOption::OptionalTime("timeout", &mut self.timeout),
        ];
        if let AdaptRule::Gradient {
            tolerance,
            smoothing,
        } = &mut self.rule
        {
            // Both are printed, or neither.
            let hidden = |number: &u32| is_default.then_some(*number);
            let (hidden_tolerance, hidden_smoothing) = (hidden(tolerance), hidden(smoothing));
            options.push(LimitOption::PerMille(
                "tolerance",
                tolerance,
                hidden_tolerance,
            ));
            options.push(LimitOption::PerMille(
                "smoothing",
                smoothing,
                hidden_smoothing,
            ));
        }
        options
    }
}

/// `throttle every 100ms burst 5`, or `throttle 10/s burst 5`
impl Clause for Throttle {
    fn read_head(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        let is_named = reader.eat("throttle");
        if reader.eat("every") {
            return Ok(Some(Self::every(reader.require()?)));
        }
        if !is_named {
            return Ok(None);
        }
        let RateOf(rate, counts) = reader.require()?;
        Ok(Some(Self {
            counts,
            ..Self::at(rate)
        }))
    }

    fn write_head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "throttle every {}", DurationText(self.interval))
    }

    fn options(&mut self) -> Vec<LimitOption<'_>> {
        vec![
            LimitOption::Number("burst", &mut self.burst, Some(1)),
            LimitOption::Counts(&mut self.counts),
        ]
    }
}

/// `window 100/min wall clock`
impl Clause for FixedWindow {
    fn read_head(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        if !(reader.eat_all("fixed window")? || reader.eat("window")) {
            return Ok(None);
        }
        let RateOf(rate, counts) = reader.require()?;
        let align = if reader.eat_all("from first grant")? {
            Align::FirstGrant
        } else if reader.eat_all("wall clock")? {
            Align::WallClock
        } else {
            Align::Creation
        };
        Ok(Some(Self {
            limit: rate.units(),
            period: rate.period(),
            align,
            counts,
        }))
    }

    fn write_head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = RateOf(Rate::new(self.limit, self.period), self.counts);
        let align = match self.align {
            Align::Creation => "",
            Align::FirstGrant => " from first grant",
            Align::WallClock => " wall clock",
        };
        write!(f, "window {rate}{align}")
    }

    fn options(&mut self) -> Vec<LimitOption<'_>> {
        vec![LimitOption::CountsUnlessInRate(&mut self.counts)]
    }
}

/// `sliding log 100/min`
impl Clause for SlidingWindow {
    fn read_head(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
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
        let RateOf(rate, counts) = reader.require()?;
        Ok(Some(Self {
            limit: rate.units(),
            period: rate.period(),
            method,
            counts,
        }))
    }

    fn write_head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = RateOf(Rate::new(self.limit, self.period), self.counts);
        let method = match self.method {
            SlidingMethod::Log => "log",
            SlidingMethod::Counter => "counter",
        };
        write!(f, "sliding {method} {rate}")
    }

    fn options(&mut self) -> Vec<LimitOption<'_>> {
        vec![LimitOption::CountsUnlessInRate(&mut self.counts)]
    }
}

/// `penalty 10 falling 1/s ceiling 20 ban 1m up to 1h forgive 2h ignoring denied`
impl Clause for Penalty {
    fn read_head(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        if !reader.eat("penalty") {
            return Ok(None);
        }
        let threshold = reader.require()?;
        let fall = if reader.eat("falling") {
            Decay::Steps(reader.require()?)
        } else if reader.eat("half-life") {
            Decay::HalfLife(reader.require()?)
        } else {
            return Err(reader.unexpected());
        };
        Ok(Some(Self::falling(threshold, fall)))
    }

    fn write_head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threshold = self.threshold;
        match self.fall {
            Decay::Steps(rate) => write!(f, "penalty {threshold} falling {rate}"),
            Decay::HalfLife(time) => {
                write!(f, "penalty {threshold} half-life {}", DurationText(time))
            }
        }
    }

    fn options(&mut self) -> Vec<LimitOption<'_>> {
        vec![
            LimitOption::OptionalNumber("ceiling", &mut self.ceiling),
            LimitOption::OptionalTime("ban", &mut self.ban),
            LimitOption::OptionalTime("up to", &mut self.longest),
            LimitOption::OptionalTime("forgive", &mut self.forgive_after),
            LimitOption::Flag("ignoring denied", &mut self.ignores_denied),
            LimitOption::Counts(&mut self.counts),
        ]
    }
}
