//! Finds the address of the client in a request, also behind proxies.

mod forwarded;

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU8;
use std::sync::Arc;

use http::header::HeaderMap;
use thiserror::Error;

use forwarded::{Address, Obstacle, host_bits};

pub use forwarded::ForwardedHeader;

/// How to find the address of the client: the key under which its requests are limited.
///
/// | in front of the server | use |
/// |---|---|
/// | nothing: clients connect to it | [`ClientIp::peer`] |
/// | proxies whose addresses are known | [`ClientIp::behind_networks`] |
/// | a fixed number of proxies, and no way around them | [`ClientIp::behind_hops`] |
///
/// ```
/// use std::net::IpAddr;
/// use std::time::Duration;
/// use http::HeaderMap;
/// use tollgate::layers::ClientIp;
/// use tollgate::{FixedWindow, KeyedLimiter};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client_ip = ClientIp::behind_networks(["10.0.0.0/8", "fd00:4::/64"])?;
/// let limiter = KeyedLimiter::<IpAddr>::new(FixedWindow::new(2, Duration::from_secs(60)))?;
///
/// // The client pretends to be 203.0.113.66, 67 and 68. The proxy 10.0.0.7 has appended the true address.
/// for (forged, is_admitted) in [(66, true), (67, true), (68, false)] {
///     let mut headers = HeaderMap::new();
///     headers.insert("x-forwarded-for", format!("203.0.113.{forged}, 198.51.100.9").parse()?);
///     let key = client_ip.find(Some("10.0.0.7".parse()?), &headers)?;
///     assert_eq!(key, "198.51.100.9".parse::<IpAddr>()?);
///     assert_eq!(limiter.try_acquire(&key).is_ok(), is_admitted);
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Behind proxies
///
/// Each proxy appends the address that it got the request from to a [header](Self::header). Set the header that your proxies
/// append to: any other header passes through them as the client has sent it. Several lines of the header are one list. The list
/// is read from the right: a client can have written anything on the left of the proxies' own elements.
///
/// **With trusted networks**, the client is the first address from the right that is in none of them; the peer of the connection
/// counts as the rightmost. So a header from an untrusted peer is ignored. If all addresses are trusted, the client is the
/// leftmost, as with `real_ip_recursive` of nginx: a proxy has seen that address itself. A client inside a trusted network is
/// trusted like a proxy and can forge its address, so name only the networks of the proxies. A request from a trusted peer
/// without the header is [`NoClientIp::NoHeader`]: it may be a request of the proxy itself, such as a health check, but if the
/// proxy does not append to the header, all clients would share the key of the proxy.
///
/// **With a number of proxies**, the client is the element at that position from the right, and the address of the peer does not
/// matter. A shorter list is an error: the request did not come through all proxies, so its leftmost element may be forged.
///
/// An element that is not an address **stops** the search: one that is malformed or empty, has quotes that do not match, or hides
/// the address (`unknown`, `_gazonk`). Skipping it would let a forged element on its left through. Taking the proxy on its right
/// as the client would give all clients of that proxy one key, and one client could use up the budget of the others. So the
/// result is a [`NoClientIp`] with the reason. Elements on the left of the client are not read.
///
/// # Which addresses are one client
///
/// An IPv6 site usually has all addresses of a network of 48 to 64 bits, and can use another address for each request. So the key
/// is the [first address of its network](Self::ipv6_prefix), by default with a prefix of 56 bits. IPv4 addresses stay whole.
///
/// An IPv4 address that is mapped to IPv6, `::ffff:192.0.2.1` or `::ffff:c000:201`, is treated as that IPv4 address, also in
/// comparisons with trusted networks: a dual-stack socket reports IPv4 connections in this form. Other IPv6 addresses that
/// contain an IPv4 address stay IPv6. They prove nothing about the connection, so a host that can choose one must not pass for a
/// proxy with that IPv4 address:
///
/// - NAT64, `64:ff9b::/96`: all clients behind the translator are one client, unless [`ClientIp::ipv6_prefix`] is 128.
/// - 6to4, `2002::/16`: a site has a prefix of 48 bits, which holds 256 networks of 56 bits.
/// - IPv4-compatible, `::192.0.2.1`: deprecated; all are one client.
///
/// Ports, brackets and zones are left out: `192.0.2.1:4711`, `192.0.2.1:_port`, `[2001:db8::1]:4711` and `fe80::1%eth0` are
/// addresses.
///
/// # Cost
///
/// [`ClientIp::find`] allocates nothing. Its time is linear in the length of the header on the right of the client. A clone is
/// cheap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIp {
    proxies: Proxies,
    header: ForwardedHeader,
    ipv4_prefix: u8,
    ipv6_prefix: u8,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Proxies {
    None,
    In(Networks),
    Hops(NonZeroU8),
}

