//! The networks of trusted proxies.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::address::{Address, host_bits};
use super::error::ClientIpError;

/// The length in bits of the prefix before an IPv4 address.
const MAPPED_PREFIX: u8 = 96;

/// The addresses that a client on the internet can have (RFC 6890; RFC 4291, section 2.4).
const UNICAST: [(&str, [u128; 2]); 2] = [
    ("IPv4", [0xffff_0100_0000, 0xffff_dfff_ffff]),
    ("IPv6", [0x2 << 124, (0x4 << 124) - 1]),
];

/// The networks whose addresses are trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Networks(Arc<[Network]>);

#[derive(Clone, Copy, PartialEq, Eq)]
struct Network {
    first: Address,
    prefix: u8,
}

impl Networks {
    pub(super) fn new(networks: impl Iterator<Item = String>) -> Result<Self, ClientIpError> {
        let networks: Arc<[_]> = networks.map(Network::read).collect::<Result<_, _>>()?;
        if networks.is_empty() {
            return Err(ClientIpError::NoNetworks);
        }
        for (family, range) in UNICAST {
            if cover(&networks, range) {
                let networks = networks
                    .iter()
                    .filter(|network| network.first.0 <= range[1] && network.last() >= range[0]);
                let networks: Vec<_> = networks.map(|network| format!("{network:?}")).collect();
                return Err(ClientIpError::TrustsEverybody {
                    networks: networks.join(", "),
                    family,
                });
            }
        }
        Ok(Self(networks))
    }

    pub(super) fn contain(&self, address: Address) -> bool {
        self.0
            .iter()
            .any(|network| address.mask(network.prefix) == network.first)
    }
}

/// Whether networks together contain all numbers from the first to the last.
fn cover(networks: &[Network], [first, last]: [u128; 2]) -> bool {
    let mut networks = networks.to_vec();
    networks.sort_unstable_by_key(|network| network.first);
    let mut covered_before = first;
    for network in networks {
        if network.first.0 > covered_before {
            return false;
        }
        if network.last() >= last {
            return true;
        }
        covered_before = covered_before.max(network.last() + 1);
    }
    false
}

impl Network {
    fn read(text: String) -> Result<Self, ClientIpError> {
        let Some((address, prefix)) = parse(&text) else {
            return Err(ClientIpError::NotANetwork { network: text });
        };
        let network = Self {
            first: address.mask(prefix),
            prefix,
        };
        if network.first != address {
            return Err(ClientIpError::HostBits {
                network: text,
                whole: format!("{network:?}"),
            });
        }
        Ok(network)
    }

    fn last(self) -> u128 {
        self.first.0 | host_bits(self.prefix)
    }
}

fn parse(text: &str) -> Option<(Address, u8)> {
    let (address, prefix) = text
        .split_once('/')
        .map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    let ip: IpAddr = address.parse().ok()?;
    let (before, bits) = if ip.is_ipv4() {
        (MAPPED_PREFIX, 32)
    } else {
        (0, 128)
    };
    let prefix = match prefix {
        None => bits,
        // `parse` would also accept a sign.
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            digits.parse().ok().filter(|prefix| *prefix <= bits)?
        }
        Some(_) => return None,
    };
    Some((ip.into(), before + prefix))
}

/// Writes the text that [`parse`] reads.
impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = if self.first.is_ipv4() {
            MAPPED_PREFIX
        } else {
            0
        };
        write!(f, "{}/{}", self.first.to_ip(), self.prefix - before)
    }
}
