//! Claims of stores that lock a row: several of them contend, and callers give up.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::conformance::{asks, blank, policy, unique};
use crate::exchange::{Call, Scope};
use crate::store::Store;

/// A call of the first holder that asks for units of the key of a limiter.
pub(super) fn take(limiter: &Arc<str>, policy_text: &str, count: u64) -> Call {
    let mut call = blank(Scope { limiter: Arc::clone(limiter), key: [].into() }, policy(policy_text), 1);
    call.asks = vec![asks(1, count, &[1], true)];
    call
}

pub(super) async fn stores_get_exactly_the_limit<S: Store>(open: impl Fn() -> S) {
    let limiter = unique("contended");
    let tasks = (0..8).map(|_| {
        let (store, limiter) = (open(), Arc::clone(&limiter));
        tokio::spawn(async move {
            let calls = (0..32).map(|_| store.call(take(&limiter, "100/100d", 1)));
            join_all(calls).await.into_iter().map(|reply| reply.unwrap().granted).sum::<u64>()
        })
    });
    assert_eq!(join_all(tasks).await.into_iter().map(Result::unwrap).sum::<u64>(), 100, "of 256");
}

pub(super) async fn nothing_is_left_locked(store: &impl Store) {
    let limiter = unique("dropped");
    for wait in 0..40 {
        let calls = join_all((0..4).map(|_| store.call(take(&limiter, "1000000/h", 1))));
        tokio::time::timeout(Duration::from_micros(100 * wait), calls).await.ok();
    }
    tokio::time::timeout(Duration::from_secs(4), store.call(take(&limiter, "1000000/h", 1))).await.unwrap().unwrap();
}
