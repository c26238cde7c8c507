//! Requests to a store that do not wait: they are granted by one call, or denied.

use std::sync::Arc;
use std::task::Waker;

use super::clock::ClockOrigin;
use super::lock::Manager;
use super::request_options::RequestOptions;
use crate::contain_panic::contain_panic;
use crate::core::dialogue::Denied;
use crate::core::effects::Effects;
use crate::core::schedule::Asked;
use crate::core::waiter::WaiterId;
use crate::error::AcquireError;
use crate::strategy::Moment;

impl Manager {
    /// Asks the store once; `waker` is woken when [`Manager::poll`], which must follow, has the answer.
    pub(crate) fn ask_once(self: &Arc<Self>, options: &RequestOptions, waker: &Waker) -> Result<Asked, AcquireError> {
        let mut waker = Some(waker.clone());
        let mut effects = Effects::default();
        let (mut state, now) = self.lock_now();
        state.schedule.offer_lead();
        let asked = state.schedule.ask_once(now, &options.request(Moment::NEVER), &mut waker, &mut effects);
        let queued = if let Ok(Asked::Queued(id)) = asked { Some(id) } else { None };
        state.let_lead(queued, &mut effects);
        let asked = match asked {
            Ok(Asked::Queued(id)) => self
                .ensure_driver(state, id, options.cost, &mut effects)
                .map(|_| Asked::Queued(id))
                .map_err(|refused| refused.error),
            asked => {
                self.unlock_and_apply(state, &mut effects);
                asked
            }
        };
        contain_panic(|| drop(waker));
        asked
    }

    /// The clock of the grants that are made now.
    pub(crate) fn clock_origin(&self) -> ClockOrigin {
        self.lock().clock.origin()
    }

    /// How such a request was denied. It is taken once.
    pub(crate) fn take_denied(self: &Arc<Self>, id: WaiterId) -> Option<Denied> {
        self.with_schedule(|schedule, _, _| schedule.take_denied(id))
    }
}
