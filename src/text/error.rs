//! The error of a text that is not a policy, limit or rate.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use strsim::osa_distance;
use thiserror::Error;

use super::span::DurationText;
use crate::strategy::gcd;

/// How many characters of a text a message quotes before the place, and how many from the place on.
const QUOTED_BEFORE: usize = 60;
const QUOTED_FROM: usize = 60;

/// A word longer than this is not compared with others.
const HINTED: usize = 24;

/// Words that other tools use for words of this grammar.
const SYNONYMS: [(&str, &str); 12] = [
    ("parallel", "concurrent"),
    ("simultaneous", "concurrent"),
    ("inflight", "concurrent"),
    ("in-flight", "concurrent"),
    ("every", "per"),
    ("each", "per"),
    ("+", "and"),
    ("&", "and"),
    ("&&", "and"),
    ("plus", "and"),
    ("expires", "ttl"),
    ("max", "burst"),
];

/// Why a text is not a [`Policy`](crate::Policy), a [`Limit`](crate::Limit) or a [`Rate`](crate::Rate).
///
/// It prints on three lines: what is wrong (and what was probably meant), the line of the text, and a mark under the place. If
/// the line is long, only the part around the place is printed.
///
/// ```
/// use tollgate::{ParseErrorKind, Policy};
///
/// let error = "8 concurrent and 20/s brust 40".parse::<Policy>().unwrap_err();
/// assert_eq!(&error.text[error.at.clone()], "brust");
/// assert!(matches!(&error.kind, ParseErrorKind::Unexpected { expected } if expected.contains(&"`burst`".to_owned())));
/// assert_eq!(
///     error.to_string(),
///     "expected `burst`, `refilled`, `initial`, `per`, `counting`, `and` or the end of the text, found `brust`; did you mean `burst`?\n  \
///        8 concurrent and 20/s brust 40\n                        \
///                              ^^^^^"
/// );
/// ```
///
/// `{:?}` prints the same, since that is what a `main` that returns the error shows; `{:#?}` prints the fields.
#[derive(Clone, PartialEq, Eq, Error)]
#[error("{}", message(text, at, kind))]
#[non_exhaustive]
pub struct ParseError {
    /// The text that was parsed; only the beginning of a text that is too long.
    pub text: String,
    /// The bytes of `text` that are wrong; an empty range where something is missing.
    pub at: Range<usize>,
    /// What is wrong with these bytes.
    pub kind: ParseErrorKind,
}

impl fmt::Debug for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        let Self { text, at, kind } = self;
        f.debug_struct("ParseError")
            .field("text", text)
            .field("at", at)
            .field("kind", kind)
            .finish()
    }
}

impl ParseError {
    pub(super) fn text_too_long(text: &str, max: usize) -> Self {
        let mut end = max;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let kind = ParseErrorKind::TextTooLong {
            length: text.len(),
            max,
        };
        Self {
            text: text[..end].to_owned(),
            at: end..end,
            kind,
        }
    }
}

/// What is wrong at the place of a [`ParseError`]. See there for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseErrorKind {
    /// Another word must stand here.
    Unexpected {
        /// The words that may stand here, as they are printed: a word in backticks, or a description.
        expected: Vec<String>,
    },
    /// The number is too large.
    NumberTooLarge {
        /// The largest number that is read.
        max: u64,
    },
    /// The time is too long.
    DurationTooLong {
        /// The longest time that a limit may have.
        max: Duration,
    },
    /// The time has a fraction of a nanosecond.
    DurationTooFine,
    /// The whole text is too long to be parsed.
    TextTooLong {
        /// Its length in bytes.
        length: usize,
        /// The longest text that is parsed, in bytes.
        max: usize,
    },
}

fn message(text: &str, at: &Range<usize>, kind: &ParseErrorKind) -> String {
    let found = || format!("`{}`", quote(&text[at.clone()]));
    let what = match kind {
        ParseErrorKind::Unexpected { expected: words } => {
            let expected = match words.as_slice() {
                [others @ .., last] if !others.is_empty() => {
                    format!("{} or {last}", others.join(", "))
                }
                one => one.concat(),
            };
            let found = match at.is_empty() {
                false => found(),
                true if text[at.start..].trim().is_empty() => "the end of the text".to_owned(),
                true => "nothing".to_owned(), // a unit or a period that is missing in the middle of the text
            };
            let hint = hint(&text[at.clone()], words)
                .map(|hint| format!("; {hint}"))
                .unwrap_or_default();
            format!("expected {expected}, found {found}{hint}")
        }
        ParseErrorKind::NumberTooLarge { max } => {
            format!("{} is too large; the largest number is {max}", found())
        }
        ParseErrorKind::DurationTooLong { max } => format!(
            "{} is too long; the longest time is {}",
            found(),
            DurationText(*max)
        ),
        ParseErrorKind::DurationTooFine => format!(
            "{} has a fraction of a nanosecond; round it to whole nanoseconds",
            found()
        ),
        ParseErrorKind::TextTooLong { length, max } => {
            return format!(
                "the text is {length} bytes long; the longest text is {max} bytes long"
            );
        }
    };
    format!("{what}\n{}", mark(text, at))
}

