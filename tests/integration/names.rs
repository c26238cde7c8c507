//! The names of the crate do not collide with those of axum, http, futures and std, nor with names of crates: this file uses them
//! together, and compiles.

use crate::common;
use axum::extract::Request;
use axum::http::request::Builder;
use axum::http::{Extensions, Method, Response, StatusCode};
use axum::response::IntoResponse;
use axum::response::sse::Event;
use futures_util::future::{Future, FutureExt, Ready, TryFutureExt};
use futures_util::stream::{self, Stream, StreamExt, TryStreamExt};
#[cfg(feature = "http")]
use tollgate::layers::{
    Admits, ChosenLimiter, ClientAddress, ClientIp, ClientIpError, ForwardedHeader, FoundKey,
    HeaderKey, Identifies, Identity, KeyedBy, KeyedByAsync, LimitBody, LimitFuture, LimitLayer,
    LimitService, NoClientIp, NoIdentity, NoKey, OrShared, PermitBody, Refusal, StoreKey,
};
use tollgate::{
    Acquire, AcquireError, AcquireExplained, AcquireOwned, Adapt, Align, AnyLimiter, ConfigError,
    Counts, Decision, EventKind, FixedWindow, ForEachPermitted, GroupAcquire, GroupError,
    GroupPermit, KeySnapshot, KeyTotals, KeyedAcquire, KeyedAcquireOwned, KeyedLimiter,
    KeyedLimiterBuilder, Limit, LimitStatus, Limiter, LimiterBuilder, LimiterEvent, LimiterGroup,
    LimiterSnapshot, MapPermitted, MaxConcurrency, ObservedKey, Observer, OpenWait, Outcome,
    Overflow, ParseError, ParseErrorKind, Penalty, Permit, PermitId, PermitRequest, Policy,
    PollLimiter, Priority, PriorityError, Rate, RefusedReason, Reservation, Run, RunError,
    SharedLimiter, SharedLimiterBuilder, ShedReason, SlidingMethod, SlidingWindow, StreamLimitExt,
    Throttle, Throttled, TokenBucket, TryAcquireError, TryAcquireShared, TryThrottled, Unit,
    UpstreamSignal, UsageCarryOver, WaitEnd, WaitStart, WhenFull, WithPermits,
};

/// Uses every import, so that none can be left out of the list without a warning.
#[expect(dead_code, clippy::type_complexity, reason = "only their names matter")]
struct Names<'a, S: Stream>(
    Option<(
        Request,
        Builder,
        Extensions,
        Method,
        Response<()>,
        StatusCode,
        Event,
    )>,
    Option<(
        Acquire<'a>,
        AcquireError,
        Adapt,
        Align,
        ConfigError,
        Decision,
        FixedWindow,
        GroupError<RunError>,
        GroupPermit,
    )>,
    Option<(KeySnapshot, KeyedLimiter<u8>, KeyedLimiterBuilder<u8>)>,
    Option<(
        EventKind,
        Limit,
        Limiter,
        LimiterBuilder,
        LimiterEvent<'a>,
        LimiterGroup,
        LimiterSnapshot,
        MaxConcurrency,
        Outcome,
        Overflow,
    )>,
    Option<(
        ParseError,
        ParseErrorKind,
        Penalty,
        Permit,
        PermitId,
        PermitRequest<&'a Limiter>,
        Policy,
        Priority,
        PriorityError,
        Rate,
        ShedReason,
    )>,
    Option<(
        SlidingMethod,
        SlidingWindow,
        Throttle,
        TokenBucket,
        TryAcquireError,
        UpstreamSignal,
        UsageCarryOver,
        WhenFull,
    )>,
    Option<(
        AcquireOwned,
        GroupAcquire,
        KeyedAcquire<'a, u8>,
        KeyedAcquireOwned<u8>,
        PollLimiter,
        Run<()>,
    )>,
    Option<(
        ObservedKey<'a>,
        WaitEnd<'a>,
        WaitStart<'a>,
        Box<dyn Observer>,
        Box<dyn OpenWait>,
    )>,
    Option<(
        AcquireExplained,
        Counts,
        KeyTotals,
        LimitStatus,
        RefusedReason,
        Reservation,
        Unit,
    )>,
    Option<(SharedLimiter, SharedLimiterBuilder, TryAcquireShared)>,
    Option<(
        ForEachPermitted<S, (), Ready<()>>,
        MapPermitted<S, (), Ready<()>>,
        Throttled<S>,
        TryThrottled<S>,
        WithPermits<S>,
    )>,
);

