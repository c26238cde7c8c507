//! crate
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod arena;
mod builder;
mod clock;
mod decision;
mod driver;
mod error;
mod gate;
mod lease;
mod limiter;
mod manager;
mod observe;
mod permit;
mod policy;
mod queue;
mod schedule;
mod snapshot;
mod strategy;
mod stream;

pub use acquire::{Acquire, Request};
pub use builder::Builder;
pub use decision::Decision;
pub use error::{AcquireError, ConfigError, PriorityError, RunError, TryAcquireError};
pub use limiter::Limiter;
pub use observe::Event;
pub use permit::Permit;
pub use policy::{Limit, Policy};
pub use queue::{Overflow, Priority};
pub use snapshot::Snapshot;
pub use strategy::{Align, FixedWindow, MaxConcurrency, Throttle};
pub use stream::{ForEachPermitted, StreamExt, Throttled, WithPermits};
