//! Carries the calls of a schedule to its store, and the replies back; and renews its leases.
//!
//! The schedule sends for a carrier when there is something to tell. The carrier takes one call after another, until there is nothing
//! left: so one call of a key is under way at most. It yields before each call but the first: those whom the last reply has woken
//! ask again first, and go together.
//!
//! A request that finds nobody before it sends for none: whoever polls it [carries its call](super::leader).

use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::carried::Carried;
use super::lock::Manager;
use super::request_options::RequestOptions;
use super::store_link::{CallFailed, StoreLink};
use super::{timekeeper, timers};
use crate::core::costs::Costs;
use crate::core::effects::Effects;
use crate::core::schedule::{Outgoing, Schedule};
use crate::decision::Decision;
use crate::error::StoreError;
use crate::exchange::{Call, Reply};
use crate::snapshot::LimitStatus;
use crate::strategy::Moment;

impl Manager {
    pub(super) fn store_link(&self) -> Option<&Arc<StoreLink>> {
        self.common().store_link.as_ref()
    }

    /// Starts a carrier in the caller's runtime; where there is none, in the background.
    #[cold]
    pub(super) fn start_carrier(self: &Arc<Self>) {
        self.start_carrier_with(None);
    }

    /// Starts a carrier that first goes on with a call.
    pub(super) fn start_carrier_with(self: &Arc<Self>, call: Option<Carried>) {
        if let Some(runtime) = timers::runtime_here().or_else(background) {
            runtime.spawn(carry(Arc::clone(self), call));
        }
    }

    fn store_name(&self) -> String {
        self.store_link().map(|link| link.store.name()).unwrap_or_default()
    }

    /// Begins the next call. One that fails at once has landed, and is followed by the one after it.
    pub(super) fn begin_call(self: &Arc<Self>, led: bool) -> Option<Carried> {
        let link = self.store_link()?;
        loop {
            let Outgoing { call, generation } = self.with_schedule(|schedule, now, _| schedule.next_call(now, led))?;
            match link.begin(call) {
                Ok(call) => return Some(Carried { generation, call }),
                Err(failed) => self.landed(generation, &Err(failed), true),
            }
        }
    }

    /// Lets those who were woken ask again, so that they go together: until as many wait as were `granted`, or no more come.
    async fn gather(self: &Arc<Self>, granted: u64) {
        let mut waiting = 0;
        loop {
            yield_now().await;
            let before = std::mem::replace(&mut waiting, self.lock().schedule.waiting());
            if waiting <= before || waiting >= granted {
                return;
            }
        }
    }

    fn waits_to_retry(self: &Arc<Self>) -> Option<Instant> {
        self.with_state(|state, now, _| Some(state.clock.instant(state.schedule.waits_to_retry(now)?)))
    }

    /// A call has ended. Whether who carried it `returns` for the next one; otherwise a carrier is sent for.
    pub(super) fn landed(self: &Arc<Self>, generation: u64, answer: &Result<Reply, CallFailed>, returns: bool) {
        let (begins_heartbeat, needs_retrier, denied_for) = self.with_timer(|schedule, now, effects| {
            if returns {
                schedule.carrier_returns(now);
            }
            match answer {
                Ok(reply) => schedule.replied(now, generation, reply, effects),
                Err(CallFailed { error, may_have_run }) => {
                    schedule.failed(now, generation, error, *may_have_run, effects);
                }
            }
            (schedule.begins_heartbeat(now), !returns && schedule.needs_retrier(now), schedule.denied_for(now))
        });
        if let (Some(link), Some(denied_for)) = (self.store_link(), denied_for) {
            link.kept.keep_denied(self, denied_for);
        }
        if begins_heartbeat {
            self.start_heartbeat();
        }
        if needs_retrier {
            self.start_carrier();
        }
    }

    /// Places of this key came back in another process.
    pub(crate) fn released_elsewhere(self: &Arc<Self>) {
        self.with_schedule(Schedule::released_elsewhere);
    }

    /// The limits of this key were made as new.
    pub(crate) fn was_reset(self: &Arc<Self>) {
        self.with_schedule(Schedule::was_reset);
    }

    /// Renews the leases in the background, where no task of the program keeps the thread; on a clock that a test has paused, in its
    /// runtime.
    #[cold]
    fn start_heartbeat(self: &Arc<Self>) {
        let here = Handle::try_current().ok();
        let runtime = if timekeeper::clock_is_real() { background().or(here) } else { here };
        let (Some(runtime), Some(link)) = (runtime, self.store_link()) else { return };
        runtime.spawn(renew(Arc::downgrade(self), Arc::clone(link)));
    }

    fn renewals(self: &Arc<Self>) -> (Moment, Vec<(Call, Vec<u64>)>) {
        self.with_schedule(|schedule, now, _| (now, schedule.renewals(now)))
    }

    fn lease_ttl(&self) -> Duration {
        Duration::from_nanos(self.lock().schedule.store_ttl())
    }
}

impl Manager {
    /// What a request would be answered now; it takes nothing.
    pub(crate) async fn check_with_store(self: &Arc<Self>, options: &RequestOptions) -> Result<Decision, StoreError> {
        let costs = options.costs();
        let here = self.with_schedule(|schedule, now, effects| schedule.check_here(now, costs, effects));
        if let Some(decision) = here {
            return Ok(decision);
        }
        match self.peek(Some(costs)).await {
            Ok(reply) => Ok(self.with_schedule(|schedule, now, effects| {
                schedule.answers_again(now, effects);
                schedule.peeked(now, costs, reply, effects)
            })),
            Err(error) if error.is_down() => self.with_schedule(|schedule, now, _| schedule.peek_failed(now, costs)).ok_or(error),
            Err(error) => Err(error),
        }
    }

