//! The limiters, each used as its documentation says, behind one interface: every one runs the same programs.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::sync::Arc;
use std::time::Duration;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use ratelimit::{Ratelimiter, TryWaitError};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};
use tollgate::{Limiter, MaxConcurrency, Permit, Policy, SharedLimiter, Throttle};
use tower::buffer::Buffer;
use tower::limit::ConcurrencyLimit;
use tower::util::ServiceFn;
use tower::{ServiceBuilder, ServiceExt};

/// What answers a request of tower at once, so that a service measures only its limit.
type Answer = Ready<Result<(), Infallible>>;
type Service = ServiceFn<fn(()) -> Answer>;

fn answer((): ()) -> Answer {
    ready(Ok(()))
}

/// A limiter as the programs use it.
pub(crate) trait Limits: Clone + Send + Sync + 'static {
    /// What a request is granted.
    type Grant: Send + 'static;

    fn acquire(&self, cost: u32) -> impl Future<Output = Self::Grant> + Send;

    /// A request of a tenant, for a limiter that shares between tenants.
    fn acquire_for(&self, _tenant: &'static str) -> impl Future<Output = Self::Grant> + Send {
        self.acquire(1)
    }
}

/// A limiter that is compared.
pub(crate) trait Contestant: Copy + PartialEq + 'static {
    const ALL: &'static [Self];
    const TOLLGATE: Self;

    fn name(self) -> &'static str;

    /// A guarantee of tollgate: if it does not hold, the run fails.
    fn guarantees(self, holds: bool, what: &str) {
        assert!(self != Self::TOLLGATE || holds, "tollgate: {what}");
    }
}

pub(crate) fn limiter(policy: impl Into<Policy>) -> Limiter {
    Limiter::new(policy).expect("a sound policy")
}

/// Who limits what runs at the same time.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum OfPlaces {
    Tollgate,
    Tokio,
    Tower,
}

impl Contestant for OfPlaces {
    const ALL: &'static [Self] = &[Self::Tollgate, Self::Tokio, Self::Tower];
    const TOLLGATE: Self = Self::Tollgate;

    fn name(self) -> &'static str {
        match self {
            Self::Tollgate => "tollgate `MaxConcurrency`",
            Self::Tokio => "tokio `Semaphore`",
            Self::Tower => "tower `ConcurrencyLimit`",
        }
    }
}

impl OfPlaces {
    pub(crate) fn open(self, places: u32) -> Places {
        match self {
            Self::Tollgate => Places::Tollgate(limiter(MaxConcurrency::new(places.into()))),
            Self::Tokio => Places::Tokio(Arc::new(Semaphore::new(places as usize))),
            Self::Tower => Places::Tower(
                ServiceBuilder::new()
                    .concurrency_limit(places as usize)
                    .service_fn(answer as fn(()) -> Answer),
            ),
        }
    }

    /// Runs a program on a paused clock.
    pub(crate) fn run<F: Future>(
        self,
        places: u32,
        program: impl FnOnce(Places) -> F,
    ) -> F::Output {
        paused().block_on(async { program(self.open(places)).await })
    }
}

#[derive(Clone)]
pub(crate) enum Places {
    Tollgate(Limiter),
    Shared(SharedLimiter),
    Tokio(Arc<Semaphore>),
    /// Clones share the places. A clone that is ready has one until it is called or dropped.
    Tower(ConcurrencyLimit<Service>),
}

/// Places until this is dropped.
#[expect(dead_code, reason = "what a variant has is only dropped")]
pub(crate) enum Held {
    Tollgate(Permit),
    Tokio(OwnedSemaphorePermit),
    Tower(ConcurrencyLimit<Service>),
}

impl Limits for Places {
    type Grant = Held;

    async fn acquire(&self, cost: u32) -> Held {
        match self {
            Self::Tollgate(limiter) => {
                let permit = limiter.acquire_many(cost.into()).await;
                Held::Tollgate(permit.expect("an open limiter"))
            }
            Self::Shared(limiter) => {
                let permit = limiter.acquire_many(cost.into()).await;
                Held::Tollgate(permit.expect("the store answers"))
            }
            Self::Tokio(semaphore) => {
                let permit = Arc::clone(semaphore).acquire_many_owned(cost).await;
                Held::Tokio(permit.expect("an open semaphore"))
            }
            Self::Tower(service) => {
                assert_eq!(cost, 1, "a request of tower has no cost");
                let mut service = service.clone();
                service.ready().await.expect("it does not fail");
                Held::Tower(service)
            }
        }
    }

    async fn acquire_for(&self, tenant: &'static str) -> Held {
        let Self::Tollgate(limiter) = self else {
            return self.acquire(1).await;
        };
        let permit = limiter.request().flow(tenant).await;
        Held::Tollgate(permit.expect("an open limiter"))
    }
}

/// Who limits what starts in a time.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum OfRates {
    Tollgate,
    Governor,
    LeakyBucket,
    Ratelimit,
    Tower,
}

impl Contestant for OfRates {
    const ALL: &'static [Self] = &[
        Self::Tollgate,
        Self::Governor,
        Self::LeakyBucket,
        Self::Ratelimit,
        Self::Tower,
    ];
    const TOLLGATE: Self = Self::Tollgate;

    fn name(self) -> &'static str {
        match self {
            Self::Tollgate => "tollgate `Throttle`",
            Self::Governor => "governor",
            Self::LeakyBucket => "leaky-bucket",
            Self::Ratelimit => "ratelimit",
            Self::Tower => "tower `RateLimit`",
        }
    }
}

