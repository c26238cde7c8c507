//! Common parts of the tests of stores, and the tests of each store. The limiters of a test have names that no other test has, so
//! that tests can share a server.

#[cfg(any(feature = "mysql", feature = "postgres"))]
mod contended;
mod memory;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
use std::sync::Arc;

#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
use crate::exchange::{Asks, Call, Scope};
#[cfg(any(feature = "mysql", feature = "sqlite"))]
use crate::store::{Release, ReleaseListener, Store};

/// The URL of a server.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
fn url(variable: &str) -> String {
    let url = std::env::var(variable).ok().filter(|url| !url.is_empty());
    url.unwrap_or_else(|| {
        panic!("set {variable} to the URL of a server, or run the tests by scripts/servers")
    })
}

/// A name that no other test has.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
fn unique(name: &str) -> Arc<str> {
    format!("{name} {}", uuid::Uuid::new_v4()).into()
}

/// A call of the first holder that asks for units of a limiter without keys.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
fn take(limiter: &Arc<str>, policy: &str, count: u64) -> Call {
    let mut call = Call::new(
        Scope {
            limiter: Arc::clone(limiter),
            key: [].into(),
        },
        policy.parse().unwrap(),
        1,
    );
    call.ttl = 60_000_000_000;
    call.asks = vec![Asks::new(1, count, [1])];
    call
}

/// A test for stores that do not see turns in other processes.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
async fn turns_in_this_process_reach_listeners(store: &impl Store) {
    let limiter = unique("listened");
    let turns = Arc::new(std::sync::Mutex::new(Vec::new()));
    store.listen(
        &limiter,
        ReleaseListener::new(&turns, |turns, release| {
            let Release::Turn { key, holder, .. } = release else {
                panic!("{release:?}")
            };
            turns.lock().unwrap().push((key.to_vec(), holder));
        }),
    );
    let mut call = take(&limiter, "1 concurrent", 1);
    call.scope.key = b"key".as_slice().into();
    assert_eq!(store.call(call.clone()).await.unwrap().granted, 1);
    let waits = Call {
        holder: 2,
        ..call.clone()
    };
    assert_eq!(store.call(waits).await.unwrap().granted, 0);
    call.returns = vec![1];
    call.asks = Vec::new();
    store.call(call).await.unwrap();
    assert_eq!(*turns.lock().unwrap(), [(b"key".to_vec(), 2)]);
}
