//! The manager itself, and its lock.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU16};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::clock::{Clock, FirstClock};
use super::driver::TimerHost;
use super::guard::{self, Guarded, Source};
use super::state::State;
use super::store_link::StoreLink;
use super::time_source::{Reading, TimeSource};
use super::word::{Kind, Rate};
use crate::core::answers::Answers;
use crate::core::gate::Gate;
use crate::core::plan::Plan;
use crate::core::schedule::{Options, Schedule};
use crate::observe::Observers;
use crate::strategy::Moment;

/// The state under the lock. While it exists, the [word](super::word) is shut.
pub(super) type Locked<'a> = guard::Locked<'a, Common>;

/// The state under the lock, behind an open word.
pub(super) type Looked<'a> = guard::Looked<'a, State>;

/// Of the manager of a key with places out, this is all, as long as no request has waited: with the counts of the `Arc` around it,
/// one cache line.
#[derive(Debug)]
#[repr(C)] // the word first: see `Guarded`
pub(crate) struct Manager {
    pub(super) state: Guarded<Common>,
    number: Number,
    /// How many requests were denied while there was no state that counts them.
    pub(super) denied: AtomicU16,
}

/// What is allocated with the state, and used without the lock.
#[derive(Debug, Default)]
pub(super) struct Beside {
    /// Those of the schedule, from the first look at an answer on.
    pub(super) answers: OnceLock<Arc<Answers>>,
    pub(super) observer: Observers,
}

/// What the managers of many keys have in common. A limiter that is no key has one for itself.
#[derive(Debug)]
pub(crate) struct Common {
    /// The plan that the managers begin with.
    pub(crate) plan: Arc<Plan>,
    options: Arc<Options>,
    origin: Arc<Origin>,
    /// The random part of the permit ids of manager number 0.
    id_prefix: u64,
    /// The clock of a new state.
    clock: Mutex<Clock>,
    time_source: TimeSource,
    /// Whether time mattered to the latest request under a lock.
    reads_clock: AtomicBool,
    /// Whether the latest `acquire` under a lock had to wait: see [`Manager::acquire`].
    pub(super) has_waited: AtomicBool,
    /// Whether anybody is told of requests that wait.
    pub(super) observed: bool,
    /// Of a registered manager, whose number is 0.
    pub(super) registered: Option<Registered>,
    /// Where the limits are in a store.
    pub(super) store_link: Option<Arc<StoreLink>>,
}

/// What the managers of all keys of one keyed limiter share.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) name: Option<Arc<str>>,
    /// The wall clock at [`Moment::START`].
    pub(crate) since_epoch: Duration,
    pub(crate) timer_host: TimerHost<Manager>,
}

/// What only a registered manager has: its word decides rates. A key's rate is decided in its table while it is idle, and a key
/// with a manager mostly has waiters.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) clock: FirstClock,
    pub(super) rate: Rate,
}

/// The number of a manager among those of one limiter, in 48 bits: at a million new managers a second, it lasts for nine years.
#[derive(Debug, Clone, Copy)]
struct Number([u8; 6]);

impl Common {
    pub(crate) fn new(plan: Arc<Plan>, options: Arc<Options>, origin: Arc<Origin>, id_prefix: u64, clock: Clock) -> Self {
        let is_registered = matches!(origin.timer_host, TimerHost::Own(_));
        let registered = is_registered.then(|| Registered { clock: clock.first(), rate: Rate::default() });
        let [reads_clock, has_waited] = [false; 2].map(AtomicBool::new);
        let time_source = clock.source();
        let clock = Mutex::new(clock);
        let (observed, store_link) = (options.observed, None);
        Self { plan, options, origin, id_prefix, clock, time_source, reads_clock, has_waited, observed, registered, store_link }
    }

    /// The same for one manager whose limits are in a store. It is registered, although its driver serves all keys.
    pub(crate) fn with_store_link(self, link: Arc<StoreLink>) -> Self {
        let registered = Some(Registered { clock: self.clock().first(), rate: Rate::default() });
        Self { store_link: Some(link), registered, ..self }
    }

    /// The same for managers that begin with another plan.
    pub(crate) fn with_plan(&self, plan: Arc<Plan>) -> Self {
        Self::new(plan, Arc::clone(&self.options), Arc::clone(&self.origin), self.id_prefix, self.clock())
    }

    pub(crate) fn since_epoch(&self) -> Duration {
        self.origin.since_epoch
    }

