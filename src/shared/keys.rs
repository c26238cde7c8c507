//! The keys of a shared limiter that are in use in this process, each with a manager.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use uuid::Uuid;

use crate::core::dialogue::{Ahead, Dialogue, OnDown, Terms};
use crate::core::gate::{Gate, Holdings};
use crate::core::plan::Plan;
use crate::core::schedule::Options;
use crate::core::suspension::Hold;
use crate::exchange::Scope;
use crate::manager::{Clock, Common, Manager, ManagerParts, Origin, SharedDriver, StoreLink, TimeSource, TimerHost};
use crate::observe::{Observation, ObservedKey, Observer, Observers, OpenWait, WaitStart};
use crate::snapshot::KeyTotals;
use crate::strategy::Moment;

/// What the handles of all keys share.
#[derive(Debug)]
pub(super) struct SharedBy {
    pub(super) link: Arc<StoreLink>,
    pub(super) plan: Arc<Plan>,
    pub(super) options: Arc<Options>,
    pub(super) holder: u64,
    pub(super) ttl: NonZeroU64,
    /// The next ones in nanoseconds.
    pub(super) max_hold: Option<u64>,
    pub(super) polls_every: u64,
    pub(super) longest_back_off: u64,
    pub(super) deadline: u64,
    pub(super) on_down: OnDown,
    pub(super) replaces_policy: bool,
    pub(super) ahead: Option<Ahead>,
    pub(super) keys: Arc<Keys>,
    pub(super) driver: Arc<SharedDriver<Manager>>,
}

/// The keys that are in use.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) managers: Mutex<HashMap<Arc<[u8]>, Weak<Manager>>>,
}

impl Keys {
    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<[u8]>, Weak<Manager>>> {
        self.managers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Places of this key came back in some process; without one, of any key.
    pub(super) fn released(&self, key: Option<&[u8]>) {
        let managers: Vec<_> = match key {
            Some(key) => self.lock().get(key).and_then(Weak::upgrade).into_iter().collect(),
            None => self.lock().values().filter_map(Weak::upgrade).collect(),
        };
        managers.iter().for_each(Manager::released_elsewhere);
    }

    /// Sums over the managers; `counted` has those of managers that were dropped. One that is dropped meanwhile may be left out, and is
    /// not counted twice.
    pub(super) fn totals(&self, counted: impl FnOnce() -> KeyTotals) -> KeyTotals {
        let managers: Vec<_> = self.lock().values().filter_map(Weak::upgrade).collect();
        let mut totals = counted();
        managers.iter().for_each(|manager| totals.add(manager.totals()));
        totals
    }

    /// The manager of a key: one for all its handles.
    pub(super) fn manager(&self, key: &Arc<[u8]>, open: impl FnOnce() -> Arc<Manager>) -> Arc<Manager> {
        let mut managers = self.lock();
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

impl SharedBy {
    pub(super) fn open(&self, key: &Arc<[u8]>) -> Arc<Manager> {
        let Self { link, plan, options, .. } = self;
        let name = self.name_of(key);
        let clock = Clock::new(TimeSource::TOKIO);
        let timer_host = TimerHost::SharedDriver(Arc::clone(&self.driver));
        let origin = Arc::new(Origin { name: Some(name), since_epoch: Duration::ZERO, timer_host });
        let id_prefix = Uuid::new_v4().as_u64_pair().0;
        let common = Common::new(Arc::clone(plan), Arc::clone(options), origin, id_prefix, clock.clone());
        let common = Arc::new(common.with_store_link(Arc::clone(link)));
        let gate = Gate::shared(Arc::clone(plan), Moment::START, Holdings::new(self.ttl, self.max_hold));
        let observer = self.observers_of(key);
        let parts = ManagerParts { common, number: 0, gate, clock, observer, hold: Hold::default() };
        Manager::open_shared(parts, Dialogue::new(self.terms(key, id_prefix >> 16)))
    }

    /// The name that events of a key have.
    pub(super) fn name_of(&self, key: &[u8]) -> Arc<str> {
        let name = &self.link.name;
        if key.is_empty() { Arc::clone(name) } else { format!("{name}/{}", key.escape_ascii()).into() }
    }

    pub(super) fn observers_of(&self, key: &Arc<[u8]>) -> Observers {
        let of_key = || OfKey { link: Arc::clone(&self.link), key: Arc::clone(key) };
        if self.link.observer.is_some() { Observers::new(of_key()) } else { Observers::NONE }
    }

    fn terms(&self, key: &Arc<[u8]>, first_number: u64) -> Terms {
        Terms {
            scope: self.scope(key),
            holder: self.holder,
            first_number,
            ttl: if self.plan.holds_places() { self.ttl.get() } else { 0 },
            deadline: self.deadline,
            polls_every: self.polls_every,
            longest_back_off: self.longest_back_off,
            on_down: self.on_down.clone(),
            replaces_policy: self.replaces_policy,
            store: self.link.store.name().into(),
            ahead: self.ahead,
        }
    }

    pub(super) fn scope(&self, key: &Arc<[u8]>) -> Scope {
        Scope { limiter: Arc::clone(&self.link.name), key: Arc::clone(key) }
    }
}

impl Drop for SharedBy {
    fn drop(&mut self) {
        self.link.kept.end();
    }
}

/// Tells the observers of the limiter what happens to a key.
struct OfKey {
    link: Arc<StoreLink>,
    key: Arc<[u8]>,
}

impl OfKey {
    fn key(&self) -> Option<ObservedKey<'_>> {
        let format = |key: &dyn Any, f: &mut fmt::Formatter<'_>| {
            let bytes: &[u8] = key.downcast_ref::<Arc<[u8]>>().map_or(&[], |key| key);
            write!(f, "\"{}\"", bytes.escape_ascii())
        };
        (!self.key.is_empty()).then(|| ObservedKey::new(&self.key, format))
    }
}

impl Observer for OfKey {
    fn observe(&self, what: &Observation<'_>) {
        self.link.observer.pass_on(&Observation { limiter: Some(&self.link.name), key: self.key(), ..*what });
    }

    fn wait_begins(&self, wait: &WaitStart<'_>) -> Option<Box<dyn OpenWait>> {
        self.link.observer.pass_on_wait(&WaitStart { limiter: Some(&self.link.name), key: self.key(), ..*wait })
    }
}
