//! Back pressure through both layers: a layer is ready when the service behind it is, and calls the clone that was ready.

use std::convert::Infallible;
use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use crate::common::{limiter, ms};
use http::{Request, Response};
use tokio::time::sleep;
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok, task};
use tollgate::layers::{Admits, Identifies, LimitLayer, OutboundLayer, RateLimitStyle};
use tollgate::store::MemoryStore;
use tollgate::{KeyedLimiter, Limiter, LimiterSnapshot, MaxConcurrency, Permit, SharedLimiter};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, service_fn};
use tower_test::mock::{self, Handle, SendResponse, spawn::Spawn};

const WAIT: Duration = ms(500);

// A mock panics if it is called before it is ready. A clone of a ready mock is not ready.
type MockHandle = Handle<Request<()>, Response<String>>;

fn request() -> Request<()> {
    Request::new(())
}

fn answer(status: u16) -> Response<String> {
    Response::builder()
        .status(status)
        .header("retry-after", "0")
        .body("body".to_owned())
        .unwrap()
}

/// The request that has reached the service behind the layer.
fn arrived(handle: &mut MockHandle) -> SendResponse<Response<String>> {
    assert_ready!(handle.poll_request())
        .expect("the service is there")
        .1
}

/// Polls a call that has no answer yet, and again whenever it is woken: a key may be found in the background, and a store may
/// answer there.
async fn proceed<F: Future<Output: Debug>>(call: &mut task::Spawn<F>) {
    assert_pending!(call.poll());
    for _ in 0..10 {
        sleep(ms(1)).await;
        if call.is_woken() {
            assert_pending!(call.poll());
        }
    }
}

/// The limiter behind a layer. For two layers, it is the limiter of the first, and then that of the second.
trait Behind {
    async fn take(&self) -> Permit;

    fn snapshot(&self) -> LimiterSnapshot;

    fn is_idle(&self) -> bool {
        let numbers = self.snapshot();
        (numbers.in_flight, numbers.queued) == (0, 0)
    }
}

impl Behind for Limiter {
    async fn take(&self) -> Permit {
        self.try_acquire().unwrap()
    }

    fn snapshot(&self) -> LimiterSnapshot {
        self.snapshot() // the limiter's own method
    }
}

impl Behind for SharedLimiter {
    async fn take(&self) -> Permit {
        self.try_acquire().await.unwrap()
    }

    fn snapshot(&self) -> LimiterSnapshot {
        self.snapshot() // the limiter's own method
    }
}

impl Behind for (Limiter, Limiter) {
    async fn take(&self) -> Permit {
        self.0.take().await
    }

    fn snapshot(&self) -> LimiterSnapshot {
        self.0.snapshot()
    }

    fn is_idle(&self) -> bool {
        self.0.is_idle() && self.1.is_idle()
    }
}

/// Granted, in flight, and queued. A release reaches the store in the background.
async fn numbers(limiter: &impl Behind) -> [u64; 3] {
    sleep(ms(1)).await;
    let numbers = limiter.snapshot();
    [numbers.granted, numbers.in_flight, numbers.queued]
}

// ---- the layers, each with a limiter of `places` ----

const KEY: &str = "key";

fn key(_: &Request<()>) -> Option<&'static str> {
    Some(KEY)
}

/// A keyed limiter, and the limiter of the one key.
fn keyed_limiter(places: u64) -> (KeyedLimiter<&'static str>, Limiter) {
    let limiter = KeyedLimiter::new(MaxConcurrency::new(places)).unwrap();
    let of_key = limiter.limiter(&KEY).unwrap();
    (limiter, of_key)
}

fn shared_limiter(places: u64) -> SharedLimiter {
    SharedLimiter::new(MemoryStore::new(), "api", MaxConcurrency::new(places)).unwrap()
}

fn refusing(places: u64) -> (LimitLayer<Limiter>, Limiter) {
    let limiter = limiter(MaxConcurrency::new(places));
    (LimitLayer::new(limiter.clone()), limiter)
}

fn waiting(places: u64) -> (LimitLayer<Limiter>, Limiter) {
    let (layer, limiter) = refusing(places);
    (layer.wait(WAIT), limiter)
}

