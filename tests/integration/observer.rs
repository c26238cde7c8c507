//! One observer of limiters, keyed limiters and shared limiters: which calls it gets, and what it may do.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::common::everything::{KEY, NAMES, SHARED_KEY, everything};
use crate::common::{ms, queued};
use tokio::time::advance;
use tokio_test::assert_ready_ok;
use tollgate::{
    AcquireError, EventKind, FlowId, KeyedLimiter, Limiter, LimiterEvent, MaxConcurrency, Observer,
    OpenWait, Policy, Throttle, WaitEnd, WaitStart,
};

/// Records each call as text.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<[String; 3]>>>);

impl Notes {
    fn note(&self, limiter: Option<&Arc<str>>, key: String, what: &str) {
        let what = what.split([' ', '(']).next().unwrap().to_owned();
        self.0
            .lock()
            .unwrap()
            .push([limiter.map_or("none", |name| name).to_owned(), key, what]);
    }

    fn of(&self, limiter: &str) -> BTreeSet<String> {
        let of_it = |note: &&[String; 3]| note[0] == limiter;
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(of_it)
            .map(|[_, _, what]| what.clone())
            .collect()
    }
}

struct Open(Notes, String, String);

impl Observer for Notes {
    fn observe(&self, event: &LimiterEvent<'_>) {
        assert_eq!(event.name(), event.limiter.map(|name| &**name));
        self.note(
            event.limiter,
            event.key.map_or_else(String::new, |key| format!("{key:?}")),
            &format!("{:?}", event.kind),
        );
    }

    fn wait_begins(&self, wait: &WaitStart<'_>) -> Option<Box<dyn OpenWait>> {
        let key = wait.key.map_or_else(String::new, |key| format!("{key:?}"));
        self.note(wait.limiter, key.clone(), "waits");
        Some(Box::new(Open(
            self.clone(),
            wait.limiter.unwrap().to_string(),
            key,
        )))
    }
}

impl OpenWait for Open {
    fn end(self: Box<Self>, end: WaitEnd<'_>) {
        let Self(notes, limiter, key) = *self;
        let end = format!("{end:?}").to_lowercase();
        notes.note(Some(&limiter.as_str().into()), key, &end);
    }
}

/// The events that limiters of every kind can report.
const OF_ANY: [&str; 17] = [
    "Banned",
    "Closed",
    "Denied",
    "GrantedAfterWait",
    "Paused",
    "PolicyChanged",
    "Reclaimed",
    "ReleasedLate",
    "Resumed",
    "Shed",
    "StreamEnded",
    "TimedOut",
    "UpstreamMalformed",
    "cancelled",
    "granted",
    "refused",
    "waits",
];
const OF_LAYERS: &[&str] = if cfg!(feature = "http") {
    &["Refused", "WouldRefuse"]
} else {
    &[]
};