impl ClientIp {
    const fn new(proxies: Proxies) -> Self {
        Self {
            proxies,
            header: ForwardedHeader::XForwardedFor,
            ipv4_prefix: 32,
            ipv6_prefix: 56,
        }
    }

    /// The client is the peer of the connection. Headers are ignored.
    ///
    /// ```
    /// use http::HeaderMap;
    /// use tollgate::layers::{ClientIp, NoClientIp};
    ///
    /// let client_ip = ClientIp::peer();
    /// assert_eq!(client_ip.find("::ffff:192.0.2.1".parse().ok(), &HeaderMap::new()), Ok([192, 0, 2, 1].into()));
    /// assert_eq!(client_ip.find(None, &HeaderMap::new()), Err(NoClientIp::NoPeer));
    /// ```
    #[must_use]
    pub const fn peer() -> Self {
        Self::new(Proxies::None)
    }

    /// The client is the first address from the right that is not in these networks. See [the type](Self#behind-proxies).
    ///
    /// A network is written as `10.0.0.0/8` or `fd00::/8`, and a single address without a prefix. A network may be text, an
    /// [`IpAddr`], or a type of another crate that prints in this form.
    ///
    /// # Errors
    ///
    /// A network that cannot be parsed, an empty list, or networks that trust every address. See [`ClientIpError`].
    ///
    /// ```
    /// use tollgate::layers::{ClientIp, ClientIpError};
    ///
    /// ClientIp::behind_networks(["10.0.0.0/8", "192.0.2.1", "fd00:4::/64"])?;
    /// let error = ClientIp::behind_networks(["0.0.0.0/1", "128.0.0.0/1"]).unwrap_err();
    /// assert!(matches!(error, ClientIpError::TrustsEverybody { family: "IPv4", .. }));
    /// # Ok::<(), ClientIpError>(())
    /// ```
    pub fn behind_networks<N: fmt::Display>(
        networks: impl IntoIterator<Item = N>,
    ) -> Result<Self, ClientIpError> {
        let networks = networks.into_iter().map(|network| network.to_string());
        Networks::new(networks).map(|networks| Self::new(Proxies::In(networks)))
    }

