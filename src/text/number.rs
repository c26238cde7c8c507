//! Reads whole numbers.

use super::error::{ParseError, ParseErrorKind};
use super::reader::{Reader, Value, WordError};

impl Value for u64 {
    const DESCRIPTION: &'static str = "a whole number";

    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        reader.word(whole)
    }
}

/// Reads `100000`, `100_000` or `100,000`.
pub(super) fn whole(word: &str) -> Result<Option<u64>, WordError> {
    if digits(word).len() != word.len() && !is_grouped(word) || word.is_empty() {
        return Ok(None);
    }
    // The word has digits only, so the one possible error is that the number is too large.
    let too_large = |_| WordError {
        at: 0..word.len(),
        kind: ParseErrorKind::NumberTooLarge { max: u64::MAX },
    };
    word.replace(['_', ','], "")
        .parse()
        .map(Some)
        .map_err(too_large)
}

/// The digits at the front of a text, with `_` between them.
pub(super) fn digits(text: &str) -> &str {
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        return "";
    }
    let end = text
        .find(|char: char| !char.is_ascii_digit() && char != '_')
        .unwrap_or(text.len());
    text[..end].trim_end_matches('_')
}

/// Whether commas stand between thousands. `1,5` and `0,500` are fractions to some readers.
fn is_grouped(word: &str) -> bool {
    let is_number = |group: &str| group.bytes().all(|byte| byte.is_ascii_digit());
    word.split_once(',').is_some_and(|(first, others)| {
        (1..=3).contains(&first.len())
            && is_number(first)
            && !first.starts_with('0')
            && others
                .split(',')
                .all(|group| group.len() == 3 && is_number(group))
    })
}
