//! The addresses that proxies write into a header, read from the right.
//!
//! A client may have sent anything, also an unmatched quote in `Forwarded` (RFC 7239), and proxies append on the right. Read from
//! the left, that quote would open a string that ends at the first quote of a proxy. So the header is read from the right. A valid
//! element is then found whole, whatever is on its left: a quoted string contains only escaped quotes, and the quote that opens it
//! follows a `=`.
//!
//! Reading stops at any other quote. Otherwise, a proxy that copies a quote of the client, for instance from `Host`, into a
//! string of its own without escaping it would swap the quoted and unquoted parts from there on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::{fmt, iter};

use http::header::{FORWARDED, HeaderMap, HeaderName};

/// The header to which proxies append the address that they forward for. See [`ClientIp::header`](super::ClientIp::header) for an
/// example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ForwardedHeader {
    /// `X-Forwarded-For: 192.0.2.43, 198.51.100.17`, which most proxies append to.
    XForwardedFor,
    /// `Forwarded: for=192.0.2.43, for="[2001:db8::17]:4711";proto=https` of [RFC 7239](https://www.rfc-editor.org/rfc/rfc7239).
    Forwarded,
}

impl fmt::Display for ForwardedHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::XForwardedFor => "X-Forwarded-For",
            Self::Forwarded => "Forwarded",
        })
    }
}

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

impl ForwardedHeader {
    /// The elements of all lines, as one list, from the right. Each proxy has written one element. The iterator reads lazily.
    /// After an obstacle it must not be advanced.
    pub(super) fn elements(
        self,
        headers: &HeaderMap,
    ) -> impl Iterator<Item = Result<&[u8], Obstacle>> {
        let name = match self {
            Self::XForwardedFor => &X_FORWARDED_FOR,
            Self::Forwarded => &FORWARDED,
        };
        let mut lines = headers.get_all(name).iter();
        // The part of the line on the left of the last element.
        let mut rest = None;
        iter::from_fn(move || {
            let line = match rest.take() {
                Some(rest) => rest,
                None => lines.next_back()?.as_bytes(),
            };
            let split = match self {
                Self::XForwardedFor => {
                    let mut parts = line.rsplitn(2, |byte| *byte == b',');
                    Ok((parts.next().unwrap_or_default(), parts.next()))
                }
                Self::Forwarded => split_last(line, b','),
            };
            Some(split.map(|(element, before)| {
                rest = before;
                element
            }))
        })
    }

    /// The address in an element.
    pub(super) fn address(self, element: &[u8]) -> Result<Address, Obstacle> {
        match self {
            Self::XForwardedFor => Address::read(element.trim_ascii()),
            Self::Forwarded => address_of(element),
        }
    }
}

/// The part behind the last separator outside quotes, and the part before that separator if there is one.
fn split_last(text: &[u8], separator: u8) -> Result<(&[u8], Option<&[u8]>), Obstacle> {
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
fn address_of(element: &[u8]) -> Result<Address, Obstacle> {
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

/// Why an element has no address that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Obstacle {
    Malformed,
    Hidden,
}

/// An address as a number of 128 bits; IPv4 addresses are in `::ffff:0:0/96`. An IPv4 address and its mapped form are the same
/// number, so they are never compared or grouped as different addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Address(pub(super) u128);

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        let ip = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Self(ip.to_bits())
    }
}

impl Address {
    pub(super) fn to_ip(self) -> IpAddr {
        Ipv6Addr::from_bits(self.0).to_canonical()
    }

    pub(super) fn is_ipv4(self) -> bool {
        self.0 >> 32 == 0xffff
    }

    /// The first address of its network. The prefix counts from the start of the 128 bits.
    pub(super) fn mask(self, prefix: u8) -> Self {
        Self(self.0 & !host_bits(prefix))
    }

    /// Reads an address, also with a port (plain or obfuscated), brackets or a zone, as proxies write it.
    fn read(text: &[u8]) -> Result<Self, Obstacle> {
        let text = str::from_utf8(text).map_err(|_| Obstacle::Malformed)?;
        if is_hidden(text) {
            return Err(Obstacle::Hidden);
        }
        read(text).map(Self::from).ok_or(Obstacle::Malformed)
    }
}

pub(super) fn host_bits(prefix: u8) -> u128 {
    u128::MAX.unbounded_shr(u32::from(prefix))
}

/// `unknown` and the obfuscated identifiers of RFC 7239, sections 6.2 and 6.3, with or without a port.
fn is_hidden(text: &str) -> bool {
    let node = text.split_once(':').map_or(text, |(node, _)| node);
    node.starts_with('_') || node.eq_ignore_ascii_case("unknown")
}

fn read(text: &str) -> Option<IpAddr> {
    if let Some(rest) = text.strip_prefix('[') {
        let (address, rest) = rest.split_once(']')?;
        let port_is_valid = rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port);
        return ipv6(address).filter(|_| port_is_valid);
    }
    match text.split_once(':') {
        None => text.parse().map(Ipv4Addr::into).ok(),
        // A second colon makes it IPv6 without a port.
        Some((address, port)) if !port.contains(':') => address
            .parse()
            .map(Ipv4Addr::into)
            .ok()
            .filter(|_| is_port(port)),
        Some(_) => ipv6(text),
    }
}

fn ipv6(text: &str) -> Option<IpAddr> {
    let address = match text.split_once('%') {
        None => text,
        Some((address, zone)) => is_name(zone).then_some(address)?,
    };
    address.parse().map(Ipv6Addr::into).ok()
}

/// `node-port` of RFC 7239, section 6: at most five digits, or an obfuscated port.
fn is_port(text: &str) -> bool {
    let is_number = (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number || text.strip_prefix('_').is_some_and(is_name)
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}
