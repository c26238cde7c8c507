//! Addresses as numbers, and as proxies write them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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
        if self.is_ipv4() {
            IpAddr::V4(Ipv4Addr::from_bits(self.0 as u32))
        } else {
            IpAddr::V6(Ipv6Addr::from_bits(self.0))
        }
    }

    pub(super) fn is_ipv4(self) -> bool {
        self.0 >> 32 == 0xffff
    }

    /// The first address of its network. The prefix counts from the start of the 128 bits.
    pub(super) fn mask(self, prefix: u8) -> Self {
        Self(self.0 & !host_bits(prefix))
    }

    /// Reads an address, also with a port (plain or obfuscated), brackets or a zone, as proxies write it.
    pub(super) fn read(text: &[u8]) -> Result<Self, Obstacle> {
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
