//! `Forwarded` of RFC 7239, read from the right.
//!
//! A client may have sent anything, also an unmatched quote, and proxies append on the right. Read from the left, that quote
//! would open a string that ends at the first quote of a proxy. So the header is read from the right. A valid element is then
//! found whole, whatever is on its left: a quoted string contains only escaped quotes, and the quote that opens it follows a `=`.
//!
//! Reading stops at any other quote. Otherwise, a proxy that copies a quote of the client, for instance from `Host`, into a
//! string of its own without escaping it would swap the quoted and unquoted parts from there on.

use super::address::{Address, Obstacle};

/// The part behind the last separator outside quotes, and the part before that separator if there is one.
pub(super) fn split_last(text: &[u8], separator: u8) -> Result<(&[u8], Option<&[u8]>), Obstacle> {
    let mut end = text.len();
    while let Some(at) = text[..end]
        .iter()
        .rposition(|byte| [separator, b'"'].contains(byte))
    {
        if text[at] == separator {
            return Ok((&text[at + 1..], Some(&text[..at])));
        }
        let after = text[at + 1..].trim_ascii_start().first();
        let opening =
            opening_quote(&text[..at]).filter(|_| after.is_none_or(|byte| b";,".contains(byte)));
        end = opening.ok_or(Obstacle::Malformed)?;
    }
    Ok((text, None))
}

/// The position of the quote that opens the string which a quote after `text` closes.
fn opening_quote(text: &[u8]) -> Option<usize> {
    if is_escaped(text) {
        return None;
    }
    let mut end = text.len();
    loop {
        end = text[..end].iter().rposition(|byte| *byte == b'"')?;
        if !is_escaped(&text[..end]) {
            return text[..end].ends_with(b"=").then_some(end);
        }
    }
}

/// Whether a quote after `text` is escaped, provided that it is in a string.
fn is_escaped(text: &[u8]) -> bool {
    text.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// The address in an element such as `for=192.0.2.43;proto=https`.
pub(super) fn address(element: &[u8]) -> Result<Address, Obstacle> {
    let (mut found, mut rest) = (None, Some(element));
    while let Some(pairs) = rest {
        let (pair, before) = split_last(pairs, b';')?;
        rest = before;
        let pair = pair.trim_ascii();
        if pair.is_empty() {
            continue; // the grammar admits empty pairs
        }
        let equals = pair
            .iter()
            .position(|byte| *byte == b'=')
            .ok_or(Obstacle::Malformed)?;
        if pair[..equals].eq_ignore_ascii_case(b"for")
            && found.replace(&pair[equals + 1..]).is_some()
        {
            return Err(Obstacle::Malformed); // section 4: each parameter at most once
        }
    }
    match found {
        None => Err(Obstacle::Hidden),
        // No proxy escapes a character of an address, so nothing is unescaped.
        Some([b'"', quoted @ .., b'"']) => Address::read(quoted),
        Some(token) => Address::read(token),
    }
}