    /// What each limit says in the store.
    pub(crate) async fn limits_in_store(self: &Arc<Self>) -> Result<Vec<LimitStatus>, StoreError> {
        let reply = self.peek(None).await?;
        Ok(self.with_schedule(|schedule, now, effects| {
            schedule.answers_again(now, effects);
            schedule.peeked_limits(now, &reply)
        }))
    }

    async fn peek(self: &Arc<Self>, costs: Option<Costs<'_>>) -> Result<Reply, StoreError> {
        let Some(link) = self.store_link() else { unreachable!("only limits in a store are asked") };
        let call = self.with_schedule(|schedule, _, _| schedule.peek(costs));
        link.call(call).await.map_err(|failed| failed.error)
    }
}

/// Tells the schedule of a call that was dropped on its way: the runtime was shut down.
struct UnderWay<'a> {
    manager: &'a Arc<Manager>,
    generation: u64,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let error = StoreError::Unanswered { store: self.manager.store_name(), after: None, source: None };
        let fail = |schedule: &mut Schedule, now, effects: &mut Effects| {
            schedule.failed(now, self.generation, &error, true, effects);
        };
        self.manager.with_schedule(fail);
    }
}

/// A carrier that waits to tell the store what a failed call has not told: it holds the manager, as nobody else may.
struct Retrier<'a>(&'a Arc<Manager>);

impl Drop for Retrier<'_> {
    fn drop(&mut self) {
        self.0.with_schedule(|schedule, _, _| schedule.retrier_left());
    }
}

async fn carry(manager: Arc<Manager>, mut begun: Option<Carried>) {
    loop {
        while let Some(Carried { generation, call }) = begun.take().or_else(|| manager.begin_call(false)) {
            let under_way = UnderWay { manager: &manager, generation };
            let answer = call.await;
            manager.landed(generation, &answer, true);
            drop(under_way); // a call that has landed cannot fail any more
            manager.gather(answer.map_or(0, |reply| reply.granted)).await;
        }
        let Some(retry_at) = manager.waits_to_retry() else { return };
        let retrier = Retrier(&manager);
        sleep_until(retry_at).await;
        drop(retrier);
    }
}

/// Tells the schedule of a heartbeat that was dropped: the runtime was shut down, or the store's code panicked. The next grant begins
/// another one.
struct Heartbeat(Weak<Manager>);

impl Drop for Heartbeat {
    fn drop(&mut self) {
        if let Some(manager) = self.0.upgrade() {
            manager.with_schedule(|schedule, _, _| schedule.heartbeat_stopped());
        }
    }
}

/// Renews all leases of a manager three times within their TTL, until there are none.
async fn renew(manager: Weak<Manager>, link: Arc<StoreLink>) {
    let heartbeat = Heartbeat(manager.clone());
    let Some(ttl) = manager.upgrade().map(|manager| manager.lease_ttl()) else { return };
    let (pause, retry) = (ttl / 3, ttl / 12);
    let mut next = pause;
    loop {
        sleep(next).await;
        let Some(manager) = manager.upgrade() else { return };
        let (sent_at, calls) = manager.renewals();
        if calls.is_empty() && manager.ends_heartbeat() {
            std::mem::forget(heartbeat); // another one may have begun by now
            return;
        }
        // Spread over half the pause, so that the store serves others between them.
        let between = pause / 2 / u32::try_from(calls.len()).unwrap_or(u32::MAX).max(1);
        let several = calls.len() > 1;
        next = if several { pause / 2 } else { pause };
        for (call, fences) in calls {
            let sent_at = if several { manager.renewals_sent_at() } else { sent_at };
            // Not longer than a third of the TTL: then there is time for another try.
            match timeout(pause, link.call(call.clone())).await {
                Ok(Ok(reply)) => manager.with_timer(|schedule, now, effects| {
                    schedule.renewed(now, sent_at, &fences, &call, &reply, effects);
                }),
                Ok(Err(failed)) => {
                    manager.with_schedule(|schedule, _, _| schedule.renewals_failed(&call, &failed.error));
                    next = retry;
                }
                Err(_) => next = retry,
            }
            if several {
                sleep(between).await;
            }
        }
    }
}

impl Manager {
    /// The present moment, as of which a TTL is counted.
    fn renewals_sent_at(self: &Arc<Self>) -> Moment {
        self.with_schedule(|_, now, _| now)
    }

    /// Whether no lease is out; then the next one begins another heartbeat.
    fn ends_heartbeat(self: &Arc<Self>) -> bool {
        self.with_schedule(|schedule, now, _| schedule.ends_heartbeat(now))
    }
}

/// A runtime of the crate's own, with one thread: it is there when no other one is, and no task of the program keeps it busy.
/// `None` if it cannot be started.
fn background() -> Option<Handle> {
    static BACKGROUND: OnceLock<Option<Handle>> = OnceLock::new();
    BACKGROUND.get_or_init(start_background).clone()
}

fn start_background() -> Option<Handle> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let handle = runtime.handle().clone();
    let run = move || runtime.block_on(std::future::pending::<()>());
    thread::Builder::new().name("tollgate-background".to_owned()).spawn(run).ok()?;
    Some(handle)
}
