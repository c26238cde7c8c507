//! A policy that changes for all processes. Each limiter stands for a process, on a store in memory. The clock is paused, so that the
//! instants are exact.

use std::error::Error;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep};
use tollgate::store::{Asks, Call, KeyState, MemoryStore, Rules, Scope, StoreError};
use tollgate::{AcquireError, EventKind, SharedLimiter, TryAcquireError};

use crate::common::faulty::{Faulty, Way};
use crate::common::ms;

const NAME: &str = "policies";

fn process(store: &MemoryStore, policy: &str, revision: u64) -> SharedLimiter {
    let builder = SharedLimiter::builder(store.clone(), NAME, policy).revision(revision);
    builder.build().unwrap()
}

fn in_force(limiter: &SharedLimiter) -> (String, u64) {
    (limiter.policy().to_string(), limiter.revision())
}

/// Keeps a process calling for a key of its own.
fn keep_calling(limiter: &SharedLimiter, key: &str) -> tokio::task::JoinHandle<()> {
    let limiter = limiter.key(key);
    tokio::spawn(async move {
        loop {
            drop(limiter.try_acquire().await);
            sleep(ms(50)).await;
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_is_set_applies_in_all_processes() {
    let store = MemoryStore::new();
    let processes = [(); 4].map(|()| process(&store, "10/min burst 10", 0));
    for limiter in &processes {
        drop(limiter.acquire().await.unwrap());
    }
    let _busy: Vec<_> = processes
        .iter()
        .zip(["a", "b", "c", "d"])
        .map(|(limiter, key)| keep_calling(limiter, key))
        .collect();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(processes[0].set_policy("7/h").await.unwrap(), 1);
    assert_eq!(in_force(&processes[0]), ("7/h".to_owned(), 1));
    assert_eq!(
        processes[1].check(1).await.unwrap().remaining(),
        3,
        "four units were used of a key that processes share"
    );
    sleep(ms(600)).await;
    for limiter in &processes {
        assert_eq!(in_force(limiter), ("7/h".to_owned(), 1));
    }
    assert_eq!(processes[3].set_policy("8/h").await.unwrap(), 2);
    sleep(ms(600)).await;
    assert_eq!(in_force(&processes[0]), ("8/h".to_owned(), 2));
    let late = process(&store, "10/min", 0);
    drop(late.key("of its own").try_acquire().await);
    drop(late.try_acquire().await); // a key that is shared
    assert_eq!(in_force(&late), ("8/h".to_owned(), 2));
}

/// A process that is built with an earlier revision, and calls for keys of its own only, follows within a second of its first call.
#[tokio::test(start_paused = true)]
async fn a_revision_that_goes_back_changes_nothing() {
    let store = MemoryStore::new();
    let new = process(&store, "5/h", 7);
    drop(new.acquire().await.unwrap());
    let old = process(&store, "9/h", 6);
    let _busy = keep_calling(&old, "own");
    sleep(ms(1_000)).await;
    assert_eq!(in_force(&old), ("5/h".to_owned(), 7));
    drop((old, new));
    sleep(Duration::from_secs(86_400)).await; // no key has usage any more
    let older = process(&store, "99/h", 1);
    let _busy = keep_calling(&older, "own");
    sleep(ms(1_000)).await;
    assert_eq!(in_force(&older), ("5/h".to_owned(), 7));
}

#[tokio::test(start_paused = true)]
async fn processes_that_set_policies_at_once_agree_on_one() {
    let store = MemoryStore::new();
    let processes: Vec<_> = (0..8).map(|_| process(&store, "10/h", 0)).collect();
    let _busy: Vec<_> = processes
        .iter()
        .enumerate()
        .map(|(index, limiter)| keep_calling(limiter, &index.to_string()))
        .collect();
    sleep(ms(10)).await;
    let sets =
        processes
            .iter()
            .zip(1..)
            .map(|(limiter, limit)| async move {
                limiter.set_policy(format!("{limit}/h").as_str()).await
            });
    let mut revisions: Vec<_> = join_all(sets)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    revisions.sort_unstable();
    assert_eq!(revisions, [1, 2, 3, 4, 5, 6, 7, 8]);
    sleep(ms(600)).await;
    let agreed = in_force(&processes[0]);
    assert_eq!(agreed.1, 8);
    assert!(processes.iter().all(|limiter| in_force(limiter) == agreed));
}

#[tokio::test(start_paused = true)]
async fn waiters_keep_their_positions_and_those_that_never_fit_are_refused() {
    let store = MemoryStore::new();
    let [one, other] = [(); 2].map(|()| process(&store, "10/h burst 10", 0));
    let first = one.acquire_many(10).await.unwrap();
    let waits = |limiter: &SharedLimiter, cost| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let permit = limiter.acquire_many(cost).await;
            permit.map(|_| Instant::now())
        })
    };
    let (large, small) = (waits(&other, 9), waits(&other, 2));
    sleep(ms(10)).await;
    let changed = Instant::now();
    one.set_policy("3600/h burst 5").await.unwrap();
    assert!(matches!(
        large.await.unwrap(),
        Err(AcquireError::ExceedsLimit {
            cost: 9,
            max: 5,
            ..
        })
    ));
    // Ten units are used, of which seven must have come back for two of five to be free.
    let granted_after = small.await.unwrap().unwrap() - changed;
    assert!(
        (ms(6_900)..=ms(7_600)).contains(&granted_after),
        "{granted_after:?}"
    );
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn permits_in_flight_outlive_changes_between_places_and_rates() {
    let store = MemoryStore::new();
    let [one, other] = [(); 2].map(|()| process(&store, "2 concurrent ttl 3s", 0));
    let held = [one.acquire().await.unwrap(), other.acquire().await.unwrap()];
    one.set_policy("1000/s").await.unwrap();
    drop(other.acquire().await.unwrap());
    sleep(ms(2_500)).await;
    one.set_policy("3 concurrent ttl 3s").await.unwrap();
    let third = other.acquire().await.unwrap();
    assert!(
        one.try_acquire().await.is_err(),
        "two places are held since before"
    );
    sleep(Duration::from_secs(10)).await;
    assert!(
        held.iter().all(tollgate::Permit::is_live),
        "they are renewed"
    );
    assert!(one.try_acquire().await.is_err());
    let waiter = {
        let one = one.clone();
        tokio::spawn(async move {
            drop(one.acquire().await.unwrap());
            Instant::now()
        })
    };
    sleep(ms(1)).await;
    let released = Instant::now();
    let [first, second] = held;
    drop(second);
    let waited = waiter.await.unwrap() - released;
    assert!(waited <= ms(2), "{waited:?}");
    drop((first, third));
    sleep(ms(1)).await;
    assert_eq!(one.check(1).await.unwrap().remaining(), 3);
}

/// What was charged by the former policy is settled by the present one, and never refunded.
#[tokio::test(start_paused = true)]
async fn work_of_a_former_policy_is_settled_by_the_present_one() {
    let store = MemoryStore::new();
    let limiter = process(&store, "window 100/d from first grant", 0);
    let [more, less] = [
        limiter.acquire_many(10).await.unwrap(),
        limiter.acquire_many(10).await.unwrap(),
    ];
    sleep(ms(1)).await;
    limiter
        .set_policy("window 50/h from first grant and 5 concurrent")
        .await
        .unwrap();
    assert_eq!(limiter.limits().await.unwrap()[0].remaining, 30);
    assert!(more.settle(15));
    assert!(less.settle(1));
    sleep(ms(1)).await;
    assert_eq!(limiter.limits().await.unwrap()[0].remaining, 25);
}

/// While a thread applies a later policy to one key after the other, requests of other threads for keys that it has not reached yet
/// are decided by the later policy, too. The first event of the change comes while it is at its first key. The clock is not paused:
/// the other thread has a runtime of its own.
#[tokio::test]
async fn a_request_follows_while_another_thread_makes_all_keys_follow() {
    const KEYS: [&str; 4] = ["a", "b", "c", "d"];
    let store = MemoryStore::new();
    let first = process(&store, "8/h", 0);
    let (sender, answers) = mpsc::channel();
    let keys = Arc::<Mutex<Option<[SharedLimiter; 4]>>>::default();
    let to_ask = Arc::clone(&keys);
    let second = SharedLimiter::builder(store, NAME, "8/h")
        .on_event(move |event| {
            if let EventKind::PolicyChanged { .. } = event.kind {
                let keys = to_ask.lock().unwrap().take(); // unlocked: the requests cause events, too
                keys.map(|keys| sender.send(ask_on_another_thread(keys)));
            }
        })
        .build()
        .unwrap();
    let of_second = KEYS.map(|key| second.key(key));
    for limiter in &of_second {
        drop(limiter.acquire().await.unwrap());
    }
    *keys.lock().unwrap() = Some(of_second);
    first.set_policy("9/h").await.unwrap();
    for key in KEYS {
        drop(first.key(key).acquire().await.unwrap());
    }
    second.limits().await.unwrap();
    assert_eq!(answers.try_recv().unwrap().unwrap(), [7, 7, 6, 6]);
}

/// What remains of each key. A unit of the last two is taken first.
fn ask_on_another_thread(
    keys: [SharedLimiter; 4],
) -> Result<[u64; 4], Box<dyn Error + Send + Sync>> {
    let ask = async move {
        let mut remaining = [0; 4];
        for (index, limiter) in keys.iter().enumerate() {
            if index >= 2 {
                drop(limiter.try_acquire().await?);
            }
            remaining[index] = limiter.check(1).await?.remaining();
        }
        Ok(remaining)
    };
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let thread = thread::spawn(move || runtime().block_on(ask));
    thread.join().unwrap()
}

#[tokio::test(start_paused = true)]
async fn another_policy_of_the_same_revision_is_an_error_that_says_what_to_do() {
    let store = MemoryStore::new();
    let first = process(&store, "5/h", 4);
    drop(first.acquire().await.unwrap());
    let second = process(&store, "6/h", 4);
    let Err(AcquireError::Store(error)) = second.acquire().await else {
        panic!();
    };
    let text = error.to_string();
    for part in [
        "`5/h` (revision 4)",
        "`6/h` (revision 4)",
        "higher revision",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(in_force(&second), ("6/h".to_owned(), 4));
}

/// The state of a key that a later version has written with a policy that this one cannot read.
fn state_of_a_later_version(rules: &Rules, text: &str) -> KeyState {
    let scope = Scope {
        limiter: NAME.into(),
        key: Arc::default(),
    };
    let mut call = Call::new(scope, "7/h".parse().unwrap(), 1);
    call.revision = 300;
    call.asks.push(Asks::new(1, 1, [1]));
    let now = 1_800_000_000_000_000_000;
    let mut state = rules.decide(now, None, &call).unwrap().state.unwrap();
    // See the form of the bytes in `ledger.rs`: the version, the checksum, and then the text after its length.
    let policy = b"\x037/h";
    assert!(state.bytes[9..].starts_with(policy));
    let mut rest = vec![text.len() as u8];
    rest.extend_from_slice(text.as_bytes());
    rest.extend_from_slice(&state.bytes[9 + policy.len()..]);
    let checksum = rest.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    state.bytes.truncate(1);
    state.bytes.extend_from_slice(&checksum.to_le_bytes());
    state.bytes.append(&mut rest);
    state
}

#[test]
fn a_policy_that_this_version_cannot_read_is_named_beside_its_own_and_grants_nothing() {
    let rules = Rules::new("rules");
    let state = state_of_a_later_version(&rules, "7 per blue moon");
    let scope = Scope {
        limiter: NAME.into(),
        key: Arc::default(),
    };
    let mut call = Call::new(scope, "9/h".parse().unwrap(), 2);
    call.asks.push(Asks::new(1, 1, [1]));
    for revision in [0, 299, 300] {
        call.revision = revision;
        let differs = rules.decide(1_800_000_001_000_000_000, Some(&state), &call);
        assert!(
            matches!(
                differs,
                Err(StoreError::PolicyDiffers {
                    stored_revision: 300,
                    ..
                })
            ),
            "{differs:?}"
        );
    }
    call.revision = 301;
    let unknown = rules.decide(1_800_000_001_000_000_000, Some(&state), &call);
    let error = unknown.unwrap_err();
    let text = error.to_string();
    for part in [
        "`7 per blue moon` (revision 300)",
        "`9/h` (revision 301)",
        "update",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let cause = Error::source(&error).unwrap();
    assert!(cause.to_string().contains("policy"), "{cause}");
}

#[tokio::test(start_paused = true)]
async fn a_process_fails_clearly_while_the_store_has_a_policy_that_it_cannot_apply() {
    let faulty = Faulty::by(Way::Differs);
    let limiter = faulty.builder("9/h").build().unwrap();
    for _ in 0..3 {
        let Err(TryAcquireError::Store(error)) = limiter.try_acquire().await else {
            panic!();
        };
        assert!(
            matches!(
                *error,
                StoreError::UnknownPolicy {
                    stored_revision: 9,
                    ..
                }
            ),
            "{error}"
        );
    }
    assert_eq!(in_force(&limiter), ("9/h".to_owned(), 0));
    faulty.set(Way::Open);
    assert!(limiter.try_acquire().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_cannot_be_set_changes_nothing() {
    let store = MemoryStore::new();
    let limiter = process(&store, "9/h", 0);
    let invalid = limiter.set_policy("0/h").await;
    assert!(matches!(invalid, Err(StoreError::Policy(_))), "{invalid:?}");
    let adapts = limiter.set_policy("20 concurrent aimd").await;
    assert!(
        matches!(adapts, Err(StoreError::Unsupported { .. })),
        "{adapts:?}"
    );
    assert_eq!(in_force(&limiter), ("9/h".to_owned(), 0));
    let faulty = Faulty::by(Way::Refuses);
    let limiter = faulty.builder("9/h").build().unwrap();
    let refused = limiter.set_policy("8/h").await;
    assert!(
        matches!(refused, Err(StoreError::Refused { .. })),
        "{refused:?}"
    );
    assert_eq!(in_force(&limiter), ("9/h".to_owned(), 0));
}

#[tokio::test(start_paused = true)]
async fn prefetched_units_are_of_the_present_policy() {
    let store = MemoryStore::new();
    let build = |policy: &str| {
        SharedLimiter::builder(store.clone(), NAME, policy).prefetch(50, Duration::from_secs(60))
    };
    let limiter = build("100/h").build().unwrap();
    for _ in 0..10 {
        drop(limiter.try_acquire().await.unwrap());
    }
    limiter.set_policy("20/h and 3 concurrent").await.unwrap();
    let mut granted = 0;
    while limiter.try_acquire().await.is_ok() {
        granted += 1;
    }
    assert!(granted <= 10, "{granted} after 10 of 20");
    limiter.set_policy("1000/h").await.unwrap();
    for _ in 0..100 {
        drop(limiter.try_acquire().await.unwrap());
    }
}