/// A unit each `interval`, of which `burst` may come at once.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) interval: Duration,
    pub(crate) burst: u32,
}

impl Pace {
    pub(crate) fn new(interval: Duration, burst: u32) -> Self {
        Self { interval, burst }
    }

    pub(crate) fn throttle(self) -> Throttle {
        Throttle::every(self.interval).burst(self.burst.into())
    }

    pub(crate) fn quota(self) -> Quota {
        let burst = self.burst.try_into().expect("not zero");
        Quota::with_period(self.interval)
            .expect("not zero")
            .allow_burst(burst)
    }
}

impl OfRates {
    /// A limiter with its burst. Called within a runtime.
    pub(crate) fn open(self, pace: Pace) -> Rate {
        let Pace { interval, burst } = pace;
        match self {
            Self::Tollgate => Rate::Tollgate(limiter(pace.throttle())),
            Self::Governor => Rate::Governor(Arc::new(RateLimiter::direct(pace.quota()))),
            Self::LeakyBucket => {
                // It refills at most once per tick of tokio's timer, so it is closest to its rate if it refills rarely.
                let units = (Duration::from_millis(10).as_nanos() / interval.as_nanos()) as u32;
                let units = units.clamp(1, burst);
                let bucket = leaky_bucket::RateLimiter::builder()
                    .max(burst as usize)
                    .initial(burst as usize)
                    .refill(units as usize)
                    .interval(interval * units)
                    .build();
                Rate::LeakyBucket(Arc::new(bucket))
            }
            Self::Ratelimit => {
                let bucket = Ratelimiter::builder(1)
                    .period(interval)
                    .max_tokens(burst.into())
                    .initial_available(burst.into())
                    .build();
                Rate::Ratelimit(Arc::new(bucket.expect("a sound rate")))
            }
            // A `RateLimit` cannot be cloned, so tasks share one in the worker of a `Buffer`, which has a place for each of them.
            Self::Tower => Rate::Tower(
                ServiceBuilder::new()
                    .buffer(20_000)
                    .rate_limit(burst.into(), interval * burst)
                    .service_fn(answer),
            ),
        }
    }

    /// Runs a program on a paused clock. In real time for governor, whose timers are not tokio's, and for ratelimit: their waiters race
    /// for each unit, and on a clock that stands still a race always ends in the same way.
    pub(crate) fn run<F: Future>(self, pace: Pace, program: impl FnOnce(Rate) -> F) -> F::Output {
        let runtime = match self {
            Self::Governor | Self::Ratelimit => real(),
            Self::Tollgate | Self::LeakyBucket | Self::Tower => paused(),
        };
        runtime.block_on(async { program(self.open(pace)).await })
    }
}

#[derive(Clone)]
pub(crate) enum Rate {
    Tollgate(Limiter),
    Shared(SharedLimiter),
    Governor(Arc<DefaultDirectRateLimiter>),
    LeakyBucket(Arc<leaky_bucket::RateLimiter>),
    Ratelimit(Arc<Ratelimiter>),
    Tower(Buffer<(), Answer>),
}

impl Limits for Rate {
    /// The instant of the decision, which only tollgate's permits have.
    type Grant = Option<Instant>;

    async fn acquire(&self, cost: u32) -> Option<Instant> {
        match self {
            Self::Tollgate(limiter) => {
                let permit = limiter.acquire_many(cost.into()).await;
                permit.expect("an open limiter").acquired_at()
            }
            Self::Shared(limiter) => {
                let permit = limiter.acquire_many(cost.into()).await;
                permit.expect("the store answers").acquired_at()
            }
            Self::Governor(governor) => {
                let cost = cost.try_into().expect("not zero");
                governor
                    .until_n_ready(cost)
                    .await
                    .expect("within the burst");
                None
            }
            Self::LeakyBucket(bucket) => {
                bucket.acquire(cost as usize).await;
                None
            }
            Self::Ratelimit(bucket) => {
                wait(bucket, cost).await;
                None
            }
            Self::Tower(service) => {
                assert_eq!(cost, 1, "a request of tower has no cost");
                service.clone().oneshot(()).await.expect("the worker runs");
                None
            }
        }
    }

    async fn acquire_for(&self, tenant: &'static str) -> Option<Instant> {
        let Self::Tollgate(limiter) = self else {
            return self.acquire(1).await;
        };
        let permit = limiter.request().flow(tenant).await;
        permit.expect("an open limiter").acquired_at()
    }
}

/// The loop of ratelimit's documentation, with tokio's `sleep`.
pub(crate) async fn wait<C: ratelimit::Clock>(bucket: &Ratelimiter<C>, cost: u32) {
    while let Err(error) = bucket.try_wait_n(cost.into()) {
        match error {
            TryWaitError::Insufficient(wait) => sleep(wait).await,
            error => panic!("{error}"),
        }
    }
}

/// A runtime of one thread whose clock stands still while tasks run, and jumps to the next timer when all wait.
pub(crate) fn paused() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime")
}

pub(crate) fn real() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}
