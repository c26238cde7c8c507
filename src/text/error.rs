use std::fmt::Write as _;
use std::ops::Range;
use std::time::Duration;

use thiserror::Error;

use super::Span;

/// Why a text is no [`Policy`](crate::Policy), [`Limit`](crate::Limit) or [`Rate`](crate::Rate). It prints on three lines, and
/// points at the place.
///
/// ```
/// use tollgate::{ParseErrorKind, Policy};
///
/// let error = "8 concurrent and 20/s brust 40".parse::<Policy>().unwrap_err();
/// assert_eq!(&error.text[error.at.clone()], "brust");
/// assert!(matches!(&error.kind, ParseErrorKind::Unexpected { expected } if expected.contains(&"`burst`".to_owned())));
/// assert_eq!(
///     error.to_string(),
///     "expected `burst`, `interval`, `initial`, `and` or the end, found `brust`\n  \
///        8 concurrent and 20/s brust 40\n                        \
///                              ^^^^^"
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}\n{}", explain(&text[at.clone()], kind), point(text, at))]
#[non_exhaustive]
pub struct ParseError {
    /// The text as given.
    pub text: String,
    /// The bytes of it that are wrong; empty where something is missing.
    pub at: Range<usize>,
    /// What is wrong with them.
    pub kind: ParseErrorKind,
}

/// What is wrong at the place of a [`ParseError`], which shows an example.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseErrorKind {
    /// Something else must stand here.
    Unexpected {
        /// What may, as it is printed: a word in backticks, or a description.
        expected: Vec<String>,
    },
    /// The number is larger than can be counted.
    NumberTooLarge {
        /// The largest number.
        max: u64,
    },
    /// The time is longer than can be counted.
    DurationTooLong {
        /// The longest time that a limit may span.
        max: Duration,
    },
    /// The time has a fraction of a nanosecond.
    DurationTooFine,
}

fn explain(found: &str, kind: &ParseErrorKind) -> String {
    match kind {
        ParseErrorKind::Unexpected { expected } => {
            let expected = match expected.as_slice() {
                [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
                one => one.concat(),
            };
            let found = if found.is_empty() { "nothing".to_owned() } else { format!("`{}`", printable(found)) };
            format!("expected {expected}, found {found}")
        }
        ParseErrorKind::NumberTooLarge { max } => format!("`{found}` is too large; give a number from 0 to {max}"),
        ParseErrorKind::DurationTooLong { max } => format!("`{found}` is too long; give at most {}", Span(*max)),
        ParseErrorKind::DurationTooFine => format!("`{found}` has a fraction of a nanosecond; round it to whole ones"),
    }
}

/// The line of the text that holds the place, and carets below the place.
fn point(text: &str, at: &Range<usize>) -> String {
    let start = text[..at.start].rfind('\n').map_or(0, |end| end + 1);
    let end = text[at.start..].find('\n').map_or(text.len(), |end| at.start + end);
    let mut lines = format!("  {}\n  ", printable(&text[start..end]));
    let carets = text[at.clone()].chars().count().max(1);
    // Writing to a string cannot fail.
    let _ = write!(lines, "{:1$}{2}", "", text[start..at.start].chars().count(), "^".repeat(carets));
    lines
}

/// One column for each character: a tab would shift the carets, and other control characters do worse to a terminal.
fn printable(text: &str) -> String {
    let shown = |char: char| match char {
        char if char.is_whitespace() => ' ',
        char if char.is_control() => char::REPLACEMENT_CHARACTER,
        char => char,
    };
    text.chars().map(shown).collect()
}
