//! The keys of a shared limiter that are in use in this process, each with a manager.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use uuid::Uuid;

use crate::core::gate::plan::Plan;
use crate::core::schedule::{Options, Schedule};
use crate::core::session::{SessionOptions, StoreSession};
use crate::exchange::Scope;
use crate::lock::Lock;
use crate::manager::{
    Clock, Manager, PerLimiter, PerPlan, SharedDriver, StoreLink, TimeSource, TimerHost,
};
use crate::snapshot::KeyTotals;
use crate::strategy::Moment;

/// The data that the handles of all keys share.
#[derive(Debug)]
pub(super) struct SharedBy {
    pub(super) link: Arc<StoreLink>,
    pub(super) plan: Arc<Plan>,
    pub(super) options: Arc<Options>,
    /// The session options of the empty key. Other keys differ in the scope, and every session in the first lease.
    pub(super) session: SessionOptions,
    pub(super) keys: Arc<Keys>,
    pub(super) driver: Arc<SharedDriver<Manager>>,
}

/// The keys that are in use.
#[derive(Debug, Default)]
pub(super) struct Keys {
    managers: Lock<HashMap<Arc<[u8]>, Weak<Manager>>>,
}

impl Keys {
    /// Handles a release message: places of this key were released in some process. Without a key, places of any key may have
    /// been released.
    pub(super) fn released(&self, key: Option<&[u8]>) {
        let managers: Vec<_> = match key {
            Some(key) => self
                .managers
                .lock()
                .get(key)
                .and_then(Weak::upgrade)
                .into_iter()
                .collect(),
            None => self
                .managers
                .lock()
                .values()
                .filter_map(Weak::upgrade)
                .collect(),
        };
        for manager in &managers {
            manager.at_store().released_elsewhere();
        }
    }

    /// Sums over the managers. `counted` has the sums of dropped managers. A manager that is dropped meanwhile may be left out,
    /// but is not counted twice.
    pub(super) fn totals(&self, counted: impl FnOnce() -> KeyTotals) -> KeyTotals {
        let managers: Vec<_> = self
            .managers
            .lock()
            .values()
            .filter_map(Weak::upgrade)
            .collect();
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

impl SharedBy {
    pub(super) fn open(&self, key: &Arc<[u8]>) -> Arc<Manager> {
        let Self { link, plan, .. } = self;
        let clock = Clock::new(TimeSource::TOKIO);
        let timer_host = TimerHost::SharedDriver(Arc::clone(&self.driver));
        let origin = Arc::new(PerLimiter {
            name: Some(self.name_of(key)),
            since_epoch: Duration::ZERO,
            timer_host,
            store_link: Some(Arc::clone(link)),
        });
        let id_prefix = Uuid::new_v4().as_u64_pair().0;
        let common = PerPlan::new(
            Arc::clone(plan),
            Arc::clone(&self.options),
            origin,
            id_prefix,
            clock.clone(),
        );
        let options = SessionOptions {
            scope: self.scope(key),
            first_lease: id_prefix >> 16,
            ..self.session.clone()
        };
        let session = StoreSession::new(Arc::clone(plan), Moment::START, options);
        let observed_key = Some(key).filter(|key| !key.is_empty());
        let schedule = Schedule::of_store(session, Arc::clone(&self.options));
        let observer = link.observer.of_key(observed_key);
        Manager::open(Arc::new(common), 0, schedule, clock, observer)
    }

    /// The name of a key in errors of a group.
    fn name_of(&self, key: &[u8]) -> Arc<str> {
        let name = &self.link.name;
        if key.is_empty() {
            Arc::clone(name)
        } else {
            format!("{name}/{}", key.escape_ascii()).into()
        }
    }

    pub(super) fn scope(&self, key: &Arc<[u8]>) -> Scope {
        Scope {
            limiter: Arc::clone(&self.link.name),
            key: Arc::clone(key),
        }
    }
}

impl Drop for SharedBy {
    fn drop(&mut self) {
        self.link.kept.end();
    }
}