fn keyed(
    places: u64,
) -> (
    LimitLayer<KeyedLimiter<&'static str>, impl Identifies<(), Key = &'static str>>,
    Limiter,
) {
    let (keyed, limiter) = keyed_limiter(places);
    (LimitLayer::new(keyed).by(key), limiter)
}

fn keyed_waiting(
    places: u64,
) -> (
    LimitLayer<KeyedLimiter<&'static str>, impl Identifies<(), Key = &'static str>>,
    Limiter,
) {
    let (layer, limiter) = keyed(places);
    (layer.wait(WAIT), limiter)
}

/// A layer whose key is found in the background.
fn found(
    places: u64,
) -> (
    LimitLayer<KeyedLimiter<&'static str>, impl Identifies<(), Key = &'static str>>,
    Limiter,
) {
    let (keyed, limiter) = keyed_limiter(places);
    let find = |_: &Request<()>| async {
        sleep(ms(3)).await;
        Some(KEY)
    };
    (LimitLayer::new(keyed).by_async(find).wait(WAIT), limiter)
}

/// A layer whose store decides in the background.
fn shared(places: u64) -> (LimitLayer<SharedLimiter>, SharedLimiter) {
    let limiter = shared_limiter(places);
    (LimitLayer::new(limiter.clone()), limiter)
}

fn shared_silent(places: u64) -> (LimitLayer<SharedLimiter>, SharedLimiter) {
    let (layer, limiter) = shared(places);
    (layer.style(RateLimitStyle::None), limiter)
}

fn shared_waiting(places: u64) -> (LimitLayer<SharedLimiter>, SharedLimiter) {
    let (layer, limiter) = shared(places);
    (layer.wait(WAIT), limiter)
}