    /// The random part of the permit ids of the manager with this number.
    pub(crate) fn id_prefix(&self, number: u64) -> u64 {
        /// An id, as a UUID, has no room for some of the bits below.
        const SHIFT: u32 = 16;
        self.id_prefix.wrapping_add(number << SHIFT)
    }

    /// Sets the clock that new states begin with.
    pub(super) fn set_clock(&self, clock: Clock) {
        *self.clock.lock().unwrap_or_else(PoisonError::into_inner) = clock;
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn schedule(&self, gate: Gate) -> Schedule {
        Schedule::new(gate, Arc::clone(&self.options))
    }
}

impl Source for Common {
    type State = State;
    type Beside = Beside;

    fn state(&self) -> (State, Beside) {
        let clock = self.clock();
        let gate = Gate::new(Arc::clone(&self.plan), clock.latest(), false);
        (State::new(self.schedule(gate), clock), Beside::default())
    }

    #[inline(always)]
    fn rate(&self) -> Option<&Rate> {
        self.registered.as_ref().map(|registered| &registered.rate)
    }
}

impl Beside {
    pub(super) fn new(observer: Observers) -> Self {
        Self { observer, answers: OnceLock::new() }
    }
}

impl Number {
    fn new(number: u64) -> Self {
        let [low @ .., _, _] = number.to_le_bytes();
        Self(low)
    }

    fn get(self) -> u64 {
        let Self([a, b, c, d, e, f]) = self;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }
}

impl Manager {
    pub(super) fn new(state: Guarded<Common>, number: u64) -> Self {
        Self { state, number: Number::new(number), denied: AtomicU16::new(0) }
    }

    pub(super) fn common(&self) -> &Arc<Common> {
        self.state.common()
    }

    /// The random part of permit ids.
    pub(crate) fn id_prefix(&self) -> u64 {
        self.common().id_prefix(self.number.get())
    }

    /// Whether a permit that holds nothing finds its manager by the random part of its id. The manager of a key is not
    /// registered, because it may be dropped and built again soon.
    pub(crate) fn is_registered(&self) -> bool {
        self.common().registered.is_some()
    }

    pub(crate) fn name(&self) -> Option<&Arc<str>> {
        self.common().origin.name.as_ref()
    }

    pub(super) fn since_epoch(&self) -> Duration {
        self.common().since_epoch()
    }

    pub(super) fn timer_host(&self) -> &TimerHost<Self> {
        &self.common().origin.timer_host
    }

    #[inline(always)]
    pub(super) fn lock(&self) -> Locked<'_> {
        self.state.lock()
    }

    #[inline(always)]
    pub(super) fn time_source(&self) -> TimeSource {
        self.common().time_source
    }

    /// Reads the clock, if that is likely to be needed under the lock: there it would keep others waiting.
    #[inline(always)]
    pub(super) fn read_clock(&self) -> Option<Reading> {
        self.common().reads_clock.load(Relaxed).then(|| self.time_source().now())
    }

    /// The present moment under the lock, by a reading that was taken just before it.
    #[inline(always)]
    pub(super) fn now_at(&self, state: &mut Locked<'_>, reading: Option<Reading>) -> Moment {
        let now = state.now_since(reading);
        let reads_clock = state.schedule.follows_time();
        if reads_clock != reading.is_some() {
            self.common().reads_clock.store(reads_clock, Relaxed);
        }
        now
    }

    /// A [look](Guarded::look) at the state, and the present moment; `now` is a reading of the first clock, where one was taken.
    /// `None`, too, if that is behind the latest reading under the lock: it has lost a race, or is of another clock, so the clock
    /// must be read again.
    #[inline(always)]
    pub(super) fn look_at(&self, now: Option<Moment>) -> Option<(Looked<'_>, Moment)> {
        let state = self.state.look()?;
        let latest = state.clock.latest();
        let now = match self.state.kind() {
            Kind::Places => latest,
            Kind::Rate => Moment::from_nanos(self.state.present(now?.nanos())?),
        };
        (now >= latest).then_some((state, now))
    }

    /// The moment of a reading of the first clock.
    #[inline(always)]
    pub(super) fn moment(&self, reading: Reading) -> Option<Moment> {
        self.common().registered.as_ref()?.clock.moment(reading)
    }

    pub(super) fn lock_now(&self) -> (Locked<'_>, Moment) {
        let mut state = self.lock();
        let now = state.now();
        (state, now)
    }
}
