//! Writes the text of fields, each into one allocation.

use http::HeaderValue;

use super::values::{FieldValues, whole_seconds, window};
use crate::snapshot::LimitStatus;
use crate::strategy::Counts;

/// That much is written without an allocation of its own: the field of two limits or three.
const SHORT: usize = 128;

/// Text that is being written. It goes to the heap only when it is long, or finished.
pub(super) struct Text {
    short: [u8; SHORT],
    len: usize,
    /// All of it, when it is no longer short.
    long: Vec<u8>,
}

impl Text {
    pub(super) const fn new() -> Self {
        Self { short: [0; SHORT], len: 0, long: Vec::new() }
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

    /// Between the members of a list, and not before the first.
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
        if self.long.is_empty() { &self.short[..self.len] } else { &self.long }
    }

    /// The value of a field with this text. `None`: nothing was written, or what no field may have.
    pub(super) fn value(&self) -> Option<HeaderValue> {
        let text = self.as_bytes();
        if text.is_empty() { None } else { HeaderValue::from_bytes(text).ok() }
    }
}

/// At most 15 digits, as RFC 9651 allows.
pub(super) fn put_number(out: &mut Text, number: u64) {
    let mut rest = number.min(999_999_999_999_999);
    let mut digits = [b'0'; 15];
    let mut start = digits.len() - 1;
    for (at, digit) in digits.iter_mut().enumerate().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
        start = at;
        if rest == 0 {
            break;
        }
    }
    out.put(&digits[start..]);
}

/// The name of a limit of a policy with this name, between quotes: with a number, from 1 on, if the policy has several limits.
pub(super) fn put_name(out: &mut Text, name: &str, values: &FieldValues<'_>, index: usize) {
    out.put(b"\"");
    out.put(name.as_bytes());
    if values.limits().len() > 1 {
        out.put(b"-");
        put_number(out, index as u64 + 1);
    }
    out.put(b"\"");
}

/// `"api";q=100;w=60;qu="tokens";pk=:dHJpYWw=:`
pub(super) fn policies(name: &str, values: &FieldValues<'_>) -> Text {
    let mut text = Text::new();
    let out = &mut text;
    for (index, status) in values.limits().iter().enumerate() {
        out.put_comma();
        put_name(out, name, values, index);
        out.put(b";q=");
        put_number(out, status.capacity);
        if let Some(seconds) = window_seconds(status) {
            out.put(b";w=");
            put_number(out, seconds);
        }
        put_unit(out, status);
        put_key(out, values);
    }
    text
}

/// `"api";r=42;t=30`
pub(super) fn states(name: &str, values: &FieldValues<'_>) -> Text {
    let mut text = Text::new();
    let out = &mut text;
    for index in 0..values.limits().len() {
        out.put_comma();
        put_name(out, name, values, index);
        out.put(b";r=");
        put_number(out, values.remaining(index));
        // Zero: it is full already.
        if let Some(seconds) = values.reset(index).filter(|seconds| *seconds > 0) {
            out.put(b";t=");
            put_number(out, seconds);
        }
        put_key(out, values);
    }
    text
}

/// `100;w=60`, the policies of draft-07. A quota may be in the list once; it is the one that comes first.
pub(super) fn windows(values: &FieldValues<'_>) -> Text {
    let mut text = Text::new();
    let out = &mut text;
    for (index, status) in values.limits().iter().enumerate() {
        let has_window = |status: &&LimitStatus| window_seconds(status).is_some();
        let is_repeated = values.limits()[..index].iter().filter(has_window).any(|other| other.capacity == status.capacity);
        let Some(seconds) = window_seconds(status).filter(|_| !is_repeated) else { continue };
        out.put_comma();
        put_number(out, status.capacity);
        out.put(b";w=");
        put_number(out, seconds);
    }
    text
}

/// Rounded up, which promises less than there is. `None` below a second, which rounded up would promise far less.
fn window_seconds(status: &LimitStatus) -> Option<u64> {
    window(status).filter(|window| window.as_secs() > 0).map(whole_seconds)
}

/// Without one it counts requests.
fn put_unit(out: &mut Text, status: &LimitStatus) {
    let prefix: &[u8] = if status.limit.counts_places() { b"concurrent-" } else { b"" };
    let counts = status.limit.counts();
    let unit = match &counts {
        Counts::Unit(unit) => unit.as_str(),
        Counts::Cost | Counts::Requests if prefix.is_empty() => return,
        Counts::Cost | Counts::Requests => "requests",
    };
    out.put(b";qu=\"");
    out.put(prefix);
    out.put(unit.as_bytes());
    out.put(b"\"");
}

/// In base64 (RFC 4648, section 4), with padding.
fn put_key(out: &mut Text, values: &FieldValues<'_>) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let Some(key) = values.key() else { return };
    out.put(b";pk=:");
    for chunk in key.chunks(3) {
        let [a, b, c] = [0, 1, 2].map(|at| usize::from(chunk.get(at).copied().unwrap_or_default()));
        let mut digits = [a >> 2, a << 4 | b >> 4, b << 2 | c >> 6, c].map(|digit| DIGITS[digit & 63]);
        digits[chunk.len() + 1..].fill(b'=');
        out.put(&digits);
    }
    out.put(b":");
}
