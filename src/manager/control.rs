//! Operations on a whole limiter: policy change, pause, close, snapshot, its numbers, and the wait for its drain or closing. Also the
//! operations of a keyed limiter on the manager of one key.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::carry_over::UsageCarryOver;
use crate::core::arena::Index;
use crate::core::effects::Effects;
use crate::core::gate::plan::Plan;
use crate::core::request::Costs;
use crate::core::schedule::Schedule;
use crate::core::suspension::PauseScope;
use crate::core::word::packed_rate::WordValue;
use crate::decision::Decision;
use crate::error::{AcquireError, ConfigError};
use crate::event::EventKind;
use crate::manager::lock::state::{Awaited, Unapplied, WatcherId};
use crate::manager::parts::{Manager, PerPlan};
use crate::manager::time::clock::Clock;
use crate::manager::visit::Visit;
use crate::policy::Policy;
use crate::snapshot::{FlowStatus, KeyTotals, LimitStatus, LimiterSnapshot};
use crate::strategy::{Moment, StateWords};
use crate::upstream::UpstreamSignal;

impl Manager {
    /// The present policy.
    pub(crate) fn policy(self: &Arc<Self>) -> Policy {
        self.ask(|outlook, _| outlook.limits().policy().clone())
    }

    /// Refuses a request that holds no permit, if the present policy bounds nothing but held permits.
    pub(crate) fn check_rate(self: &Arc<Self>) -> Result<(), AcquireError> {
        self.ask(|outlook, _| match outlook.limits().policy() {
            policy if policy.only_places() => Err(AcquireError::NoRate {
                policy: policy.clone(),
            }),
            _ => Ok(()),
        })
    }

    /// Replaces the policy; queued requests keep their position.
    pub(crate) fn set_policy(
        self: &Arc<Self>,
        policy: Policy,
        carry: UsageCarryOver,
    ) -> Result<(), ConfigError> {
        let plan = Plan::new(policy, self.common().since_epoch())?;
        self.control(|schedule, now, effects| {
            if let Some(registered) = &self.common().registered {
                registered.rate.policy_is_replaced();
            }
            schedule.set_plan(now, plan, carry, effects);
        });
        Ok(())
    }

    /// Grants nothing for this long, or with [`Duration::MAX`] until the limiter is resumed.
    pub(crate) fn pause_for(self: &Arc<Self>, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.control(|schedule, now, effects| {
            schedule.pause(now, PauseScope::Limiter, now.plus(nanos), effects);
        });
    }

    pub(crate) fn resume(self: &Arc<Self>) {
        self.control(|schedule, now, effects| {
            schedule.resume(now, PauseScope::Limiter, effects);
        });
    }

    pub(crate) fn is_closed_or_paused(&self) -> bool {
        let mut state = self.lock();
        let now = state.now();
        state.schedule.waiters.closed || state.schedule.outlook().is_paused(now)
    }

    pub(crate) fn apply_upstream_signal(self: &Arc<Self>, signal: &UpstreamSignal) {
        if let Some(field) = signal.malformed {
            self.report_if_observed(|| EventKind::UpstreamMalformed { field });
        }
        if let Some(pause) = signal.pause() {
            self.pause_for(pause);
        } else if let (Some(remaining), Some(reset_after)) = (signal.remaining, signal.reset_after)
        {
            let nanos = u64::try_from(reset_after.as_nanos()).unwrap_or(u64::MAX);
            self.control(|schedule, now, effects| {
                schedule.spread(now, remaining, now.plus(nanos), effects);
            });
        }
    }

    /// Refuses later requests. Requests that wait are served if it `drains`.
    pub(crate) fn close(self: &Arc<Self>, drains: bool) {
        self.visit()
            .after_due()
            .give(|schedule, now, effects| schedule.close(now, drains, effects));
    }

    pub(crate) fn is_closed(&self) -> bool {
        !self.state.is_only_a_word() && self.lock().schedule.waiters.closed
    }

    pub(crate) fn snapshot(self: &Arc<Self>) -> LimiterSnapshot {
        let mut snapshot = self.ask(|outlook, now| outlook.snapshot(now));
        snapshot.denied += self.denied_by_word();
        snapshot
    }

    pub(crate) fn flows(self: &Arc<Self>, max: usize) -> Vec<FlowStatus> {
        self.ask(|outlook, _| outlook.flows(max))
    }

