//! The keys of a shared limiter that are in use in this process.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::manager::Manager;
use crate::snapshot::KeyTotals;
use crate::store::Release;

/// The keys that are in use in this process, each with a manager.
#[derive(Debug, Default)]
pub(super) struct Keys {
    managers: Mutex<HashMap<Arc<[u8]>, Weak<Manager>>>,
}

impl Keys {
    /// All managers.
    pub(super) fn all(&self) -> Vec<Arc<Manager>> {
        let managers = self.managers.lock();
        managers.values().filter_map(Weak::upgrade).collect()
    }

    /// Handles a message of the store for this holder.
    pub(super) fn heard(&self, release: Release<'_>, by: u64) {
        let (key, other) = match release {
            Release::Turn { key, holder, next } => (Some(key), (holder != by).then_some(next)),
            Release::Reset(key) => (Some(key), None),
            Release::Unknown => (None, None),
        };
        let of_key = |key| self.managers.lock().get(key).and_then(Weak::upgrade);
        let managers = match key {
            Some(key) => of_key(key).into_iter().collect(),
            None => self.all(),
        };
        for manager in &managers {
            match other {
                None => manager.at_store().turn_came(),
                Some(next) => manager.at_store().other_turn_came(next == Some(by)),
            }
        }
    }

    /// Sums over the managers. `counted` has the sums of dropped managers. A manager that is dropped meanwhile may be left out,
    /// but is not counted twice.
    pub(super) fn totals(&self, counted: impl FnOnce() -> KeyTotals) -> KeyTotals {
        let managers = self.all();
        let mut totals = counted();
        managers
            .iter()
            .for_each(|manager| totals.add(manager.totals()));
        totals
    }

    /// The manager of a key, shared by all its handles.
    pub(super) fn manager(
        &self,
        key: &Arc<[u8]>,
        open: impl FnOnce() -> Arc<Manager>,
    ) -> Arc<Manager> {
        let mut managers = self.managers.lock();
        if let Some(manager) = managers.get(key).and_then(Weak::upgrade) {
            return manager;
        }
        if managers.len() == managers.capacity() {
            managers.retain(|_, manager| manager.strong_count() > 0); // before it would grow
        }
        let manager = open();
        managers.insert(Arc::clone(key), Arc::downgrade(&manager));
        manager
    }
}