/// What to write instead of an unexpected word. In `expected`, the words stand in backticks.
fn hint(found: &str, expected: &[String]) -> Option<String> {
    let found = found.to_lowercase();
    let expects = |what: &str| expected.iter().any(|expected| expected == what);
    let did_you_mean = |word: &str| format!("did you mean `{word}`?");
    if found.is_empty() || found.len() > HINTED {
        return None;
    }
    match found.as_str() {
        "," => return Some("did you mean `.`, or `_` between thousands?".to_owned()),
        "month" | "months" if expects("`day`") => return Some(did_you_mean("30d")),
        "year" | "years" if expects("`day`") => return Some(did_you_mean("365d")),
        _ => {}
    }
    if let Some(word) = found.strip_suffix([',', ';'])
        && (expects(&format!("`{word}`")) || expects("`and`"))
    {
        return Some("limits are joined with `and`".to_owned());
    }
    if let Some((units, periods)) = whole_units(&found).filter(|_| {
        expected
            .iter()
            .any(|what| what.contains("rate") || what.contains("number"))
    }) {
        return Some(format!(
            "units are whole; did you mean `{units}/{periods}s` for `{found}/s`?"
        ));
    }
    let synonym = SYNONYMS
        .iter()
        .find(|(other, word)| *other == found && expects(&format!("`{word}`")));
    let words = expected
        .iter()
        .filter_map(|expected| expected.strip_prefix('`')?.strip_suffix('`'));
    let near = words
        .map(|word| (osa_distance(&found, word), word))
        .filter(|(distance, word)| distance * 3 <= word.len() && word.len() > 2);
    synonym
        .map(|(_, word)| *word)
        .or_else(|| near.min().map(|(_, word)| word))
        .map(did_you_mean)
}

/// The same rate in whole numbers: `1.5` in one period is 3 in 2 periods.
fn whole_units(decimal: &str) -> Option<(u64, u64)> {
    let (whole, fraction) = decimal.split_once('.')?;
    let periods = 10_u64.checked_pow(fraction.len().try_into().ok()?)?;
    let units = whole
        .parse::<u64>()
        .ok()?
        .checked_mul(periods)?
        .checked_add(fraction.parse().ok()?)?;
    let divisor = gcd(units.into(), periods.into()) as u64; // not more than the periods
    Some((units / divisor, periods / divisor))
}

/// The line of the text that has the place, and carets under the place.
fn mark(text: &str, at: &Range<usize>) -> String {
    let line_start = text[..at.start].rfind('\n').map_or(0, |end| end + 1);
    let line_end = text[at.start..]
        .find('\n')
        .map_or(text.len(), |end| at.start + end);
    let before = &text[line_start..at.start];
    let (cut, before) = match before.char_indices().nth_back(QUOTED_BEFORE - 1) {
        Some((from @ 1.., _)) => ("…", &before[from..]),
        _ => ("", before),
    };
    let indent = cut.chars().count() + before.chars().count();
    let carets = text[at.clone()].chars().count().clamp(1, QUOTED_FROM);
    let (before, from) = (printable(before), quote(&text[at.start..line_end]));
    format!(
        "  {cut}{before}{from}\n  {:indent$}{}",
        "",
        "^".repeat(carets)
    )
}

/// The beginning of a text, with an ellipsis in place of the rest.
fn quote(text: &str) -> String {
    match text.char_indices().nth(QUOTED_FROM) {
        Some((end, _)) => printable(&text[..end]) + "…",
        None => printable(text),
    }
}

/// Gives each character one column: a tab would shift the carets, and other control characters could change the terminal.
fn printable(text: &str) -> String {
    let shown = |char: char| match char {
        char if char.is_whitespace() => ' ',
        char if char.is_control() => char::REPLACEMENT_CHARACTER,
        char => char,
    };
    text.chars().map(shown).collect()
}
