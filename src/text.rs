//! Limits as short text, for configuration files: what is printed parses back to the same value.
//!
//! A text is a sequence of words with whitespace between them. A `Reader` walks over the words and keeps a list of what it
//! looked for at the next one, so that an error can list the choices. A `Word` is a value that one word holds (a number, a time,
//! a rate); a `Clause` is a value that takes several words (a limit). Parsing takes time in proportion to the length of the
//! text, and the length is bounded.

mod adapt;
mod convert;
mod duration;
mod error;
mod limit;
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
