//! Carries the calls of a session to its store, and the replies back.
//!
//! A carrier makes one trip after another, until the session has nothing left to send: so at most one call of a key is in flight.
//! After a reply it yields: the requests that were granted ask again first, and go together.

use std::sync::Arc;

use tokio::task::yield_now;
use tokio::time::sleep_until;

use super::at_store::{AtStore, NO_STORE};
use super::on_drop::OnDrop;
use crate::core::effects::Errand;
use crate::core::session::{CallAnswer, CallFailed, Trip};
use crate::error::StoreError;
use crate::manager::parts::Manager;
use crate::manager::time::timers;
use crate::store::background::background;

impl AtStore<'_> {
    /// Starts what the session has asked for.
    #[cold]
    pub(in crate::manager) fn run_errands(self, errands: Vec<Errand>) {
        let (manager, kept) = (self.0, &self.link().kept);
        for errand in errands {
            match errand {
                Errand::RenewLeases => self.start_heartbeat(),
                Errand::KeepDenied(duration) => kept.keep_denied(manager, duration),
                Errand::KeepHeldBack(duration) => kept.keep_paused(manager, duration),
                Errand::EndKeep => kept.forget(&**manager, || manager.is_closed_or_paused()),
                Errand::Carry => self.start_carrier(),
            }
        }
    }

    /// Starts a carrier in the caller's runtime; where there is none, in the background.
    fn start_carrier(self) {
        if let Some(runtime) = timers::runtime_here().or_else(background) {
            runtime.spawn(carry(Arc::clone(self.0)));
        }
    }

    fn next_trip(self, come: u64, granted: u64) -> Trip {
        self.note_in_session(|step| step.next_trip(come, granted))
    }

    /// A call has ended. Returns what its carrier does next.
    fn answered(self, generation: u64, answer: &CallAnswer) -> Trip {
        let next = self.0.visit().change(|schedule, now, effects| {
            schedule.change_session(now, effects, |step| step.answered(generation, answer));
            let step = schedule.session(now, effects);
            step.map(|mut step| step.trip_after(answer))
        });
        next.expect(NO_STORE)
    }

    /// A call has failed, if it has not ended: its carrier was dropped, because the runtime was shut down.
    fn call_was_dropped(self, generation: u64) {
        let failed = CallFailed {
            error: StoreError::Unanswered {
                store: self.link().store.name(),
                after: None,
                source: None,
            },
            may_have_run: true,
        };
        self.change_session(|step| step.failed(generation, &failed));
    }
}

async fn carry(manager: Arc<Manager>) {
    let store = manager.at_store();
    let mut granted = 0;
    let mut trip = store.next_trip(0, granted);
    loop {
        trip = match trip {
            Trip::Call { call, generation } => {
                let guard = OnDrop(|| store.call_was_dropped(generation));
                let answer = store.link().call(call).await;
                let next = store.answered(generation, &answer);
                drop(guard); // a call that has ended cannot fail any more
                granted = answer.map_or(0, |reply| reply.granted);
                next
            }
            Trip::Yield(come) => {
                yield_now().await;
                store.next_trip(come, granted)
            }
            Trip::WaitUntil(at) => {
                let at = manager.lock().clock.instant(at);
                // The carrier holds the manager. If it is dropped, it waits no longer.
                let guard = OnDrop(|| store.note_in_session(|step| step.session.carrier_woke()));
                sleep_until(at).await;
                drop(guard);
                store.next_trip(0, 0)
            }
            Trip::End => return,
        };
    }
}
