//! The manager itself, and its lock.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::clock::{Clock, FirstClock};
use super::driver::TimerHost;
use super::guard::{self, Guarded};
use super::state::State;
use super::time_source::{Reading, TimeSource};
use super::word::Kind;
use crate::core::answers::Answers;
use crate::core::schedule::Schedule;
use crate::observe::Observer;
use crate::strategy::Moment;

/// The state under the lock. While it exists, the [word](super::word) is shut.
pub(super) type Locked<'a> = guard::Locked<'a, State>;

/// The state under the lock, behind an open word.
pub(super) type Looked<'a> = guard::Looked<'a, State>;

#[derive(Debug)]
#[repr(C)] // the word first: see `Guarded`
pub(crate) struct Manager {
    pub(super) state: Guarded<State>,
    /// Of a registered manager, whose word decides rates. A key's rate is decided in its table while it is idle, and a key with a
    /// manager mostly has waiters.
    pub(super) first_clock: Option<Box<FirstClock>>,
    /// Those of the schedule, from the first look at an answer on.
    pub(super) answers: OnceLock<Arc<Answers>>,
    pub(super) time_source: TimeSource,
    /// Whether time mattered to the latest request under the lock.
    reads_clock: AtomicBool,
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
        let is_registered = matches!(origin.timer_host, TimerHost::Own(_));
        let first_clock = is_registered.then(|| Box::new(clock.first()));
        let time_source = clock.source();
        let state = Guarded::new(State::new(schedule, clock), is_registered);
        Self {
            state,
            first_clock,
            answers: OnceLock::new(),
            time_source,
            reads_clock: AtomicBool::new(false),
            has_waited: AtomicBool::new(false),
            id_prefix,
            origin,
            observer,
        }
    }

    /// The random part of permit ids.
    pub(crate) fn id_prefix(&self) -> u64 {
        self.id_prefix
    }

    /// Whether a permit that holds nothing finds its manager by the random part of its id. The manager of a key is not
    /// registered, because it may be dropped and built again soon.
    pub(crate) fn is_registered(&self) -> bool {
        self.first_clock.is_some()
    }

    pub(crate) fn name(&self) -> Option<&Arc<str>> {
        self.origin.name.as_ref()
    }

    #[inline(always)]
    pub(super) fn lock(&self) -> Locked<'_> {
        self.state.lock()
    }

    /// Reads the clock, if that is likely to be needed under the lock: there it would keep others waiting.
    #[inline(always)]
    pub(super) fn read_clock(&self) -> Option<Reading> {
        self.reads_clock.load(Relaxed).then(|| self.time_source.now())
    }

    /// The present moment under the lock, by a reading that was taken just before it.
    #[inline(always)]
    pub(super) fn now_at(&self, state: &mut Locked<'_>, reading: Option<Reading>) -> Moment {
        let now = state.now_since(reading);
        let reads_clock = state.schedule.follows_time();
        if reads_clock != reading.is_some() {
            self.reads_clock.store(reads_clock, Relaxed);
        }
        now
    }

    /// A [look](Guarded::look) at the state, and the present moment; `now` is a reading of the first clock, where one was taken.
    #[inline(always)]
    pub(super) fn look_at(&self, now: Option<Moment>) -> Option<(Looked<'_>, Moment)> {
        let state = self.state.look()?;
        let now = match self.state.kind() {
            Kind::Places => state.clock.latest(),
            Kind::Rate => Moment::from_nanos(self.state.present(now?.nanos())?),
        };
        Some((state, now))
    }

    /// The moment of a reading of the first clock.
    #[inline(always)]
    pub(super) fn moment(&self, reading: Reading) -> Option<Moment> {
        self.first_clock.as_deref()?.moment(reading)
    }

    pub(super) fn lock_now(&self) -> (Locked<'_>, Moment) {
        let mut state = self.lock();
        let now = state.now();
        (state, now)
    }
}
