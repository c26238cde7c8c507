//! The text of a field, written into one allocation.

use http::HeaderValue;

/// The text of a field. Two or three limits are written without an allocation.
pub(super) type FieldText = ShortText<128>;
/// The text of a problem.
pub(super) type ProblemText = ShortText<256>;

/// Text that is being written. It is moved to the heap only when it is longer than `SHORT` bytes, or finished.
pub(super) struct ShortText<const SHORT: usize> {
    short: [u8; SHORT],
    len: usize,
    /// The whole text, once it is longer than `SHORT`.
    long: Vec<u8>,
}

impl<const SHORT: usize> ShortText<SHORT> {
    pub(super) const fn new() -> Self {
        Self {
            short: [0; SHORT],
            len: 0,
            long: Vec::new(),
        }
    }

    /// Inlined, so that the copy of a constant is a store.
    #[inline(always)]
    pub(super) fn put(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        match self.short.get_mut(self.len..end) {
            Some(place) => place.copy_from_slice(bytes),
            None => self.put_beyond(bytes),
        }
        self.len = end;
    }

    /// Writes these bytes and a number of at most 15 digits, as RFC 9651 allows.
    #[inline(always)]
    pub(super) fn put_number(&mut self, before: &[u8], number: u64) {
        self.put(before);
        self.put_digits(number.min(999_999_999_999_999));
    }

    fn put_digits(&mut self, number: u64) {
        self.put(itoa::Buffer::new().format(number).as_bytes());
    }

    /// Writes the comma between members of a list; nothing before the first member.
    pub(super) fn put_comma(&mut self) {
        if self.len > 0 {
            self.put(b", ");
        }
    }

    #[cold]
    fn put_beyond(&mut self, bytes: &[u8]) {
        if self.long.is_empty() {
            self.long.extend_from_slice(&self.short[..self.len]);
        }
        self.long.extend_from_slice(bytes);
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        if self.long.is_empty() {
            &self.short[..self.len]
        } else {
            &self.long
        }
    }

    /// The value of a field with this text. `None` if nothing was written, or the text has characters that no field may have.
    pub(super) fn value(&self) -> Option<HeaderValue> {
        let text = self.as_bytes();
        if text.is_empty() {
            None
        } else {
            HeaderValue::from_bytes(text).ok()
        }
    }
}
