//! A claim for stores on servers: several stores contend for a key.

use std::sync::Arc;

use futures_util::future::join_all;

use super::{take, unique};
use crate::store::Store;

pub(super) async fn stores_get_exactly_the_limit<S: Store>(open: impl Fn() -> S) {
    let limiter = unique("contended");
    let tasks = (0..8).map(|_| {
        let (store, limiter) = (open(), Arc::clone(&limiter));
        tokio::spawn(async move {
            let calls = (0..32).map(|_| store.call(take(&limiter, "100/100d", 1)));
            join_all(calls)
                .await
                .into_iter()
                .map(|reply| reply.unwrap().granted)
                .sum::<u64>()
        })
    });
    assert_eq!(
        join_all(tasks)
            .await
            .into_iter()
            .map(Result::unwrap)
            .sum::<u64>(),
        100,
        "of 256"
    );
}
