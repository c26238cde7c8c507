//! A service of tower that says hello, alone and behind layers that limit each of its clients.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{Extensions, Request, Response};
use tollgate::layers::{ClientAddress, ClientIp, KeyedBy, LimitLayer, RateLimitStyle};
use tollgate::{KeyedLimiter, Policy};
use tower::{Layer, Service};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

const CLIENTS: u8 = 250;

#[derive(Clone)]
pub(crate) struct Hello;

impl Service<Request<Body>> for Hello {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        let mut answer = Response::new(Body::from("hello"));
        answer.headers_mut().insert(
            CONTENT_TYPE,
            HeaderValue::from_static("text/plain; charset=utf-8"),
        );
        ready(Ok(answer))
    }
}

/// A closure that sends one request to a service, each time from the next of 250 clients, and returns the status of the answer.
pub(crate) fn client<S, B>(mut service: S) -> impl FnMut() -> u16
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    let mut last = 0;
    move || {
        last = (last + 1) % CLIENTS;
        let mut request = Request::new(Body::empty());
        request
            .extensions_mut()
            .insert(ConnectInfo(SocketAddr::from(([192, 0, 2, last], 4_711))));
        let mut context = Context::from_waker(Waker::noop());
        assert!(service.poll_ready(&mut context).is_ready());
        let Poll::Ready(Ok(answer)) = pin!(service.call(request)).poll(&mut context) else {
            unreachable!("it never waits")
        };
        answer.status().as_u16()
    }
}

type ByPeer = KeyedBy<ClientAddress<fn(&Extensions) -> Option<SocketAddr>>>;

/// Limits each client by its address.
pub(crate) fn layer(
    policy: impl Into<Policy>,
    style: RateLimitStyle,
) -> LimitLayer<KeyedLimiter<IpAddr>, ByPeer> {
    layer_of(KeyedLimiter::new(policy).expect("a sound policy"), style)
}

pub(crate) fn layer_of(
    limiter: KeyedLimiter<IpAddr>,
    style: RateLimitStyle,
) -> LimitLayer<KeyedLimiter<IpAddr>, ByPeer> {
    let peer = |extensions: &Extensions| {
        extensions
            .get::<ConnectInfo<SocketAddr>>()
            .map(|peer| peer.0)
    };
    LimitLayer::new(limiter)
        .style(style)
        .by(ClientIp::peer().peer_from(peer))
}

pub(crate) fn limited(policy: impl Into<Policy>, style: RateLimitStyle) -> impl FnMut() -> u16 {
    client(layer(policy, style).layer(Hello))
}

/// A client of a service behind `axum-governor`, which limits by the address of the peer. It always writes the fields of draft-10, and
/// three `X-RateLimit` fields.
pub(crate) fn governed_by_axum(interval: Duration, burst: NonZeroU32) -> Box<dyn FnMut() -> u16> {
    let seconds = u32::try_from(interval.as_secs())
        .ok()
        .and_then(NonZeroU32::new)
        .expect("a few seconds");
    let quota = axum_governor::Quota::seconds_per_request(seconds).burst(burst);
    let config = axum_governor::GovernorConfigBuilder::default()
        .with_extractor(axum_governor::extractor::PeerIp::default())
        .expect_connect_info()
        .quota_default(quota)
        .gc_disable()
        .finish()
        .expect("a sound policy");
    Box::new(client(
        axum_governor::GovernorLayer::new(config).layer(Hello),
    ))
}

/// A client of a service behind `tower_governor`, which by default limits by the address of the peer.
pub(crate) fn governed(period: Duration, burst: u32, with_fields: bool) -> Box<dyn FnMut() -> u16> {
    let mut config = GovernorConfigBuilder::default();
    config.period(period).burst_size(burst);
    if with_fields {
        Box::new(client(
            GovernorLayer::<_, _, Body>::new(config.use_headers().finish().expect("not zero"))
                .layer(Hello),
        ))
    } else {
        Box::new(client(
            GovernorLayer::<_, _, Body>::new(config.finish().expect("not zero")).layer(Hello),
        ))
    }
}
