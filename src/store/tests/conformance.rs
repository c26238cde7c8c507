use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::exchange::{Asks, Call, Reply, Scope, Settlement, Stop, Until};
use crate::policy::Policy;
use crate::store::{ReleaseListener, Store, StoreError};

const MINUTE: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(30);
/// Nanoseconds by which a lease ends later than its TTL says, at most.
const LATEST: u64 = 100_000_000;

/// One process that calls for one key.
#[derive(Clone)]
struct Holder {
    store: Arc<dyn Store>,
    call: Call,
    next: u64,
}

/// A name that no other test has.
pub(super) fn unique(name: &str) -> Arc<str> {
    format!("{name} {}", uuid::Uuid::new_v4()).into()
}

pub(super) fn policy(text: &str) -> Policy {
    text.parse().unwrap()
}

pub(super) fn blank(scope: Scope, policy: Policy, holder: u64) -> Call {
    Call {
        scope,
        policy,
        holder,
        valid_until: None,
        returns: Vec::new(),
        settlements: Vec::new(),
        renewals: Vec::new(),
        ttl: MINUTE.as_nanos() as u64,
        asks: Vec::new(),
        peek: None,
        replaces_policy: false,
    }
}

pub(super) fn asks(first: u64, count: u64, costs: &[u64], waits: bool) -> Asks {
    Asks { first, count, costs: costs.into(), waits }
}

impl Holder {
    fn new(store: &Arc<dyn Store>, text: &str) -> Self {
        let scope = Scope { limiter: unique("conformance"), key: b"key".as_slice().into() };
        Self { store: Arc::clone(store), call: blank(scope, policy(text), 1), next: 1 }
    }

    fn other(&self, holder: u64) -> Self {
        let mut other = self.clone();
        other.call.holder = holder;
        other
    }

    fn of_key(&self, key: &[u8]) -> Self {
        let mut other = self.clone();
        other.call.scope.key = key.into();
        other
    }

    fn ttl(mut self, ttl: Duration) -> Self {
        self.call.ttl = ttl.as_nanos() as u64;
        self
    }

    async fn send(&self, change: impl FnOnce(&mut Call)) -> Result<Reply, StoreError> {
        let mut call = self.call.clone();
        change(&mut call);
        self.store.call(call).await
    }

    async fn try_ask(&mut self, count: u64, costs: &[u64], waits: bool) -> Result<Reply, StoreError> {
        let asks = asks(self.next, count, costs, waits);
        self.next += count;
        self.send(|call| call.asks = vec![asks]).await
    }

    async fn ask(&mut self, count: u64, costs: &[u64]) -> Reply {
        self.try_ask(count, costs, true).await.unwrap()
    }

    async fn peek(&self, costs: &[u64]) -> Reply {
        self.send(|call| call.peek = Some(costs.into())).await.unwrap()
    }

    async fn give_back(&self, numbers: impl IntoIterator<Item = u64>) -> Reply {
        self.send(|call| call.returns = numbers.into_iter().collect()).await.unwrap()
    }

    async fn keys(&self) -> BTreeSet<Vec<u8>> {
        let (mut keys, mut from) = (BTreeSet::new(), None);
        loop {
            let page = self.store.keys(&self.call.scope.limiter, from, 3).await.unwrap();
            keys.extend(page.keys.iter().map(|key| key.to_vec()));
            from = page.next;
            if from.is_none() {
                return keys;
            }
        }
    }

