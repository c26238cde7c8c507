//! The manager itself, and its lock.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::clock::Clock;
use super::driver::TimerHost;
use super::state::State;
use crate::core::answers::Answers;
use crate::core::schedule::Schedule;
use crate::observe::Observer;
use crate::strategy::Moment;

#[derive(Debug)]
pub(crate) struct Manager {
    state: Mutex<State>,
    /// Those of the schedule, from the first look at an answer on.
    pub(super) answers: OnceLock<Arc<Answers>>,
    /// Whether the latest `acquire` had to wait: see [`Manager::acquire`].
    pub(super) has_waited: AtomicBool,
    /// The random part of permit ids.
    id_prefix: u64,
    pub(super) observer: Observer,
    pub(super) origin: Arc<Origin>,
}

/// What the managers of all keys of one keyed limiter share.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) name: Option<Arc<str>>,
    /// The wall clock at [`Moment::START`].
    pub(crate) since_epoch: Duration,
    pub(crate) timer_host: TimerHost<Manager>,
}

impl Manager {
    pub(super) fn new(schedule: Schedule, clock: Clock, id_prefix: u64, origin: Arc<Origin>, observer: Observer) -> Self {
        let state = Mutex::new(State::new(schedule, clock));
        Self { state, answers: OnceLock::new(), has_waited: AtomicBool::new(false), id_prefix, origin, observer }
    }

    /// The random part of permit ids.
    pub(crate) fn id_prefix(&self) -> u64 {
        self.id_prefix
    }

    /// Whether a permit that holds nothing finds its manager by the random part of its id. The manager of a key is not
    /// registered, because it may be dropped and built again soon.
    pub(crate) fn is_registered(&self) -> bool {
        matches!(self.origin.timer_host, TimerHost::Own(_))
    }

    pub(crate) fn name(&self) -> Option<&Arc<str>> {
        self.origin.name.as_ref()
    }

    /// No code of this crate panics under the lock, and no foreign code runs there. If one did panic, to go on is better than a
    /// limiter that fails for ever.
    #[inline(always)]
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock_now(&self) -> (MutexGuard<'_, State>, Moment) {
        let mut state = self.lock();
        let now = state.now();
        (state, now)
    }
}