    /// The client is the element at this position from the right (1 to 255), which the first of that many proxies has appended.
    ///
    /// This is safe only if every request comes through all of the proxies. Use it for proxies whose addresses change, and for
    /// servers that listen on a Unix socket.
    ///
    /// # Errors
    ///
    /// [`ClientIpError::ZeroHops`].
    ///
    /// ```
    /// use http::HeaderMap;
    /// use tollgate::layers::{ClientIp, ForwardedHeader, NoClientIp};
    ///
    /// let client_ip = ClientIp::behind_hops(2)?;
    /// let mut headers = HeaderMap::new();
    /// headers.insert("x-forwarded-for", "203.0.113.66, 198.51.100.9, 10.0.0.7".parse()?);
    /// assert_eq!(client_ip.find(None, &headers), Ok([198, 51, 100, 9].into()));
    ///
    /// headers.insert("x-forwarded-for", "203.0.113.66".parse()?); // did not come through the first proxy
    /// let error = NoClientIp::TooFewHops { header: ForwardedHeader::XForwardedFor, hops: 2, found: 1 };
    /// assert_eq!(client_ip.find(None, &headers), Err(error));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn behind_hops(hops: u8) -> Result<Self, ClientIpError> {
        NonZeroU8::new(hops)
            .map(|hops| Self::new(Proxies::Hops(hops)))
            .ok_or(ClientIpError::ZeroHops)
    }

    /// Sets the header that the proxies append to. Defaults to [`ForwardedHeader::XForwardedFor`]. The other header is not read.
    ///
    /// ```
    /// use http::HeaderMap;
    /// use tollgate::layers::{ClientIp, ForwardedHeader};
    ///
    /// let client_ip = ClientIp::behind_hops(1)?.header(ForwardedHeader::Forwarded);
    /// let mut headers = HeaderMap::new();
    /// headers.insert("x-forwarded-for", "203.0.113.66".parse()?);
    /// headers.insert("forwarded", r#"for=203.0.113.66;by=", for="192.0.2.43:4711";proto=https"#.parse()?);
    /// assert_eq!(client_ip.find(None, &headers), Ok([192, 0, 2, 43].into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn header(mut self, header: ForwardedHeader) -> Self {
        self.header = header;
        self
    }

    /// Sets how many bits (1 to 128) of an IPv6 address distinguish clients. Defaults to 56.
    ///
    /// Providers assign a site a prefix of 64, 56 or 48 bits. With a longer prefix than that, the site can use many keys; with a
    /// shorter one, it shares a key with its neighbours.
    ///
    /// # Errors
    ///
    /// [`ClientIpError::PrefixOutOfRange`].
    ///
    /// ```
    /// use std::net::IpAddr;
    /// use http::HeaderMap;
    /// use tollgate::layers::ClientIp;
    ///
    /// let client_ip = ClientIp::peer().ipv6_prefix(64)?;
    /// let key = client_ip.find("2001:db8:1:2:3:4:5:6".parse().ok(), &HeaderMap::new())?;
    /// assert_eq!(key, "2001:db8:1:2::".parse::<IpAddr>()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ipv6_prefix(mut self, prefix: u8) -> Result<Self, ClientIpError> {
        self.ipv6_prefix = checked_prefix(prefix, 128)?;
        Ok(self)
    }

    /// Sets how many bits (1 to 32) of an IPv4 address distinguish clients. Defaults to 32. See [`ClientIp::ipv6_prefix`].
    ///
    /// # Errors
    ///
    /// [`ClientIpError::PrefixOutOfRange`].
    pub fn ipv4_prefix(mut self, prefix: u8) -> Result<Self, ClientIpError> {
        self.ipv4_prefix = checked_prefix(prefix, 32)?;
        Ok(self)
    }

    /// The address of the client, or the first address of its network. See [the type](Self).
    ///
    /// The peer is the other end of the connection, as the server knows it; axum provides it as `ConnectInfo`.
    ///
    /// # Errors
    ///
    /// [`NoClientIp`] if there is no trustworthy address, one that the client cannot have forged.
    ///
    /// ```
    /// use http::HeaderMap;
    /// use tollgate::layers::{ClientIp, ForwardedHeader, NoClientIp};
    ///
    /// let client_ip = ClientIp::behind_networks(["10.0.0.0/8"])?;
    /// let mut headers = HeaderMap::new();
    /// headers.insert("x-forwarded-for", "203.0.113.66, unknown, 10.0.0.8".parse()?);
    /// let hidden = NoClientIp::Hidden { header: ForwardedHeader::XForwardedFor, from_right: 2 };
    /// assert_eq!(client_ip.find("10.0.0.7".parse().ok(), &headers), Err(hidden));
    /// // The header of an untrusted peer is ignored.
    /// assert_eq!(client_ip.find("198.51.100.9".parse().ok(), &headers), Ok([198, 51, 100, 9].into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    // Inlined up to the layer, so that the address stays in registers.
    #[inline(always)]
    pub fn find(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> Result<IpAddr, NoClientIp> {
        match (&self.proxies, peer, self.ipv4_prefix) {
            (Proxies::None, Some(IpAddr::V4(peer)), 32) => Ok(IpAddr::V4(peer)), // as it is
            _ => self.find_slowly(peer, headers),
        }
    }

    #[inline(never)]
    fn find_slowly(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> Result<IpAddr, NoClientIp> {
        let peer = peer.map(Address::from).ok_or(NoClientIp::NoPeer);
        let client = match &self.proxies {
            Proxies::None => peer?,
            Proxies::In(networks) => self.first_untrusted(networks, peer?, headers)?,
            Proxies::Hops(hops) => self.behind_last(*hops, headers)?,
        };
        let prefix = if client.is_ipv4() {
            MAPPED_PREFIX + self.ipv4_prefix
        } else {
            self.ipv6_prefix
        };
        Ok(client.mask(prefix).to_ip())
    }

    fn first_untrusted(
        &self,
        networks: &Networks,
        peer: Address,
        headers: &HeaderMap,
    ) -> Result<Address, NoClientIp> {
        if !networks.contain(peer) {
            return Ok(peer);
        }
        let mut leftmost = Err(NoClientIp::NoHeader {
            header: self.header,
        });
        for (from_right, element) in (1..).zip(self.header.elements(headers)) {
            let address = element
                .and_then(|element| self.header.address(element))
                .map_err(|obstacle| self.stop(obstacle, from_right))?;
            if !networks.contain(address) {
                return Ok(address);
            }
            leftmost = Ok(address);
        }
        leftmost
    }

    fn behind_last(&self, hops: NonZeroU8, headers: &HeaderMap) -> Result<Address, NoClientIp> {
        let mut found = 0;
        for element in self.header.elements(headers) {
            found += 1;
            let stop = |obstacle| self.stop(obstacle, found);
            let element = element.map_err(stop)?;
            if found == usize::from(hops.get()) {
                return self.header.address(element).map_err(stop);
            }
        }
        match found {
            0 => Err(NoClientIp::NoHeader {
                header: self.header,
            }),
            _ => Err(NoClientIp::TooFewHops {
                header: self.header,
                hops: hops.get(),
                found,
            }),
        }
    }

    fn stop(&self, obstacle: Obstacle, from_right: usize) -> NoClientIp {
        let header = self.header;
        match obstacle {
            Obstacle::Malformed => NoClientIp::Malformed { header, from_right },
            Obstacle::Hidden => NoClientIp::Hidden { header, from_right },
        }
    }
}

fn checked_prefix(prefix: u8, max: u8) -> Result<u8, ClientIpError> {
    if (1..=max).contains(&prefix) {
        Ok(prefix)
    } else {
        Err(ClientIpError::PrefixOutOfRange { prefix, max })
    }
}

/// The length in bits of the prefix before an IPv4 address.
const MAPPED_PREFIX: u8 = 96;

/// The addresses that a client on the internet can have (RFC 6890; RFC 4291, section 2.4).
const UNICAST: [(&str, [u128; 2]); 2] = [
    ("IPv4", [0xffff_0100_0000, 0xffff_dfff_ffff]),
    ("IPv6", [0x2 << 124, (0x4 << 124) - 1]),
];

/// The networks whose addresses are trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Networks(Arc<[Network]>);

#[derive(Clone, Copy, PartialEq, Eq)]
struct Network {
    first: Address,
    prefix: u8,
}

impl Networks {
    fn new(networks: impl Iterator<Item = String>) -> Result<Self, ClientIpError> {
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

    fn contain(&self, address: Address) -> bool {
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

/// Why a [`ClientIp`] was not made: the configuration trusts no network, trusts every address, or is invalid.
///
/// ```
/// use tollgate::layers::{ClientIp, ClientIpError};
///
/// let error = ClientIp::behind_networks(["10.0.0.1/8"]).unwrap_err();
/// assert!(matches!(&error, ClientIpError::HostBits { network, .. } if network == "10.0.0.1/8"));
/// assert_eq!(
///     error.to_string(),
///     "`10.0.0.1/8` has bits behind its prefix; write `10.0.0.0/8` for the network, or leave the prefix out for the address alone"
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ClientIpError {
    /// The list of trusted networks is empty.
    #[error(
        "there are no trusted networks; name those of the proxies, or take ClientIp::peer() if there are no proxies"
    )]
    NoNetworks,
    /// The text is neither an address nor a network.
    #[error(
        "`{network}` is no network; write an address, or one with a prefix as in 10.0.0.0/8 or fd00::/8"
    )]
    NotANetwork {
        /// The text as given.
        network: String,
    },
    /// The address has bits behind the prefix, so it is unclear whether the address or the whole network is meant.
    #[error(
        "`{network}` has bits behind its prefix; write `{whole}` for the network, or leave the prefix out for the address alone"
    )]
    HostBits {
        /// The text as given.
        network: String,
        /// The whole network of this prefix.
        whole: String,
    },
    /// The networks together cover all IPv4 or all IPv6 addresses that a client can have: 1.0.0.0 to 223.255.255.255, or
    /// 2000::/3. A client could then claim any address as its own.
    #[error(
        "`{networks}` trusts every {family} address, so that a client could claim any; name the networks of the proxies alone"
    )]
    TrustsEverybody {
        /// The networks of this family, separated by commas.
        networks: String,
        /// `IPv4` or `IPv6`.
        family: &'static str,
    },
    /// The number of proxies is zero.
    #[error(
        "0 proxies append nothing to read; count at least 1, or take ClientIp::peer() if there are no proxies"
    )]
    ZeroHops,
    /// A prefix that groups addresses is out of range.
    #[error("a prefix of {prefix} bits is out of range; set 1 to {max}")]
    PrefixOutOfRange {
        /// The prefix as given, in bits.
        prefix: u8,
        /// The longest prefix: 32 for IPv4, 128 for IPv6.
        max: u8,
    },
}

