use std::ops::Range;

use super::error::{ParseError, ParseErrorKind};
use super::limit::Clause;

/// What one word can hold.
pub(super) trait Word: Sized {
    /// How an error names it.
    const WHAT: &'static str;

    /// `None` when the word is not meant as one at all, so that something else may be looked for.
    fn read(word: &str) -> Result<Option<Self>, WordError>;
}

/// What is wrong with a word, and where in it.
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

    /// The same flaw, seen from `start` bytes before.
    pub(super) fn behind(self, start: usize) -> Self {
        Self { at: start + self.at.start..start + self.at.end, ..self }
    }
}

impl Word for u64 {
    const WHAT: &'static str = "a whole number";

    fn read(word: &str) -> Result<Option<Self>, WordError> {
        if word.is_empty() || !word.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(None);
        }
        // Digits only, so that nothing but its size can be wrong with it.
        let too_large = |_| WordError::new(0..word.len(), ParseErrorKind::NumberTooLarge { max: Self::MAX });
        word.parse().map(Some).map_err(too_large)
    }
}

/// A text, and the place in it up to which it has been read.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    text: &'a str,
    /// The end of the last word that was read.
    at: usize,
    /// What was looked for there in vain.
    missed: Vec<String>,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(text: &'a str) -> Self {
        Self { text, at: 0, missed: Vec::new() }
    }

    /// Where the next word lies; nothing right behind the last one when there is no next one.
    fn next(&self) -> Range<usize> {
        let rest = self.text[self.at..].trim_start();
        if rest.is_empty() {
            return self.at..self.at;
        }
        let start = self.text.len() - rest.len();
        start..start + rest.find(char::is_whitespace).unwrap_or(rest.len())
    }

    fn advance(&mut self, to: usize) {
        self.at = to;
        self.missed.clear();
    }

    /// Takes the next word if it is this one, in any case.
    pub(super) fn eat(&mut self, word: &str) -> bool {
        let next = self.next();
        let found = self.text[next.clone()].eq_ignore_ascii_case(word);
        if found {
            self.advance(next.end);
        } else {
            self.miss(format!("`{word}`"));
        }
        found
    }

    /// Takes these words if the next is the first of them; the others must follow then.
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

    /// Takes the next word if it is meant as such a value.
    pub(super) fn take<T: Word>(&mut self) -> Result<Option<T>, ParseError> {
        let next = self.next();
        let value = T::read(&self.text[next.clone()]).map_err(|error| self.error(error.behind(next.start)))?;
        match value {
            Some(_) => self.advance(next.end),
            None => self.miss(T::WHAT),
        }
        Ok(value)
    }

    /// Takes the next word, which must be such a value.
    pub(super) fn want<T: Word>(&mut self) -> Result<T, ParseError> {
        self.take()?.ok_or_else(|| self.unexpected())
    }

    /// Takes an option that may be given once: words and a value.
    pub(super) fn option<T: Word>(&mut self, words: &str, value: &mut Option<T>) -> Result<bool, ParseError> {
        let given = value.is_none() && self.eat_all(words)?;
        if given {
            *value = Some(self.want()?);
        }
        Ok(given)
    }

    /// Takes an option that may be given once: words alone.
    pub(super) fn flag(&mut self, words: &str, given: &mut bool) -> Result<bool, ParseError> {
        let now = !*given && self.eat_all(words)?;
        *given |= now;
        Ok(now)
    }

    /// Takes an option of several words, if the next begins it.
    pub(super) fn clause<T: Clause>(&mut self, value: &mut Option<T>) -> Result<bool, ParseError> {
        *value = T::read(self)?;
        Ok(value.is_some())
    }

    /// There must be no more words.
    pub(super) fn end(&mut self) -> Result<(), ParseError> {
        if self.next().is_empty() {
            return Ok(());
        }
        self.miss("the end");
        Err(self.unexpected())
    }

    /// Adds to what could have been here.
    pub(super) fn miss(&mut self, what: impl Into<String>) {
        self.missed.push(what.into());
    }

    /// The error that the next word is none of what was looked for.
    pub(super) fn unexpected(&self) -> ParseError {
        self.error(WordError { at: self.next(), kind: ParseErrorKind::Unexpected { expected: self.missed.clone() } })
    }

    fn error(&self, WordError { at, kind }: WordError) -> ParseError {
        ParseError { text: self.text.to_owned(), at, kind }
    }
}
