//! Bounds how much happens at once and how fast.
//!
//! Programs that call others, and programs that are called, `acquire().await` a [`Permit`], a guard that gives its place back on
//! drop. What is bounded is a [`Policy`]: one limit or several that must all admit.
//!
//! ```
//! use std::time::Duration;
//! use tollgate::{Limiter, MaxConcurrency, Policy, Throttle};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // At most 8 at once, and at most 200 a second of which 10 may come in one go.
//! let policy = Policy::from(MaxConcurrency::new(8)).and(Throttle::every(Duration::from_millis(5)).burst(10));
//! let limiter = Limiter::new(policy)?;
//!
//! let permit = limiter.acquire().await?; // waits its turn
//! // … call the API …
//! drop(permit); // the next one may go
//! # Ok(())
//! # }
//! ```
//!
//! # Which limit to choose
//!
//! | you want | take | worst burst |
//! |---|---|---|
//! | a bound on what is out at once | [`MaxConcurrency`] | its limit |
//! | the same, and leaked permits back | [`MaxConcurrency::ttl`] | its limit |
//! | an even pace | [`Throttle`] | one |
//! | a pace that lets bursts through and keeps the rate although timers are late | [`Throttle::burst`] | the burst, at once |
//! | the same, said as a rate | [`TokenBucket`] | the burst, at once |
//! | what an API counts "per minute" | [`FixedWindow`] | twice the limit, around a boundary |
//! | at most so many in any minute | [`SlidingWindow::log`]; above a thousand [`SlidingWindow::counter`] | the limit; 2 × limit − 1 |
//! | to lock out who keeps on asking | [`Penalty`] | its threshold |
//! | a concurrency that finds what the server bears | [`MaxConcurrency::adapt`] | its limit of the moment |
//! | several of them | [`Policy::and`] | that of the tightest |
//!
//! A policy can be [text](Policy#as-text) as well: `"8 concurrent ttl 30s and 100/min"`.
//!
//! # How to ask
//!
//! | you want | call |
//! |---|---|
//! | to wait | [`Limiter::acquire`], [`acquire_many`](Limiter::acquire_many) |
//! | with a priority or a timeout | [`Limiter::request`] |
//! | not to wait | [`Limiter::try_acquire`], [`check`](Limiter::check) |
//! | to run a future under a permit | [`Limiter::run`] |
//! | to pace a stream, or to work on its items concurrently | [`StreamLimitExt`] |
//! | from a thread outside the runtime | [`Limiter::blocking_acquire`] |
//! | a bounded queue, a name, events | [`Limiter::builder`] |
//! | a limiter for each client, user, endpoint | [`KeyedLimiter`] |
//! | several limiters in one go, all or none | [`LimiterGroup`] |
//!
//! # Afterwards
//!
//! | you want | call |
//! |---|---|
//! | to say what the work has cost in the end | [`Permit::settle`]; [`Permit::refund`] when it never started |
//! | to say how it went, so that a concurrency can adapt | [`Permit::report`] |
//! | another policy, at run time | [`Limiter::set_policy`] |
//! | everybody to wait | [`Limiter::pause_for`], [`resume`](Limiter::resume) |
//! | to heed what an upstream said (429, remaining, reset) | [`Limiter::apply_upstream_signal`] |
//! | to charge a key or let it off | [`KeyedLimiter::penalize`], [`reward`](KeyedLimiter::reward), [`reset`](KeyedLimiter::reset) |
//! | a policy from a configuration file | `"8 concurrent and 100/min".parse()`: see [`Policy`](Policy#as-text) |
//!
//! # How it works
//!
//! ```text
//!  caller ── acquire(cost) ──► Gate ── admitted, nobody waiting ─────────────────────────► Permit
//!                               │ must wait                                                  ▲  │ drop
//!                               ▼                                                            │  ▼
//!                           Queue (priority, then arrival) ──── Gate ── a slot of its own ───┘  Gate
//!                               ▲                                                               │
//!                               └── serve the front ◄── release, by whoever releases ◄──────────┘
//!                                                   ◄── time, by one task with one timer:
//!                                                       next grant, next reclaim, next deadline
//! ```
//!
//! A gate is a policy with its state; each limit is a pure function from (parameters, state, now, cost) to a verdict that says
//! when to come back. A caller who need not wait is decided in place. Only the front of the queue is asked, so one timer is
//! enough for all who wait, and a large request is not starved by small ones behind it.
//!
//! A key of a [`KeyedLimiter`] is that state and nothing else, a word or two for each limit, as long as nobody waits for it; one
//! task with one timer serves all keys that somebody waits for.
//!
//! # What holds
//!
//! 1. **Never over**: at the instant of every decision, no limit holds more than it allows.
//! 2. **Never lost**: a dropped `acquire` future, at any await point, costs nobody anything.
//! 3. **In order**: equal priority is served in arrival order, and nobody passes those who wait.
//! 4. **All or none**: when one limit of a policy denies, no other has been charged, and the denial names it.
//! 5. **Reclaim once**: a permit whose TTL passed is reclaimed on time; its late drop changes nothing.
//! 6. **Idle is free**: with no waiter and no TTL outstanding nothing wakes (but, once at most, the timer of a permit that came
//!    back before its TTL); a queue costs one timer; a grant costs two polls.
//! 7. **Time is honest**: waiting follows tokio's clock, paused ones too; a retry-after is exact to the nanosecond.
//! 8. **The runtime may go**: a limiter in a `static` outlives the runtime that first waited on it.
//! 9. **Bad input is an error**: typed, with the value in it, never a panic and never an endless wait.
//!
//! The files in `tests/` hold each of them by name.
//!
//! # Features
//!
//! None is on unless asked for. It runs on tokio (its `rt`, `sync` and `time`).
//!
//! - `serde`: [`Policy`], [`Limit`] and [`Rate`] serialise as [text](Policy#as-text), and deserialise from it.
//! - `full`: all of them.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod builder;
mod carry_over;
mod contain_panic;
mod core;
mod decision;
mod error;
mod event;
mod group;
mod keyed;
mod limiter;
mod manager;
mod observe;
mod overflow;
mod permit;
mod policy;
mod priority;
mod rate;
mod snapshot;
mod strategy;
mod stream;
mod text;
mod upstream;

pub use acquire::{Acquire, PermitRequest};
pub use builder::LimiterBuilder;
pub use carry_over::UsageCarryOver;
pub use decision::Decision;
pub use error::{AcquireError, ConfigError, PriorityError, RunError, TryAcquireError};
pub use event::{LimiterEvent, ShedReason};
pub use group::{GroupError, GroupPermit, LimiterGroup};
pub use keyed::{KeySnapshot, KeyedLimiter, KeyedLimiterBuilder, KeyedLimiterEvent, KeyedPermitRequest, WhenFull};
pub use limiter::Limiter;
pub use overflow::Overflow;
pub use permit::Permit;
pub use policy::{Limit, Policy};
pub use priority::Priority;
pub use rate::Rate;
pub use snapshot::LimiterSnapshot;
pub use strategy::{
    Adapt, Align, FixedWindow, MaxConcurrency, Outcome, Penalty, SlidingMethod, SlidingWindow, Throttle, TokenBucket,
};
pub use stream::{ForEachPermitted, StreamLimitExt, Throttled, WithPermits};
pub use text::{ParseError, ParseErrorKind};
pub use upstream::UpstreamSignal;
