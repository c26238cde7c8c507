//! Back pressure through both layers: each is ready when the service behind it is, and calls the one that was.

mod common;

use std::convert::Infallible;
use std::time::Duration;

use common::limiter;
use http::{Request, Response};
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok, task};
use tollgate::http::{LimitLayer, OutboundLayer};
use tollgate::{Limiter, MaxConcurrency};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, service_fn};
use tower_test::mock::{self, Handle, SendResponse, spawn::Spawn};

const WAIT: Duration = Duration::from_secs(9);

// A mock panics where it is called without having been ready. A clone of one that is ready is not.
type MockHandle = Handle<Request<()>, Response<String>>;

fn request() -> Request<()> {
    Request::new(())
}

fn answer(status: u16) -> Response<String> {
    Response::builder().status(status).header("retry-after", "0").body("body".to_owned()).unwrap()
}

/// Granted, in flight, and queued.
fn numbers(limiter: &Limiter) -> [u64; 3] {
    let numbers = limiter.snapshot();
    [numbers.granted, numbers.in_flight, numbers.queued]
}

/// The request that has reached the service behind the layer.
fn arrived(handle: &mut MockHandle) -> SendResponse<Response<String>> {
    assert_ready!(handle.poll_request()).expect("the service is there").1
}

/// A service behind this layer, the handle of the mock, and a limiter of one place.
macro_rules! behind {
    ($layer:expr) => {{
        let limiter = limiter(MaxConcurrency::new(1));
        let (service, handle): (_, MockHandle) = mock::spawn_layer($layer(limiter.clone()));
        (service, handle, limiter)
    }};
}

/// The same check, for each of these layers.
macro_rules! with_each {
    ([$($layer:expr),*], |$service:ident, $handle:ident, $limiter:ident| $check:block) => {
        $({
            let (mut $service, mut $handle, $limiter) = behind!($layer);
            $check
        })*
    };
}

fn refusing(limiter: Limiter) -> LimitLayer<Limiter> {
    LimitLayer::new(limiter)
}

fn waiting(limiter: Limiter) -> LimitLayer<Limiter> {
    LimitLayer::new(limiter).wait(WAIT)
}

fn outbound(limiter: Limiter) -> OutboundLayer {
    OutboundLayer::new(limiter)
}

#[tokio::test(start_paused = true)]
async fn a_layer_is_ready_when_its_service_is_whatever_the_limiter_says() {
    with_each!([refusing, waiting, outbound], |service, handle, limiter| {
        let _held = limiter.try_acquire().unwrap();
        handle.allow(0);
        assert_pending!(service.poll_ready());
        assert!(!service.is_woken());
        handle.allow(1);
        assert!(service.is_woken());
        assert_ready_ok!(service.poll_ready());
        assert_ready_ok!(service.poll_ready());
        assert_eq!(numbers(&limiter), [1, 1, 0]);
        handle.send_error("broken");
        assert_eq!(assert_ready_err!(service.poll_ready()).to_string(), "broken");
    });
}

