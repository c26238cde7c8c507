//! Structured fields, read without allocating: lists and dictionaries of RFC 9651, section 4.2.
//!
//! Every type is checked, so that a field is malformed here where it is for any other reader. Values are kept of those types only
//! that fields of rate limits have.

/// A field that has to be ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) struct Malformed;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Bare<'h> {
    Integer(i64),
    /// As it stands between the quotes. Each string has one such form: what may be escaped must be.
    String(&'h str),
    /// In base64.
    Bytes(&'h str),
    /// Any other type, and an inner list.
    Other,
}

/// A member of a list or dictionary.
#[derive(Debug, Clone, Copy)]
pub(in crate::http) struct Item<'h> {
    pub(in crate::http) value: Bare<'h>,
    /// Well formed.
    parameters: &'h [u8],
}

impl<'h> Item<'h> {
    /// The last parameter of this name.
    pub(in crate::http) fn parameter(&self, name: &str) -> Option<Bare<'h>> {
        let mut last = None;
        let found = |key: &[u8], value| {
            if key == name.as_bytes() {
                last = Some(value);
            }
        };
        Cursor(self.parameters).parameters(found).ok()?;
        last
    }

    /// A non-negative integer parameter.
    pub(in crate::http) fn count(&self, name: &str) -> Result<Option<u64>, Malformed> {
        match self.parameter(name) {
            None => Ok(None),
            Some(Bare::Integer(count)) => u64::try_from(count).map(Some).map_err(|_| Malformed),
            Some(_) => Err(Malformed),
        }
    }
}

/// Reads one line of a list. A list of several lines is one list: none of them may be malformed or, beside others, empty.
///
/// A string that begins in one line and ends in the next has no certain value (section 4.2), and is malformed here.
pub(in crate::http) fn list<'h>(
    line: &'h [u8],
    mut found: impl FnMut(Item<'h>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    Cursor(line).members(|cursor| found(cursor.member()?))
}

/// Reads one line of a dictionary; see [`list`]. The last member of a name counts.
pub(in crate::http) fn dictionary<'h>(
    line: &'h [u8],
    mut found: impl FnMut(&'h [u8], Item<'h>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    Cursor(line).members(|cursor| {
        let key = cursor.key()?;
        let item = if cursor.skip(b'=') { cursor.member()? } else { cursor.with_parameters(Bare::Other)? };
        found(key, item)
    })
}

/// What is left to read.
struct Cursor<'h>(&'h [u8]);

