//! A store in the memory of the process.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::ready;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::{KeyPage, Listeners, ReleaseListener, Store, StoreFuture};
use crate::core::ledger::{Agreement, Ledger, Offer};
use crate::error::StoreError;
use crate::exchange::{Call, Reply, Scope};
use crate::policy::Policy;
use crate::strategy::Moment;

/// A store in the memory of this process, for tests and for programs of one process. Clones share the store.
///
/// Its clock is tokio's, and so follows a paused clock. Each [reset](crate::SharedLimiter::reset) advances the clock by a
/// nanosecond, so that grants before and after the reset are distinct. A key is kept no longer than its state matters.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    shared: Arc<MemoryShared>,
}

#[derive(Debug)]
struct MemoryShared {
    built: Instant,
    /// The wall clock when the store was built.
    since_epoch: Duration,
    kept: Mutex<KeptState>,
    listeners: Listeners,
}

#[derive(Debug, Default)]
struct KeptState {
    ledgers: HashMap<Scope, Ledger>,
    /// The number of keys at which the next purge is made.
    purge_at: usize,
    /// How many nanoseconds the clock was advanced, one for each reset.
    resets: u64,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            shared: Arc::new(MemoryShared {
                built: Instant::now(),
                since_epoch,
                kept: Mutex::default(),
                listeners: Listeners::default(),
            }),
        }
    }

    /// The number of keys that the store holds now, of all limiters.
    #[must_use]
    pub fn len(&self) -> usize {
        let (mut kept, now) = self.lock_now();
        kept.purge(now, usize::MAX);
        kept.ledgers.len()
    }

    /// Whether the store holds no key, so that all units are free again.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Locks the state, and reads the clock under the lock. So every call after a reset has a later instant than all calls before
    /// it.
    fn lock_now(&self) -> (MutexGuard<'_, KeptState>, Moment) {
        let kept = self.shared.kept.lock();
        let now = self.shared.since_epoch
            + self.shared.built.elapsed()
            + Duration::from_nanos(kept.resets);
        (
            kept,
            Moment::from_nanos(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)).min(Moment::LAST),
        )
    }

    fn answer(&self, call: &Call) -> Result<Reply, StoreError> {
        let (mut kept, now) = self.lock_now();
        if call.valid_until.is_some_and(|until| until <= now.nanos()) {
            return Err(StoreError::too_late(NAME));
        }
        kept.make_room(now);
        let (reply, Offer { turns, next }) = kept.ledger(now, call)?.call(now, call);
        drop(kept);
        let Scope { limiter, key } = &call.scope;
        self.shared.listeners.turns(limiter, key, &turns, next);
        Ok(reply)
    }
}

const NAME: &str = "in memory";

impl KeptState {
    fn ledger(&mut self, now: Moment, call: &Call) -> Result<&mut Ledger, StoreError> {
        let ledger = match self.ledgers.entry(call.scope.clone()) {
            Entry::Vacant(vacant) => {
                let plan = super::plan(&call.policy)?;
                return Ok(vacant.insert(Ledger::new(plan, call.revision, now)));
            }
            Entry::Occupied(occupied) => occupied.into_mut(),
        };
        let stored = ledger.plan();
        if *stored.policy() == call.policy && ledger.revision() == call.revision {
            return Ok(ledger);
        }
        let plan = super::plan(&call.policy)?;
        if ledger.forgettable_at() <= now {
            *ledger = Ledger::new(plan, call.revision, now);
        } else if ledger.agree(&plan, call.revision, now) == Agreement::Differs {
            let stored = ledger.plan().policy().to_string();
            return Err(StoreError::policy_differs(call, stored, ledger.revision()));
        }
        Ok(ledger)
    }

    /// Purges when the number of keys has doubled since the last purge, so that each key costs constant time.
    fn make_room(&mut self, now: Moment) {
        const FEW: usize = 1_024;
        if self.ledgers.len() >= self.purge_at.max(FEW) {
            self.purge(now, usize::MAX);
            self.purge_at = 2 * self.ledgers.len();
        }
    }

    fn purge(&mut self, now: Moment, mut max: usize) -> u64 {
        let before = self.ledgers.len();
        self.ledgers.retain(|_, ledger| {
            let stays = max == 0 || ledger.forgettable_at() > now;
            max -= usize::from(!stays);
            stays
        });
        (before - self.ledgers.len()) as u64
    }
}

impl Store for MemoryStore {
    fn name(&self) -> String {
        NAME.to_owned()
    }

    fn supports(&self, policy: &Policy) -> Result<(), StoreError> {
        super::check_supported(NAME, policy)?;
        super::plan(policy).map(drop)
    }

    fn call(&self, call: Call) -> StoreFuture<Reply> {
        let this = self.clone();
        Box::pin(async move { this.answer(&call) })
    }

    fn listen(&self, limiter: &Arc<str>, listener: ReleaseListener) -> bool {
        self.shared.listeners.add(limiter, listener);
        true
    }

    fn keys(&self, limiter: &Arc<str>, _: Option<Vec<u8>>, _: usize) -> StoreFuture<KeyPage> {
        let (mut kept, now) = self.lock_now();
        kept.purge(now, usize::MAX);
        let keys = kept
            .ledgers
            .keys()
            .filter(|scope| scope.limiter == *limiter)
            .map(|scope| Arc::clone(&scope.key));
        Box::pin(ready(Ok(KeyPage {
            keys: keys.collect(),
            next: None,
        })))
    }

    fn reset(&self, scope: Scope) -> StoreFuture<()> {
        let mut kept = self.shared.kept.lock();
        kept.ledgers.remove(&scope);
        kept.resets += 1;
        drop(kept);
        self.shared.listeners.reset(&scope.limiter, &scope.key);
        Box::pin(ready(Ok(())))
    }

    fn purge(&self, _: &Arc<str>, max: usize) -> StoreFuture<u64> {
        let (mut kept, now) = self.lock_now();
        let purged = kept.purge(now, max);
        drop(kept);
        Box::pin(ready(Ok(purged)))
    }
}
