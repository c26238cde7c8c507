//! An identity that is the address of the client.

use std::net::{IpAddr, SocketAddr};

use http::{Extensions, Request};

use super::{Identity, NoIdentity};
use crate::debug_fields::debug_fields;
use crate::http::ClientIp;

/// The address of the client, with the peer of the connection from an extension of the request. See [`ClientIp::peer_from`].
#[derive(Clone)]
pub struct ClientAddress<F> {
    client_ip: ClientIp,
    peer_of: F,
}

impl ClientIp {
    /// An [`Identity`] that knows the peer of the connection by an extension of the request: by that of axum, for instance. A
    /// [`ClientIp`] itself takes the extension [`SocketAddr`]. If the server does not put it there, [no client is known](Identity).
    ///
    /// ```
    /// use std::net::SocketAddr;
    /// use axum::extract::ConnectInfo;
    /// use tollgate::http::{ClientIp, Identity};
    ///
    /// let client_ip = ClientIp::behind_networks(["10.0.0.0/8"])?
    ///     .peer_from(|extensions| extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0));
    ///
    /// let mut request = http::Request::new(());
    /// request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 4711))));
    /// assert_eq!(client_ip.identify(&request), Ok([192, 0, 2, 1].into()));
    /// # Ok::<(), tollgate::http::ClientIpError>(())
    /// ```
    pub fn peer_from<F: Fn(&Extensions) -> Option<SocketAddr>>(
        self,
        peer_of: F,
    ) -> ClientAddress<F> {
        ClientAddress {
            client_ip: self,
            peer_of,
        }
    }

    fn of<B>(&self, peer: Option<SocketAddr>, request: &Request<B>) -> Result<IpAddr, NoIdentity> {
        Ok(self.find(peer.map(|peer| peer.ip()), request.headers())?)
    }
}

/// The peer is the extension [`SocketAddr`] of the request. Where there is no address that the client could not have forged, it is
/// unknown.
impl<B> Identity<B> for ClientIp {
    type Key = IpAddr;

    fn identify(&self, request: &Request<B>) -> Result<IpAddr, NoIdentity> {
        self.of(request.extensions().get().copied(), request)
    }
}

impl<B, F: Fn(&Extensions) -> Option<SocketAddr>> Identity<B> for ClientAddress<F> {
    type Key = IpAddr;

    fn identify(&self, request: &Request<B>) -> Result<IpAddr, NoIdentity> {
        self.client_ip
            .of((self.peer_of)(request.extensions()), request)
    }
}

debug_fields!([F] ClientAddress<F>, |address| client_ip = address.client_ip);
