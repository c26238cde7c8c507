//! The list of addresses that proxies write into a header, read from the right.

use std::{fmt, iter};

use http::header::{FORWARDED, HeaderMap, HeaderName};

use super::address::{Address, Obstacle};
use super::forwarded;

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
                Self::Forwarded => forwarded::split_last(line, b','),
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
            Self::Forwarded => forwarded::address(element),
        }
    }
}