/// Why a request has no trustworthy address, one that the client cannot have forged. See
/// [`ClientIp::find`] for an example.
///
/// The caller decides what follows: to deny the request, or to count it under one key that all such requests share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NoClientIp {
    /// The server did not pass on the address of its peer, or it listens on a Unix socket.
    #[error(
        "the address of the peer is unknown; let the server pass it on (in axum: into_make_service_with_connect_info, and \
         ClientIp::peer_from), or count the proxies (behind_hops)"
    )]
    NoPeer,
    /// The peer is a trusted proxy, or proxies are counted, and the request does not have the header.
    #[error(
        "the request came through a proxy without {header}; let the proxy append it, or read the header that it appends"
    )]
    NoHeader {
        /// The header that was read.
        header: ForwardedHeader,
    },
    /// An element is no address, or the quotes around it do not match.
    #[error("element {from_right} from the right of {header} is no address")]
    Malformed {
        /// The header that was read.
        header: ForwardedHeader,
        /// Which element, counted from the right over all lines; 1 is the last one.
        from_right: usize,
    },
    /// A proxy hides the address: the element is `unknown` or an obfuscated identifier such as `_gazonk`, or, in `Forwarded`, has
    /// no `for`.
    #[error("element {from_right} from the right of {header} does not state the address")]
    Hidden {
        /// The header that was read.
        header: ForwardedHeader,
        /// Which element, counted from the right over all lines; 1 is the last one.
        from_right: usize,
    },
    /// The header has fewer elements than there are proxies.
    #[error(
        "{header} has {found} elements for {hops} proxies; correct the number of proxies, or let each append to it"
    )]
    TooFewHops {
        /// The header that was read.
        header: ForwardedHeader,
        /// The number of proxies.
        hops: u8,
        /// How many elements there are, over all lines.
        found: usize,
    },
}
