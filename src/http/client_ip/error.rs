//! The errors of `ClientIp`: in its configuration, and in a request.

use thiserror::Error;

use super::chain::ForwardedHeader;

/// Why a [`ClientIp`](super::ClientIp) was not made: the configuration trusts no network, trusts every address, or is invalid.
///
/// ```
/// use tollgate::http::{ClientIp, ClientIpError};
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
/// [`ClientIp::find`](super::ClientIp::find) for an example.
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
