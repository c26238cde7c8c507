//! An async rate limiter and concurrency limiter for tokio.
//!
//! A task calls `acquire().await` and gets a [`Permit`], a guard that releases its place on drop. A [`Limiter`] applies a
//! [`Policy`]: one limit, or several that must all admit a request. There are token buckets, GCRA, fixed and sliding windows,
//! bounded and adaptive concurrency, and a limiter for each key. When a limit is reached, callers wait in a FIFO queue
//! (backpressure) or get the time at which to retry. A limiter never exceeds a limit, is cancel-safe, and can reclaim leaked permits.
//!
//! ```
//! use std::time::Duration;
//! use tollgate::{Limiter, MaxConcurrency, Throttle};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // At most 8 at the same time, and at most 200 a second in bursts of at most 10.
//! let policy = MaxConcurrency::new(8).and(Throttle::every(Duration::from_millis(5)).burst(10));
//! let limiter = Limiter::new(policy)?;
//!
//! let permit = limiter.acquire().await?; // waits until both limits admit it
//! // … call the API …
//! drop(permit); // the next request may start
//! # Ok(())
//! # }
//! ```
//!
//! The [guide] has a page for each job: choosing a limit, waiting, outbound calls, servers, many replicas, testing, operating,
//! and [coming from](guide::coming_from) another limiter.
//!
//! # Which limit to use
//!
//! | you want | use | largest burst |
//! |---|---|---|
//! | at most n permits at the same time, like a semaphore | [`MaxConcurrency`] | its limit |
//! | the same, and leaked permits are reclaimed | [`MaxConcurrency::ttl`] | its limit |
//! | an even rate: one grant per interval | [`Throttle`] | one |
//! | a rate with bursts; exact on average despite timer lateness | [`Throttle::burst`] (GCRA) | the burst |
//! | the same, as a rate and the size of a bucket | [`TokenBucket`] | the burst |
//! | a quota per window, as many APIs count it | [`FixedWindow`] | twice the limit, around a boundary |
//! | at most n units in every span of a period | [`SlidingWindow::log`]; above a thousand units [`SlidingWindow::counter`] | the limit; 2 × limit − 1 |
//! | to penalise or ban clients that keep retrying | [`Penalty`] | its threshold |
//! | a concurrency limit that finds the capacity of a server | [`MaxConcurrency::adapt`] | its current limit |
//! | several of these together | [`Policy::and`] | that of the tightest limit |
//!
//! Every function that takes a policy also takes [text](Policy#as-text): `Limiter::new("8 concurrent ttl 30s and 100/min")?`.
//! `100/min` is a bucket of 100 that refills evenly, so it admits **199 in its first minute**: the full bucket, and the refill of
//! that minute. If 100 in any minute is a hard quota, write `sliding log 100/min`.
//!
//! # How to request a permit
//!
//! | you want | call |
//! |---|---|
//! | to wait | [`Limiter::acquire`], [`acquire_many`](Limiter::acquire_many) |
//! | to wait with a priority or a timeout | [`Limiter::request`] |
//! | not to wait | [`Limiter::try_acquire`]; [`check`](Limiter::check) and [`available`](Limiter::available), which take nothing |
//! | to run a future under a permit | [`Limiter::run`] |
//! | to limit a stream, or to work on its items concurrently | [`StreamLimitExt`] |
//! | to wait in a thread outside the runtime | [`Limiter::blocking_acquire`] |
//! | a bounded queue, a name | [`Limiter::builder`] |
//! | to observe waits, denials and more | [`LimiterBuilder::on_event`], [`LimiterEvent`]; an [`Observer`] for limiters of all kinds |
//! | logs and spans, numbers for Prometheus | the module `telemetry`, with the features `tracing` and `metrics` |
//! | a limiter for each client, user or endpoint | [`KeyedLimiter`] |
//! | permits of several limiters, all or none | [`LimiterGroup`] |
//! | limits that many processes share, in Redis or SQL | [`SharedLimiter`] with a [`store`] |
//! | a layer in front of a server | [`layers::LimitLayer`], with the feature `http` |
//! | a layer around an HTTP client | [`layers::OutboundLayer`], with the feature `http` |
//!
//! # Afterwards
//!
//! | you want | call |
//! |---|---|
//! | to replace an estimated cost by the actual one | [`Permit::settle`]; [`Permit::refund`] if it never started |
//! | to report how the work went, so that a concurrency limit adapts | [`Permit::report`] |
//! | to replace the policy while requests wait | [`Limiter::set_policy`] |
//! | to pause all requests | [`Limiter::pause_for`], [`resume`](Limiter::resume) |
//! | to follow an upstream's response (429, `Retry-After`, `RateLimit`) | [`Limiter::apply_upstream_signal`] |
//! | to charge a key, or to refund it | [`KeyedLimiter::penalize`], [`reward`](KeyedLimiter::reward), [`reset`](KeyedLimiter::reset) |
//! | to shut down | [`Limiter::close`], [`drained`](Limiter::drained) |
//!
//! # How it works
//!
//! A limiter is a manager with three channels:
//!
//! | channel | carries | lives in |
//! |---|---|---|
//! | **in** | requests that must wait | the queue, under the manager's lock: a line for each priority |
//! | **out** | the answer to each waiting request | a slot of the request's own; a place is taken out without the lock |
//! | **release** | places that come back | the atomic word; while requests wait, the caller that releases takes the lock and serves the front of the queue |
//!
//! A channel is a queue or a slot that the manager owns. The caller performs the manager's step itself, under the lock, so a step
//! costs no message and no task switch. Releasing never waits, because `Drop` cannot. While no request waits, a policy of one
//! [`MaxConcurrency`], [`Throttle`], [`TokenBucket`] or [`FixedWindow`] is decided in one atomic word, without the lock.
//!
//! ```text
//!  caller ── acquire(cost) ──► Gate ── admitted, queue is empty ─────────────────────────► Permit
//!                               │ must wait                                                  ▲  │ drop
//!                               ▼                                                            │  ▼
//!                     in ─► Queue (priority, then arrival) ─► Gate ─► out: the waiter's slot ┘ release
//!                               ▲                                                               │ if any wait
//!                               ├── serve the front ◄───────────────────────────────────────────┘
//!                               └── driver: one task, one timer: next grant, next reclaim, next timeout
//! ```
//!
//! The gate is a policy with its state. Each limit is a pure function from (parameters, state, now, cost) to a verdict, which
//! contains the time at which to decide again. If a request need not wait, its caller decides it at once. The manager decides
//! again only for the front of the queue, so one timer serves all waiters. When time passes without a call, the *driver* acts: a
//! task that the first waiting request starts in its own runtime.
//!
//! An idle key of a [`KeyedLimiter`] is only the state of its gate: a word or two for each limit. A key with waiting requests has
//! its own manager, and one driver serves all these managers.
//!
//! # Guarantees
//!
//! 1. **Never over the limit**: at every decision, no limit has granted more than it allows. While the store of a [`SharedLimiter`] is
//!    down, [`OnStoreDown`](store::OnStoreDown) may allow more, by choice.
//! 2. **Cancel-safe**: dropping an `acquire` future at any await point loses no permit.
//! 3. **FIFO-fair**: within a process and a priority, requests are granted in order of arrival, or as their
//!    [flows](PermitRequest::flow) share by weight. A new request never overtakes a waiting one of its own flow, and small requests do
//!    not starve a large one.
//! 4. **All or none**: when one limit of a policy denies, no other is charged. The denial names the limit.
//! 5. **Reclaimed once**: a permit whose TTL has passed is reclaimed on time. Its late drop, renewal or settling changes nothing.
//! 6. **No timer while nothing waits**: while no request waits and no permit with a TTL is in flight, no timer runs and no task
//!    wakes. (The timer for a permit that was released before its TTL may fire once.) A queue of any length needs one timer. A
//!    grant takes two polls, or three if a pause, a timeout or a new policy makes a timer necessary while the request waits.
//! 7. **Exact time**: waiting follows tokio's clock, also when it is paused, unless [`fast_clock()`](#cargo-features) was chosen.
//!    A [`retry_after`](Decision::retry_after) is exact: a retry one nanosecond earlier is denied, and a retry at that time is
//!    granted if no other request comes first. (With more than 64 waiting requests it is a [lower
//!    bound](#limits-of-the-guarantees).)
//! 8. **Independent of a runtime**: a limiter in a `static` outlives the runtime that first waited on it.
//! 9. **Bad input is a typed error** that contains the value; never a panic, never an endless wait.
//!
//! # Limits of the guarantees
//!
//! - **A permit must be bound to a name.** `let _ = limiter.acquire().await?` releases it at once.
//! - **A grant counts before it is polled.** A future that is kept but no longer polled may have been granted a permit, for which
//!   other requests then wait: see [`Acquire`]. With a TTL the permit is reclaimed.
//! - **Timers are late**, by about a millisecond. A [`Throttle`] without a burst loses that time at each grant. With a burst of
//!   about 10 ms' worth of grants it keeps its rate exactly, also at intervals of a few milliseconds or less. Where no burst is
//!   allowed, use [`LimiterBuilder::precise_timer`].
//! - **A cost counts in every limit of a policy**, unless a limit [counts](Counts) something else. `8 concurrent and 100000/min`
//!   admits no cost above 8; `8 concurrent per request and 100000 tokens/min` does.
//! - **`retry_after` while others wait**: the waiting requests go first, and the value includes their wait. It is exact for up to
//!   64 waiting requests, if none of them gives up. With more it is a lower bound: a retry at that time may be denied. It is
//!   `None` when only a release helps, because the time of a release is unknown. See [`Decision::retry_after`].
//! - **A change between kinds resets usage.** Usage of a rate, a window or a penalty cannot be carried over to a
//!   [`MaxConcurrency`], nor back. A key whose [tier](KeyedLimiterBuilder::tiers) flips between two such policies gets a full
//!   budget each time.
//! - **Time stops after 580 years.** A process counts time in 64-bit nanoseconds, and time stands still when the count reaches
//!   its maximum.
//!
//! # Cargo features
//!
//! None is enabled by default. The crate needs tokio with `rt`, `sync` and `time`, and contains no unsafe code.
//!
//! - `serde`: [`Policy`], [`Limit`] and [`Rate`] serialise as [text](Policy#as-text), and deserialise from it. [`LimiterSnapshot`],
//!   [`KeySnapshot`], [`KeyTotals`] and [`Decision`] serialise with their numbers as fields, for logs and monitoring.
//! - `quanta`: the option `fast_clock()` of both builders reads the time of decisions from the processor's time stamp counter,
//!   which takes half as long as tokio's clock. It does not follow a clock that tests pause or advance.
//! - `http`: the module [`layers`]: layers around services and clients; the identity of a client, also behind proxies; the
//!   header fields of rate limits, for servers and clients.
//! - `redis`: `RedisStore` in the module [`store`], for limits that many processes share in Redis or Valkey. It depends on the
//!   crate `redis` with few of its features.
//! - `mysql`: `MysqlStore` in the module [`store`], a store in MariaDB or MySQL.
//! - `postgres`: `PostgresStore`, a store in PostgreSQL.
//! - `sqlite`: `SqliteStore`, a store in a file. The feature compiles SQLite, and needs a C compiler.
//! - `tracing`: `TracingObserver` in the module `telemetry` records each [`LimiterEvent`] as an event, and each wait as a span.
//! - `metrics`: `MetricsObserver` and `MetricsReporter` in the module `telemetry`: counters, gauges and a histogram of waits for
//!   the crate `metrics`, with bounded labels.
//! - `conformance`: [tests](store::Store#a-store-of-your-own) for a store of your own, in the module `store::conformance`.
//! - `redis-tls`, `postgres-tls`, `mysql-tls`: TLS for these stores, which their URLs ask for (`rediss://`, `sslmode=require`,
//!   `require_ssl=true`). The server's certificate and its host name are always checked, by rustls, with the certificates of the
//!   system or given ones (`root_certificates`). The features compile ring, and need a C compiler.
//! - `reqwest`: `OutboundLayer::reqwest`, a layer around a client of reqwest, whose other features its users choose.
//! - `full`: all features but `conformance`, `reqwest` and those of TLS.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

