//! What the keys of a shared limiter take in a store in memory, by an allocator that counts for each thread.

use std::time::Duration;

use tollgate::Policy;
use tollgate::store::{Asks, Call, MemoryStore, Scope, Store};

use crate::common::counting::LIVE;

/// Trap: a million hostile keys, each with processes that wait in line.
#[tokio::test(start_paused = true)]
async fn a_key_with_a_line_takes_two_kilobytes_and_all_lines_are_forgotten() {
    const KEYS: u64 = 20_000;
    let policies = [
        "1 concurrent ttl 10s",
        "1/h",
        "1 concurrent ttl 10s and sliding log 1/10s",
    ];
    for policy in policies {
        let policy: Policy = policy.parse().unwrap();
        let store = MemoryStore::new();
        let before = LIVE.get();
        for key in 0..KEYS {
            for holder in 1..=4 {
                let scope = Scope {
                    limiter: "lines".into(),
                    key: key.to_le_bytes().into(),
                };
                let mut asks = Asks::new(1, 1, vec![1; policy.limits().len()]);
                asks.waits = true;
                let mut call = Call::new(scope, policy.clone(), holder);
                call.asks = vec![asks];
                call.ttl = 10_000_000_000;
                let granted = store.call(call).await.unwrap().granted;
                assert_eq!(granted, u64::from(holder == 1), "{policy}");
            }
        }
        assert_eq!(store.len() as u64, KEYS);
        let each = (LIVE.get() - before) / KEYS as usize;
        println!("{policy}: {each} bytes for each key");
        assert!(each <= 2_000, "{each} bytes");

        // The leases have ended, the turns have passed, and nobody has asked again.
        tokio::time::advance(Duration::from_secs(5 * 3_600)).await;
        assert!(store.is_empty(), "{policy}: {} stay", store.len());
    }
}
