//! What lies under a manager's lock: the schedule, its clock, the drivers, and the wakers of those who await a reclaim, the drain or
//! the closing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Waker;

use tokio::runtime::{self, Handle};

use super::guard::BehindWord;
use crate::core::effects::Effects;
use crate::core::queue::WaiterId;
use crate::core::request::Request;
use crate::core::schedule::Schedule;
use crate::core::word::packed_rate::{WordContents, WordValue};
use crate::error::AcquireError;
use crate::manager::time::clock::Clock;
use crate::manager::time::runtimes::Runtimes;
use crate::strategy::Moment;

#[derive(Debug)]
pub(crate) struct State {
    pub(in crate::manager) schedule: Schedule,
    pub(in crate::manager) clock: Clock,
    runtimes: Runtimes,
    /// The moment by which every driver wakes at the latest; [`Moment::NEVER`] if none is to wake.
    pub(in crate::manager) armed: Moment,
    /// Whether time has mattered since the queue was last seen empty. Until then, a waiter may rely on a driver in another
    /// runtime. From then on, every waiter has a driver in its own runtime, because another runtime may exist without being
    /// polled.
    time_matters: bool,
    /// Allocated for the first watcher: each of a million keys may have a manager.
    pub(in crate::manager) watchers: Option<Box<Watchers>>,
}

/// What follows from a visit to the lock. It runs foreign code, so it is [applied](Unapplied::apply) when no lock is held.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Unapplied {
    pub(in crate::manager) effects: Effects,
    /// Whether to wake the drivers, because the next instant that matters is another one.
    pub(in crate::manager) wake_drivers: bool,
    /// The runtime in which to start a driver.
    pub(in crate::manager) start_driver_in: Option<Handle>,
}

impl State {
    pub(in crate::manager) fn new(schedule: Schedule, clock: Clock) -> Self {
        Self {
            time_matters: schedule.follows_time(),
            schedule,
            clock,
            runtimes: Runtimes::NONE,
            armed: Moment::NEVER,
            watchers: None,
        }
    }

    /// The present moment. If it does not matter, the clock is not read: that costs more than the rest of a grant.
    #[inline(always)]
    pub(in crate::manager) fn now(&mut self) -> Moment {
        if self.schedule.reads_clock() {
            self.clock.now()
        } else {
            self.clock.latest()
        }
    }

    /// Sets the timers for the next instant that matters.
    pub(in crate::manager) fn set_timers(&mut self, unapplied: &mut Unapplied) {
        let next = self.schedule.next_wake();
        if next >= self.armed {
            // There is nothing to wake for, so the timer stops. Two timers keep running: the one for a lease that was released in time,
            // and the one for the deadline of a call to a store. Stopping and starting them each time would cost more than the
            // release, and each fires once at most.
            let is_short_lived = self.schedule.outlook().has_timeouts();
            if next == Moment::NEVER && self.armed != Moment::NEVER && !is_short_lived {
                self.armed = Moment::NEVER;
                unapplied.wake_drivers = true;
            }
        } else if self.runtimes.has_driver() {
            self.armed = next;
            unapplied.wake_drivers = true;
        } else {
            // Outside every runtime no driver can be started; the next caller does what is due by then.
            unapplied.start_driver_in = self.ensure_driver_here().ok().flatten();
        }
    }

    /// Wakes all waiters but the `newcomer`, if time matters now and did not before. These waiters may rely on a driver in a
    /// runtime that nothing polls. When they are polled, they start a driver in their own runtime.
    pub(in crate::manager) fn time_begins_to_matter(
        &mut self,
        newcomer: Option<WaiterId>,
        effects: &mut Effects,
    ) {
        if self.time_matters || !self.schedule.follows_time() {
            return;
        }
        self.time_matters = true;
        for waker in self.schedule.waiters.queue.take_wakers(newcomer) {
            effects.wake(Some(waker));
        }
    }

    /// If time does not matter now, requests that join an empty queue may rely on any driver again.
    pub(in crate::manager) fn forget_time_if_queue_is_empty(&mut self) {
        if self.schedule.waiters.queue.is_empty() {
            self.time_matters = self.schedule.follows_time();
        }
    }

    /// Whether a request that joins the queue can rely on the present drivers, and none of them has to wake sooner.
    pub(in crate::manager) fn has_driver(&self, blocking: bool) -> bool {
        self.has_driver_until(self.schedule.next_wake(), blocking)
    }

    #[inline(always)]
    fn has_driver_until(&self, next_wake: Moment, blocking: bool) -> bool {
        next_wake >= self.armed
            && (blocking
                || self.runtimes.has_driver() && (!self.time_matters || self.knows_runtime()))
    }