    /// Charges units without a request.
    pub(crate) fn charge(self: &Arc<Self>, units: u64) {
        self.control(|schedule, now, effects| schedule.charge(now, units, effects));
    }

    /// The status of each limit.
    pub(crate) fn limits(self: &Arc<Self>) -> Vec<LimitStatus> {
        self.ask(|outlook, now| outlook.limits().statuses(now))
    }

    /// The decision on a request that does not wait, if it came now.
    pub(crate) fn check(self: &Arc<Self>, costs: Costs<'_>) -> Decision {
        self.ask(|outlook, now| outlook.check(now, costs))
    }

    /// The numbers that are summed over keys. Work that is due is not done first.
    pub(crate) fn totals(&self) -> KeyTotals {
        self.totals_of_word()
            .unwrap_or_else(|| self.totals_of(&self.lock().schedule))
    }

    /// [`Manager::totals`] of a manager that is only a word of places.
    fn totals_of_word(&self) -> Option<KeyTotals> {
        let (WordValue::Places { units }, granted) = self.state.content_of_word()? else {
            return None;
        };
        let in_flight = self.common().plan.plain_places()?.saturating_sub(units);
        Some(KeyTotals {
            in_flight,
            granted,
            denied: self.denied_by_word(),
            ..KeyTotals::default()
        })
    }

    fn totals_of(&self, schedule: &Schedule) -> KeyTotals {
        let mut totals = schedule.outlook().totals();
        totals.denied += self.denied_by_word();
        totals
    }

    /// The number of requests that were denied while there was no state to count them, or without its lock.
    fn denied_by_word(&self) -> u64 {
        let registered = self.common().registered.as_ref();
        let by_rate = registered.map_or(0, |registered| registered.denied.load(Relaxed));
        by_rate + u64::from(self.denied.load(Relaxed))
    }
}

/// A future that completes when the reclaim, the drain or the closing that it awaits has happened.
#[derive(Debug)]
#[must_use = "it does nothing unless awaited"]
pub(crate) struct Watch {
    manager: Arc<Manager>,
    awaited: Awaited,
    /// The lease that is awaited.
    lease: Option<Index>,
    id: Option<WatcherId>,
}

impl Manager {
    /// Completes when the permit is not live any more.
    pub(crate) fn reclaimed(self: &Arc<Self>, lease: Index, fence: u64) -> Watch {
        let mut watch = self.watch(Awaited::Reclaim(fence));
        watch.lease = Some(lease);
        watch
    }

    pub(crate) fn watch(self: &Arc<Self>, awaited: Awaited) -> Watch {
        Watch {
            manager: Arc::clone(self),
            awaited,
            lease: None,
            id: None,
        }
    }
}

impl Future for Watch {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone(); // outside the lock: a clone runs foreign code
        let Self {
            manager,
            awaited,
            lease,
            id,
        } = &mut *self;
        let Visit { mut state, now, .. } = manager.visit().after_due();
        let has_happened = match (*awaited, *lease) {
            (Awaited::Reclaim(fence), Some(lease)) => {
                state.schedule.live_lease(now, lease, fence).is_none()
            }
            _ => state.has_happened(*awaited),
        };
        if has_happened {
            return Poll::Ready(());
        }
        let watchers = state.watchers.get_or_insert_default();
        let replaced = watchers.watch(*awaited, id, waker);
        // Only the passing of time reclaims a leaked permit, and the driver may have ended with its runtime.
        let needs_driver = match awaited {
            Awaited::Reclaim(_) => true,
            Awaited::Drain => state.schedule.outlook().leases_permits(),
            Awaited::CloseToNew | Awaited::Close => false,
        };
        let driver = needs_driver.then(|| state.ensure_driver_here());
        drop(state);
        if let Some(Ok(Some(runtime))) = driver {
            manager.timer_host().start(manager, runtime);
        }
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let mut state = self.manager.lock();
            let waker = state
                .watchers
                .as_mut()
                .and_then(|watchers| watchers.unwatch(self.awaited, id));
            state.drop_unused_watchers();
            drop(state);
            drop(waker); // outside the lock
        }
    }
}

/// A manager without permits and waiters.
#[derive(Debug)]
pub(crate) struct AtRest {
    /// When it is reset; [`Moment::NEVER`] if time does not reset it.
    pub(crate) reset_at: Moment,
    /// Whether it is reset now.
    pub(crate) is_new: bool,
    pub(crate) last: FinalTotals,
}

