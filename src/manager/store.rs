//! A manager whose limits are in a store: the inputs of its session, the calls that do not wait for a permit, and the carrier of the
//! other calls.
//!
//! A carrier makes one trip after another, until the session has nothing left to send: so at most one call of a key is in flight.
//! After a reply it yields, so that tasks that were granted can ask again first and share the next call. A heartbeat renews the
//! leases.

mod breaker;
mod kept_keys;
mod link;

use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::yield_now;
use tokio::time::{sleep, sleep_until, timeout};

use self::link::OnDrop;
use crate::contain_panic::contain_panic;
use crate::core::effects::Errand;
use crate::core::request::{Costs, Refused};
use crate::core::schedule::Enqueued;
use crate::core::session::{CallAnswer, CallFailed, PolicyTerms, SessionStep, Trip};
use crate::decision::Decision;
use crate::error::StoreError;
use crate::exchange::{Call, Reply, Scope};
use crate::manager::channels::RequestOptions;
use crate::manager::channels::in_channel::end_request;
use crate::manager::channels::out_channel::TimedGrant;
use crate::manager::parts::Manager;
use crate::manager::time::{runtimes, timekeeper};
use crate::snapshot::LimitStatus;
use crate::store::background::background;
use crate::strategy::Moment;

pub(crate) use self::link::{FollowsStore, StoreLink};

/// A manager that was opened with a session has a link, and a session for ever.
const NO_STORE: &str = "the limits are in a store";

manager_view!("A manager whose limits are in a store.", AtStore, at_store);