    /// [`Schedule::enqueue_behind`], if nothing is due and the request can rely on the present drivers.
    #[inline(always)]
    pub(in crate::manager) fn enqueue_behind(
        &mut self,
        now: Moment,
        request: &Request<'_>,
        waker: &mut Option<Waker>,
    ) -> Option<WaiterId> {
        let next_wake = self.schedule.next_wake();
        let is_served = next_wake > now && self.has_driver_until(next_wake, request.blocking);
        if is_served {
            self.schedule.enqueue_behind(request, waker)
        } else {
            None
        }
    }

    /// Whether the caller's runtime has a driver.
    fn knows_runtime(&self) -> bool {
        Handle::try_current().is_ok_and(|handle| self.runtimes.knows(handle.id()))
    }

    /// Makes sure that a driver serves the caller; returns the runtime in which one is to be started.
    ///
    /// While time does not matter, a driver in any runtime will do. Otherwise the caller's runtime gets one.
    pub(in crate::manager) fn ensure_driver_here(
        &mut self,
    ) -> Result<Option<Handle>, AcquireError> {
        if self.runtimes.has_driver() && !self.time_matters {
            return Ok(None);
        }
        match Handle::try_current() {
            Ok(handle) if !self.runtimes.knows(handle.id()) => {
                self.runtimes.enter(handle.id());
                Ok(Some(handle))
            }
            _ if !self.runtimes.has_driver() => Err(AcquireError::NoRuntime),
            _ => Ok(None),
        }
    }

    /// Whether a task awaits the drain, which a release may complete.
    #[inline(always)]
    pub(in crate::manager) fn awaits_drain(&self) -> bool {
        self.watchers.as_ref().is_some_and(|watchers| {
            matches!(
                watchers.wakers.first_key_value(),
                Some(((Awaited::Drain, _), _))
            )
        })
    }

    /// Whether the drain or the closing has happened. A reclaim is an event of its permit.
    pub(in crate::manager) fn has_happened(&self, awaited: Awaited) -> bool {
        match awaited {
            Awaited::Drain => self.schedule.outlook().is_drained(),
            Awaited::CloseToNew => self.schedule.waiters.closed,
            Awaited::Close => self.schedule.waiters.refuses_waiters(),
            Awaited::Reclaim(_) => false,
        }
    }

    /// Wakes the tasks that await a reclaim, a drain or a close that has happened.
    #[cold]
    pub(in crate::manager) fn wake_watchers(&mut self, effects: &mut Effects) {
        let reclaimed = effects.more.iter().flat_map(|more| &more.reclaimed);
        let mut happened: Vec<_> = reclaimed.copied().map(Awaited::Reclaim).collect();
        happened.extend(
            [Awaited::Drain, Awaited::CloseToNew, Awaited::Close]
                .into_iter()
                .filter(|awaited| self.has_happened(*awaited)),
        );
        if let Some(watchers) = &mut self.watchers {
            for awaited in happened {
                while let Some(waker) = watchers.take(awaited) {
                    effects.wake(Some(waker));
                }
            }
        }
        self.drop_unused_watchers();
    }

    /// Frees the watchers if none is left: while they exist, each unlock checks whether their events have happened.
    pub(in crate::manager) fn drop_unused_watchers(&mut self) {
        self.watchers.take_if(|watchers| watchers.wakers.is_empty());
    }

    /// Records that a driver has ended. Returns whether it was the last.
    pub(in crate::manager) fn driver_left(&mut self, runtime: runtime::Id) -> bool {
        self.runtimes.leave(runtime);
        let was_last = !self.runtimes.has_driver();
        if was_last {
            self.armed = Moment::NEVER;
        }
        was_last
    }

    /// Records when every driver wakes. Returns whether other drivers would sleep too long and must be woken.
    pub(in crate::manager) fn rearm(&mut self) -> bool {
        let next = self.schedule.next_wake();
        let sooner = next < self.armed && self.runtimes.drivers() > 1;
        self.armed = next;
        sooner
    }
}

impl BehindWord for State {
    #[inline(always)]
    fn take_over(&mut self, content: WordValue, fence: u64, latest: Option<u64>) {
        self.schedule.take_over(content, fence);
        if let Some(latest) = latest {
            self.clock.was_read(Moment::from_nanos(latest));
        }
    }

    fn put_back(&mut self, units: u64) {
        self.schedule.return_units(units);
    }

    #[inline(always)]
    fn may_hand_over(&self) -> bool {
        self.schedule.fits_word()
    }

    fn hand_over(&mut self) -> Option<(WordContents, u64)> {
        if self.awaits_drain() {
            return None; // a place that is released to an open word wakes no task
        }
        let (opening, fence) = self.schedule.opening(self.clock.latest())?;
        let fits = matches!(opening, WordContents::Places { .. }) || self.clock.is_the_only_one();
        fits.then_some((opening, fence))
    }
}