/// What outlives a manager.
#[derive(Debug)]
pub(crate) struct FinalTotals {
    /// These include the fence of the latest grant, which is the number of grants.
    pub(crate) totals: KeyTotals,
    /// Whether grants held places.
    pub(crate) holds_places: bool,
    /// `None` if it was never read.
    pub(crate) clock: Option<Clock>,
}

manager_view!(
    "The manager of a key that is active.",
    ActiveKey,
    active_key
);

impl ActiveKey<'_> {
    /// [`Manager::set_policy`] with a plan, if the present policy is another one.
    pub(crate) fn apply_plan(self, plan: &Arc<Plan>) {
        let policy = plan.policy();
        let begins_with_it =
            |common: &PerPlan| Arc::ptr_eq(&common.plan, plan) || common.plan.policy() == policy;
        if self.is_only_a_word() && begins_with_it(self.0.common()) {
            return;
        }
        if self.0.lock().schedule.outlook().limits().policy() != policy {
            self.0.control(|schedule, now, effects| {
                // Another call, or an observer of what was due, may have applied it meanwhile.
                if schedule.outlook().limits().policy() != policy {
                    schedule.set_plan(now, Arc::clone(plan), UsageCarryOver::AsIs, effects);
                }
            });
        }
    }

    /// Whether no call has needed the state so far.
    pub(crate) fn is_only_a_word(self) -> bool {
        self.0.state.is_only_a_word()
    }

    /// When it is reset, if no request waits and no permit is in flight. Call it where no other handle exists: then a word that
    /// has all its places stays so.
    pub(crate) fn rest(self) -> Option<AtRest> {
        if self.is_only_a_word() {
            return self.unused_word().map(|last| AtRest {
                reset_at: Moment::START,
                is_new: true,
                last,
            });
        }
        let mut state = self.0.lock();
        let now = state.clock.now();
        let gate = state.schedule.outlook().at_rest(now)?;
        let (reset_at, holds_places) = (gate.limits().reset_at(now), gate.holds_places());
        let last = FinalTotals {
            totals: self.0.totals_of(&state.schedule),
            holds_places,
            clock: Some(state.clock.clone()),
        };
        Some(AtRest {
            reset_at,
            is_new: reset_at <= now,
            last,
        })
    }

    /// The last totals of a manager that is only a word with all its places.
    pub(crate) fn unused_word(self) -> Option<FinalTotals> {
        let totals = self.0.totals_of_word()?;
        (totals.in_flight == 0).then_some(FinalTotals {
            totals,
            holds_places: true,
            clock: None,
        })
    }

    /// The number of grants of places so far, if no request waits and no permit holds a place.
    pub(crate) fn drained_after(self) -> Option<u64> {
        if self.is_only_a_word() {
            return self.unused_word().map(|last| last.totals.granted);
        }
        self.0.lock().schedule.outlook().drained_after()
    }

    /// Gives the schedule an input while the caller holds another lock. `None` if nothing is left to do. Only one batch of due
    /// work runs before the input. Running all of it would call foreign code under that lock.
    pub(crate) fn change_later(
        self,
        input: impl FnOnce(&mut Schedule, Moment, &mut Effects),
    ) -> Option<Unapplied> {
        let ((), unapplied) = self.0.visit().change_later(input);
        (!unapplied.is_empty()).then_some(unapplied)
    }

    /// Its whole state, if no request waits and no permit is in flight: the policy, and the states of all limits. `None` also if one
    /// does not fit into words.
    pub(crate) fn at_rest(self) -> Option<(Policy, Vec<StateWords>)> {
        let mut state = self.0.lock();
        let now = state.clock.now();
        let limits = state.schedule.outlook().at_rest(now)?.limits();
        Some((limits.policy().clone(), limits.states()?))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::SystemTime;

    use futures_util::FutureExt;
    use tokio::time::advance;
    use tokio_test::{assert_pending, assert_ready, assert_ready_ok, task};

    use super::*;
    use crate::KeyedLimiter;
    use crate::limiter::Limiter;
    use crate::strategy::{Align, FixedWindow, MaxConcurrency, Throttle};

    /// While something is watched, each unlock checks whether it has happened.
    #[tokio::test]
    async fn nothing_is_left_of_a_watch_that_is_dropped_or_has_completed() {
        let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
        let manager = limiter.manager();
        let _place = limiter.try_acquire().unwrap();
        for close in [Limiter::close_to_new, Limiter::close] {
            let mut watches = [
                manager.watch(Awaited::CloseToNew),
                manager.watch(Awaited::Close),
                manager.watch(Awaited::Drain),
            ];
            let completed = watches
                .iter_mut()
                .filter_map(FutureExt::now_or_never)
                .count();
            assert_eq!(completed, usize::from(limiter.is_closed()));
            assert!(manager.lock().watchers.is_some());
            drop(watches);
            assert!(manager.lock().watchers.is_none());

            let mut watch = if limiter.is_closed() {
                manager.watch(Awaited::Close)
            } else {
                manager.watch(Awaited::CloseToNew)
            };
            assert!((&mut watch).now_or_never().is_none());
            close(&limiter);
            assert!(manager.lock().watchers.is_none());
            assert!(watch.now_or_never().is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_ends_when_the_last_answer_is_taken() {
        let second = Duration::from_secs(1);
        let limiter = Limiter::new(Throttle::every(second)).unwrap();
        drop(limiter.try_acquire().unwrap());
        let mut waiting = task::spawn(limiter.acquire());
        assert_pending!(waiting.poll());
        let mut drained = task::spawn(limiter.drained());
        assert_pending!(drained.poll());
        advance(second).await;
        tokio::task::yield_now().await;
        assert!(waiting.is_woken());
        assert_pending!(drained.poll(), "the permit was not taken yet");
        drop(assert_ready_ok!(waiting.poll()));
        assert!(drained.is_woken());
        assert_ready!(drained.poll());
    }

    #[test]
    fn those_that_await_a_reclaim_or_the_drain_are_woken_when_the_runtime_of_the_driver_ends() {
        let limiter = Limiter::new(MaxConcurrency::new(1).ttl(LONG)).unwrap();
        let permit = limiter.try_acquire().unwrap();
        let mut reclaimed = task::spawn(permit.reclaimed());
        let mut drained = task::spawn(limiter.drained());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            assert_pending!(reclaimed.poll());
            assert_pending!(drained.poll());
        });
        drop(runtime);
        assert!(reclaimed.is_woken() && drained.is_woken());
    }

    const LONG: Duration = Duration::from_secs(1_000 * 24 * 3_600);

    /// The rest of a long window by the wall clock.
    fn rest() -> Duration {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos();
        LONG - Duration::from_nanos((now % LONG.as_nanos()) as u64)
    }

    #[test]
    fn a_window_of_a_later_policy_or_of_a_tier_is_aligned_with_the_wall_clock() {
        let window = FixedWindow::new(1, LONG).align(Align::WallClock);
        let (limiter, keyed, tiered) = (
            Limiter::new(MaxConcurrency::new(1)).unwrap(),
            KeyedLimiter::<u64>::new(MaxConcurrency::new(1)).unwrap(),
            KeyedLimiter::<u64>::builder(MaxConcurrency::new(1)).tiers(move |_| window.into()),
        );
        let tiered = tiered.build().unwrap();
        limiter.set_policy(window).unwrap();
        keyed.set_policy(window).unwrap();
        let denials = [
            limiter.try_acquire().and_then(|_| limiter.try_acquire()),
            keyed.try_acquire(&7).and_then(|_| keyed.try_acquire(&7)),
            tiered.try_acquire(&7).and_then(|_| tiered.try_acquire(&7)),
        ];
        for denied in denials {
            let retry_after = denied.unwrap_err().retry_after().unwrap();
            let second = Duration::from_secs(1);
            assert!(retry_after.abs_diff(rest()) < second, "{retry_after:?}");
        }
    }

    #[tokio::test]
    async fn the_places_of_an_active_key_are_those_of_its_present_tier() {
        let places = Arc::new(AtomicU64::new(1));
        let present = Arc::clone(&places);
        let keyed = KeyedLimiter::<u64>::builder(MaxConcurrency::new(1))
            .tiers(move |_| MaxConcurrency::new(present.load(Relaxed)).into())
            .build()
            .unwrap();
        let _held = keyed.try_acquire(&7).unwrap();
        assert!(keyed.try_acquire(&7).is_err());
        for now in [2, 1, 3] {
            places.store(now, Relaxed);
            assert_eq!(keyed.try_acquire(&7).is_ok(), now > 1);
        }
    }
}
