//! Limits as short text, for configuration files: what is printed parses back to the same value.
//!
//! A text is a sequence of words with whitespace between them; `/` is a word of its own. A `Reader` walks over the words and
//! keeps a list of what it looked for at the furthest one, so that an error can list the choices. A `Value` is a number, a time
//! or a rate; a `Clause` is a limit or a part of one. A value that is not there gives back the few words that it looked at. So
//! parsing takes time in proportion to the length of the text, and the length is bounded.

mod adapt;
mod convert;
mod counts;
mod duration;
mod error;
mod hint;
mod limit;
mod number;
mod penalty;
mod policy;
mod rate;
mod reader;
#[cfg(feature = "serde")]
mod serde;
mod sliding_window;
mod span;

pub use error::{ParseError, ParseErrorKind};

#[cfg(test)]
mod tests;
