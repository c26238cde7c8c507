//! The manager of one limiter: the schedule under a lock, and the callers and tasks that act for it.
//!
//! | channel | carries | lives in | file |
//! |---|---|---|---|
//! | **in** | requests that must wait | the queue under the manager's lock | `channels/in_channel` |
//! | **out** | the answer to each waiter | a slot of the waiter's own; a place is taken out without the lock | `channels/out_channel` |
//! | **release** | released places | nowhere: the caller that releases takes the lock and serves the front | `channels/release_channel` |
//!
//! A channel here is a queue or a slot of the manager. The caller performs the manager's step itself, so there is no task switch.
//! Only the passing of time has no caller: the [driver](time::driver), a task in the waiters' runtime, reports it.
//!
//! While no request waits, no channel is needed: then the [word](lock::word) before the lock decides, if the policy is one plain
//! concurrency, pace or fixed window. The manager of a key with plain concurrency is little more than this word, until a caller needs
//! what lies under the lock.
//!
//! From the bottom up: [`time`] (clock, driver, timers), [`lock`] (the word, the guard, the state), [`parts`] (the manager itself),
//! [`visit`] (one visit to the lock, and what is done after it), and above it [`channels`], [`store`] and the other operations of
//! callers.

mod channels;
mod control;
mod lock;
mod parts;
mod store;
mod time;
mod visit;

pub(crate) use self::channels::in_channel::try_acquire_all;
pub(crate) use self::channels::out_channel::{FromGrant, TimedGrant};
pub(crate) use self::channels::{RequestOptions, nonzero_nanos};
pub(crate) use self::control::{AtRest, FinalTotals, Watch};
pub(crate) use self::lock::state::{Awaited, Unapplied};
pub(crate) use self::parts::{Manager, PerLimiter, PerPlan};
pub(crate) use self::store::{FollowsStore, StoreLink};
pub(crate) use self::time::Reading;
pub(crate) use self::time::clock::{Clock, ClockOrigin, TimeSource};
pub(crate) use self::time::driver::{SharedDriver, TimerHost};
