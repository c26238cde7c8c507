use std::fmt;

use super::counts;
use super::error::ParseError;
use super::reader::{Clause, Reader};
use super::span::Span;
use crate::strategy::{Decay, Penalty};

/// `penalty 10 falling 1/s ceiling 20 ban 1m up to 1h forgive 2h ignoring denied`
impl Clause for Penalty {
    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
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
        let (mut ceiling, mut ban, mut longest, mut forgive_after, mut ignores_denied) = (None, None, None, None, false);
        let mut counts = None;
        while reader.option("ceiling", &mut ceiling)?
            || reader.option("ban", &mut ban)?
            || reader.option("up to", &mut longest)?
            || reader.option("forgive", &mut forgive_after)?
            || reader.flag("ignoring denied", &mut ignores_denied)?
            || counts::option(reader, &mut counts)?
        {}
        let (counts_denied, counts) = (!ignores_denied, counts.unwrap_or_default());
        Ok(Some(Self { threshold, fall, ceiling, ban, longest, forgive_after, counts_denied, counts }))
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { threshold, fall, ceiling, ban, longest, forgive_after, counts_denied, counts } = *self;
        write!(f, "penalty {threshold} ")?;
        match fall {
            Decay::Steps(rate) => write!(f, "falling {rate}")?,
            Decay::HalfLife(time) => write!(f, "half-life {}", Span(time))?,
        }
        if let Some(ceiling) = ceiling {
            write!(f, " ceiling {ceiling}")?;
        }
        for (words, time) in [("ban", ban), ("up to", longest), ("forgive", forgive_after)] {
            if let Some(time) = time {
                write!(f, " {words} {}", Span(time))?;
            }
        }
        if !counts_denied {
            write!(f, " ignoring denied")?;
        }
        counts::write(f, counts, false)
    }
}