#[tokio::test(start_paused = true)]
async fn the_service_that_was_ready_is_the_one_that_is_called() {
    with_each!([refusing, waiting, outbound], |service, handle, limiter| {
        let mut other = service.clone();
        assert_ready_ok!(service.poll_ready());
        handle.allow(0);
        assert_pending!(other.poll_ready());
        assert_eq!(numbers(&limiter), [0; 3], "readiness takes no permit");

        let mut call = task::spawn(service.call(request()));
        assert_pending!(call.poll());
        let arrived = arrived(&mut handle);
        assert_eq!(numbers(&limiter), [1, 1, 0]);
        assert_pending!(service.poll_ready());
        arrived.send_response(answer(200));
        assert!(call.is_woken());
        drop(assert_ready_ok!(call.poll()));
        assert_eq!(numbers(&limiter), [1, 0, 0]);
        assert_pending!(service.poll_ready());
        handle.allow(1);
        assert!(other.is_woken());
    });
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_keeps_the_service_that_was_ready() {
    with_each!([waiting, outbound], |service, handle, limiter| {
        let held = limiter.try_acquire().unwrap();
        assert_ready_ok!(service.poll_ready());
        handle.allow(0);
        let mut call = task::spawn(service.call(request()));
        assert_pending!(call.poll());
        assert_eq!(numbers(&limiter), [1, 1, 1]);
        assert_pending!(service.poll_ready());
        assert_pending!(handle.poll_request());
        drop(held);
        assert!(call.is_woken());
        assert_pending!(call.poll());
        arrived(&mut handle).send_response(answer(200));
        drop(assert_ready_ok!(call.poll()));
        assert_eq!(numbers(&limiter), [2, 0, 0]);
    });
}

/// A `ConcurrencyLimit` of tower takes its place when it becomes ready.
#[tokio::test(start_paused = true)]
async fn a_request_that_gives_up_gives_back_what_its_service_has_reserved() {
    let answers = service_fn(|_: Request<()>| std::future::ready(Ok::<_, Infallible>(answer(200))));
    let inner = ConcurrencyLimitLayer::new(1).layer(answers);
    let limiter = limiter(MaxConcurrency::new(1));
    let _held = limiter.try_acquire().unwrap();
    macro_rules! check {
        ($layer:expr) => {{
            let mut service = Spawn::new($layer(limiter.clone()).layer(inner.clone()));
            let mut other = service.clone();
            assert_ready_ok!(service.poll_ready());
            let mut gives_up = task::spawn(service.call(request()));
            assert_pending!(gives_up.poll());
            assert_pending!(other.poll_ready());
            drop(gives_up);
            assert!(other.is_woken());
            assert_ready_ok!(other.poll_ready());
        }};
    }
    check!(waiting);
    check!(outbound);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_refused_leaves_the_service_ready() {
    let (mut service, mut handle, limiter) = behind!(refusing);
    let held = limiter.try_acquire().unwrap();
    assert_ready_ok!(service.poll_ready());
    handle.allow(0);
    for _ in 0..3 {
        assert_ready_ok!(service.poll_ready());
        assert_eq!(service.call(request()).await.unwrap().status(), 503);
    }
    drop(held);
    let mut call = task::spawn(service.call(request()));
    assert_pending!(call.poll());
    arrived(&mut handle).send_response(answer(200));
    assert_eq!(assert_ready_ok!(call.poll()).status(), 200);
}

#[tokio::test(start_paused = true)]
async fn clones_share_the_back_pressure_of_the_service() {
    with_each!([refusing, waiting, outbound], |service, handle, limiter| {
        limiter.set_policy(MaxConcurrency::new(9)).unwrap();
        handle.allow(0);
        assert_pending!(service.poll_ready());
        let mut clones: Vec<_> = (0..5).map(|_| service.clone()).collect();
        drop(service);
        clones.iter_mut().for_each(|clone| assert_pending!(clone.poll_ready()));
        handle.allow(2);
        let mut calls = Vec::new();
        for clone in &mut clones {
            assert!(clone.is_woken());
            if clone.poll_ready().is_ready() {
                let mut call = task::spawn(clone.call(request()));
                assert_pending!(call.poll()); // it is called now
                calls.push(call);
            }
        }
        assert_eq!((calls.len(), numbers(&limiter)), (2, [2, 2, 0]));
        for _ in 0..2 {
            arrived(&mut handle).send_response(answer(200));
        }
        assert_pending!(handle.poll_request());
        calls.iter_mut().for_each(|call| drop(assert_ready_ok!(call.poll())));
        assert_eq!(numbers(&limiter), [2, 0, 0]);
    });
}

#[tokio::test(start_paused = true)]
async fn a_retry_waits_until_the_service_is_ready_again() {
    for fails in [false, true] {
        let (mut service, mut handle, limiter) = behind!(|limiter| OutboundLayer::new(limiter).retry(1));
        handle.allow(1);
        assert_ready_ok!(service.poll_ready());
        let mut call = task::spawn(service.call(request()));
        assert_pending!(call.poll());
        arrived(&mut handle).send_response(answer(429));
        assert_pending!(call.poll());
        assert_pending!(handle.poll_request());
        assert_eq!(numbers(&limiter), [2, 1, 0]);
        if fails {
            handle.send_error("broken");
            assert!(call.is_woken());
            assert_eq!(assert_ready_err!(call.poll()).to_string(), "broken");
        } else {
            handle.allow(1);
            assert!(call.is_woken());
            assert_pending!(call.poll());
            arrived(&mut handle).send_response(answer(200));
            assert_eq!(assert_ready_ok!(call.poll()).status(), 200);
        }
        assert_eq!(numbers(&limiter), [2, 0, 0]);
    }
}