/// Tests the code of the README, with the feature that it needs.
#[cfg(all(doctest, feature = "http"))]
#[doc = include_str!("../README.md")]
struct Readme;

#[macro_use]
mod macros;

// The docs of `PermitRequest` list its blocks of methods in the order of these modules.
mod acquire;

mod limiter;

mod keyed;

mod shared;

mod group;

mod builder;
mod carry_over;
mod contain_panic;
mod core;
mod decision;
mod error;
mod event;
mod exchange;
mod flow;
// Documentation only.
#[cfg(any(doc, doctest))]
pub mod guide;
#[cfg(feature = "http")]
pub mod layers;
mod lock;
mod manager;
mod observe;
mod overflow;
mod permit;
mod permit_id;
mod policy;
mod priority;
mod rate;
#[cfg(test)]
#[path = "../tests/integration/common/replay.rs"]
mod replay;
#[cfg(feature = "serde")]
mod serialize;
#[cfg(feature = "_simulation")]
#[doc(hidden)]
pub mod simulation;
mod snapshot;
pub mod store;
mod strategy;
mod stream;
#[cfg(any(feature = "metrics", feature = "tracing"))]
pub mod telemetry;
#[cfg(test)]
mod tests;
mod text;
mod upstream;

pub use acquire::{
    Acquire, AcquireExplained, AcquireOwned, PermitRequest, Reservation, Run, TryAcquireShared,
};
pub use builder::LimiterBuilder;
pub use carry_over::UsageCarryOver;
pub use decision::Decision;
pub use error::{AcquireError, ConfigError, PriorityError, RunError, TryAcquireError};
pub use event::{EventKind, RefusedReason, ShedReason};
pub use flow::FlowId;
pub use group::{GroupAcquire, GroupError, GroupPermit, LimiterGroup};
pub use keyed::{
    KeySnapshot, KeyedAcquire, KeyedAcquireOwned, KeyedLimiter, KeyedLimiterBuilder, WhenFull,
};
pub use limiter::{AnyLimiter, Limiter, PollLimiter};
pub use observe::{LimiterEvent, ObservedKey, Observer, OpenWait, WaitEnd, WaitStart};
pub use overflow::Overflow;
pub use permit::{MergeError, MergeErrorKind, Permit, SplitError};
pub use permit_id::PermitId;
pub use policy::{Limit, Policy};
pub use priority::Priority;
pub use rate::Rate;
pub use shared::{SharedLimiter, SharedLimiterBuilder};
pub use snapshot::{FlowStatus, KeyTotals, LimitStatus, LimiterSnapshot};
pub use strategy::{
    Adapt, Align, Counts, FixedWindow, MaxConcurrency, Outcome, Penalty, SlidingMethod,
    SlidingWindow, Throttle, TokenBucket, Unit,
};
pub use stream::{
    ForEachPermitted, MapPermitted, SinkError, SinkLimitExt, StreamLimitExt, Throttled,
    ThrottledSink, TryThrottled, WithPermits,
};
pub use text::{ParseError, ParseErrorKind};
pub use upstream::UpstreamSignal;