fn chosen(
    places: u64,
) -> (
    LimitLayer<impl Admits<&'static str> + Clone, impl Identifies<(), Key = &'static str>>,
    Limiter,
) {
    let limiter = limiter(MaxConcurrency::new(places));
    let of_key = limiter.clone();
    (
        LimitLayer::choose(move |_: &&'static str| of_key.clone())
            .by(key)
            .wait(WAIT),
        limiter,
    )
}

fn chosen_shared(
    places: u64,
) -> (
    LimitLayer<impl Admits<&'static str> + Clone, impl Identifies<(), Key = &'static str>>,
    SharedLimiter,
) {
    let shared = shared_limiter(places);
    let limiter = shared.key(KEY);
    (
        LimitLayer::choose(move |key: &&'static str| shared.key(*key)).by(key),
        limiter,
    )
}

/// A layer inside another one that admits all requests.
fn inner(
    places: u64,
) -> (
    (LimitLayer<Limiter>, LimitLayer<Limiter>),
    (Limiter, Limiter),
) {
    let ((inner, limiter), (outer, other)) = (waiting(places), refusing(99));
    ((outer, inner), (limiter, other))
}

/// A layer outside another one that admits all requests.
fn outer(
    places: u64,
) -> (
    (LimitLayer<Limiter>, LimitLayer<Limiter>),
    (Limiter, Limiter),
) {
    let ((outer, limiter), (inner, other)) = (waiting(places), waiting(99));
    ((outer, inner), (limiter, other))
}

fn outbound(places: u64) -> (OutboundLayer, Limiter) {
    let limiter = limiter(MaxConcurrency::new(places));
    (OutboundLayer::new(limiter.clone()).timeout(WAIT), limiter)
}

fn outbound_keyed(places: u64) -> (OutboundLayer, Limiter) {
    let (keyed, limiter) = keyed_limiter(places);
    (OutboundLayer::by_key(keyed, |_| KEY).timeout(WAIT), limiter)
}

fn outbound_shared(places: u64) -> (OutboundLayer, SharedLimiter) {
    let limiter = shared_limiter(places);
    (OutboundLayer::new(limiter.clone()).timeout(WAIT), limiter)
}

/// Runs the same check for each of these layers with this number of places.
macro_rules! for_each {
    ([$($kind:ident),*], $places:literal, |$layer:ident, $limiter:ident| $check:block) => {
        $({
            println!("{}", stringify!($kind));
            let ($layer, $limiter) = $kind($places);
            $check
        })*
    };
    (waiting, $places:literal, |$($names:ident),*| $check:block) => {
        for_each!(
            [waiting, keyed_waiting, found, shared_waiting, chosen, inner, outer, outbound, outbound_keyed, outbound_shared],
            $places, |$($names),*| $check
        );
    };
    (all, $places:literal, |$($names:ident),*| $check:block) => {
        for_each!([refusing, keyed, shared, shared_silent, chosen_shared], $places, |$($names),*| $check);
        for_each!(waiting, $places, |$($names),*| $check);
    };
}

/// A mock behind this layer.
macro_rules! behind {
    ($layer:expr) => {{
        let (service, handle): (_, MockHandle) = mock::spawn_layer($layer);
        (service, handle)
    }};
}

#[tokio::test(start_paused = true)]
async fn a_layer_is_ready_when_its_service_is_whatever_the_limiter_says() {
    for_each!(all, 1, |layer, limiter| {
        let (mut service, mut handle) = behind!(layer);
        let _held = limiter.take().await;
        handle.allow(0);
        assert_pending!(service.poll_ready());
        assert!(!service.is_woken());
        handle.allow(1);
        assert!(service.is_woken());
        assert_ready_ok!(service.poll_ready());
        assert_ready_ok!(service.poll_ready());
        assert_eq!(numbers(&limiter).await, [1, 1, 0]);
        handle.send_error("broken");
        assert_eq!(
            assert_ready_err!(service.poll_ready()).to_string(),
            "broken"
        );
    });
}

#[tokio::test(start_paused = true)]
async fn the_service_that_was_ready_is_the_one_that_is_called() {
    for_each!(all, 1, |layer, limiter| {
        let (mut service, mut handle) = behind!(layer);
        let mut other = service.clone();
        assert_ready_ok!(service.poll_ready());
        handle.allow(0);
        assert_pending!(other.poll_ready());
        assert_eq!(numbers(&limiter).await, [0; 3], "readiness takes no permit");

        let mut call = task::spawn(service.call(request()));
        proceed(&mut call).await;
        let arrived = arrived(&mut handle);
        assert_eq!(numbers(&limiter).await, [1, 1, 0]);
        assert_pending!(service.poll_ready());
        arrived.send_response(answer(200));
        assert!(call.is_woken());
        drop(assert_ready_ok!(call.poll()));
        assert_eq!(numbers(&limiter).await, [1, 0, 0]);
        assert_pending!(service.poll_ready());
        handle.allow(1);
        assert!(other.is_woken());
    });
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_keeps_the_service_that_was_ready() {
    for_each!(waiting, 1, |layer, limiter| {
        let (mut service, mut handle) = behind!(layer);
        let held = limiter.take().await;
        assert_ready_ok!(service.poll_ready());
        handle.allow(0);
        let mut call = task::spawn(service.call(request()));
        proceed(&mut call).await;
        assert_eq!(numbers(&limiter).await, [1, 1, 1]);
        assert_pending!(service.poll_ready());
        assert_pending!(handle.poll_request());
        drop(held);
        sleep(ms(1)).await;
        assert!(call.is_woken());
        proceed(&mut call).await;
        arrived(&mut handle).send_response(answer(200));
        drop(assert_ready_ok!(call.poll()));
        assert_eq!(numbers(&limiter).await, [2, 0, 0]);
    });
}

/// A `ConcurrencyLimit` of tower takes its place when it becomes ready.
macro_rules! of_one_place {
    () => {
        ConcurrencyLimitLayer::new(1).layer(service_fn(|_: Request<()>| async {
            sleep(ms(3)).await;
            Ok::<_, Infallible>(answer(200))
        }))
    };
}

#[tokio::test(start_paused = true)]
async fn a_request_that_gives_up_gives_back_what_its_service_has_reserved() {
    for_each!(waiting, 1, |layer, limiter| {
        let _held = limiter.take().await;
        let mut service = Spawn::new(layer.layer(of_one_place!()));
        let mut other = service.clone();
        assert_ready_ok!(service.poll_ready());
        let mut gives_up = task::spawn(service.call(request()));
        proceed(&mut gives_up).await;
        assert_pending!(other.poll_ready());
        drop(gives_up);
        assert!(other.is_woken());
        assert_ready_ok!(other.poll_ready());
    });
}

/// Performs this many steps. Every other step polls the call, and the step after it waits until the call is woken. Returns whether the
/// call ended.
async fn ends_within<F: Future>(steps: usize, call: &mut task::Spawn<F>) -> bool {
    for step in 0..steps {
        if step % 2 == 0 {
            if call.poll().is_ready() {
                return true;
            }
        } else {
            while !call.is_woken() {
                sleep(ms(1)).await;
            }
        }
    }
    false
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_at_any_stage_leaves_nothing_behind() {
    let mut most = 0;
    for_each!(all, 1, |layer, limiter| {
        let service = Spawn::new(layer.layer(of_one_place!()));
        for is_busy in [false, true] {
            for steps in 0.. {
                let held = if is_busy {
                    Some(limiter.take().await)
                } else {
                    None
                };
                let (mut service, mut other) = (service.clone(), service.clone());
                assert_ready_ok!(service.poll_ready());
                assert_pending!(other.poll_ready());
                let mut call = task::spawn(service.call(request()));
                let ended = ends_within(steps, &mut call).await;
                drop((call, service, held));
                assert!(other.is_woken());
                assert_ready_ok!(other.poll_ready());
                sleep(ms(10)).await;
                assert!(limiter.is_idle(), "after {steps} steps");
                if ended {
                    most = most.max(steps);
                    break;
                }
            }
        }
    });
    assert!(most > 4, "{most}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_refused_leaves_the_service_ready() {
    for_each!([refusing, keyed], 1, |layer, limiter| {
        let (mut service, mut handle) = behind!(layer);
        let held = limiter.take().await;
        assert_ready_ok!(service.poll_ready());
        handle.allow(0);
        for _ in 0..3 {
            assert_ready_ok!(service.poll_ready());
            assert!(!service.call(request()).await.unwrap().status().is_success());
        }
        drop(held);
        let mut call = task::spawn(service.call(request()));
        assert_pending!(call.poll());
        arrived(&mut handle).send_response(answer(200));
        assert_eq!(assert_ready_ok!(call.poll()).status(), 200);
    });
}

#[tokio::test(start_paused = true)]
async fn clones_share_the_back_pressure_of_the_service() {
    for_each!(all, 9, |layer, limiter| {
        let (mut service, mut handle) = behind!(layer);
        handle.allow(0);
        assert_pending!(service.poll_ready());
        let mut clones: Vec<_> = (0..5).map(|_| service.clone()).collect();
        drop(service);
        clones
            .iter_mut()
            .for_each(|clone| assert_pending!(clone.poll_ready()));
        handle.allow(2);
        let mut calls = Vec::new();
        for clone in &mut clones {
            assert!(clone.is_woken());
            if clone.poll_ready().is_ready() {
                let mut call = task::spawn(clone.call(request()));
                proceed(&mut call).await; // the service is called now
                calls.push(call);
            }
        }
        assert_eq!((calls.len(), numbers(&limiter).await), (2, [2, 2, 0]));
        for _ in 0..2 {
            arrived(&mut handle).send_response(answer(200));
        }
        assert_pending!(handle.poll_request());
        calls
            .iter_mut()
            .for_each(|call| drop(assert_ready_ok!(call.poll())));
        assert_eq!(numbers(&limiter).await, [2, 0, 0]);
    });
}

#[tokio::test(start_paused = true)]
async fn a_retry_waits_until_the_service_is_ready_again() {
    for fails in [false, true] {
        for_each!(
            [outbound, outbound_keyed, outbound_shared],
            1,
            |layer, limiter| {
                let (mut service, mut handle) = behind!(layer.retry(1));
                handle.allow(1);
                assert_ready_ok!(service.poll_ready());
                let mut call = task::spawn(service.call(request()));
                proceed(&mut call).await;
                arrived(&mut handle).send_response(answer(429));
                proceed(&mut call).await;
                assert_pending!(handle.poll_request());
                assert_eq!(numbers(&limiter).await, [2, 1, 0]);
                if fails {
                    handle.send_error("broken");
                    assert!(call.is_woken());
                    assert_eq!(assert_ready_err!(call.poll()).to_string(), "broken");
                } else {
                    handle.allow(1);
                    assert!(call.is_woken());
                    proceed(&mut call).await;
                    arrived(&mut handle).send_response(answer(200));
                    assert_eq!(assert_ready_ok!(call.poll()).status(), 200);
                }
                assert_eq!(numbers(&limiter).await, [2, 0, 0]);
            }
        );
    }
}
