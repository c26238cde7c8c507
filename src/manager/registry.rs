//! Finds the limiter of a rate's permit when the permit is settled.
//!
//! Such a permit releases nothing when it is dropped, and few are settled. A handle in each permit would take two atomic writes
//! for every grant, a quarter of the cost of a decision. So the permit keeps only the random part of its id, which finds its
//! limiter here.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use super::lock::Manager;

static MANAGERS: LazyLock<Mutex<HashMap<u64, Weak<Manager>>>> = LazyLock::new(Mutex::default);

/// Registers a manager under the random part of its permits' ids, until it is dropped.
pub(super) fn enter(manager: &Arc<Manager>) {
    managers().insert(manager.id_prefix(), Arc::downgrade(manager));
}

pub(super) fn leave(manager: &Manager) {
    managers().remove(&manager.id_prefix());
}

/// `None` when it was dropped.
pub(super) fn find(id_prefix: u64) -> Option<Arc<Manager>> {
    managers().get(&id_prefix)?.upgrade() // the registry is unlocked before the manager is used or dropped
}

fn managers() -> MutexGuard<'static, HashMap<u64, Weak<Manager>>> {
    MANAGERS.lock().unwrap_or_else(PoisonError::into_inner)
}