#[cfg(feature = "http")]
#[expect(dead_code, reason = "only their names matter")]
struct HttpNames(
    Option<(
        ClientIp,
        ClientIpError,
        ForwardedHeader,
        NoClientIp,
        NoIdentity,
    )>,
);

#[cfg(feature = "http")]
#[expect(dead_code, clippy::type_complexity, reason = "only their names matter")]
struct LayerNames<S: tower::Service<Request>, I: Identifies<axum::body::Body>>(
    Option<(
        KeyedBy<()>,
        KeyedByAsync<()>,
        OrShared<(), ()>,
        ChosenLimiter<()>,
        ClientAddress<()>,
        NoKey,
        HeaderKey,
        PermitBody<()>,
        Refusal,
    )>,
    Option<(
        LimitBody<()>,
        LimitFuture<S, axum::body::Body, (), I>,
        LimitLayer<(), ()>,
        LimitService<S, (), I>,
    )>,
);

#[cfg(feature = "http")]
#[expect(dead_code, reason = "only their names matter")]
fn any_identity(
    _: (
        impl Identity<()>,
        impl Admits<()>,
        impl StoreKey,
        impl FoundKey,
    ),
) {
}

#[expect(dead_code, reason = "only its name matters")]
fn any(_: &impl AnyLimiter) {}

/// The methods of the extension traits do not hide each other either.
#[tokio::test(start_paused = true)]
async fn the_extension_traits_of_futures_and_of_this_crate_work_in_one_chain() {
    let limiter = common::limiter(MaxConcurrency::new(1));
    let acquired = limiter
        .acquire()
        .map_ok(|permit| permit.cost())
        .map(Result::unwrap);
    fn is_future(future: impl Future<Output = u64>) -> impl Future<Output = u64> {
        future
    }
    assert_eq!(is_future(acquired).await, 1);
    let rate = common::limiter(Throttle::every(common::ms(1)));
    let items = stream::iter([1, 2])
        .throttled(&rate)
        .map(Ok::<i32, ()>)
        .try_collect::<Vec<_>>()
        .await;
    assert_eq!(items, Ok(vec![1, 2]));
    assert_eq!(StatusCode::TOO_MANY_REQUESTS.into_response().status(), 429);
}

#[cfg(feature = "http")]
mod layers {
    use tollgate::layers::{
        ByStatus, Cloned, FieldValues, NoRetry, OutboundClassifier, OutboundError, OutboundFuture,
        OutboundLayer, OutboundRetry, OutboundService, PermitBody, PolicyNameError, ProblemType,
        RateLimitFields, RateLimitStyle, ResetFormat, Retry, UpstreamAnswer, UpstreamFamily,
        UpstreamQuota, UpstreamReader,
    };

    use super::*;

    #[expect(dead_code, clippy::type_complexity, reason = "only their names matter")]
    struct Names<'a>(
        Option<(
            FieldValues<'a>,
            PolicyNameError,
            ProblemType,
            RateLimitFields,
            RateLimitStyle,
            Request,
        )>,
        Option<(
            PermitBody<()>,
            ResetFormat,
            UpstreamAnswer<'a>,
            UpstreamFamily,
            UpstreamQuota<'a>,
            UpstreamReader,
        )>,
        Option<(
            ByStatus,
            Cloned,
            NoRetry,
            OutboundService<()>,
            OutboundError<()>,
            OutboundLayer,
            Retry,
        )>,
        Option<OutboundFuture<axum::Router, axum::body::Body, (), (), ()>>,
        Option<(Box<dyn OutboundClassifier<()>>, Box<dyn OutboundRetry<()>>)>,
    );
}

/// A glob import of the crate hides no other crate: these paths still mean the crates.
#[cfg(feature = "http")]
#[expect(unused_imports, dead_code, reason = "only names matter")]
mod glob {
    use tollgate::*;

    fn crates_that_are_used_beside_it(
        _: http::HeaderMap,
        _: http_body::Frame<()>,
        _: std::sync::Arc<tower::util::BoxCloneService<(), (), ()>>,
        _: tokio::time::Instant,
        _: axum::Router,
        _: futures_util::future::Ready<()>,
    ) {
    }
}
