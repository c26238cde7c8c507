//! How a manager begins and ends.

use std::sync::Arc;

use super::clock::Clock;
use super::guard::Guarded;
use super::lock::{Beside, Common, Manager};
use super::registry;
use super::state::State;
use crate::core::dialogue::Dialogue;
use crate::core::gate::Gate;
use crate::core::line::MAX_PLACES;
use crate::core::schedule::Schedule;
use crate::core::suspension::Hold;
use crate::observe::Observers;
use crate::snapshot::KeyTotals;

/// What a manager is made of.
pub(crate) struct ManagerParts {
    pub(crate) common: Arc<Common>,
    /// Its number among those that have this in common. No other one has the same.
    pub(crate) number: u64,
    pub(crate) gate: Gate,
    pub(crate) clock: Clock,
    pub(crate) observer: Observers,
    pub(crate) hold: Hold,
}

impl Manager {
    pub(crate) fn open(parts: ManagerParts) -> Arc<Self> {
        Self::open_with(parts, |schedule| schedule)
    }

    /// The manager of limits in a store.
    pub(crate) fn open_shared(parts: ManagerParts, dialogue: Dialogue) -> Arc<Self> {
        Self::open_with(parts, |schedule| schedule.with_dialogue(dialogue))
    }

    fn open_with(parts: ManagerParts, complete: impl FnOnce(Schedule) -> Schedule) -> Arc<Self> {
        let ManagerParts { common, number, gate, clock, observer, hold } = parts;
        let state = State::new(complete(common.schedule(gate)).held_back(hold), clock);
        let manager = Arc::new(Self::new(Guarded::new(common, state, Beside::new(observer)), number));
        if manager.is_registered() {
            registry::enter(&manager);
        }
        manager
    }

    /// The manager of a new key, after the grant of this fence at `now`. One of plain places is only a word, if it has no observer
    /// and nothing holds it back.
    pub(crate) fn of_new_key(
        common: Arc<Common>,
        number: u64,
        fence: u64,
        clock: &Clock,
        observer: Observers,
        hold: Option<Hold>,
    ) -> Arc<Self> {
        let only_a_word = !observer.is_some() && hold.is_none();
        match common.plan.plain_places().filter(|places| *places <= MAX_PLACES && only_a_word) {
            Some(places) => {
                common.set_clock(clock.clone());
                Arc::new(Self::new(Guarded::of_places(common, places, fence), number))
            }
            None => {
                let gate = Gate::resume(Arc::clone(&common.plan), std::iter::empty(), fence, clock.latest());
                let (clock, hold) = (clock.clone(), hold.unwrap_or_default());
                Self::open(ManagerParts { common, number, gate, clock, observer, hold })
            }
        }
    }

    /// The registered manager with this random part of permit ids; `None` when it was dropped.
    pub(crate) fn find(id_prefix: u64) -> Option<Arc<Self>> {
        registry::find(id_prefix)
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        if let Some(link) = self.store_link() {
            link.counted().add(KeyTotals { in_flight: 0, queued: 0, ..self.totals() });
        }
        if self.is_registered() {
            registry::leave(self);
        }
        if !self.state.is_only_a_word() {
            self.timer_host().dismiss(self);
        }
    }
}
