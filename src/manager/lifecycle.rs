//! How a manager begins and ends.

use std::sync::Arc;

use super::clock::Clock;
use super::lock::{Manager, Origin};
use super::registry;
use crate::core::gate::Gate;
use crate::core::schedule::{Options, Schedule};
use crate::observe::Observer;

/// What a manager is made of.
pub(crate) struct ManagerParts {
    pub(crate) gate: Gate,
    pub(crate) options: Arc<Options>,
    pub(crate) clock: Clock,
    /// The random part of permit ids.
    pub(crate) id_prefix: u64,
    pub(crate) origin: Arc<Origin>,
    pub(crate) observer: Observer,
}

impl Manager {
    pub(crate) fn open(parts: ManagerParts) -> Arc<Self> {
        let ManagerParts { gate, options, clock, id_prefix, origin, observer } = parts;
        let schedule = Schedule::new(gate, options);
        let manager = Arc::new(Self::new(schedule, clock, id_prefix, origin, observer));
        if manager.is_registered() {
            registry::enter(&manager);
        }
        manager
    }

    /// The registered manager with this random part of permit ids; `None` when it was dropped.
    pub(crate) fn find(id_prefix: u64) -> Option<Arc<Self>> {
        registry::find(id_prefix)
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        if self.is_registered() {
            registry::leave(self);
        }
        self.origin.timer_host.dismiss(self);
    }
}
