//! A store that a test can make refuse calls, answer late or not answer.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::sleep;
use tollgate::store::{
    Call, Cause, KeyPage, MemoryStore, ReleaseListener, Reply, Scope, Store, StoreError,
    StoreFuture,
};
use tollgate::{Policy, SharedLimiter, SharedLimiterBuilder};

use super::ms;

/// What the connection to the store does with calls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Way {
    Open,
    Slow(Duration),
    /// Calls are carried out at once, and their replies take a while.
    RepliesLate(Duration),
    /// Calls do not arrive, and neither side is notified.
    Cut,
    /// Calls are carried out, and their replies are lost.
    LosesReplies,
    Refuses,
    RefusesLate(Duration),
    /// The store has a policy that is none.
    Differs,
    Panics,
}

/// A store in memory behind a connection that a test controls.
#[derive(Debug, Clone)]
pub(crate) struct Faulty {
    pub(crate) store: MemoryStore,
    pub(crate) way: Arc<Mutex<Way>>,
    pub(crate) calls: Arc<AtomicU64>,
    /// The largest number of settlements in one call.
    pub(crate) most_settlements: Arc<Mutex<usize>>,
    /// Whether the store notifies of releases.
    pub(crate) notifies: bool,
}

impl Faulty {
    pub(crate) fn new() -> Self {
        Self {
            store: MemoryStore::new(),
            way: Arc::new(Mutex::new(Way::Open)),
            calls: Arc::default(),
            most_settlements: Arc::default(),
            notifies: true,
        }
    }

    pub(crate) fn by(way: Way) -> Self {
        let this = Self::new();
        this.set(way);
        this
    }

    pub(crate) fn set(&self, way: Way) {
        *self.way.lock().unwrap() = way;
    }

    pub(crate) fn builder(&self, policy: &str) -> SharedLimiterBuilder {
        SharedLimiter::builder(self.clone(), "test", policy).deadline(ms(500))
    }

    /// A limiter of another process, whose connection works.
    pub(crate) fn elsewhere(&self, policy: &str) -> SharedLimiter {
        SharedLimiter::new(self.store.clone(), "test", policy).unwrap()
    }
}

/// Whether a limiter only looks at the policy in the store: it does so from time to time.
fn is_look(call: &Call) -> bool {
    let look = Call::new(call.scope.clone(), call.policy.clone(), call.holder);
    *call == look
}

fn refused() -> Result<Reply, StoreError> {
    Err(StoreError::Refused {
        store: "faulty".to_owned(),
        source: Cause::new(std::io::Error::other("read only")),
    })
}

impl Store for Faulty {
    fn name(&self) -> String {
        "faulty".to_owned()
    }

    fn supports(&self, policy: &Policy) -> Result<(), StoreError> {
        self.store.supports(policy)
    }

    fn call(&self, call: Call) -> StoreFuture<Reply> {
        let (store, way) = (self.store.clone(), *self.way.lock().unwrap());
        if !is_look(&call) {
            self.calls.fetch_add(1, Relaxed);
        }
        let mut most = self.most_settlements.lock().unwrap();
        *most = call.settlements.len().max(*most);
        drop(most);
        Box::pin(async move {
            match way {
                Way::Open => {
                    sleep(ms(1)).await;
                    store.call(call).await
                }
                Way::Slow(time) => {
                    let arrives = async move {
                        sleep(time).await;
                        store.call(call).await
                    };
                    tokio::spawn(arrives).await.unwrap() // the call arrives even if its caller is dropped
                }
                Way::RepliesLate(time) => {
                    let reply = store.call(call).await;
                    sleep(time).await;
                    reply
                }
                Way::Cut => std::future::pending().await,
                Way::LosesReplies => {
                    drop(store.call(call).await);
                    std::future::pending().await
                }
                Way::Panics => panic!("on purpose"),
                Way::Differs => Err(StoreError::PolicyDiffers {
                    limiter: call.scope.limiter,
                    stored: "7 per blue moon".to_owned(),
                    stored_revision: 9,
                    given: call.policy.to_string(),
                    given_revision: call.revision,
                }),
                Way::Refuses => refused(),
                Way::RefusesLate(time) => {
                    sleep(time).await;
                    refused()
                }
            }
        })
    }

    fn listen(&self, limiter: &Arc<str>, listener: ReleaseListener) -> bool {
        self.notifies && self.store.listen(limiter, listener)
    }

    fn keys(&self, limiter: &Arc<str>, from: Option<Vec<u8>>, max: usize) -> StoreFuture<KeyPage> {
        self.store.keys(limiter, from, max)
    }

    fn reset(&self, scope: Scope) -> StoreFuture<()> {
        self.store.reset(scope)
    }

    fn purge(&self, limiter: &Arc<str>, max: usize) -> StoreFuture<u64> {
        self.store.purge(limiter, max)
    }
}
