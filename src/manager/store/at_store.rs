//! A manager whose limits are in a store: the inputs of its session, and the calls that do not wait for a permit.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::link::{OnDrop, StoreLink};
use crate::contain_panic::contain_panic;
use crate::core::request::{Costs, Refused};
use crate::core::schedule::Enqueued;
use crate::core::session::SessionStep;
use crate::decision::Decision;
use crate::error::StoreError;
use crate::exchange::{Reply, Scope};
use crate::manager::channels::answer::TimedGrant;
use crate::manager::channels::in_channel::end_request;
use crate::manager::channels::request_options::RequestOptions;
use crate::manager::parts::Manager;
use crate::snapshot::LimitStatus;
use crate::strategy::Moment;

/// A manager that was opened with a session has a link, and a session for ever.
pub(super) const NO_STORE: &str = "the limits are in a store";

manager_view!("A manager whose limits are in a store.", AtStore, at_store);

impl<'a> AtStore<'a> {
    pub(super) fn link(self) -> &'a Arc<StoreLink> {
        let link = &self.0.common().origin.store_link;
        link.as_ref().expect(NO_STORE)
    }

    /// Gives the session an input, and does what it has changed for the waiters.
    pub(super) fn change_session<R>(self, input: impl FnOnce(&mut SessionStep<'_>) -> R) -> R {
        let visit = self.0.visit();
        let result =
            visit.give(|schedule, now, effects| schedule.change_session(now, effects, input));
        result.expect(NO_STORE)
    }

    /// Gives the session an input that changes nothing for the waiters.
    pub(super) fn note_in_session<R>(self, input: impl FnOnce(&mut SessionStep<'_>) -> R) -> R {
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
        let mut waker = Some(waker.clone());
        let mut visit = self.0.visit();
        let request = options.request(Moment::NEVER);
        let schedule = &mut visit.state.schedule;
        let tried = schedule.try_at_store(visit.now, &request, &mut waker, &mut visit.effects);
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
        let call = self.note_in_session(|step| step.session.peek(costs));
        self.link().call(call).await.map_err(|failed| failed.error)
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
        link.within_deadline(|| link.store.reset(scope), |()| Ok(()))
            .await
            .map_err(|failed| failed.error)?;
        self.change_session(|step| step.session.was_reset());
        Ok(())
    }

    /// Records that places of this key were released in another process.
    pub(crate) fn released_elsewhere(self) {
        self.change_session(|step| step.session.released_elsewhere(step.now));
    }
}