impl<'h> Cursor<'h> {
    fn next(&mut self) -> Result<u8, Malformed> {
        let (first, rest) = self.0.split_first().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*first)
    }

    fn skip(&mut self, byte: u8) -> bool {
        let is_next = self.0.first() == Some(&byte);
        if is_next {
            self.0 = &self.0[1..];
        }
        is_next
    }

    fn take_while(&mut self, takes: impl Fn(u8) -> bool) -> &'h [u8] {
        let len = self.0.iter().position(|byte| !takes(*byte)).unwrap_or(self.0.len());
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }

    fn text(bytes: &'h [u8]) -> Result<&'h str, Malformed> {
        std::str::from_utf8(bytes).map_err(|_| Malformed)
    }

    fn members(&mut self, mut member: impl FnMut(&mut Self) -> Result<(), Malformed>) -> Result<(), Malformed> {
        let optional_space = |byte| matches!(byte, b' ' | b'\t');
        self.take_while(|byte| byte == b' ');
        while !self.0.is_empty() {
            member(self)?;
            self.take_while(optional_space);
            if self.0.is_empty() {
                break;
            }
            if !self.skip(b',') {
                return Err(Malformed);
            }
            self.take_while(optional_space);
            if self.0.is_empty() {
                return Err(Malformed);
            }
        }
        Ok(())
    }

    fn member(&mut self) -> Result<Item<'h>, Malformed> {
        let value = if self.skip(b'(') { self.inner_list()? } else { self.bare()? };
        self.with_parameters(value)
    }

    fn inner_list(&mut self) -> Result<Bare<'h>, Malformed> {
        loop {
            self.take_while(|byte| byte == b' ');
            if self.skip(b')') {
                return Ok(Bare::Other);
            }
            let value = self.bare()?;
            self.with_parameters(value)?;
            if !matches!(self.0.first(), Some(b' ' | b')')) {
                return Err(Malformed);
            }
        }
    }

    fn with_parameters(&mut self, value: Bare<'h>) -> Result<Item<'h>, Malformed> {
        let start = self.0;
        self.parameters(|_, _| ())?;
        Ok(Item { value, parameters: &start[..start.len() - self.0.len()] })
    }

    fn parameters(&mut self, mut found: impl FnMut(&'h [u8], Bare<'h>)) -> Result<(), Malformed> {
        while self.skip(b';') {
            self.take_while(|byte| byte == b' ');
            let key = self.key()?;
            let value = if self.skip(b'=') { self.bare()? } else { Bare::Other };
            found(key, value);
        }
        Ok(())
    }

    fn key(&mut self) -> Result<&'h [u8], Malformed> {
        if !matches!(self.0.first(), Some(b'a'..=b'z' | b'*')) {
            return Err(Malformed);
        }
        Ok(self.take_while(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*')))
    }

    fn bare(&mut self) -> Result<Bare<'h>, Malformed> {
        match self.0.first().ok_or(Malformed)? {
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.string(),
            b':' => self.bytes(),
            b'?' => {
                self.next()?;
                if matches!(self.next()?, b'0' | b'1') { Ok(Bare::Other) } else { Err(Malformed) }
            }
            b'@' => {
                self.next()?;
                if matches!(self.number()?, Bare::Integer(_)) { Ok(Bare::Other) } else { Err(Malformed) }
            }
            b'%' => self.display_string(),
            b'A'..=b'Z' | b'a'..=b'z' | b'*' => {
                self.take_while(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte));
                Ok(Bare::Other)
            }
            _ => Err(Malformed),
        }
    }

    /// An integer of at most 15 digits, or a decimal of at most 12 and 3.
    fn number(&mut self) -> Result<Bare<'h>, Malformed> {
        let sign = if self.skip(b'-') { -1 } else { 1 };
        let digits = self.take_while(|byte| byte.is_ascii_digit());
        if self.skip(b'.') {
            let fraction = self.take_while(|byte| byte.is_ascii_digit());
            let fits = (1..=12).contains(&digits.len()) && (1..=3).contains(&fraction.len());
            return if fits { Ok(Bare::Other) } else { Err(Malformed) };
        }
        if !(1..=15).contains(&digits.len()) {
            return Err(Malformed);
        }
        Ok(Bare::Integer(sign * digits.iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0'))))
    }

    fn string(&mut self) -> Result<Bare<'h>, Malformed> {
        self.next()?;
        let start = self.0;
        loop {
            match self.next()? {
                b'\\' if matches!(self.next()?, b'"' | b'\\') => {}
                b'"' => return Ok(Bare::String(Self::text(&start[..start.len() - self.0.len() - 1])?)),
                b'\\' | 0..0x20 | 0x7F.. => return Err(Malformed),
                _ => {}
            }
        }
    }

    /// Padding may be left out, as section 4.2.7 recommends.
    fn bytes(&mut self) -> Result<Bare<'h>, Malformed> {
        self.next()?;
        let start = self.0;
        let digits = self.take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/')).len();
        let padding = self.take_while(|byte| byte == b'=').len();
        if !self.skip(b':') || digits % 4 == 1 || padding > (4 - digits % 4) % 4 {
            return Err(Malformed);
        }
        Ok(Bare::Bytes(Self::text(&start[..digits + padding])?))
    }

    /// UTF-8 with `%` and two hexadecimal digits for what is not plain ASCII.
    fn display_string(&mut self) -> Result<Bare<'h>, Malformed> {
        let hex = |digit| match digit {
            b'0'..=b'9' => Ok(digit - b'0'),
            b'a'..=b'f' => Ok(digit - b'a' + 10),
            _ => Err(Malformed),
        };
        self.next()?;
        if !self.skip(b'"') {
            return Err(Malformed);
        }
        let (mut char, mut len) = ([0; 4], 0);
        loop {
            let byte = match self.next()? {
                b'"' if len == 0 => return Ok(Bare::Other),
                b'%' => hex(self.next()?)? << 4 | hex(self.next()?)?,
                b'"' | 0..0x20 | 0x7F.. => return Err(Malformed),
                byte => byte,
            };
            char[len] = byte;
            len += 1;
            match std::str::from_utf8(&char[..len]) {
                Ok(_) => len = 0,
                Err(error) if error.error_len().is_none() => {}
                Err(_) => return Err(Malformed),
            }
        }
    }
}
