//! A full table of keys: which key is evicted, and that a key is evicted whenever possible.

use std::time::Duration;

use tollgate::{
    KeyedLimiter, MaxConcurrency, Policy, Rate, SlidingWindow, TokenBucket, TryAcquireError,
    WhenFull,
};

/// A fixed bug: the scan of active keys counted slots of the table, most of which are empty when few keys are left.
#[tokio::test(start_paused = true)]
async fn no_new_key_is_refused_while_another_can_be_evicted() {
    for (max_keys, held) in [(40, 30), (500, 250), (4_000, 2_000)] {
        let log = SlidingWindow::log(3, Duration::from_secs(3_600));
        let keyed = KeyedLimiter::<u64>::builder(log)
            .max_keys(max_keys)
            .when_full(WhenFull::EvictSoonestReset)
            .build()
            .unwrap();
        let _held: Vec<_> = (0..held).map(|key| keyed.limiter(&key).unwrap()).collect();
        for key in 1_000_000..1_020_000 {
            match keyed.try_acquire(&key) {
                Ok(permit) => drop(permit),
                Err(error) => panic!("{error} for {key}, of {max_keys} keys {held} are held"),
            }
        }
    }
}

/// A fixed bug: only three of four shards were searched for the one evictable key.
#[tokio::test(start_paused = true)]
async fn the_only_evictable_key_of_a_small_table_is_found() {
    let hour = Duration::from_secs(3_600);
    let policies: [Policy; 2] = [
        SlidingWindow::log(3, hour).into(),
        TokenBucket::new(Rate::per_hour(3), 3).into(),
    ];
    for policy in policies {
        for max_keys in [2, 100, 1_024] {
            let builder = KeyedLimiter::<u64>::builder(policy.clone()).max_keys(max_keys);
            let keyed = builder
                .when_full(WhenFull::EvictSoonestReset)
                .build()
                .unwrap();
            let _held: Vec<_> = (1..max_keys as u64)
                .map(|key| keyed.limiter(&key).unwrap())
                .collect();
            for key in 1_000_000..1_005_000 {
                match keyed.try_acquire(&key) {
                    Ok(permit) => drop(permit),
                    Err(error) => {
                        panic!("{error} for {key}, of {max_keys} keys of {policy} one is not held")
                    }
                }
            }
            assert_eq!(keyed.len(), max_keys);
        }
    }
}

/// Of the keys that are compared, idle or active.
#[tokio::test(start_paused = true)]
async fn the_key_that_would_be_reset_first_is_evicted() {
    let hour = Duration::from_secs(3_600);
    let policies: [Policy; 2] = [
        SlidingWindow::log(2, hour).into(),
        TokenBucket::new(Rate::per_hour(2), 2).into(),
    ];
    for policy in policies {
        let keyed = KeyedLimiter::<u64>::builder(policy.clone())
            .max_keys(64)
            .when_full(WhenFull::EvictSoonestReset)
            .build()
            .unwrap();
        for key in 0..64 {
            drop(keyed.try_acquire(&key).unwrap());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        (1_000..1_016).for_each(|key| drop(keyed.try_acquire(&key).unwrap()));
        let evicted: Vec<u64> = (0..64)
            .filter(|key| keyed.check(key, 1).remaining() == 2)
            .collect();
        assert_eq!(evicted.len(), 16);
        // A search that took any key would have an average of 32.
        let average = evicted.iter().sum::<u64>() / 16;
        assert!(average < 20, "{policy}: {evicted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_key_is_refused_if_no_other_can_be_evicted() {
    let limits = MaxConcurrency::new(1);
    let keyed = KeyedLimiter::<u64>::builder(limits)
        .max_keys(200)
        .when_full(WhenFull::EvictSoonestReset)
        .build()
        .unwrap();
    let held: Vec<_> = (0..200)
        .map(|key| keyed.try_acquire(&key).unwrap())
        .collect();
    for key in 1_000..2_000 {
        assert_eq!(
            keyed.try_acquire(&key).unwrap_err(),
            TryAcquireError::TooManyKeys { max: 200 }
        );
    }
    drop(held);
    assert!(keyed.try_acquire(&1_000).is_ok());
}
