//! The manager of one limiter: the schedule under a lock, and the callers and tasks that act for it.
//!
//! | channel | carries | lives in | file |
//! |---|---|---|---|
//! | **in** | requests that must wait | the queue under the manager's lock | `in_channel` |
//! | **out** | the answer to each waiter | a slot of the waiter's own; a place is taken out without the lock | `out_channel` |
//! | **release** | places that come back | nowhere: the caller that releases takes the lock and serves the front | `release_channel` |
//!
//! A channel here is a queue or a slot of the manager's, and the caller performs the manager's step itself, so no task
//! switch is paid. Only the passing of time has no caller: the [driver] reports it, a task in the waiters' runtime.
//!
//! While no request waits, no channel is needed: then the [word] before the lock decides, if the policy is one plain concurrency,
//! pace or fixed window. The manager of a key with plain concurrency is little more than this word, until somebody needs what lies
//! under the lock.
//!
//! From the bottom up: [`time_source`] and [`clock`], [`word`] and [`guard`] (the lock and what is before it), [`state`] (what lies under the lock),
//! [`driver`] and [`shared_driver`] (the timers), [`lock`] (the manager itself), [`apply`] (what is done after unlocking), and
//! above it the callers' operations.

mod acquire_all;
mod answer;
mod apply;
mod ask;
mod ask_once;
mod carried;
mod carrier;
mod clock;
mod control;
mod driven;
mod driver;
mod guard;
mod in_channel;
mod kept_keys;
mod keyed;
mod leader;
mod lifecycle;
mod lock;
mod observed_wait;
mod out_channel;
mod registry;
mod release_channel;
mod request_options;
mod reset;
mod run_due;
mod runtimes;
mod shared_driver;
mod state;
mod store_link;
mod sync;
mod time_source;
mod timekeeper;
mod timers;
mod watch;
mod watchers;
mod word;

pub(crate) use self::acquire_all::try_acquire_all;
pub(crate) use self::answer::{FromGrant, TimedGrant};
pub(crate) use self::apply::Unapplied;
pub(crate) use self::clock::{Clock, ClockOrigin};
pub(crate) use self::driver::{OwnDrivers, TimerHost};
pub(crate) use self::keyed::{Last, Rest};
pub(crate) use self::lifecycle::ManagerParts;
pub(crate) use self::lock::{Common, Manager, Origin};
pub(crate) use self::request_options::{RequestOptions, nonzero_nanos};
pub(crate) use self::shared_driver::SharedDriver;
pub(crate) use self::store_link::StoreLink;
pub(crate) use self::time_source::TimeSource;
pub(crate) use self::watch::Watch;
