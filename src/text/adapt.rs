use std::fmt;

use super::error::ParseError;
use super::reader::{Clause, Reader};
use super::span::Span;
use crate::strategy::{Adapt, AdaptRule};

/// `gradient from 4 to 200 tolerance 1200`, after the concurrency that it moves
impl Clause for Adapt {
    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        let default = if reader.eat("gradient") {
            Self::gradient()
        } else if reader.eat("aimd") {
            Self::aimd()
        } else {
            return Ok(None);
        };
        let is_gradient = matches!(default.rule, AdaptRule::Gradient { .. });
        let (mut floor, mut ceiling, mut backoff, mut timeout) = (None, None, None, None);
        let (mut tolerance, mut smoothing) = (None, None);
        while reader.option("from", &mut floor)?
            || reader.option("to", &mut ceiling)?
            || reader.option("backoff", &mut backoff)?
            || reader.option("timeout", &mut timeout)?
            || is_gradient && (reader.option("tolerance", &mut tolerance)? || reader.option("smoothing", &mut smoothing)?)
        {
        }
        // A number that does not fit becomes the largest, which is out of range: building a limiter reports it.
        let per_mille = |number: Option<u64>| number.map(|number| u32::try_from(number).unwrap_or(u32::MAX));
        let adapt = default.between(floor.unwrap_or(default.floor), ceiling.unwrap_or(default.ceiling));
        let adapt = per_mille(backoff).map_or(adapt, |backoff| adapt.backoff(backoff));
        let adapt = per_mille(tolerance).map_or(adapt, |tolerance| adapt.tolerance(tolerance));
        let adapt = per_mille(smoothing).map_or(adapt, |smoothing| adapt.smoothing(smoothing));
        Ok(Some(timeout.map_or(adapt, |timeout| adapt.timeout(timeout))))
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, floor, ceiling, backoff, timeout } = *self;
        let (name, default) = match rule {
            AdaptRule::Aimd => ("aimd", Self::aimd()),
            AdaptRule::Gradient { .. } => ("gradient", Self::gradient()),
        };
        write!(f, "{name} from {floor} to {ceiling}")?;
        if backoff != default.backoff {
            write!(f, " backoff {backoff}")?;
        }
        if let Some(timeout) = timeout {
            write!(f, " timeout {}", Span(timeout))?;
        }
        if let AdaptRule::Gradient { tolerance, smoothing } = rule
            && rule != default.rule
        {
            write!(f, " tolerance {tolerance} smoothing {smoothing}")?;
        }
        Ok(())
    }
}