    async fn is_empty_soon(&self) {
        while !self.keys().await.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

pub(super) async fn asks_are_granted_in_order_up_to_the_limit(store: Arc<dyn Store>) {
    let mut holder = Holder::new(&store, "10/min");
    let (first, second) = (asks(1, 3, &[2], true), asks(4, 9, &[1], true));
    let reply = holder.send(|call| call.asks = vec![first, second]).await.unwrap();
    assert_eq!((reply.granted, reply.limits[0].remaining), (7, 0));
    let Some(Stop { limit: 0, until: Until::Instant(at) }) = reply.stop else { panic!("{:?}", reply.stop) };
    assert_eq!(at, reply.now + 6_000_000_000, "a unit comes every six seconds");
    // One that is stopped stops those behind it, also if these cost less.
    let mut other = Holder::new(&store, "10/min");
    other.ask(1, &[7]).await;
    let (large, small) = (asks(2, 1, &[5], true), asks(3, 1, &[1], true));
    assert_eq!(other.send(|call| call.asks = vec![large, small]).await.unwrap().granted, 0);
    assert_eq!(other.ask(1, &[1]).await.granted, 1);
    let never = holder.ask(1, &[11]).await;
    assert_eq!((never.granted, never.stop), (0, Some(Stop { limit: 0, until: Until::Never })));
}

pub(super) async fn all_limits_admit_or_none_is_charged(store: Arc<dyn Store>) {
    let mut holder = Holder::new(&store, "9/min and window 4/hour and sliding log 6/hour and sliding counter 8/hour");
    let reply = holder.ask(9, &[1, 1, 1, 0]).await;
    assert_eq!((reply.granted, reply.stop.unwrap().limit), (4, 1));
    assert_eq!(reply.limits.iter().map(|limit| limit.remaining).collect::<Vec<_>>(), [5, 0, 2, 8]);
    let reply = holder.ask(9, &[1, 0, 1, 2]).await;
    assert_eq!((reply.granted, reply.stop.unwrap().limit), (2, 2));
    assert_eq!(reply.limits.iter().map(|limit| limit.remaining).collect::<Vec<_>>(), [3, 0, 0, 4]);
}

pub(super) async fn a_peek_charges_nothing(store: Arc<dyn Store>) {
    let mut holder = Holder::new(&store, "2 concurrent ttl 1m and 3/min");
    for _ in 0..3 {
        let reply = holder.peek(&[1, 1]).await;
        assert_eq!((reply.granted, reply.stop), (0, None));
        assert_eq!(reply.limits.iter().map(|limit| limit.remaining).collect::<Vec<_>>(), [2, 3]);
    }
    holder.ask(2, &[1, 1]).await;
    let reply = holder.peek(&[1, 1]).await;
    assert_eq!(reply.stop.unwrap().limit, 0);
    assert_eq!(holder.peek(&[0, 1]).await.stop, None);
}

pub(super) async fn leases_come_back_once(store: Arc<dyn Store>) {
    let mut holder = Holder::new(&store, "3 concurrent ttl 1m");
    let reply = holder.ask(5, &[1]).await;
    assert_eq!(reply.granted, 3);
    let first_expiry = reply.now + MINUTE.as_nanos() as u64;
    assert_eq!(reply.stop, Some(Stop { limit: 0, until: Until::Release { first_expiry } }));
    assert_eq!(holder.give_back([2, 77]).await.limits[0].remaining, 1);
    assert_eq!(holder.give_back([2]).await.limits[0].remaining, 1, "a return that is sent again changes nothing");
    assert_eq!(holder.ask(2, &[1]).await.granted, 1);
    // What comes back in a call is there for its asks.
    let ask = asks(20, 2, &[1], true);
    let reply = holder.send(|call| (call.returns, call.asks) = (vec![1, 3], vec![ask])).await.unwrap();
    assert_eq!((reply.granted, reply.limits[0].remaining), (2, 0));
}

pub(super) async fn leases_of_another_holder_are_not_touched(store: Arc<dyn Store>) {
    let mut holder = Holder::new(&store, "2 concurrent ttl 1m");
    holder.ask(2, &[1]).await;
    let other = holder.other(u64::MAX);
    assert_eq!(other.give_back([1, 2]).await.limits[0].remaining, 0);
    let reply = other.send(|call| call.renewals = vec![1]).await.unwrap();
    assert_eq!(reply.lost, [1]);
    assert_eq!(holder.give_back([1, 2]).await.limits[0].remaining, 2);
}

pub(super) async fn a_lease_that_was_not_renewed_is_reclaimed(store: Arc<dyn Store>) {
    let mut holder = Holder::new(&store, "3 concurrent ttl 1m").ttl(SHORT);
    // A store may drop a key as a whole, and reclaims nothing then: another lease keeps it.
    holder.other(2).ttl(MINUTE).ask(1, &[1]).await;
    let granted = holder.ask(2, &[1]).await;
    let expiry = granted.now + SHORT.as_nanos() as u64;
    // Not before; and soon, for a store that only knows about what time it is takes the latest.
    let reply = loop {
        let reply = holder.peek(&[1]).await;
        if reply.reclaimed > 0 || reply.now > expiry + LATEST {
            break reply;
        }
        assert_eq!(reply.limits[0].remaining, 0);
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    assert!(reply.now >= expiry, "{} ns before", expiry - reply.now);
    assert_eq!((reply.reclaimed, reply.limits[0].remaining, reply.stop), (2, 2, None));
    let reply = holder.send(|call| call.renewals = vec![1]).await.unwrap();
    assert_eq!((reply.lost.as_slice(), reply.reclaimed), ([1].as_slice(), 0), "reclaimed once");
    assert_eq!(holder.give_back([1, 2]).await.limits[0].remaining, 2);
}

pub(super) async fn renewals_extend_leases(store: Arc<dyn Store>) {
    let mut holder = Holder::new(&store, "1 concurrent ttl 1m").ttl(SHORT);
    let mut until = holder.ask(1, &[1]).await.now + SHORT.as_nanos() as u64;
    holder = holder.ttl(MINUTE);
    let renewed = holder.send(|call| call.renewals = vec![1]).await.unwrap();
    if renewed.now < until {
        assert!(renewed.lost.is_empty());
        until = renewed.now + MINUTE.as_nanos() as u64;
        tokio::time::sleep(SHORT).await;
        let full = holder.ask(1, &[1]).await;
        let Some(Stop { limit: 0, until: Until::Release { first_expiry } }) = full.stop else { panic!("{full:?}") };
        assert!((until..until + LATEST).contains(&first_expiry), "{first_expiry} is not at {until}, or soon after");
    } // else the machine slept
}

pub(super) async fn fences_rise_over_holders_and_resets(store: Arc<dyn Store>) {
    let mut holder = Holder::new(&store, "1000000/s");
    let mut other = holder.other(2);
    let mut last = 0;
    for round in 1..20 {
        for holder in [&mut holder, &mut other] {
            let reply = holder.ask(round, &[1]).await;
            assert_eq!(reply.granted, round);
            assert!(reply.first_fence > last, "{} after {last}", reply.first_fence);
            last = reply.first_fence + reply.granted - 1;
        }
        if round % 5 == 0 {
            store.reset(holder.call.scope.clone()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await; // fences follow the clock, in microseconds
        }
    }
}

pub(super) async fn a_settlement_charges_more_or_refunds(store: Arc<dyn Store>) {
    let mut holder = Holder::new(&store, "100/hour and window 100/100d from first grant");
    let granted_at = holder.ask(1, &[10, 10]).await.now;
    let settle = |actual: u64| Settlement { granted_at, charged: [10, 10].into(), actual: [actual, actual].into() };
    let reply = holder.send(|call| call.settlements = vec![settle(30)]).await.unwrap();
    assert_eq!(reply.limits.iter().map(|limit| limit.remaining).collect::<Vec<_>>(), [70, 70]);
    let reply = holder.send(|call| call.settlements = vec![settle(4)]).await.unwrap();
    assert_eq!(reply.limits[1].remaining, 76);
    assert!([70, 76].contains(&reply.limits[0].remaining), "a store need not know the past grants of a pace");
    // A debt is waited for.
    let reply = holder.send(|call| call.settlements = vec![settle(10_000)]).await.unwrap();
    assert_eq!(reply.limits.iter().map(|limit| limit.remaining).collect::<Vec<_>>(), [0, 0]);
}

pub(super) async fn denied_attempts_count_if_they_do_not_wait(store: Arc<dyn Store>) {
    let mut holder = Holder::new(&store, "penalty 2 falling 1/min ban 1m up to 1h");
    holder.ask(2, &[1]).await;
    let waits = holder.ask(1, &[1]).await;
    let Some(Stop { until: Until::Instant(step), .. }) = waits.stop else { panic!("{waits:?}") };
    assert!(step <= waits.now + MINUTE.as_nanos() as u64);
    let banned = holder.try_ask(1, &[1], false).await.unwrap();
    assert_eq!(banned.stop, Some(Stop { limit: 0, until: Until::Instant(banned.now + MINUTE.as_nanos() as u64) }));
    assert_eq!(holder.peek(&[1]).await.stop, banned.stop);
}

pub(super) async fn a_call_that_comes_too_late_is_not_carried_out(store: Arc<dyn Store>) {
    let mut holder = Holder::new(&store, "5/min");
    let now = holder.ask(1, &[1]).await.now;
    holder.call.valid_until = Some(now);
    assert!(matches!(holder.try_ask(1, &[1], true).await, Err(StoreError::TooLate { .. })));
    holder.call.valid_until = Some(now + MINUTE.as_nanos() as u64);
    assert_eq!(holder.ask(1, &[1]).await.limits[0].remaining, 3);
}

pub(super) async fn another_policy_is_an_error_or_replaces_the_stored_one(store: Arc<dyn Store>) {
    let mut holder = Holder::new(&store, "4 concurrent ttl 1m and 5/min");
    let granted = holder.ask(2, &[1, 1]).await;
    holder.call.policy = policy("3 concurrent ttl 1m and window 9/h");
    let limiter = holder.call.scope.limiter.to_string();
    match holder.try_ask(1, &[1, 1], true).await {
        Err(StoreError::PolicyDiffers { limiter: of, stored, given }) => {
            assert_eq!((&*of, stored.as_str()), (&*limiter, "4 concurrent ttl 1m and 5/min"));
            assert_eq!(given, "3 concurrent ttl 1m and window 9/h");
        }
        other => panic!("{other:?}"),
    }
    holder.call.replaces_policy = true;
    let reply = holder.ask(2, &[1, 1]).await;
    assert_eq!((reply.granted, reply.stop.unwrap().limit), (1, 0), "the leases stay");
    assert_eq!(reply.limits[1].remaining, 8);
    assert!(reply.first_fence > granted.first_fence + 1);
    holder.call.replaces_policy = false;
    assert_eq!(holder.give_back([1, 2]).await.limits[0].remaining, 2);
    // A state that has expired is of no policy.
    let mut expired = Holder::new(&store, "1 concurrent ttl 1m").ttl(SHORT);
    expired.ask(1, &[1]).await;
    expired.call.policy = policy("2/s");
    let reply = loop {
        match expired.try_ask(1, &[1], true).await {
            Err(StoreError::PolicyDiffers { .. }) => tokio::time::sleep(Duration::from_millis(5)).await,
            reply => break reply.unwrap(),
        }
    };
    assert_eq!(reply.limits[0].remaining, 1);
}

pub(super) async fn keys_are_listed_page_by_page(store: Arc<dyn Store>) {
    let holder = Holder::new(&store, "5/hour");
    let names: BTreeSet<Vec<u8>> = (0..10_u8).map(|n| vec![b'k'; n.into()]).collect();
    for name in &names {
        holder.of_key(name).ask(1, &[1]).await;
    }
    let mut other = Holder::new(&store, "5/hour");
    other.ask(1, &[1]).await;
    assert_eq!(holder.keys().await, names);
    assert_eq!(other.keys().await, [b"key".to_vec()].into());
    holder.of_key(b"peeked").peek(&[1]).await;
    assert!(Holder::new(&store, "5/hour").keys().await.is_empty());
}

pub(super) async fn a_reset_key_is_as_new(store: Arc<dyn Store>) {
    let mut holder = Holder::new(&store, "2 concurrent ttl 1m and 2/hour");
    let mut other = holder.of_key(b"other");
    holder.ask(2, &[1, 1]).await;
    other.ask(2, &[1, 1]).await;
    store.reset(holder.call.scope.clone()).await.unwrap();
    let reply = holder.send(|call| call.renewals = vec![1]).await.unwrap();
    assert_eq!(reply.lost, [1], "its leases are reclaimed");
    assert_eq!(holder.ask(2, &[1, 1]).await.granted, 2);
    assert_eq!(other.ask(1, &[1, 1]).await.granted, 0);
}

pub(super) async fn any_name_and_key_is_kept_apart(store: Arc<dyn Store>) {
    let plain = Holder::new(&store, "1/hour");
    let unique = plain.call.scope.limiter.to_string();
    let long = "ü".repeat(40_000);
    let names = ["", "\0", "'; DROP TABLE tollgate_keys; --", "{}:*?[x]%_\\", &long].map(|tail| format!("{unique}{tail}"));
    let mut keys: Vec<Vec<u8>> =
        vec![vec![], vec![0], vec![0, 0], b"a".into(), b"A".into(), b"a ".into(), vec![0xff; 3], b"'\"`\\\n{}".into()];
    keys.extend([700, 4_000, 70_000].map(|length| vec![0xc3; length]));
    keys.extend([70_000].map(|length| [vec![0xc3; length - 1], vec![0]].concat()));
    for round in [1, 0] {
        for name in &names {
            for key in &keys {
                let mut holder = plain.of_key(key);
                holder.call.scope.limiter = name.as_str().into();
                assert_eq!(holder.ask(1, &[1]).await.granted, round, "{:?}", holder.call.scope);
            }
        }
    }
    for name in &names {
        let mut holder = plain.clone();
        holder.call.scope.limiter = name.as_str().into();
        assert_eq!(holder.keys().await, keys.iter().cloned().collect());
        for key in &keys {
            store.reset(Scope { limiter: name.as_str().into(), key: key.as_slice().into() }).await.unwrap();
        }
        assert!(holder.keys().await.is_empty());
    }
}

pub(super) async fn expired_keys_are_purged(store: Arc<dyn Store>) {
    let holder = Holder::new(&store, "1 concurrent ttl 1m and 1/100ms").ttl(SHORT);
    for key in [b"a", b"b", b"c"] {
        holder.of_key(key).ask(1, &[1, 1]).await;
    }
    let mut stays = holder.of_key(b"d").ttl(MINUTE);
    stays.ask(1, &[1, 1]).await;
    while holder.keys().await.len() > 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Other tests and the store itself may purge too.
    let purged = store.purge(&holder.call.scope.limiter, 2).await.unwrap();
    assert!(purged <= 2);
    while store.purge(&holder.call.scope.limiter, 100).await.unwrap() > 0 {}
    assert_eq!(holder.keys().await, [b"d".to_vec()].into());
    assert_eq!(stays.ask(1, &[1, 1]).await.granted, 0);
    stays.give_back([1]).await;
    stays.is_empty_soon().await;
}

/// The trap of reading, deciding, and then writing: two read the same.
pub(super) async fn contending_callers_get_exactly_the_limit(store: Arc<dyn Store>) {
    let holder = Holder::new(&store, "window 1000/100d from first grant and 1200/100d");
    let granted = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let (holder, granted) = (holder.other(task), Arc::clone(&granted));
            tokio::spawn(async move {
                let callers = (0..32).map(|_| {
                    let (mut holder, granted) = (holder.clone(), Arc::clone(&granted));
                    async move {
                        for round in 0..3 {
                            granted.fetch_add(holder.ask(1 + round, &[1, 1]).await.granted, Ordering::Relaxed);
                        }
                    }
                });
                futures_util::future::join_all(callers).await;
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(granted.load(Ordering::Relaxed), 1_000, "of 1,536");
    assert_eq!(holder.peek(&[0, 1]).await.limits[0].remaining, 0);
}

/// Callers that take places and give them back: never more than there are, and none is lost.
pub(super) async fn no_place_is_held_twice(store: Arc<dyn Store>) {
    let holder = Holder::new(&store, "3 concurrent ttl 1m");
    let held = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (1..9)
        .map(|task| {
            let (mut holder, held) = (holder.other(task), Arc::clone(&held));
            tokio::spawn(async move {
                for _ in 0..20 {
                    let number = holder.next;
                    while holder.ask(1, &[1]).await.granted == 0 {
                        holder.next = number;
                        tokio::task::yield_now().await;
                    }
                    assert!(held.fetch_add(1, Ordering::SeqCst) < 3);
                    tokio::task::yield_now().await;
                    held.fetch_sub(1, Ordering::SeqCst);
                    holder.give_back([number]).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(holder.peek(&[1]).await.limits[0].remaining, 3);
    holder.is_empty_soon().await;
}

pub(super) async fn listeners_are_told(store: Arc<dyn Store>) {
    let mut holder = Holder::new(&store, "2 concurrent ttl 1m");
    let told = Arc::new(tokio::sync::Notify::new());
    store.listen(
        &holder.call.scope.limiter,
        ReleaseListener::new(&told, |told, key| {
            assert_eq!(key, b"key");
            told.notify_one();
        }),
    );
    for _ in 0..2 {
        // A message may be lost, for instance while nobody follows the channel yet. A lease that is returned again tells nobody.
        let told = told.notified();
        let returned = async {
            loop {
                let number = holder.next;
                holder.ask(1, &[1]).await;
                holder.give_back([number]).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! { () = told => {}, () = returned => {} }
    }
}

pub(super) async fn a_concurrency_that_adapts_is_refused(store: Arc<dyn Store>) {
    let adapting = policy("20 concurrent aimd");
    assert!(matches!(store.supports(&adapting), Err(StoreError::Unsupported { .. })), "{adapting}");
    store.supports(&policy("20 concurrent ttl 1m and 5/s")).unwrap();
}
