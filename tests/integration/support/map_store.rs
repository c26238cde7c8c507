use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tollgate::Policy;
use tollgate::store::{
    Call, Decided, KeyPage, KeyState, Reply, Rules, Scope, Store, StoreError, StoreFuture,
};

/// A store over a table of bytes.
#[derive(Debug, Clone)]
struct MapStore {
    rules: Arc<Rules>,
    table: Arc<Mutex<HashMap<Scope, KeyState>>>,
}

impl MapStore {
    fn new() -> Self {
        Self { rules: Arc::new(Rules::new("a map")), table: Arc::default() }
    }

    /// The clock of the store, which all its callers share.
    fn now() -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.as_nanos() as u64 // until 2554
    }

    /// In an engine this would be a transaction, or a compare-and-swap loop.
    fn transact<T>(&self, work: impl FnOnce(&mut HashMap<Scope, KeyState>) -> T) -> T {
        work(&mut self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Store for MapStore {
    fn name(&self) -> String {
        "a map".to_owned()
    }

    fn supports(&self, policy: &Policy) -> Result<(), StoreError> {
        self.rules.supports(policy)
    }

    fn call(&self, call: Call) -> StoreFuture<Reply> {
        let this = self.clone();
        Box::pin(async move {
            this.transact(|table| {
                // The clock is read after the lock was taken.
                let Decided { reply, state, .. } = this.rules.decide(Self::now(), table.get(&call.scope), &call)?;
                if let Some(state) = state {
                    table.insert(call.scope, state);
                }
                Ok(reply)
            })
        })
    }

    // `listen` is left out: a limiter that waits for a place then asks again and again.

    fn keys(&self, limiter: &Arc<str>, _: Option<Vec<u8>>, _: usize) -> StoreFuture<KeyPage> {
        let (this, limiter) = (self.clone(), Arc::clone(limiter));
        Box::pin(async move {
            let is_listed = |scope: &Scope, state: &KeyState| scope.limiter == limiter && state.expires_at > Self::now();
            let keys = this.transact(|table| {
                let listed = table.iter().filter(|(scope, state)| is_listed(scope, state));
                listed.map(|(scope, _)| Arc::clone(&scope.key)).collect()
            });
            Ok(KeyPage { keys, next: None })
        })
    }

    fn reset(&self, scope: Scope) -> StoreFuture<()> {
        let this = self.clone();
        Box::pin(async move {
            this.transact(|table| table.remove(&scope));
            Ok(())
        })
    }

    fn purge(&self, limiter: &Arc<str>, max: usize) -> StoreFuture<u64> {
        let (this, limiter) = (self.clone(), Arc::clone(limiter));
        Box::pin(async move {
            Ok(this.transact(|table| {
                let mut left = max;
                let before = table.len();
                table.retain(|scope, state| {
                    let stays = left == 0 || scope.limiter != limiter || state.expires_at > Self::now();
                    left -= usize::from(!stays);
                    stays
                });
                (before - table.len()) as u64
            }))
        })
    }
}