/// What is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Awaited {
    /// That no request waits, and every place was released.
    Drain,
    /// That new requests are refused.
    CloseToNew,
    /// That all requests are refused, also those that wait.
    Close,
    /// The reclaim of the permit with this fence.
    Reclaim(u64),
}

/// Identifies a watcher among those of all managers.
pub(in crate::manager) type WatcherId = u64;

/// The next id. It is not kept in [`Watchers`], which are dropped while a watcher that was just woken still has its id.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The wakers of the tasks that await a reclaim, the drain or the closing.
///
/// They are taken out under the lock and woken one by one outside it, each with its panic contained. tokio's `Notify` would stop at
/// the first waker that panics.
#[derive(Debug, Default)]
pub(in crate::manager) struct Watchers {
    wakers: BTreeMap<(Awaited, WatcherId), Waker>,
}

impl Watchers {
    /// Registers a waker for the event. `id` is `None` at first and set by this call. Returns the waker that it replaces.
    pub(in crate::manager) fn watch(
        &mut self,
        awaited: Awaited,
        id: &mut Option<WatcherId>,
        waker: Waker,
    ) -> Option<Waker> {
        let id = *id.get_or_insert_with(|| NEXT.fetch_add(1, Relaxed));
        self.wakers.insert((awaited, id), waker)
    }

    pub(in crate::manager) fn unwatch(&mut self, awaited: Awaited, id: WatcherId) -> Option<Waker> {
        self.wakers.remove(&(awaited, id))
    }

    /// The event has happened: takes out one waker to be woken.
    fn take(&mut self, awaited: Awaited) -> Option<Waker> {
        let (&key, _) = self
            .wakers
            .range((awaited, 0)..=(awaited, WatcherId::MAX))
            .next()?;
        self.wakers.remove(&key)
    }

    /// All wakers, so that their tasks look for a driver.
    pub(in crate::manager) fn take_all(self) -> impl Iterator<Item = Waker> + use<> {
        self.wakers.into_values()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::Location;
    use std::thread;
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::runtime::{Builder, Runtime};

    use super::*;
    use crate::core::gate::Gate;
    use crate::core::gate::plan::Plan;
    use crate::core::queue::Options;
    use crate::core::request::Costs;
    use crate::core::suspension::PauseScope;
    use crate::limiter::Limiter;
    use crate::manager::time::clock::TimeSource;
    use crate::policy::Policy;
    use crate::priority::Priority;
    use crate::strategy::{MaxConcurrency, Throttle};

    const SECOND: Duration = Duration::from_secs(1);

    fn at(nanos: u64) -> Moment {
        Moment::from_nanos(nanos)
    }

    fn state(policy: impl Into<Policy>) -> State {
        let plan = Plan::new(policy.into(), Duration::ZERO).unwrap();
        let gate = Gate::new(plan, Moment::START, false).prefer_line(Moment::START);
        State::new(
            Schedule::new(gate, Options::default()),
            Clock::new(TimeSource::TOKIO),
        )
    }

    fn request() -> Request<'static> {
        Request {
            costs: Costs::plain(1),
            priority: Priority::NORMAL,
            deadline: Moment::NEVER,
            caller: Location::caller(),
            blocking: false,
        }
    }

    /// Takes the only unit, and queues another request.
    fn queue_one(state: &mut State) {
        for _ in 0..2 {
            let (mut waker, mut effects) = (Some(Waker::noop().clone()), Effects::default());
            let answer =
                (state.schedule).request(Moment::START, &request(), &mut waker, &mut effects);
            answer.unwrap();
        }
    }

    fn two_runtimes() -> [Runtime; 2] {
        [(); 2].map(|()| Builder::new_current_thread().build().unwrap())
    }

    #[test]
    fn a_word_gets_what_is_left_after_units_that_were_in_transit() {
        let mut state = state(MaxConcurrency::new(5));
        state.take_over(WordValue::Places { units: 2 }, 7, None);
        state.put_back(1);
        assert!(state.may_hand_over());
        let handed_over = state.hand_over();
        assert!(
            matches!(handed_over, Some((WordContents::Places { units: 3 }, 7))),
            "{handed_over:?}"
        );
    }

    #[test]
    fn a_state_goes_on_from_the_latest_reading_before_its_lock() {
        let mut state = state(Throttle::every(SECOND));
        let Some((WordContents::Rate { value, .. }, _)) = state.hand_over() else {
            panic!("it is a line");
        };
        let hour = at(3_600_000_000_000);
        for (read, latest) in [(hour.nanos(), hour), (5, hour)] {
            state.take_over(WordValue::Rate { value }, 0, Some(read));
            assert_eq!(state.clock.latest(), latest);
        }
    }

