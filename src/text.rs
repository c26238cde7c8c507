//! Limits as short text, for configuration files: what is printed parses back to the same value.
//!
//! A text is a sequence of words with whitespace between them; `/` is a word of its own. A `Reader` walks over the words and
//! keeps a list of what it looked for at the furthest one, so that an error can list the choices. A `Value` is a number, a time
//! or a rate; a `Clause` is a limit or a part of one. A value that is not there gives back the few words that it looked at. So
//! parsing takes time in proportion to the length of the text, and the length is bounded.

mod error;
mod limit;
mod option;
mod reader;
mod span;
mod value;

use std::str::FromStr;

use crate::policy::{Limit, Policy};
use crate::rate::Rate;
use reader::Reader;

pub use error::{ParseError, ParseErrorKind};

#[cfg(test)]
mod tests;

/// Makes a type out of text, in all forms that a caller may have it in.
macro_rules! parse {
    ($(#[$doc:meta])* $value:ident, $read:expr) => {
        $(#[$doc])*
        impl FromStr for $value {
            type Err = ParseError;

            fn from_str(text: &str) -> Result<Self, ParseError> {
                Reader::parse(text, $read)
            }
        }

        parse!($value from &str, &String, String);
    };
    ($value:ident from $($text:ty),*) => {$(
        /// Parses the text, as [`str::parse`] does.
        impl TryFrom<$text> for $value {
            type Error = ParseError;

            fn try_from(text: $text) -> Result<Self, ParseError> {
                text.parse()
            }
        }
    )*};
}

parse!(
    /// Reads limits joined by `and`. See the [type's example](Policy#as-text).
    Policy,
    limit::read_policy
);
parse!(
    /// Reads one limit. See [`Policy`] for an example and for the grammar.
    Limit,
    limit::read_limit
);
parse!(
    /// Reads `100/min` or `3/250ms`. See the [type's example](Rate#examples).
    Rate,
    Reader::require
);
