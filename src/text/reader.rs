use std::fmt;
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

/// A limit, or a part of one.
pub(super) trait Clause: Sized {
    /// Returns `None` when the next word does not begin such a clause.
    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ParseError>;

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// Reads the clause that must come next.
    fn require(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        Self::read(reader)?.ok_or_else(|| reader.unexpected())
    }
}

/// What is wrong with a word, and where in the word.
#[derive(Debug)]
pub(super) struct WordError {
    at: Range<usize>,
    kind: ParseErrorKind,
}

impl WordError {
    pub(super) const fn new(at: Range<usize>, kind: ParseErrorKind) -> Self {
        Self { at, kind }
    }

    pub(super) fn unexpected(at: Range<usize>, expected: impl IntoIterator<Item = &'static str>) -> Self {
        Self { at, kind: ParseErrorKind::Unexpected { expected: expected.into_iter().map(str::to_owned).collect() } }
    }

    /// The same error, for a word that begins `start` bytes into a longer one.
    pub(super) fn offset_by(self, start: usize) -> Self {
        Self { at: start + self.at.start..start + self.at.end, ..self }
    }
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
    pub(super) fn parse<T>(text: &'a str, read: impl FnOnce(&mut Self) -> Result<T, ParseError>) -> Result<T, ParseError> {
        if text.len() > MAX_LEN {
            return Err(ParseError::text_too_long(text, MAX_LEN));
        }
        Self::parse_any_length(text, read)
    }

    pub(super) fn parse_any_length<T>(
        text: &'a str,
        read: impl FnOnce(&mut Self) -> Result<T, ParseError>,
    ) -> Result<T, ParseError> {
        let mut reader = Self { text, at: 0, expected: Vec::new(), furthest: 0 };
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
        start..start + if rest.starts_with('/') { 1 } else { rest.find(is_end).unwrap_or(rest.len()) }
    }

    /// The end of the last word that was read.
    pub(super) fn mark(&self) -> usize {
        self.at
    }

    /// Goes back to a [mark](Self::mark), to read the words after it in another way.
    pub(super) fn back_to(&mut self, mark: usize) {
        self.at = mark;
    }

    /// Takes the next word if it can be read so.
    pub(super) fn word<T>(
        &mut self,
        read: impl FnOnce(&'a str) -> Result<Option<T>, WordError>,
    ) -> Result<Option<T>, ParseError> {
        let next = self.word_after(self.at);
        let value = read(&self.text[next.clone()]).map_err(|error| self.error(error.offset_by(next.start)))?;
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
        let found = words.iter().any(|word| self.text[next.clone()].eq_ignore_ascii_case(word));
        if found {
            self.at = next.end;
        }
        found
    }

    /// Whether the word after the next one is one of these.
    pub(super) fn is_word_after_next(&self, words: &[&str]) -> bool {
        let second = self.word_after(self.word_after(self.at).end);
        words.iter().any(|word| self.text[second.clone()].eq_ignore_ascii_case(word))
    }

    /// Takes these words if the next word is the first of them. The others must then follow.
    pub(super) fn eat_all(&mut self, words: &str) -> Result<bool, ParseError> {
        let mut words = words.split(' ');
        if !words.next().is_some_and(|first| self.eat(first)) {
            return Ok(false);
        }
        for word in words {
            if !self.eat(word) {
                return Err(self.unexpected());
            }
        }
        Ok(true)
    }

    /// Takes the next words if they look like such a value.
    pub(super) fn take<T: Value>(&mut self) -> Result<Option<T>, ParseError> {
        self.take_described(T::DESCRIPTION)
    }

    /// The same, with another description for errors.
    pub(super) fn take_described<T: Value>(&mut self, description: &str) -> Result<Option<T>, ParseError> {
        let value = T::read(self)?;
        if value.is_none() {
            self.also_expect(description);
        }
        Ok(value)
    }

    /// Takes the next words, which must be such a value.
    pub(super) fn require<T: Value>(&mut self) -> Result<T, ParseError> {
        self.take()?.ok_or_else(|| self.unexpected())
    }

    /// Takes an option that may be given once: its words and a value.
    pub(super) fn option<T: Value>(&mut self, words: &str, value: &mut Option<T>) -> Result<bool, ParseError> {
        let found = value.is_none() && self.eat_all(words)?;
        if found {
            *value = Some(self.require()?);
        }
        Ok(found)
    }

    /// Takes an option that may be given once and has no value.
    pub(super) fn flag(&mut self, words: &str, given: &mut bool) -> Result<bool, ParseError> {
        let found = !*given && self.eat_all(words)?;
        *given |= found;
        Ok(found)
    }

    /// Takes an option that may be given once and is a clause.
    pub(super) fn clause<T: Clause>(&mut self, value: &mut Option<T>) -> Result<bool, ParseError> {
        if value.is_some() {
            return Ok(false);
        }
        *value = T::read(self)?;
        Ok(value.is_some())
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

    /// The error for a word that is nothing of what was expected: of several ways to read the text, the one that got furthest.
    pub(super) fn unexpected(&self) -> ParseError {
        let kind = ParseErrorKind::Unexpected { expected: self.expected.clone() };
        self.error(WordError::new(self.word_after(self.furthest), kind))
    }

    pub(super) fn error(&self, WordError { at, kind }: WordError) -> ParseError {
        ParseError { text: self.text.to_owned(), at, kind }
    }
}