impl<'a> AtStore<'a> {
    fn link(self) -> &'a Arc<StoreLink> {
        let link = &self.0.common().origin.store_link;
        link.as_ref().expect(NO_STORE)
    }

    /// Calls the store. If the store has a later policy, it applies to this key when the call has failed.
    async fn call(self, call: Call) -> CallAnswer {
        let link = self.link();
        let answer = link.call(call).await;
        if let Err(failed) = &answer
            && let StoreError::PolicyDiffers { .. } = failed.error
        {
            // Another thread that applies it to all keys may not have reached this one.
            self.adopt(&link.policy.terms());
        }
        answer
    }

    /// Gives the session an input, and does what it has changed for the waiters.
    fn change_session<R>(self, input: impl FnOnce(&mut SessionStep<'_>) -> R) -> R {
        let visit = self.0.visit();
        let result =
            visit.give(|schedule, now, effects| schedule.change_session(now, effects, input));
        result.expect(NO_STORE)
    }

    /// Gives the session an input that changes nothing for the waiters.
    fn note_in_session<R>(self, input: impl FnOnce(&mut SessionStep<'_>) -> R) -> R {
        self.0.visit().give(|schedule, now, effects| {
            input(&mut schedule.session(now, effects).expect(NO_STORE))
        })
    }

    /// Asks the store once. A poll by [`OutChannel::poll`](crate::manager::channels::out_channel::OutChannel::poll) must follow.
    /// `waker` is woken when the answer is there.
    pub(crate) fn try_acquire(
        self,
        options: &RequestOptions,
        waker: &Waker,
        granted: &mut TimedGrant,
    ) -> Result<Enqueued<()>, Refused> {
        self.link().note_use();
        let mut waker = Some(waker.clone());
        let mut visit = self.0.visit();
        let request = options.request(Moment::NEVER);
        let schedule = &mut visit.state.schedule;
        let tried = schedule.try_at_store(
            visit.now,
            &request,
            &mut waker,
            &mut visit.unapplied.effects,
        );
        let tried = end_request(visit, tried, options.cost, granted);
        contain_panic(|| drop(waker));
        tried
    }

    /// The decision on a request, if it came now. It takes nothing.
    pub(crate) async fn check(self, options: &RequestOptions) -> Result<Decision, StoreError> {
        let costs = options.costs();
        let here = self.0.visit().give(|schedule, now, effects| {
            schedule.catch_up(now, effects);
            let step = schedule.session(now, effects);
            step.expect(NO_STORE).outlook().check_here(costs)
        });
        if let Some(decision) = here {
            return Ok(decision);
        }
        match self.peek(Some(costs)).await {
            Ok(reply) => Ok(self.change_session(|step| step.peeked(costs, reply))),
            Err(error) if error.is_down() => self
                .note_in_session(|step| step.peek_failed(costs))
                .ok_or(error),
            Err(error) => Err(error),
        }
    }

    /// The status of each limit in the store.
    pub(crate) async fn limits(self) -> Result<Vec<LimitStatus>, StoreError> {
        let reply = self.peek(None).await?;
        Ok(self.change_session(|step| step.peeked_limits(&reply)))
    }

    async fn peek(self, costs: Option<Costs<'_>>) -> Result<Reply, StoreError> {
        loop {
            let call = self.note_in_session(|step| step.session.peek(costs));
            let revision = call.revision;
            let answer = self.call(call).await;
            // The reply concerns the policy that this process had before.
            if self.note_in_session(|step| step.session.revision()) == revision {
                return answer.map_err(|failed| failed.error);
            }
        }
    }

    /// Replaces the policy by a later revision.
    pub(crate) fn adopt(self, terms: &Arc<PolicyTerms>) {
        self.0
            .control(|schedule, now, effects| schedule.adopt(now, terms, effects));
    }

    /// Resets the limits of this key. Earlier charges of this process reach the store before the reset, or never.
    pub(crate) async fn reset(self, scope: Scope) -> Result<(), StoreError> {
        const OFTEN: Duration = Duration::from_millis(1);
        let link = self.link();
        // If the reset fails or its future is dropped, the session sends the charges that it has withheld for the reset.
        let _ends = OnDrop(|| self.change_session(|step| step.session.reset_ended()));
        if let Some(generation) = self.note_in_session(|step| step.session.reset_begins()) {
            let awaits = || self.note_in_session(|step| step.session.awaits_reply(generation));
            let arrives = async {
                while awaits() {
                    sleep(OFTEN).await;
                }
            };
            let _given_up = timeout(link.deadline, arrives).await; // its carrier may be in a runtime that nothing polls
        }
        let part = link.store.part_of(&scope);
        link.within_deadline(part, || link.store.reset(scope), |()| Ok(()))
            .await
            .map_err(|failed| failed.error)?;
        self.change_session(|step| step.session.was_reset());
        Ok(())
    }

    /// Records that it is the turn of this process to take places of the key, or that this may be so.
    pub(crate) fn turn_came(self) {
        self.change_session(|step| step.session.turn_came(step.now));
    }

    /// Records that it is the turn of another process, and whether that of this one is `next`.
    pub(crate) fn other_turn_came(self, next: bool) {
        self.change_session(|step| step.session.other_turn_came(step.now, next));
    }

    /// Starts the errands of the session.
    #[cold]
    pub(in crate::manager) fn run_errands(self, errands: Vec<Errand>) {
        let (manager, kept) = (self.0, &self.link().kept);
        for errand in errands {
            match errand {
                Errand::RenewLeases => self.start_heartbeat(),
                Errand::KeepDenied(duration) => kept.keep_denied(manager, duration),
                Errand::KeepHeldBack(duration) => kept.keep_paused(manager, duration),
                Errand::EndKeep => kept.forget(&**manager, || manager.is_closed_or_paused()),
                // The carrier runs in the caller's runtime, or in the background if there is none.
                Errand::Carry => {
                    if let Some(runtime) = runtimes::with_timers_here().or_else(background) {
                        runtime.spawn(carry(Arc::clone(manager)));
                    }
                }
            }
        }
    }

    /// Renews the leases in the background, where no task of the program occupies the thread. If a test has paused the clock,
    /// they are renewed in the test's runtime.
    #[cold]
    fn start_heartbeat(self) {
        let here = Handle::try_current().ok();
        let runtime = if timekeeper::clock_is_real() {
            background().or(here)
        } else {
            here
        };
        if let Some(runtime) = runtime {
            let ttl = self.note_in_session(|step| step.session.lease_ttl());
            runtime.spawn(renew(Arc::downgrade(self.0), Duration::from_nanos(ttl)));
        }
    }

    fn next_trip(self, come: u64, granted: u64) -> Trip {
        self.note_in_session(|step| step.next_trip(come, granted))
    }

    /// Handles the end of a call. Returns what its carrier does next.
    fn answered(self, generation: u64, answer: &CallAnswer) -> Trip {
        let next = self.0.visit().change(|schedule, now, effects| {
            schedule.change_session(now, effects, |step| step.answered(generation, answer));
            let step = schedule.session(now, effects);
            step.map(|mut step| step.trip_after(answer))
        });
        next.expect(NO_STORE)
    }
}

async fn carry(manager: Arc<Manager>) {
    let store = manager.at_store();
    store.link().note_use();
    let mut granted = 0;
    let mut trip = store.next_trip(0, granted);
    loop {
        trip = match trip {
            Trip::Call { call, generation } => {
                // If the carrier is dropped, because its runtime is shut down, the call has failed.
                let dropped = OnDrop(|| {
                    let failed = CallFailed::unanswered(store.link().store.name(), None);
                    store.change_session(|step| step.failed(generation, &failed));
                });
                let answer = store.call(*call).await;
                let next = store.answered(generation, &answer);
                std::mem::forget(dropped); // The call has ended, so its drop would lock in vain. It owns nothing that could leak.
                granted = answer.map_or(0, |reply| reply.granted);
                next
            }
            Trip::Yield(come) => {
                yield_now().await;
                store.next_trip(come, granted)
            }
            Trip::WaitUntil(at) => {
                let at = manager.lock().clock.instant(at);
                // The carrier holds the manager while it waits. If the carrier is dropped, its wait has ended.
                let guard = OnDrop(|| store.note_in_session(|step| step.session.carrier_woke()));
                sleep_until(at).await;
                drop(guard);
                store.next_trip(0, 0)
            }
            Trip::End => return,
        };
    }
}

/// Renews all leases of a manager three times within their TTL, until there are none.
async fn renew(manager: Weak<Manager>, ttl: Duration) {
    // The runtime was shut down, or the store's code panicked. The next grant begins another heartbeat.
    let dropped = OnDrop(|| {
        if let Some(manager) = manager.upgrade() {
            let store = manager.at_store();
            store.note_in_session(|step| step.session.renewals_stopped());
        }
    });
    let (pause, retry) = (ttl / 3, ttl / 12);
    let mut next = pause;
    loop {
        sleep(next).await;
        let Some(manager) = manager.upgrade() else {
            return;
        };
        let store = manager.at_store();
        let renewals = store.note_in_session(|step| step.session.renewals(step.now));
        if renewals.is_empty() {
            std::mem::forget(dropped); // another heartbeat may have begun by now
            return;
        }
        // The renewals are spread over half the pause, so that the store serves other calls between them.
        let between = pause / 2 / u32::try_from(renewals.len()).unwrap_or(u32::MAX).max(1);
        let several = renewals.len() > 1;
        next = if several { pause / 2 } else { pause };
        for renewal in renewals {
            let sent_at = store.note_in_session(|step| step.now);
            // A renewal may take at most a third of the TTL, so that there is time for another try.
            match timeout(pause, store.call(renewal.call.clone())).await {
                Ok(Ok(reply)) => manager.visit().change(|schedule, now, effects| {
                    schedule.change_session(now, effects, |step| {
                        step.renewed(sent_at, &renewal, &reply);
                    });
                }),
                Ok(Err(_)) | Err(_) => next = retry,
            }
            if several {
                sleep(between).await;
            }
        }
    }
}