    /// Under the lock, the time of another clock is not that of the word.
    #[tokio::test(start_paused = true)]
    async fn a_word_decides_places_by_any_clock_and_a_rate_by_one() {
        let mut places = state(MaxConcurrency::new(1));
        let mut rate = state(Throttle::every(SECOND));
        tokio::time::advance(3_600 * SECOND).await;
        for state in [&mut places, &mut rate] {
            state.clock.now();
            assert!(state.hand_over().is_some());
            thread::scope(|scope| _ = scope.spawn(|| state.clock.now()));
        }
        assert!(places.hand_over().is_some());
        assert!(rate.hand_over().is_none());
    }

    /// A place that is released to an open word wakes no task.
    #[test]
    fn a_word_stays_open_unless_the_drain_is_awaited() {
        let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
        let _place = limiter.try_acquire().unwrap();
        let manager = limiter.manager();
        for (awaited, stays_open) in [
            (Awaited::Close, true),
            (Awaited::CloseToNew, true),
            (Awaited::Drain, false),
        ] {
            let mut watch = manager.watch(awaited);
            assert!((&mut watch).now_or_never().is_none());
            assert_eq!(manager.state.word.is_open(), stays_open, "{awaited:?}");
            drop(watch);
            assert!(manager.state.word.is_open(), "{awaited:?}");
        }
    }

    /// A place may rely on a driver in any runtime, a rate on one in its own.
    #[test]
    fn a_request_relies_on_the_drivers_that_there_are_unless_one_is_to_be_started() {
        let [one, other] = two_runtimes();
        for (mut state, follows_time) in [
            (state(MaxConcurrency::new(1)), false),
            (state(Throttle::every(SECOND)), true),
        ] {
            assert!(state.has_driver(true), "a blocked thread is its own driver");
            for (runtime, relies) in [
                (&one, false),
                (&one, true),
                (&other, !follows_time),
                (&other, true),
                (&one, true),
            ] {
                let _here = runtime.enter();
                assert_eq!(state.has_driver(false), relies);
                let started = state.ensure_driver_here().unwrap();
                assert_eq!(started.is_none(), relies);
            }
        }
    }

    #[test]
    fn requests_rely_on_any_driver_again_after_a_pause_once_none_waits() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let mut effects = Effects::default();
        for waits in [false, true] {
            let mut state = state(MaxConcurrency::new(1));
            let here = runtime.enter();
            state.ensure_driver_here().unwrap();
            drop(here);
            if waits {
                queue_one(&mut state);
            }
            let (schedule, scope) = (&mut state.schedule, PauseScope::Limiter);
            schedule.pause(Moment::START, scope, at(9), &mut effects);
            state.time_begins_to_matter(None, &mut effects);
            let schedule = &mut state.schedule;
            schedule.resume(Moment::START, scope, &mut effects);
            assert!(!state.schedule.follows_time() && !state.has_driver(false));
            state.forget_time_if_queue_is_empty();
            assert_eq!(state.has_driver(false), !waits);
        }
    }

    #[test]
    fn a_request_joins_the_queue_at_once_while_nothing_is_due_and_the_drivers_wake_in_time() {
        let mut state = state(Throttle::every(SECOND));
        queue_one(&mut state);
        let turn = state.schedule.next_wake();
        let blocking = Request {
            blocking: true,
            ..request()
        };
        let mut joins = |now: Moment, armed: Moment| {
            state.armed = armed;
            let mut waker = Some(Waker::noop().clone());
            let id = state.enqueue_behind(now, &blocking, &mut waker);
            assert_eq!(id.is_some(), waker.is_none());
            id.is_some()
        };
        let (before, after) = (at(turn.nanos() - 1), turn.plus(1));
        assert!(joins(before, turn) && joins(Moment::START, before));
        assert!(!joins(turn, turn) && !joins(after, turn));
        assert!(!joins(before, after) && !joins(before, Moment::NEVER));
    }

    #[test]
    fn other_drivers_are_woken_where_the_next_wake_is_sooner_than_theirs() {
        let [one, other] = two_runtimes();
        let mut state = state(Throttle::every(SECOND));
        queue_one(&mut state);
        let turn = state.schedule.next_wake();
        for (runtime, sooner) in [(one, false), (other, true)] {
            let _here = runtime.enter();
            state.ensure_driver_here().unwrap();
            state.armed = turn.plus(1);
            assert_eq!(state.rearm(), sooner);
            assert_eq!(state.armed, turn);
            assert!(!state.rearm(), "they wake then");
            state.armed = at(turn.nanos() - 1);
            assert!(!state.rearm(), "they wake before");
        }
    }
}
