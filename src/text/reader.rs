//! Splits a text into words, and reads values and clauses from them.

use std::ops::Range;

use super::error::{ParseError, ParseErrorKind};

/// The longest text that is read. A policy needs a few hundred bytes at most, and an error keeps a copy of its text.
pub(super) const MAX_LEN: usize = 65_536;

/// A number, a time or a rate: a word, or a few.
pub(super) trait Value: Sized {
    /// How an error describes it.
    const DESCRIPTION: &'static str;

    /// Returns `None`, and takes no word, when the next words do not look like such a value.
    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError>;
}

/// What is wrong with a word, and where in the word.
#[derive(Debug)]
pub(super) struct WordError {
    pub(super) at: Range<usize>,
    pub(super) kind: ParseErrorKind,
}

/// A text, and the place up to which it has been read.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    text: &'a str,
    /// The end of the last word that was read.
    at: usize,
    /// What would have been accepted as the next word after `furthest`.
    expected: Vec<String>,
    /// The furthest place at which a word was looked for.
    furthest: usize,
}

impl<'a> Reader<'a> {
    /// Reads a whole text of at most [`MAX_LEN`] bytes.
    pub(super) fn parse<T>(
        text: &'a str,
        read: impl FnOnce(&mut Self) -> Result<T, ParseError>,
    ) -> Result<T, ParseError> {
        if text.len() > MAX_LEN {
            return Err(ParseError::text_too_long(text, MAX_LEN));
        }
        Self::parse_any_length(text, read)
    }

    pub(super) fn parse_any_length<T>(
        text: &'a str,
        read: impl FnOnce(&mut Self) -> Result<T, ParseError>,
    ) -> Result<T, ParseError> {
        let mut reader = Self {
            text,
            at: 0,
            expected: Vec::new(),
            furthest: 0,
        };
        let value = read(&mut reader)?;
        reader.end()?;
        Ok(value)
    }

    /// Where the next word after this place is. When there is none: the empty range at this place.
    fn word_after(&self, at: usize) -> Range<usize> {
        let rest = self.text[at..].trim_start();
        if rest.is_empty() {
            return at..at;
        }
        let start = self.text.len() - rest.len();
        let is_end = |char: char| char == '/' || char.is_whitespace();
        let end = match rest.find(is_end) {
            Some(0) => 1, // a `/` is a word
            Some(end) => end,
            None => rest.len(),
        };
        start..start + end
    }

    /// The end of the last word that was read.
    pub(super) fn mark(&self) -> usize {
        self.at
    }

    /// Goes back to a [mark](Self::mark), to read the words after it in another way.
    pub(super) fn back_to(&mut self, mark: usize) {
        self.at = mark;
    }

    /// Takes the next word if `read` accepts it.
    pub(super) fn word<T>(
        &mut self,
        read: impl FnOnce(&'a str) -> Result<Option<T>, WordError>,
    ) -> Result<Option<T>, ParseError> {
        let next = self.word_after(self.at);
        let value = read(&self.text[next.clone()]).map_err(|WordError { at, kind }| {
            self.error(next.start + at.start..next.start + at.end, kind)
        })?;
        if value.is_some() {
            self.at = next.end;
        }
        Ok(value)
    }

    /// Takes the next word if it is this one. Upper and lower case are the same.
    pub(super) fn eat(&mut self, word: &str) -> bool {
        let found = self.eat_synonym(&[word]);
        if !found {
            self.also_expect(format!("`{word}`"));
        }
        found
    }

    /// Takes the next word if it is one of these, which an error does not list.
    pub(super) fn eat_synonym(&mut self, words: &[&str]) -> bool {
        let next = self.word_after(self.at);
        let found = words
            .iter()
            .any(|word| self.text[next.clone()].eq_ignore_ascii_case(word));
        if found {
            self.at = next.end;
        }
        found
    }

    /// Whether the word after the next one is one of these.
    pub(super) fn is_word_after_next(&self, words: &[&str]) -> bool {
        let second = self.word_after(self.word_after(self.at).end);
        words
            .iter()
            .any(|word| self.text[second.clone()].eq_ignore_ascii_case(word))
    }

    /// Takes these words if the next word is the first of them. The others must then follow.
    pub(super) fn eat_all(&mut self, words: &str) -> Result<bool, ParseError> {
        for (index, word) in words.split(' ').enumerate() {
            match (self.eat(word), index) {
                (true, _) => {}
                (false, 0) => return Ok(false),
                (false, _) => return Err(self.unexpected()),
            }
        }
        Ok(true)
    }

    /// Takes the next words if they look like such a value.
    pub(super) fn take<T: Value>(&mut self) -> Result<Option<T>, ParseError> {
        let value = T::read(self)?;
        if value.is_none() {
            self.also_expect(T::DESCRIPTION);
        }
        Ok(value)
    }

    /// Takes the next words, which must be such a value.
    pub(super) fn require<T: Value>(&mut self) -> Result<T, ParseError> {
        self.take()?.ok_or_else(|| self.unexpected())
    }

    /// If the next words are these, takes them and the value that must follow them.
    pub(super) fn option<T: Value>(
        &mut self,
        words: &str,
        set: impl FnOnce(T),
    ) -> Result<bool, ParseError> {
        let found = self.eat_all(words)?;
        if found {
            set(self.require()?);
        }
        Ok(found)
    }

    /// Checks that no words are left.
    fn end(&mut self) -> Result<(), ParseError> {
        if self.word_after(self.at).is_empty() {
            return Ok(());
        }
        self.also_expect("the end of the text");
        Err(self.unexpected())
    }

    /// Adds to what would have been accepted as the next word.
    pub(super) fn also_expect(&mut self, what: impl Into<String>) {
        if self.at > self.furthest {
            self.furthest = self.at;
            self.expected.clear();
        }
        if self.at == self.furthest {
            self.expected.push(what.into());
        }
    }

    /// The error for an unexpected word. If the text can be read in several ways, it is the error of the way that got furthest.
    pub(super) fn unexpected(&self) -> ParseError {
        let kind = ParseErrorKind::Unexpected {
            expected: self.expected.clone(),
        };
        self.error(self.word_after(self.furthest), kind)
    }

    /// The error for all words that were read since this [mark](Self::mark).
    pub(super) fn error_since(&self, mark: usize, kind: ParseErrorKind) -> ParseError {
        let words = self.text[mark..self.at].trim_start();
        self.error(self.at - words.len()..self.at, kind)
    }

    fn error(&self, at: Range<usize>, kind: ParseErrorKind) -> ParseError {
        ParseError {
            text: self.text.to_owned(),
            at,
            kind,
        }
    }
}
