//! The guide: a page for each job. Start with [which limit to choose](choosing), or from [the limiter that you know](coming_from).
//! The sidebar is in alphabetical order; this table is in the order in which to read.
//!
//! | page | what it answers |
//! |---|---|
//! | [choosing] | which limit, why `100/min` admits 199 in its first minute, costs |
//! | [waiting] | who is next, priorities, fair shares between tenants, bounded queues, streams |
//! | [outbound] | calls to an API, a database or a model; 429s and retries |
//! | [server] | layers in front of axum, hyper and tonic |
//! | [replicas] | limits that many processes share, and what happens when the store is down |
//! | [testing] | tests with a paused clock, in which an hour takes no time |
//! | [operating] | events, metrics, alarms, tuning |
//! | [shutdown] | closing a limiter, and waiting for the last permit |
//! | [calls] | which methods each type of limiter has, and what to use where one is missing |
//! | [coming_from] | governor, tokio's `Semaphore`, leaky-bucket, tower and others: before and after |
//! | [questions] | what goes wrong, and why |

#[doc = include_str!("guide/calls.md")]
pub mod calls {}
#[doc = include_str!("guide/choosing.md")]
#[doc = include_str!("../docs/timelines.svg")]
#[doc = include_str!("guide/choosing_after.md")]
pub mod choosing {}
#[doc = include_str!("guide/coming_from.md")]
pub mod coming_from {}
#[doc = include_str!("guide/operating.md")]
pub mod operating {}
#[doc = include_str!("guide/outbound.md")]
#[cfg_attr(feature = "http", doc = include_str!("guide/outbound_http.md"))]
pub mod outbound {}
#[doc = include_str!("guide/questions.md")]
pub mod questions {}
#[doc = include_str!("guide/replicas.md")]
pub mod replicas {}
#[doc = include_str!("guide/server.md")]
#[cfg_attr(feature = "http", doc = include_str!("guide/server_http.md"))]
pub mod server {}
#[doc = include_str!("guide/shutdown.md")]
pub mod shutdown {}
#[doc = include_str!("guide/testing.md")]
pub mod testing {}
#[doc = include_str!("guide/waiting.md")]
pub mod waiting {}
