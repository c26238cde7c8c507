//! A caller of a store.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use super::fault::{Fault, Outcome, pause, soon};
use crate::error::StoreError;
use crate::exchange::{Asks, Call, Reply, ReplyTerms, Scope};
use crate::policy::Policy;
use crate::store::Store;

pub(super) const MINUTE: Duration = Duration::from_secs(60);
pub(super) const SHORT: Duration = Duration::from_millis(30);
/// How much later than its TTL a lease may end: a store that knows the time only within bounds uses the latest instant.
pub(super) const LATEST: Duration = Duration::from_millis(100);

/// One process that calls for one key.
#[derive(Clone)]
pub(super) struct Holder {
    pub(super) store: Arc<dyn Store>,
    /// The template of all its calls.
    pub(super) call: Call,
    /// The number of the next lease.
    pub(super) next: u64,
}

/// A name that no other test has.
fn unique(name: &str) -> Arc<str> {
    format!("{name} {}", uuid::Uuid::new_v4()).into()
}

pub(super) fn policy(text: &str) -> Outcome<Policy> {
    text.parse()
        .map_err(|error| Fault::new(text, "a policy", error))
}

pub(super) fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64 // of minutes
}

impl Holder {
    pub(super) fn new(store: &Arc<dyn Store>, text: &str) -> Outcome<Self> {
        let scope = Scope {
            limiter: unique("conformance"),
            key: b"key".as_slice().into(),
        };
        let call = Call {
            ttl: nanos(MINUTE),
            ..Call::new(scope, policy(text)?, 1)
        };
        Ok(Self {
            store: Arc::clone(store),
            call,
            next: 1,
        })
    }

    pub(super) fn other(&self, holder: u64) -> Self {
        let mut other = self.clone();
        other.call.holder = holder;
        other
    }

    pub(super) fn of_key(&self, key: &[u8]) -> Self {
        let mut other = self.clone();
        other.call.scope.key = key.into();
        other
    }

    pub(super) fn of_limiter(&self, limiter: &str) -> Self {
        let mut other = self.clone();
        other.call.scope.limiter = limiter.into();
        other
    }

    pub(super) fn ttl(mut self, ttl: Duration) -> Self {
        self.call.ttl = nanos(ttl);
        self
    }

    /// Sends a call. Returns the reply if it is valid for a limiter.
    pub(super) async fn send(&self, change: impl FnOnce(&mut Call)) -> Result<Reply, StoreError> {
        let mut call = self.call.clone();
        change(&mut call);
        let terms = ReplyTerms::of(&call);
        let answer = self.store.call(call).await;
        let checked = terms.check(&answer);
        checked.map_or_else(
            |fault| {
                Err(StoreError::BadReply {
                    store: self.store.name(),
                    fault,
                })
            },
            |()| answer,
        )
    }

    pub(super) async fn try_ask(
        &mut self,
        count: u64,
        costs: &[u64],
        waits: bool,
    ) -> Result<Reply, StoreError> {
        let asks = Asks {
            waits,
            ..Asks::new(self.next, count, costs)
        };
        self.next += count;
        self.send(|call| call.asks = vec![asks]).await
    }

    pub(super) async fn ask(&mut self, count: u64, costs: &[u64]) -> Outcome<Reply> {
        Ok(self.try_ask(count, costs, true).await?)
    }

    pub(super) async fn peek(&self, costs: &[u64]) -> Outcome<Reply> {
        Ok(self.send(|call| call.peek = Some(costs.into())).await?)
    }

    pub(super) async fn give_back(&self, numbers: impl IntoIterator<Item = u64>) -> Outcome<Reply> {
        Ok(self
            .send(|call| call.returns = numbers.into_iter().collect())
            .await?)
    }

    pub(super) async fn reset(&self) -> Outcome {
        Ok(self.store.reset(self.call.scope.clone()).await?)
    }

    /// The keys of the limiter.
    pub(super) async fn keys(&self) -> Outcome<BTreeSet<Vec<u8>>> {
        let (mut keys, mut from) = (BTreeSet::new(), None);
        loop {
            let page = self.store.keys(&self.call.scope.limiter, from, 3).await?;
            keys.extend(page.keys.iter().map(|key| key.to_vec()));
            from = page.next;
            if from.is_none() {
                return Ok(keys);
            }
        }
    }

    /// Waits until the limiter has this many keys.
    pub(super) async fn has_keys_soon(&self, count: usize, what: impl Display) -> Outcome {
        soon(what, async {
            while self.keys().await?.len() != count {
                pause().await;
            }
            Ok(())
        })
        .await
    }
}

/// The units that each limit has left.
pub(super) fn remaining(reply: &Reply) -> Vec<u64> {
    reply.limits.iter().map(|limit| limit.remaining).collect()
}
