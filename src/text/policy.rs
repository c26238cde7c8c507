use std::fmt;
use std::str::FromStr;

use super::error::ParseError;
use super::reader::{Clause as _, Reader};
use crate::policy::{Limit, Policy};

/// Reads limits joined by `and`. See the [type's example](Policy#as-text).
impl FromStr for Policy {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Reader::parse(text, read)
    }
}

pub(super) fn read(reader: &mut Reader<'_>) -> Result<Policy, ParseError> {
    // Collected: `Policy::and` copies all limits that it has, so that joining them one by one is quadratic.
    let mut limits = vec![Limit::require(reader)?];
    while reader.eat("and") {
        limits.push(Limit::require(reader)?);
    }
    Ok(limits.into_iter().collect())
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
