//! Writes values of fields, each into one allocation of the right size.

use http::HeaderValue;

use super::values::{FieldValues, whole_seconds, window};
use crate::snapshot::LimitStatus;
use crate::strategy::Counts;

/// Where text goes: into a vector, or first into its length.
pub(super) trait Out {
    fn put(&mut self, bytes: &[u8]);
}

impl Out for usize {
    fn put(&mut self, bytes: &[u8]) {
        *self += bytes.len();
    }
}

impl Out for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// What `write` writes, which is called twice. `None` if it is nothing.
pub(super) fn text(write: impl Fn(&mut dyn Out)) -> Option<Vec<u8>> {
    let mut len = 0;
    write(&mut len);
    let mut text = Vec::with_capacity(len);
    write(&mut text);
    (len > 0).then_some(text)
}

pub(super) fn value(write: impl Fn(&mut dyn Out)) -> Option<HeaderValue> {
    text(write).and_then(|text| HeaderValue::try_from(text).ok())
}

/// At most 15 digits, as RFC 9651 allows.
pub(super) fn put_number(out: &mut dyn Out, number: u64) {
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

/// Between the members of a list, and not before the first.
pub(super) fn put_comma(out: &mut dyn Out, is_first: &mut bool) {
    if !std::mem::take(is_first) {
        out.put(b", ");
    }
}

/// The name of a limit of a policy with this name, between quotes: with a number, from 1 on, if the policy has several limits.
pub(super) fn put_name(out: &mut dyn Out, name: &str, values: &FieldValues<'_>, index: usize) {
    out.put(b"\"");
    out.put(name.as_bytes());
    if values.limits().len() > 1 {
        out.put(b"-");
        put_number(out, index as u64 + 1);
    }
    out.put(b"\"");
}

/// `"api";q=100;w=60;qu="tokens";pk=:dHJpYWw=:`
pub(super) fn put_policies(out: &mut dyn Out, name: &str, values: &FieldValues<'_>, is_first: &mut bool) {
    for (index, status) in values.limits().iter().enumerate() {
        put_comma(out, is_first);
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
}

/// `"api";r=42;t=30`
pub(super) fn put_states(out: &mut dyn Out, name: &str, values: &FieldValues<'_>, is_first: &mut bool) {
    for index in 0..values.limits().len() {
        put_comma(out, is_first);
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
}

/// `100;w=60`, the policies of draft-07. A quota may be in the list once; it is the one that comes first.
pub(super) fn put_windows(out: &mut dyn Out, values: &FieldValues<'_>, is_first: &mut bool) {
    for (index, status) in values.limits().iter().enumerate() {
        let has_window = |status: &&LimitStatus| window_seconds(status).is_some();
        let is_repeated = values.limits()[..index].iter().filter(has_window).any(|other| other.capacity == status.capacity);
        let Some(seconds) = window_seconds(status).filter(|_| !is_repeated) else { continue };
        put_comma(out, is_first);
        put_number(out, status.capacity);
        out.put(b";w=");
        put_number(out, seconds);
    }
}

/// Rounded up, which promises less than there is. `None` below a second, which rounded up would promise far less.
fn window_seconds(status: &LimitStatus) -> Option<u64> {
    window(status).filter(|window| window.as_secs() > 0).map(whole_seconds)
}

/// Without one it counts requests.
fn put_unit(out: &mut dyn Out, status: &LimitStatus) {
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
fn put_key(out: &mut dyn Out, values: &FieldValues<'_>) {
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
