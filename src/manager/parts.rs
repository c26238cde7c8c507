//! The manager itself: how it begins and ends, its lock, and its observers.
//!
//! The permit of a rate releases nothing when it is dropped, and few are settled. A handle in each permit would take two atomic
//! writes for every grant, a quarter of the cost of a decision. So the permit keeps only the random part of its id, by which its
//! manager is found among the [registered ones](Manager::find).

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64};
use std::sync::{Arc, LazyLock, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::store::StoreLink;
use crate::core::gate::Gate;
use crate::core::gate::plan::Plan;
use crate::core::queue::answers::Answers;
use crate::core::schedule::{Options, Schedule};
use crate::core::suspension::AllKeysHold;
use crate::core::word::packed_rate::MAX_PLACES;
use crate::event::EventKind;
use crate::manager::channels::RequestOptions;
use crate::manager::lock::guard::{self, Guarded, PeekGuard, Source};
use crate::manager::lock::state::State;
use crate::manager::lock::word::WordRate;
use crate::manager::time::Reading;
use crate::manager::time::clock::{Clock, ClockOrigin, TimeSource};
use crate::manager::time::driver::TimerHost;
use crate::observe::{LimiterEvent, Observers, WaitSpan, WaitStart};
use crate::snapshot::KeyTotals;
use crate::strategy::Moment;

/// The state under the lock. While it exists, the [word](crate::manager::lock::word) is shut.
pub(super) type Locked<'a> = guard::Locked<'a, PerPlan>;

/// The manager of one limiter or one key. As long as no request of a key with plain places has waited, this is all of its manager:
/// with the counts of the `Arc` around it, one cache line. With a state from the start, each of a million keys with a place in use
/// would take about 540 bytes instead of 91 (W5 in BENCHMARKS.md).
#[derive(Debug)]
#[repr(C)] // the word first: see `Guarded`
pub(crate) struct Manager {
    pub(super) state: Guarded<PerPlan>,
    number: Number,
    /// How many requests were denied while there was no state that counts them.
    pub(super) denied: AtomicU16,
}

/// What is allocated with the state, and used without the lock.
#[derive(Debug, Default)]
pub(crate) struct OutsideLock {
    /// The answers of the schedule. Set when an answer is first looked at.
    pub(super) answers: OnceLock<Arc<Answers>>,
    pub(super) observer: Observers,
}

/// What the managers of many keys have in common. A limiter without keys has its own.
#[derive(Debug)]
pub(crate) struct PerPlan {
    /// The plan that the managers begin with.
    pub(crate) plan: Arc<Plan>,
    options: Arc<Options>,
    pub(super) origin: Arc<PerLimiter>,
    /// The random part of the permit ids of manager number 0.
    id_prefix: u64,
    /// The clock of a new state.
    clock: Mutex<Clock>,
    pub(super) time_source: TimeSource,
    /// Whether time mattered to the latest request under a lock.
    reads_clock: AtomicBool,
    /// Whether the latest `acquire` under a lock had to wait: see `InChannel::acquire`.
    pub(super) has_waited: AtomicBool,
    /// Whether there are observers.
    pub(super) observed: bool,
    /// Set for a registered manager, whose number is 0.
    pub(super) registered: Option<Registered>,
}

/// What the managers of all keys of one keyed limiter share.
#[derive(Debug)]
pub(crate) struct PerLimiter {
    pub(crate) name: Option<Arc<str>>,
    /// The wall clock at [`Moment::START`].
    pub(crate) since_epoch: Duration,
    pub(crate) timer_host: TimerHost<Manager>,
    /// The way to the store that has the limits, if they are in one. Each key of such a limiter has a `PerLimiter` for itself.
    pub(crate) store_link: Option<Arc<StoreLink>>,
}

/// What only a registered manager has: its word decides rates. Rates in a store are decided there. The manager of a key does not need
/// a word: while the key is idle, its rate is decided in the table, and a key with a manager mostly has waiters.
#[derive(Debug)]
pub(super) struct Registered {
    /// The origin of the clock that the limiter was built with. Readings of it need no lock.
    pub(super) clock: ClockOrigin,
    pub(super) rate: WordRate,
    /// How many requests were denied by the word.
    pub(super) denied: AtomicU64,
}

/// The number of a manager among those of one limiter, in 48 bits: at a million new managers a second, it lasts for nine years.
#[derive(Debug, Clone, Copy)]
struct Number([u8; 6]);

impl PerPlan {
    pub(crate) fn new(
        plan: Arc<Plan>,
        options: Arc<Options>,
        origin: Arc<PerLimiter>,
        id_prefix: u64,
        clock: Clock,
    ) -> Self {
        let is_registered =
            matches!(origin.timer_host, TimerHost::Own { .. }) && origin.store_link.is_none();
        let registered = || Registered {
            clock: clock.origin(),
            rate: WordRate::default(),
            denied: AtomicU64::new(0),
        };
        Self {
            registered: is_registered.then(registered),
            time_source: clock.source(),
            observed: options.observed,
            reads_clock: AtomicBool::new(false),
            has_waited: AtomicBool::new(false),
            clock: Mutex::new(clock),
            plan,
            options,
            origin,
            id_prefix,
        }
    }

    /// A copy for managers that begin with another plan.
    pub(crate) fn with_plan(&self, plan: Arc<Plan>) -> Self {
        Self::new(
            plan,
            Arc::clone(&self.options),
            Arc::clone(&self.origin),
            self.id_prefix,
            self.clock(),
        )
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

    pub(crate) fn clock(&self) -> Clock {
        self.clock.lock().clone()
    }

    pub(crate) fn schedule(&self, gate: Gate) -> Schedule {
        Schedule::new(gate, Arc::clone(&self.options))
    }
}

impl Source for PerPlan {
    type State = State;
    type OutsideLock = OutsideLock;

    fn state(&self) -> (State, OutsideLock) {
        let clock = self.clock();
        let gate = Gate::new(Arc::clone(&self.plan), clock.latest(), false);
        let state = State::new(self.schedule(gate), clock);
        (state, OutsideLock::default())
    }

    #[inline(always)]
    fn rate(&self) -> Option<&WordRate> {
        self.registered.as_ref().map(|registered| &registered.rate)
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
    pub(crate) fn open(
        common: Arc<PerPlan>,
        number: u64,
        schedule: Schedule,
        clock: Clock,
        observer: Observers,
    ) -> Arc<Self> {
        let outside_lock = OutsideLock {
            observer,
            ..OutsideLock::default()
        };
        let state = Guarded::new(common, State::new(schedule, clock), outside_lock);
        let manager = Arc::new(Self::new(state, number));
        if manager.is_registered() {
            registered_managers().insert(manager.id_prefix(), Arc::downgrade(&manager));
        }
        manager
    }

    /// The manager of a new key, after the grant of this fence at `now`. A manager of plain places is only a word, if it has no
    /// observer and nothing holds requests back.
    pub(crate) fn of_new_key(
        common: Arc<PerPlan>,
        number: u64,
        fence: u64,
        clock: &Clock,
        observer: Observers,
        hold: Option<AllKeysHold>,
    ) -> Arc<Self> {
        if let Some(places) = common.plan.plain_places()
            && places <= MAX_PLACES
            && !observer.is_some()
            && hold.is_none()
        {
            *common.clock.lock() = clock.clone();
            return Arc::new(Self::new(Guarded::of_places(common, places, fence), number));
        }
        let (plan, states) = (Arc::clone(&common.plan), std::iter::empty());
        let gate = Gate::resume(plan, states, fence, clock.latest());
        Self::of_key(common, number, gate, clock, observer, hold)
    }

    /// The manager of a key whose usage is in the gate.
    pub(crate) fn of_key(
        common: Arc<PerPlan>,
        number: u64,
        gate: Gate,
        clock: &Clock,
        observer: Observers,
        hold: Option<AllKeysHold>,
    ) -> Arc<Self> {
        let schedule = common.schedule(gate).held_back(hold.unwrap_or_default());
        Self::open(common, number, schedule, clock.clone(), observer)
    }

    /// The registered manager with this random part of permit ids; `None` when it was dropped.
    pub(crate) fn find(id_prefix: u64) -> Option<Arc<Self>> {
        registered_managers().get(&id_prefix)?.upgrade() // unlocked before the manager is used or dropped
    }

    fn new(state: Guarded<PerPlan>, number: u64) -> Self {
        Self {
            state,
            number: Number::new(number),
            denied: AtomicU16::new(0),
        }
    }

    pub(super) fn common(&self) -> &Arc<PerPlan> {
        self.state.common()
    }

    /// The random part of permit ids.
    pub(crate) fn id_prefix(&self) -> u64 {
        self.common().id_prefix(self.number.get())
    }

    /// Whether a permit that holds nothing finds its manager by the random part of its id. The manager of a key, and one whose limits
    /// are in a store, is not registered, because it may be dropped and built again soon: its permits hold it.
    pub(crate) fn is_registered(&self) -> bool {
        self.common().registered.is_some()
    }

    pub(crate) fn name(&self) -> Option<&Arc<str>> {
        self.common().origin.name.as_ref()
    }

    pub(super) fn timer_host(&self) -> &TimerHost<Self> {
        &self.common().origin.timer_host
    }

    #[inline(always)]
    pub(super) fn lock(&self) -> Locked<'_> {
        self.state.lock()
    }

    /// Reads the clock for a new request if it is likely to be needed. That is done before the lock is taken, so that no other thread
    /// waits for it. A `reading` that was just taken is used.
    #[inline(always)]
    pub(super) fn read_before_lock(&self, reading: Option<Reading>) -> Option<Reading> {
        let common = self.common();
        reading.or_else(|| {
            common
                .reads_clock
                .load(Relaxed)
                .then(|| common.time_source.now())
        })
    }

    /// The present moment for a new request, under the lock, with a reading that was taken [just before](Self::read_before_lock). If
    /// time does not matter to what is decided, the clock is not read.
    ///
    /// The caller takes the lock. A function that took it and returned it would move it through memory, which stalls: that took 15 of
    /// the 98 ns of a request with a TTL.
    #[inline(always)]
    pub(super) fn now_since(&self, reading: Option<Reading>, state: &mut State) -> Moment {
        let follows_time = state.schedule.follows_time();
        if follows_time != reading.is_some() {
            self.common().reads_clock.store(follows_time, Relaxed);
        }
        match reading {
            _ if !follows_time => state.clock.latest(),
            Some(reading) => state.clock.now_since(reading),
            None => state.clock.now(),
        }
    }

    /// A [peek](Guarded::peek) at the state, and the present moment; a word of a rate needs a `reading`. Also `None` if the
    /// reading is behind the latest one under the lock: it has lost a race, or is of another clock, so the clock must be read
    /// again.
    #[inline(always)]
    pub(super) fn peek_at(
        &self,
        reading: Option<Reading>,
    ) -> Option<(PeekGuard<'_, State>, Moment)> {
        let state = self.state.peek()?;
        let latest = state.clock.latest();
        let now = if self.state.word.decides_rate() {
            let Registered { clock, rate, .. } = self.common().registered.as_ref()?;
            Moment::from_nanos(rate.present(clock.moment(reading?)?.nanos())?)
        } else {
            latest
        };
        (now >= latest).then_some((state, now))
    }

    /// Whether observers get the events of this manager.
    #[inline(always)]
    pub(crate) fn is_observed(&self) -> bool {
        self.common().observed
    }

    /// Reports an event that the core has not caused.
    pub(crate) fn report_if_observed(&self, event: impl FnOnce() -> EventKind) {
        if self.is_observed() {
            self.report(event());
        }
    }

    /// Reports an event to the observers. Called outside every lock.
    pub(super) fn report(&self, mut event: EventKind) {
        event.complete_id(self.id_prefix());
        let observer = &self.state.outside_lock().observer;
        observer.emit(&LimiterEvent {
            limiter: self.name(),
            key: None,
            kind: &event,
        });
    }

    /// Records that a request waits from now on. Returns the data that observers keep about it. Called outside every lock.
    #[cold]
    #[inline(never)]
    pub(crate) fn begin_wait(&self, options: &RequestOptions) -> Option<WaitSpan> {
        let &RequestOptions {
            cost,
            timeout,
            priority,
            caller,
            ..
        } = options;
        self.state.outside_lock().observer.open(&WaitStart {
            limiter: self.name(),
            key: None,
            cost,
            priority,
            flow: options.flow_id(),
            timeout,
            requested_in: caller,
        })
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        if let Some(link) = &self.common().origin.store_link {
            link.counted.lock().add(KeyTotals {
                in_flight: 0,
                queued: 0,
                ..self.totals()
            });
        }
        if self.is_registered() {
            registered_managers().remove(&self.id_prefix());
        }
        if !self.state.is_only_a_word() {
            self.timer_host().dismiss(self);
        }
    }
}

/// The registered managers, by the random part of their permits' ids.
fn registered_managers() -> MutexGuard<'static, HashMap<u64, Weak<Manager>>> {
    static MANAGERS: LazyLock<Mutex<HashMap<u64, Weak<Manager>>>> = LazyLock::new(Mutex::default);
    MANAGERS.lock()
}