#[tokio::test(start_paused = true)]
async fn one_observer_gets_every_event_of_every_kind_of_limiter() {
    let notes = Notes::default();
    everything(notes.clone()).await;
    // A concurrency in a store does not adapt.
    let others = [
        &["LimitMoved"][..],
        &["Evicted", "LimitMoved", "TooManyKeys"],
        &["StoreDown", "StoreUp"],
    ];
    for (name, others) in NAMES.iter().zip(others) {
        let expected = OF_ANY
            .iter()
            .chain(OF_LAYERS)
            .chain(others)
            .map(ToString::to_string);
        assert_eq!(notes.of(name), expected.collect::<BTreeSet<_>>(), "{name}");
    }
    let all = notes.0.lock().unwrap();
    for [name, key, what] in all.iter() {
        let keys = match name.as_str() {
            "plain" => vec![String::new()],
            "keyed" => vec![format!("{KEY:?}"), r#""other""#.to_owned()],
            _ => vec![format!("{SHARED_KEY:?}"), String::new()],
        };
        assert!(keys.contains(key), "{name} {key} {what}");
    }
    let count = |what: &str| all.iter().filter(|note| note[2] == what).count();
    assert_eq!(
        count("waits"),
        count("granted") + count("refused") + count("cancelled")
    );
}

/// The outcome has the fence of the permit. A request that does not wait is not observed.
#[tokio::test(start_paused = true)]
async fn each_wait_ends_once_with_the_outcome_of_its_request() {
    struct Ends(Arc<Mutex<Vec<String>>>);
    impl OpenWait for Ends {
        fn end(self: Box<Self>, end: WaitEnd<'_>) {
            self.0.lock().unwrap().push(format!("{end:?}"));
        }
    }
    struct Waits(Arc<Mutex<Vec<String>>>);
    impl Observer for Waits {
        fn observe(&self, _: &LimiterEvent<'_>) {}
        fn wait_begins(&self, wait: &WaitStart<'_>) -> Option<Box<dyn OpenWait>> {
            assert_eq!(
                (wait.limiter.map(|name| &**name), wait.requested_in.file()),
                (Some("jobs"), file!())
            );
            self.0
                .lock()
                .unwrap()
                .push(format!("{} {}", wait.cost, wait.priority.level()));
            Some(Box::new(Ends(Arc::clone(&self.0))))
        }
    }
    let reported: Arc<Mutex<Vec<String>>> = Arc::default();
    let take = || std::mem::take(&mut *reported.lock().unwrap());
    let observer = Waits(Arc::clone(&reported));
    let limiter = Limiter::builder(MaxConcurrency::new(2))
        .name("jobs")
        .observer(observer)
        .build()
        .unwrap();
    let held = limiter.acquire_many(2).await.unwrap();
    assert!(limiter.try_acquire().is_err());
    assert!(take().is_empty());

    let mut waiting = [queued(limiter.acquire()), queued(limiter.acquire())];
    let owned = queued(limiter.acquire_owned());
    let reserved = limiter.reserve().unwrap();
    assert_eq!(take(), ["1 5", "1 5", "1 5", "1 5"]);
    assert!(waiting[0].poll().is_pending());
    drop((owned, reserved));
    assert_eq!(take(), ["Cancelled", "Cancelled"]);
    drop(held);
    assert!(take().is_empty(), "its task has not been there");
    let [first, second] = &mut waiting;
    let permit = assert_ready_ok!(first.poll());
    assert_eq!(take(), [format!("Granted {{ fence: {} }}", permit.fence())]);
    drop(assert_ready_ok!(second.poll()));
    take();

    let (_permit, _other) = (permit, limiter.acquire().await.unwrap());
    let error = limiter
        .request()
        .timeout(ms(5))
        .acquire()
        .await
        .unwrap_err();
    assert!(matches!(error, AcquireError::TimedOut { .. }));
    assert_eq!(
        take(),
        [
            "1 5",
            "Refused(TimedOut { retry_after: None, decision: None })"
        ]
    );
    let blocking = limiter.clone();
    let thread = std::thread::spawn(move || blocking.blocking_acquire().unwrap_err());
    while limiter.snapshot().queued == 0 {
        std::thread::yield_now();
    }
    limiter.close();
    assert_eq!(thread.join().unwrap(), AcquireError::Closed);
    assert_eq!(take(), ["1 5", "Refused(Closed)"]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_has_the_flow_and_the_timeout_of_its_request() {
    type Seen = (Option<FlowId>, Option<Duration>);
    struct Waits(Arc<Mutex<Vec<Seen>>>);
    impl Observer for Waits {
        fn observe(&self, _: &LimiterEvent<'_>) {}
        fn wait_begins(&self, wait: &WaitStart<'_>) -> Option<Box<dyn OpenWait>> {
            self.0.lock().unwrap().push((wait.flow, wait.timeout));
            None
        }
    }
    let seen = Arc::default();
    let builder = Limiter::builder(MaxConcurrency::new(1)).observer(Waits(Arc::clone(&seen)));
    let limiter = builder.build().unwrap();
    let _held = limiter.acquire().await.unwrap();
    let requests = [
        limiter.request().flow("alice"),
        limiter.request().flow("bob").timeout(ms(5)),
        limiter.request(),
    ];
    let _waiting = requests.map(|request| queued(request.acquire()));
    let [alice, bob] = ["alice", "bob"].map(|flow| Some(FlowId::of(flow)));
    assert_eq!(
        *seen.lock().unwrap(),
        [(alice, None), (bob, Some(ms(5))), (None, None)]
    );
}

/// In whichever call the observer panics, each request gets its answer.
#[tokio::test(start_paused = true)]
async fn every_request_is_answered_although_an_observer_panics() {
    struct Panics;
    fn panic() -> ! {
        resume_unwind(Box::new("on purpose, without the noise of the hook"))
    }
    impl Observer for Panics {
        fn observe(&self, _: &LimiterEvent<'_>) {
            panic()
        }
        fn wait_begins(&self, wait: &WaitStart<'_>) -> Option<Box<dyn OpenWait>> {
            if wait.cost == 1 {
                panic()
            } else {
                Some(Box::new(Self))
            }
        }
    }
    impl OpenWait for Panics {
        fn end(self: Box<Self>, _: WaitEnd<'_>) {
            panic()
        }
    }
    impl Drop for Panics {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic()
            }
        }
    }
    let limiter = std::mem::ManuallyDrop::new(
        Limiter::builder(MaxConcurrency::new(2))
            .observer(|_: &LimiterEvent<'_>| panic())
            .observer(Panics)
            .build()
            .unwrap(),
    );
    for cost in [1, 2] {
        let held = limiter.acquire_many(2).await.unwrap();
        let (mut waiting, cancelled) = (
            queued(limiter.acquire_many(cost)),
            queued(limiter.acquire_many(cost)),
        );
        drop(cancelled);
        assert!(
            limiter
                .request()
                .cost(cost)
                .timeout(ms(1))
                .acquire()
                .await
                .is_err()
        );
        drop(held);
        drop(assert_ready_ok!(waiting.poll()));
    }
    let now = limiter.snapshot();
    assert_eq!((now.in_flight, now.queued, now.timed_out), (0, 0, 2));
}

/// An observer must not wait, but it may call `try_acquire`.
#[tokio::test(start_paused = true)]
async fn an_observer_may_call_the_limiter_that_calls_it() {
    static LIMITER: OnceLock<Limiter> = OnceLock::new();
    static CALLS: AtomicU64 = AtomicU64::new(0);
    struct Asks;
    impl Asks {
        fn ask() -> u64 {
            let limiter = LIMITER.get().unwrap();
            assert!(limiter.try_acquire().is_err()); // this denial is observed, too
            drop(queued(limiter.acquire()));
            CALLS.fetch_add(1, Relaxed);
            limiter.snapshot().in_flight
        }
    }
    impl Observer for Asks {
        fn observe(&self, _: &LimiterEvent<'_>) {
            assert_eq!(Self::ask(), 1);
        }
        fn wait_begins(&self, _: &WaitStart<'_>) -> Option<Box<dyn OpenWait>> {
            assert_eq!(Self::ask(), 1);
            Some(Box::new(Self))
        }
    }
    impl OpenWait for Asks {
        fn end(self: Box<Self>, _: WaitEnd<'_>) {
            assert_eq!(Self::ask(), 1);
        }
    }
    let limiter = LIMITER.get_or_init(|| {
        Limiter::builder(MaxConcurrency::new(1))
            .observer(Asks)
            .build()
            .unwrap()
    });
    let held = limiter.acquire().await.unwrap();
    let mut waiting = queued(limiter.acquire());
    assert!(limiter.try_acquire().is_err());
    drop(held);
    drop(assert_ready_ok!(waiting.poll()));
    assert!((3..100).contains(&CALLS.load(Relaxed)), "{CALLS:?}");
    assert_eq!(limiter.snapshot().queued, 0);
}

/// The event of a late release distinguishes a slow holder from a leak. The release changes nothing.
#[tokio::test(start_paused = true)]
async fn a_late_release_is_reported_once_and_one_in_time_is_not() {
    let notes = Notes::default();
    let limiter = Limiter::builder("2 concurrent ttl 10ms")
        .name("jobs")
        .observer(notes.clone())
        .build()
        .unwrap();
    let [slow, leaked, quick] = [
        limiter.try_acquire().unwrap(),
        limiter.try_acquire().unwrap(),
        {
            advance(ms(11)).await;
            limiter.try_acquire().unwrap()
        },
    ];
    leaked.forget();
    let mut waiting = queued(limiter.acquire_many(2));
    drop(slow); // with a request that waits
    assert!(waiting.poll().is_pending());
    drop(quick);
    drop(assert_ready_ok!(waiting.poll()));
    let late = limiter.try_acquire().unwrap();
    advance(ms(11)).await;
    drop(late);
    let count = |what: &str| {
        notes
            .0
            .lock()
            .unwrap()
            .iter()
            .filter(|note| note[2] == what)
            .count()
    };
    assert_eq!((count("Reclaimed"), count("ReleasedLate")), (3, 2));
    assert_eq!(limiter.check(1).remaining(), 2);
}

/// A closure is an observer: with a type for its argument in `observer`, and without one in `on_event`.
#[tokio::test(start_paused = true)]
async fn a_limiter_can_have_closures_and_observers() {
    let seen: Arc<AtomicU64> = Arc::default();
    let count = || {
        let seen = Arc::clone(&seen);
        move || seen.fetch_add(1, Relaxed)
    };
    let (one, other) = (count(), count());
    let limiter = Limiter::builder(Throttle::every(ms(10)))
        .on_event(move |event| {
            assert!(matches!(event.kind, EventKind::Denied { .. }) && one() == 0);
        })
        .observer(move |event: &LimiterEvent<'_>| {
            assert!(matches!(event.kind, EventKind::Denied { .. }) && other() == 1);
        })
        .build()
        .unwrap();
    assert!(limiter.try_acquire().is_ok() && limiter.try_acquire().is_err());
    assert_eq!(seen.load(Relaxed), 2);
    let one = count();
    let keyed = KeyedLimiter::<u8>::builder(Throttle::every(ms(10))).on_event(move |event| {
        assert_eq!(event.key_as::<u8>(), Some(&7));
        assert_eq!(event.key_as::<u16>(), None);
        one();
    });
    let keyed = keyed.build().unwrap();
    assert!(keyed.try_acquire(&7).is_ok() && keyed.try_acquire(&7).is_err());
    assert_eq!(seen.load(Relaxed), 3);
}

/// A ban lasts a minute. A denial during a ban starts none.
#[tokio::test(start_paused = true)]
async fn a_ban_of_a_key_is_reported_when_it_starts() {
    let banned: Arc<AtomicU64> = Arc::default();
    let count = Arc::clone(&banned);
    let policy = "penalty 1 falling 1/h ban 1m".parse::<Policy>().unwrap();
    let keyed = KeyedLimiter::<u8>::builder(policy).on_event(move |event| {
        if matches!(event.kind, EventKind::Banned { .. }) {
            count.fetch_add(1, Relaxed);
        }
    });
    let keyed = keyed.build().unwrap();
    assert!(keyed.try_acquire(&7).is_ok());
    for after in ["the denial that starts it", "a denial during it"] {
        assert!(keyed.try_acquire(&7).is_err());
        assert_eq!(banned.load(Relaxed), 1, "{after}");
        advance(Duration::from_secs(1)).await;
    }
}

/// An event prints as one line, which has the name of the limiter and the key.
#[tokio::test(start_paused = true)]
async fn an_event_prints_as_a_line_for_people() {
    let lines = Arc::new(Mutex::new(BTreeMap::new()));
    let seen = Arc::clone(&lines);
    everything(move |event: &LimiterEvent<'_>| {
        let mut line = event.to_string();
        if let EventKind::Reclaimed { id, .. } | EventKind::ReleasedLate { id, .. } = event.kind {
            line = line.replace(&id.to_string(), "ID");
        }
        if let EventKind::Reclaimed { acquired_in, .. } = event.kind {
            line = line.replace(&acquired_in.to_string(), "PLACE");
        }
        let kind = format!("{:?}", event.kind);
        let kind = kind.split([' ', '(']).next().unwrap().to_owned();
        seen.lock().unwrap().entry(kind).or_insert(line);
    })
    .await;
    let lines = lines.lock().unwrap();
    let mut expected = BTreeSet::from(
        [
            "plain: banned for 1s",
            "plain: closed",
            "plain: denied by `1 concurrent ttl 50ms`; no time to retry is known",
            "keyed \"key-of-alice\": evicted a key, 1s before its reset",
            "plain: granted after 0ns",
            "plain: the limit has moved from 10 to 5",
            "plain: paused for 5ms",
            "plain: the policy has changed from `1 concurrent ttl 50ms` to `2 concurrent`",
            "plain: reclaimed the permit ID after 50ms, acquired in PLACE",
            "plain: the permit ID was released after it was reclaimed",
            "plain: resumed",
            "plain: shed: queue_full",
            "test: the store does not answer: the store faulty refuses the call: read only",
            "test: the store answers again, after 1ms",
            "plain: a throttled stream ended early: the limiter is closed",
            "plain: timed out after 10ms",
            "keyed \"other\": refused a new key",
            "plain: ignored a malformed field of an upstream: retry-after",
        ]
        .map(str::to_owned),
    );
    if cfg!(feature = "http") {
        let error = "a cost of 2 is above 1, the most that `1/s` admits";
        expected.insert(format!("plain: refused a request: {error}"));
        expected.insert(format!("plain: would refuse a request with 413: {error}"));
    }
    assert_eq!(lines.values().cloned().collect::<BTreeSet<_>>(), expected);
}
