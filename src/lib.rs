//! An async rate limiter and concurrency limiter for tokio.
//!
//! A task calls `acquire().await` and gets a [`Permit`], a guard that gives its place back when it is dropped. A [`Limiter`] applies a
//! [`Policy`]: one limit, or several that must all admit a request. The limits are token buckets, throttles, fixed and sliding
//! windows, penalties, and fixed or adaptive concurrency. A [`KeyedLimiter`] keeps separate limits for each client, and a
//! [`SharedLimiter`] keeps limits for many processes in Redis or SQL. When a limit is reached, callers wait in a FIFO queue
//! (backpressure), or get a denial that says when to retry.
//!
//! ```
//! use tollgate::{Limiter, MaxConcurrency, Rate, TokenBucket};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // At most 8 at the same time, and 200 a second on average in bursts of at most 10.
//! let policy = MaxConcurrency::new(8).and(TokenBucket::new(Rate::per_second(200), 10));
//! let limiter = Limiter::new(policy)?;
//!
//! let permit = limiter.acquire().await?; // waits until both limits admit one more request
//! // … call the API …
//! drop(permit); // gives its place back
//! # Ok(())
//! # }
//! ```
//!
//! The [guide] has a page for each job: choosing a limit, waiting, outbound calls, servers, many replicas, testing, operating,
//! shutting down, and [coming from](guide::coming_from) another limiter.
//!
//! # Words
//!
//! - A request costs one *unit*, unless it asks for more. Limits count units. The units that a permit takes from a concurrency
//!   limit stay taken while it exists: they are its *places*.
//! - A permit that is held for longer than its TTL without being renewed counts as *leaked*, and its places are *reclaimed*: given
//!   to others, even if its holder still works. Without a TTL nothing is reclaimed.
//! - A request that does not wait is *denied* if at least one limit cannot admit it yet. A request is *shed* if the queue is full:
//!   it is refused, or dropped from the queue.
//! - A *key*, such as a client, a user or a host, has limits of its own. A *flow* has none: flows share the limits of one limiter
//!   fairly.
//!
//! # Which limit to use
//!
//! | you want | use | largest burst |
//! |---|---|---|
//! | at most n permits at the same time, like a semaphore | [`MaxConcurrency`] | n |
//! | the same, and leaked permits are reclaimed | [`MaxConcurrency::ttl`] | n |
//! | an even rate: one grant per interval | [`Throttle`] | one |
//! | a rate with bursts, as one each 100 ms | [`Throttle::burst`] | the burst |
//! | a rate with bursts, as 10 a second and the size of a bucket | [`TokenBucket`] | the burst |
//! | a quota per window, the way most APIs count | [`FixedWindow`] | twice the limit, around a boundary |
//! | at most n units in every span of a period | [`SlidingWindow::log`] | n |
//! | nearly that, in constant memory: for limits above a thousand | [`SlidingWindow::counter`] | at worst 2n − 1, usually about n |
//! | to penalise or ban clients that keep retrying | [`Penalty`] | the attempts that it tolerates |
//! | a concurrency limit that finds the capacity of a server | [`MaxConcurrency::adapt`] | its current limit |
//! | several of these together | [`Policy::and`] | the smallest of their bursts |
//!
//! Every function that takes a policy also takes [text](Policy#as-text): `Limiter::new("8 concurrent ttl 30s and 100/min")?`.
//! `100/min` is a bucket of 100 that refills evenly, so it admits **199 in its first minute**: the full bucket, and 99 units of refill;
//! the hundredth comes as the second minute begins. If 100 in any minute is a hard quota, write `sliding log 100/min`.
//!
//! # How to request a permit
//!
//! | you want | call |
//! |---|---|
//! | to wait | [`Limiter::acquire`], [`acquire_many`](Limiter::acquire_many) |
//! | to wait with a priority or a timeout | [`Limiter::request`] |
//! | to be denied instead of waiting | [`Limiter::try_acquire`] |
//! | to ask, and take nothing | [`Limiter::check`], [`available`](Limiter::available) |
//! | to run a future under a permit | [`Limiter::run`] |
//! | to limit a stream, or to work on its items concurrently | [`StreamLimitExt`] |
//! | to wait in a thread outside the runtime | [`Limiter::blocking_acquire`] |
//! | to bound the queue, or to name the limiter for logs | [`Limiter::builder`] |
//! | to observe waits, denials and more | [`LimiterBuilder::on_event`], [`LimiterEvent`]; an [`Observer`] serves many limiters |
//! | logs and spans, numbers for Prometheus | the module `telemetry`, with the features `tracing` and `metrics` |
//! | a limiter for each client, user or endpoint | [`KeyedLimiter`] |
//! | permits of several limiters, all or none | [`LimiterGroup`] |
//! | limits that many processes share, in Redis or SQL | [`SharedLimiter`] with a [`store`] |
//! | a layer in front of a server | [`layers::LimitLayer`], with the feature `http` |
//! | a layer around an HTTP client | [`layers::OutboundLayer`], with the feature `http` |
//!
//! # After the grant, and at run time
//!
//! | you want | call |
//! |---|---|
//! | to replace an estimated cost by the actual one | [`Permit::settle`]; [`Permit::refund`] if the work never started |
//! | to report how the work went, so that a concurrency limit adapts | [`Permit::report`] |
//! | to replace the policy while requests wait | [`Limiter::set_policy`] |
//! | to pause all requests | [`Limiter::pause_for`], [`resume`](Limiter::resume) |
//! | to follow an upstream's response (429, `Retry-After`, `RateLimit`) | [`Limiter::apply_upstream_signal`] |
//! | to charge a key, to give units back to it, or to forget its usage | [`KeyedLimiter::penalize`], [`reward`](KeyedLimiter::reward), [`reset`](KeyedLimiter::reset) |
//! | to shut down | [`Limiter::close_to_new`], then [`drained`](Limiter::drained); [`close`](Limiter::close) refuses waiting requests, too |
//!
//! # How it works
//!
//! No background task runs a limiter. It is a *manager*: a struct behind a lock, with a queue and a *gate*, which is the policy with
//! its state. The task that calls the limiter makes the decision itself, under the lock, so a decision costs no message and no task
//! switch. Each limit is a pure function from (parameters, state, now, cost) to a verdict, which contains the time at which to
//! decide again.
//!
//! While no request waits, a policy of one [`MaxConcurrency`], [`Throttle`], [`TokenBucket`] or [`FixedWindow`] is decided without
//! the lock, by one compare-and-swap on an atomic integer.
//!
//! Requests and permits take three paths, the *channels* of the manager:
//!
//! | channel | carries | implemented as |
//! |---|---|---|
//! | **in** | requests that must wait | the queue, under the lock, with a FIFO for each priority |
//! | **out** | the answer to a request that waits | a slot for each waiting request. The request reads a granted permit from it without the lock |
//! | **release** | places that come back | the atomic integer; while requests wait, a release takes the lock instead and serves the front of the queue |
//!
//! A release never awaits, because `Drop` cannot; at most it takes the lock for a short time.
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
//! Only the front of the queue is decided again, so one timer serves all waiting requests. When time passes without a call, the
//! *driver* acts: a task that is started, in the caller's runtime, when a request has to wait or a permit with a TTL is taken.
//!
//! An idle key of a [`KeyedLimiter`] is stored as the state of its limits, mostly 8 or 16 bytes for each. A key with waiting requests or
//! with permits that hold places has its own manager. One driver serves all these managers.
//!
//! # Guarantees
//!
//! 1. **Never over the limit**: at every decision, no limit has granted more than it allows, even under contention, when futures
//!    are cancelled, when clocks change, and when permits are reclaimed. A [`SharedLimiter`] keeps this as long as its store loses no
//!    data. You choose what happens while the store does not answer: [`OnStoreDown::Allow`](store::OnStoreDown::Allow) and
//!    [`Local`](store::OnStoreDown::Local) may exceed the limit; `Error`, the default, and `Deny` do not.
//! 2. **Cancel-safe**: dropping an `acquire` future at any await point loses no permit.
//! 3. **FIFO-fair**: requests of one process and one priority are granted in order of arrival. If they are assigned to
//!    [flows](PermitRequest::flow), the flows share by weight, and the order holds within each flow. A new request never overtakes
//!    a waiting one of its own flow, and small requests do not starve a large one.
//! 4. **All or none**: when one limit of a policy denies a request, the others are not charged. The denial names the limit.
//! 5. **Leaked permits are reclaimed** exactly once, when their TTL ends, if the policy has a TTL. The late drop, renewal or
//!    settling of a reclaimed permit changes nothing. By default there is no TTL, and a leaked permit is never reclaimed.
//! 6. **No idle timers**: while no request waits and no permit with a TTL is out, no timer runs, except that the timer for a permit
//!    that was released before its TTL may still fire once. One timer serves a queue of any length. A request that waits is polled
//!    twice; a third time if a pause, a timeout or a new policy calls for a timer while it waits. (While a [`SharedLimiter`] holds
//!    places in its store, a task renews them.)
//! 7. **Exact times**: waiting follows tokio's clock, also when it is paused, unless [`fast_clock()`](#cargo-features) was chosen.
//!    A [`retry_after`](Decision::retry_after) is exact: a retry one nanosecond earlier is denied, and a retry at that time is
//!    granted if no other request comes first. (Behind more than 64 waiting requests it is a [lower
//!    bound](#limits-of-the-guarantees).)
//! 8. **Not tied to one runtime**: a limiter in a `static` keeps working after the tokio runtime that first waited on it has ended.
//! 9. **Bad input is a typed error** that contains the value; never a panic, and never a wait that cannot end.
//!
//! # Limits of the guarantees
//!
//! - **A permit must be bound to a name.** `let _ = limiter.acquire().await?` releases it at once.
//! - **A waiting future can get its permit before you poll it again.** If you keep the future and do not poll it, it holds a permit
//!   that other requests wait for: see [`Acquire`]. Drop such a future. With a TTL the permit is reclaimed.
//! - **Timers are late**, by about a millisecond. A [`Throttle`] without a burst loses that time at each grant. With a burst
//!   worth 10 ms of grants, and of at least 2, it keeps its rate exactly (10, at 1,000 a second). Where no burst is allowed, use
//!   [`LimiterBuilder::precise_timer`].
//! - **A cost counts in every limit of a policy**, unless a limit [counts](Counts) something else. A request of 1,200 tokens is
//!   above what `8 concurrent and 100000/min` can ever admit; write `8 concurrent per request and 100000 tokens/min`.
//! - **`retry_after` while others wait**: the waiting requests go first, and the time includes their wait. It is exact for up to
//!   64 waiting requests, if none of them gives up. Behind more it is a lower bound: a retry at that time may be denied.
//!   `retry_after` is `None` when only a release helps, because the time of a release is unknown. See [`Decision::retry_after`].
//! - **Replacing a rate by a concurrency limit, or the reverse, resets usage**, which cannot be carried over between the two. A key
//!   that [`tiers`](KeyedLimiterBuilder::tiers) moves back and forth between two such policies gets a full budget each time.
//! - **Time is counted in 64-bit nanoseconds**, which last 580 years; then it stands still.
//!
//! # Cargo features
//!
//! None is enabled by default. The crate needs tokio with `rt`, `sync` and `time`, and contains no unsafe code.
//!
//! - `serde`: [`Policy`], [`Limit`] and [`Rate`] serialise as [text](Policy#as-text), and deserialise from it. [`LimiterSnapshot`],
//!   [`KeySnapshot`], [`KeyTotals`] and [`Decision`] serialise with their numbers as fields, for logs and monitoring.
//! - `quanta`: the option `fast_clock()` of [`LimiterBuilder`] and [`KeyedLimiterBuilder`] takes the time for decisions from the
//!   processor's time stamp counter, which is read twice as fast as tokio's clock. A clock that a test pauses or advances has
//!   no effect on it.
//! - `http`: the module [`layers`]: layers around services and clients; the identity of a client, also behind proxies; the
//!   header fields of rate limits, for servers and clients.
//! - `redis`: `RedisStore` in the module [`store`], for limits that many processes share in Redis, Valkey or Redis Cluster.
//! - `mysql`: `MysqlStore` in the module [`store`], a store in MariaDB or MySQL.
//! - `postgres`: `PostgresStore`, a store in PostgreSQL.
//! - `sqlite`: `SqliteStore`, a store in a file. The feature compiles SQLite, and needs a C compiler.
//! - `tracing`: `TracingObserver` in the module `telemetry` records each [`LimiterEvent`] as an event, and each wait as a span.
//! - `metrics`: `MetricsObserver` and `MetricsReporter` in the module `telemetry`: counters, gauges and a histogram of waits for
//!   the crate `metrics`, with bounded labels.
//! - `conformance`: [tests](store::Store#a-store-of-your-own) for a store of your own, in the module `store::conformance`.
//! - `redis-tls`, `postgres-tls`, `mysql-tls`: TLS, when the URL of the store asks for it (`rediss://`, `sslmode=require`,
//!   `require_ssl=true`). The server's certificate and its host name are always checked, by rustls, with the certificates of the
//!   system or given ones (`root_certificates`). The features compile ring, and need a C compiler.
//! - `reqwest`: `OutboundLayer::reqwest`, a layer around a `reqwest::Client`. It turns no feature of reqwest on.
//! - `full`: all features except `conformance`, `reqwest` and those of TLS.
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
#[cfg(test)]
#[path = "../tests/integration/fuzzed/corpus.rs"]
mod corpus;
mod decision;
mod error;
mod event;
mod exchange;
mod flow;
// For `fuzz/`, which compiles the crate with this `cfg`.
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
// Documentation only.
#[cfg(any(doc, doctest))]
pub mod guide;
#[cfg(feature = "http")]
pub mod layers;
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
