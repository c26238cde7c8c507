//! A store that sends invalid replies: each is a store error, and the key still works afterwards.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use tokio::time::{Instant, sleep, timeout};
use tollgate::store::{
    Call, Cause, DeniedAsk, DeniedUntil, KeyPage, LimitReading, MemoryStore, OnStoreDown,
    ReleaseListener, Reply, ReplyFault, Scope, Store, StoreError, StoreFuture,
};
use tollgate::{AcquireError, Policy, SharedLimiter, SharedLimiterBuilder, TryAcquireError};

use crate::common::ms;

type Answer = Result<Reply, StoreError>;
type Bend = Box<dyn FnOnce(&Call, Answer) -> Answer + Send>;

/// A store in memory. A test corrupts its next replies, one after another. Later replies are valid.
#[derive(Clone, Default)]
struct Bent {
    store: MemoryStore,
    bends: Arc<Mutex<VecDeque<Bend>>>,
    /// How many asks the valid replies have granted.
    granted: Arc<AtomicU64>,
    page: Arc<Mutex<Option<KeyPage>>>,
    purged: Arc<Mutex<Option<u64>>>,
}

impl fmt::Debug for Bent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bent").finish_non_exhaustive()
    }
}

impl Bent {
    fn by(bend: impl FnOnce(&Call, &mut Reply) + Send + 'static) -> Self {
        let this = Self::default();
        this.bend(bend);
        this
    }

    fn bend(&self, bend: impl FnOnce(&Call, &mut Reply) + Send + 'static) {
        self.bends
            .lock()
            .unwrap()
            .push_back(Box::new(|call, answer| {
                let mut reply = answer?;
                bend(call, &mut reply);
                Ok(reply)
            }));
    }

    fn builder(&self, policy: &str) -> SharedLimiterBuilder {
        SharedLimiter::builder(self.clone(), "bent", policy).deadline(ms(500))
    }

    fn limiter(&self, policy: &str) -> SharedLimiter {
        self.builder(policy).build().unwrap()
    }
}

impl Store for Bent {
    fn name(&self) -> String {
        "bent".to_owned()
    }

    fn supports(&self, policy: &Policy) -> Result<(), StoreError> {
        self.store.supports(policy)
    }

    fn call(&self, call: Call) -> StoreFuture<Reply> {
        let bend = self.bends.lock().unwrap().pop_front();
        let (store, granted) = (self.store.clone(), Arc::clone(&self.granted));
        Box::pin(async move {
            sleep(ms(1)).await;
            let answer = store.call(call.clone()).await;
            match bend {
                Some(bend) => bend(&call, answer),
                None => count(&granted, answer),
            }
        })
    }

    fn listen(&self, limiter: &Arc<str>, listener: ReleaseListener) -> bool {
        self.store.listen(limiter, listener)
    }

    fn keys(&self, limiter: &Arc<str>, from: Option<Vec<u8>>, max: usize) -> StoreFuture<KeyPage> {
        match self.page.lock().unwrap().clone() {
            Some(page) => Box::pin(async { Ok(page) }),
            None => self.store.keys(limiter, from, max),
        }
    }

    fn reset(&self, scope: Scope) -> StoreFuture<()> {
        self.store.reset(scope)
    }

    fn purge(&self, limiter: &Arc<str>, max: usize) -> StoreFuture<u64> {
        match *self.purged.lock().unwrap() {
            Some(purged) => Box::pin(async move { Ok(purged) }),
            None => self.store.purge(limiter, max),
        }
    }
}

fn count(granted: &AtomicU64, answer: Answer) -> Answer {
    answer.inspect(|reply| _ = granted.fetch_add(reply.granted, SeqCst))
}

fn fault_of(error: &StoreError) -> ReplyFault {
    match error {
        StoreError::BadReply { store, fault } if store == "bent" => *fault,
        error => panic!("{error:?}"),
    }
}

/// The error of two requests in one call whose reply is corrupted in this way. Units that the reply may have granted come back, and the
/// key still works.
async fn fails(bend: impl FnOnce(&Call, &mut Reply) + Send + 'static) -> ReplyFault {
    let limiter = Bent::by(bend).limiter(POLICY);
    let (waits, tries) = tokio::join!(limiter.acquire(), limiter.try_acquire());
    let Err(AcquireError::Store(error)) = waits else {
        panic!("{waits:?}")
    };
    let Err(TryAcquireError::Store(of_try)) = tries else {
        panic!("{tries:?}")
    };
    assert_eq!(error, of_try);
    let again = async { tokio::join!(limiter.acquire(), limiter.acquire(), limiter.acquire()) };
    let (one, other, third) = timeout(Duration::from_secs(5), again)
        .await
        .expect("all places are free again");
    let fences: BTreeSet<_> = [one, other, third]
        .map(|permit| permit.unwrap().fence())
        .into();
    assert_eq!(fences.len(), 3);
    fault_of(&error)
}

const POLICY: &str = "3 concurrent ttl 1h and 100/s";

#[tokio::test(start_paused = true)]
async fn a_reply_that_grants_more_than_was_asked_is_an_error() {
    for granted in [3, 1_000, u64::MAX] {
        let fault = fails(move |_, reply| reply.granted = granted).await;
        assert_eq!(fault, ReplyFault::GrantsTooMany { granted, asked: 2 });
    }
    let store = Bent::by(|call, reply| {
        reply.granted = call.asks.iter().map(|asks| asks.count).sum::<u64>() + 1;
    });
    let limiter = store
        .builder("100/s")
        .prefetch(50, ms(100))
        .build()
        .unwrap();
    assert!(
        matches!(limiter.acquire().await, Err(AcquireError::Store(_))),
        "more than was asked as a prefetch"
    );
    assert!(limiter.acquire().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_names_a_limit_that_does_not_exist_is_an_error() {
    for limit in [2, 99, usize::MAX] {
        let fault = fails(move |_, reply| {
            reply.granted = 0;
            reply.stop = Some(DeniedAsk {
                limit,
                until: DeniedUntil::Instant(reply.now + 5),
            });
        });
        assert_eq!(fault.await, ReplyFault::UnknownLimit { limit, limits: 2 });
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_without_one_reading_for_each_limit_is_an_error() {
    for found in [0, 1, 3, 100] {
        let fault = fails(move |_, reply| reply.limits = vec![reply.limits[1]; found]).await;
        assert_eq!(fault, ReplyFault::Readings { found, limits: 2 });
    }
}

#[tokio::test(start_paused = true)]
async fn extreme_numbers_that_no_store_can_mean_are_errors() {
    for now in [0, u64::MAX] {
        assert_eq!(
            fails(move |_, reply| reply.now = now).await,
            ReplyFault::Instant { now }
        );
    }
    for first_fence in [0, 1 << 63, u64::MAX - 1, u64::MAX] {
        let fault = fails(move |_, reply| reply.first_fence = first_fence).await;
        assert!(
            matches!(fault, ReplyFault::Fence { granted: 2, first_fence: found, .. } if found == first_fence),
            "{fault:?}"
        );
    }
    for until in [0, 1, 1_000] {
        for until in [
            DeniedUntil::Instant(until),
            DeniedUntil::Release {
                first_expiry: until,
            },
        ] {
            let fault = fails(move |_, reply| {
                (reply.granted, reply.stop) = (0, Some(DeniedAsk { limit: 0, until }));
            })
            .await;
            assert!(matches!(fault, ReplyFault::StopIsOver { .. }), "{fault:?}");
        }
    }
    let fault = fails(|_, reply| reply.limits[1].remaining = u64::MAX).await;
    assert_eq!(
        fault,
        ReplyFault::Remaining {
            limit: 1,
            remaining: u64::MAX,
            capacity: 100
        }
    );
    let fault = fails(|_, reply| reply.granted = 1).await;
    assert_eq!(
        fault,
        ReplyFault::NoStop {
            granted: 1,
            asked: 2
        }
    );
    let stop = DeniedAsk {
        limit: 1,
        until: DeniedUntil::Never,
    };
    let fault = fails(move |_, reply| reply.stop = Some(stop)).await;
    assert_eq!(fault, ReplyFault::StopsNothing { limit: 1, asked: 2 });
    let fault = fails(|_, reply| reply.lost = vec![7]).await;
    assert_eq!(fault, ReplyFault::NotRenewed { number: 7 });
}

/// Instants far in the future belong to limits with a long debt, and saturate. Readings from the past count as present ones.
#[tokio::test(start_paused = true)]
async fn extreme_numbers_that_a_store_can_mean_are_accepted() {
    let bent = Bent::by(|_, reply| {
        reply.now = u64::MAX - 1;
        reply.first_fence = (1 << 63) - 1;
        (
            reply.limits[0].available_at,
            reply.limits[0].reset_at,
            reply.reclaimed,
        ) = (u64::MAX, u64::MAX, u64::MAX);
    });
    let limiter = bent.limiter("100/s");
    let permit = limiter.acquire().await.unwrap();
    assert_eq!(permit.fence(), (1 << 63) - 1);
    let _settled = permit.settle(3);
    let bent =
        Bent::by(|_, reply| (reply.limits[0].available_at, reply.limits[0].reset_at) = (0, 1));
    assert!(
        bent.limiter("100/s").limits().await.unwrap()[0]
            .reset_after
            .is_zero()
    );
    for until in [u64::MAX - 1, u64::MAX] {
        for until in [
            DeniedUntil::Instant(until),
            DeniedUntil::Release {
                first_expiry: until,
            },
            DeniedUntil::Never,
        ] {
            let bent = Bent::by(move |_, reply| {
                (reply.granted, reply.stop) = (0, Some(DeniedAsk { limit: 0, until }));
            });
            let denied = bent.limiter("100/s").try_acquire().await;
            assert!(
                matches!(denied, Err(TryAcquireError::Denied(_))),
                "{denied:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn too_late_is_an_invalid_reply_to_a_call_without_an_end() {
    let too_late: Bend = Box::new(|_, _| {
        Err(StoreError::TooLate {
            store: "bent".to_owned(),
        })
    });
    let bent = Bent::default();
    bent.bends.lock().unwrap().push_back(too_late);
    let limiter = bent.limiter("100/s");
    let Err(AcquireError::Store(error)) = limiter.acquire().await else {
        panic!()
    };
    assert_eq!(fault_of(&error), ReplyFault::NeverTooLate);
    assert!(limiter.acquire().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_wrong_reply_to_a_check_is_an_error() {
    let bent = Bent::default();
    let limiter = bent.limiter(POLICY);
    let bends: [fn(&Call, &mut Reply); 3] = [
        |_, reply| reply.limits.clear(),
        |_, reply| reply.limits.extend(reply.limits.clone()),
        |_, reply| {
            reply.stop = Some(DeniedAsk {
                limit: 9,
                until: DeniedUntil::Never,
            });
        },
    ];
    for bend in bends {
        bent.bend(bend);
        fault_of(&limiter.check(1).await.unwrap_err());
        assert!(limiter.check(1).await.unwrap().is_allowed());
        bent.bend(bend);
        fault_of(&limiter.limits().await.unwrap_err());
        assert_eq!(limiter.limits().await.unwrap().len(), 2);
    }
    bent.bend(|_, reply| reply.granted = 1);
    assert_eq!(
        fault_of(&limiter.check(1).await.unwrap_err()),
        ReplyFault::GrantsTooMany {
            granted: 1,
            asked: 0
        }
    );
    let of_a_peek = Some(DeniedAsk {
        limit: 1,
        until: DeniedUntil::Never,
    });
    bent.bend(move |_, reply| reply.stop = of_a_peek);
    assert!(
        !limiter.check(1).await.unwrap().is_allowed(),
        "a peek may be stopped"
    );
}

#[tokio::test(start_paused = true)]
async fn a_renewal_with_a_wrong_reply_is_sent_again() {
    let bent = Bent::default();
    let limiter = bent.limiter("1 concurrent ttl 12s");
    let permit = limiter.acquire().await.unwrap();
    bent.bend(|call, reply| reply.lost = vec![call.renewals[0], call.renewals[0] + 1]);
    bent.bend(|call, reply| (reply.limits, reply.lost) = (Vec::new(), call.renewals.clone()));
    let start = Instant::now();
    assert!(
        timeout(Duration::from_secs(60), permit.reclaimed())
            .await
            .is_err(),
        "after {:?}",
        start.elapsed()
    );
    assert!(bent.bends.lock().unwrap().is_empty() && permit.is_live());
    for _ in 0..20 {
        bent.bend(|_, reply| reply.limits.clear());
    }
    timeout(Duration::from_secs(13), permit.reclaimed())
        .await
        .expect("the process does not know whether it was renewed");
}

#[tokio::test(start_paused = true)]
async fn pages_that_never_end_and_impossible_purges_are_errors() {
    let bent = Bent::default();
    let limiter = bent.limiter("1/h");
    drop(limiter.key("alice").acquire().await.unwrap());
    *bent.page.lock().unwrap() = Some(KeyPage {
        keys: Vec::new(),
        next: Some(b"a".to_vec()),
    });
    assert!(limiter.keys(None, 10).await.is_ok());
    assert_eq!(
        fault_of(&limiter.keys(Some(b"a".to_vec()), 10).await.unwrap_err()),
        ReplyFault::PageRepeats
    );
    *bent.page.lock().unwrap() = None;
    assert_eq!(limiter.keys(None, 10).await.unwrap().keys.len(), 1);
    *bent.purged.lock().unwrap() = Some(u64::MAX);
    let fault = fault_of(&limiter.purge(10).await.unwrap_err());
    assert_eq!(
        fault,
        ReplyFault::PurgedTooMany {
            purged: u64::MAX,
            max: 10
        }
    );
    *bent.purged.lock().unwrap() = None;
    assert_eq!(limiter.purge(10).await.unwrap(), 0);
}

/// The same rule applies as after calls that the store does not answer.
#[tokio::test(start_paused = true)]
async fn wrong_replies_follow_the_rule_for_a_store_that_is_down() {
    let bent_for_long = || {
        let bent = Bent::default();
        (0..4).for_each(|_| bent.bend(|_, reply| reply.limits.clear()));
        bent
    };
    let bent = bent_for_long();
    let limiter = bent.limiter("100/s");
    for _ in 0..3 {
        assert!(matches!(
            limiter.acquire().await,
            Err(AcquireError::Store(_))
        ));
    }
    assert!(!limiter.store_is_up());
    assert_eq!(
        bent.bends.lock().unwrap().len(),
        2,
        "the breaker is open after two"
    );
    let allows = bent_for_long()
        .builder("1/h")
        .on_store_down(OnStoreDown::Allow)
        .build()
        .unwrap();
    assert!(allows.acquire().await.is_ok() && allows.try_acquire().await.is_ok());
    let local = OnStoreDown::Local("1/h".parse().unwrap());
    let local = bent_for_long()
        .builder("100/s")
        .on_store_down(local)
        .build()
        .unwrap();
    assert!(local.acquire().await.is_ok());
    assert!(matches!(
        local.try_acquire().await,
        Err(TryAcquireError::Denied(_))
    ));
    let denies = bent_for_long()
        .builder("100/s")
        .on_store_down(OnStoreDown::Deny)
        .build()
        .unwrap();
    assert!(matches!(
        denies.try_acquire().await,
        Err(TryAcquireError::Denied(_))
    ));
    assert!(
        timeout(Duration::from_secs(30), denies.acquire())
            .await
            .expect("the store is right again")
            .is_ok()
    );
}

/// The ways to corrupt a reply.
#[derive(Debug, Clone)]
enum Way {
    Good,
    /// An invalid reply.
    Wrong(Wrong),
    /// Any reply, valid or not.
    Any(Box<AnyReply>),
    Error(u8),
}

#[derive(Debug, Clone, Copy)]
enum Wrong {
    Granted(u64),
    Fence(u64),
    Now(u64),
    Limit(usize),
    StopIsOver,
    NoStop,
    Readings(usize),
    Remaining(u64),
    Lost(u64),
}

#[derive(Debug, Clone)]
struct AnyReply {
    now: Number,
    granted: Number,
    first_fence: Number,
    stop: Option<(usize, u8, Number)>,
    limits: Option<Vec<[Number; 3]>>,
    lost: Vec<u64>,
    reclaimed: u64,
}

/// The number of the valid reply, a number near it, or any number.
#[derive(Debug, Clone, Copy)]
enum Number {
    Right,
    Near(i64),
    Is(u64),
}

impl Number {
    fn of(self, right: u64) -> u64 {
        match self {
            Self::Right => right,
            Self::Near(by) => right.saturating_add_signed(by),
            Self::Is(number) => number,
        }
    }
}

fn edges() -> impl Strategy<Value = u64> {
    prop_oneof![
        0_u64..4,
        (u64::MAX - 3)..=u64::MAX,
        (1_u64 << 63) - 2..=(1 << 63) + 2,
        any::<u64>()
    ]
}

fn number() -> impl Strategy<Value = Number> {
    prop_oneof![
        6 => Just(Number::Right),
        2 => (-2_i64..=2).prop_map(Number::Near),
        1 => (-2_000_000_000_i64..=2_000_000_000).prop_map(Number::Near),
        2 => edges().prop_map(Number::Is),
    ]
}

fn wrong() -> impl Strategy<Value = Wrong> {
    prop_oneof![
        prop_oneof![2_000_u64..3_000, (u64::MAX - 3)..=u64::MAX].prop_map(Wrong::Granted),
        prop_oneof![Just(0), (1 << 63) + 1..=u64::MAX].prop_map(Wrong::Fence),
        prop_oneof![Just(0), Just(u64::MAX)].prop_map(Wrong::Now),
        prop_oneof![3_usize..5, Just(usize::MAX)].prop_map(Wrong::Limit),
        Just(Wrong::StopIsOver),
        Just(Wrong::NoStop),
        prop_oneof![Just(0_usize), 4_usize..9].prop_map(Wrong::Readings),
        ((u64::MAX - 3)..=u64::MAX).prop_map(Wrong::Remaining),
        edges().prop_map(Wrong::Lost),
    ]
}

fn any_reply() -> impl Strategy<Value = AnyReply> {
    let stop = prop::option::of((
        prop_oneof![4 => 0_usize..3, 1 => any::<usize>()],
        0_u8..3,
        number(),
    ));
    let limits = prop::option::of(prop::collection::vec([number(), number(), number()], 0..5));
    let lost = prop::collection::vec(edges(), 0..3);
    (number(), number(), number(), stop, limits, lost, edges()).prop_map(
        |(now, granted, first_fence, stop, limits, lost, reclaimed)| AnyReply {
            now,
            granted,
            first_fence,
            stop,
            limits,
            lost,
            reclaimed,
        },
    )
}

fn way(lies: bool) -> impl Strategy<Value = Way> {
    let any = if lies { 6 } else { 0 };
    prop_oneof![
        2 => Just(Way::Good),
        3 => wrong().prop_map(Way::Wrong),
        1 => (0_u8..5).prop_map(Way::Error),
        any => any_reply().prop_map(|reply| Way::Any(Box::new(reply))),
    ]
}

impl Way {
    fn bend(self, call: &Call, answer: Answer) -> Answer {
        let mut reply = match self {
            Self::Error(kind) => return Err(error(kind, call)),
            _ => answer?,
        };
        match self {
            Self::Wrong(wrong) => wrong.bend(&mut reply),
            Self::Any(any) => any.bend(&mut reply),
            Self::Good | Self::Error(_) => {}
        }
        Ok(reply)
    }
}

fn error(kind: u8, call: &Call) -> StoreError {
    let (store, source) = (
        "bent".to_owned(),
        Cause::new(std::io::Error::other("on purpose")),
    );
    match kind {
        0 => StoreError::Unanswered {
            store,
            after: None,
            source: None,
        },
        1 => StoreError::Refused { store, source },
        2 => StoreError::TooLate { store },
        3 => StoreError::Damaged {
            store,
            at: "here".to_owned(),
        },
        _ => {
            let (limiter, stored) = (Arc::clone(&call.scope.limiter), "not a policy".to_owned());
            StoreError::PolicyDiffers {
                limiter,
                stored,
                stored_revision: 9,
                given: String::new(),
                given_revision: 0,
            }
        }
    }
}

impl Wrong {
    fn bend(self, reply: &mut Reply) {
        let now = reply.now;
        match self {
            Self::Granted(granted) => reply.granted = granted,
            Self::Fence(first_fence) if reply.granted > 0 => reply.first_fence = first_fence,
            Self::Now(now) => reply.now = now,
            Self::StopIsOver if reply.stop.is_some() => {
                reply.stop = Some(DeniedAsk {
                    limit: 0,
                    until: DeniedUntil::Instant(now),
                });
            }
            Self::NoStop if reply.stop.is_some() && reply.granted == 0 => {
                (reply.stop, reply.granted) = (None, u64::MAX); // with another stop it would be a valid reply to a peek
            }
            Self::Limit(limit) => {
                reply.stop = Some(DeniedAsk {
                    limit,
                    until: DeniedUntil::Never,
                });
            }
            Self::Readings(found) => reply.limits = vec![reply.limits[0]; found],
            Self::Remaining(remaining) => reply.limits[0].remaining = remaining,
            Self::Lost(number) => reply.lost = vec![number, number ^ 1],
            Self::Fence(_) | Self::StopIsOver | Self::NoStop => reply.limits.clear(),
        }
    }
}

impl AnyReply {
    fn bend(self, reply: &mut Reply) {
        let now = reply.now;
        reply.now = self.now.of(now);
        reply.granted = self.granted.of(reply.granted);
        reply.first_fence = self.first_fence.of(reply.first_fence);
        if let Some((limit, until, at)) = self.stop {
            let at = at.of(now + 50_000_000);
            let until = match until {
                0 => DeniedUntil::Instant(at),
                1 => DeniedUntil::Release { first_expiry: at },
                _ => DeniedUntil::Never,
            };
            reply.stop = Some(DeniedAsk { limit, until });
        }
        if let Some(limits) = self.limits {
            let right = reply.limits[0];
            let reading = |[remaining, available_at, reset_at]: [Number; 3]| LimitReading {
                remaining: remaining.of(right.remaining),
                available_at: available_at.of(right.available_at),
                reset_at: reset_at.of(right.reset_at),
            };
            reply.limits = limits.into_iter().map(reading).collect();
        }
        reply.lost.extend(self.lost);
        reply.reclaimed = self.reclaimed;
    }
}

const POLICIES: [&str; 10] = [
    "100/s burst 5",
    "20/s burst 8 initial 1 and window 90/s",
    "3 concurrent ttl 2s",
    "2 concurrent ttl 3s and 50/s burst 10",
    "window 9/100ms from first grant and sliding log 9/200ms",
    "penalty 20 falling 100/s ban 100ms",
    "sliding counter 30/s and 3 concurrent ttl 2s and 40/s burst 9",
    "40/s burst 6 refilled each period and penalty 30 falling 90/s",
    "throttle every 10ms burst 4",
    "2 concurrent and 4 concurrent per request ttl 2s and 100 tokens/s",
];

#[derive(Debug, Clone, Copy)]
struct Asked {
    after: Duration,
    kind: u8,
    cost: u64,
    held: Duration,
    timeout: Option<Duration>,
}

fn asked() -> impl Strategy<Value = Asked> {
    let ms = |most: u64| (0..most).prop_map(Duration::from_millis);
    (ms(60), 0_u8..7, 1_u64..3, ms(80), prop::option::of(ms(900))).prop_map(
        |(after, kind, cost, held, timeout)| Asked {
            after,
            kind,
            cost,
            held,
            timeout,
        },
    )
}

#[derive(Debug, Clone)]
struct Case {
    policy: &'static str,
    ways: Vec<Way>,
    asked: Vec<Asked>,
    prefetch: bool,
    replaces: bool,
    on_down: u8,
}

fn case(lies: bool) -> impl Strategy<Value = Case> {
    let asked = prop::collection::vec(asked(), 1..25);
    let ways = prop::collection::vec(way(lies), 1..15);
    (
        prop::sample::select(&POLICIES[..]),
        ways,
        asked,
        any::<bool>(),
        any::<bool>(),
        0_u8..4,
    )
        .prop_map(|(policy, ways, asked, prefetch, replaces, on_down)| Case {
            policy,
            ways,
            asked,
            prefetch,
            replaces,
            on_down,
        })
}

impl Case {
    fn build(&self) -> (Bent, SharedLimiter) {
        let bent = Bent::default();
        let bend = |way: Way| -> Bend {
            let granted = Arc::clone(&bent.granted);
            Box::new(move |call, answer| match way {
                Way::Good => count(&granted, answer),
                way => way.bend(call, answer),
            })
        };
        bent.bends
            .lock()
            .unwrap()
            .extend(self.ways.iter().cloned().map(bend));
        let mut builder = bent.builder(self.policy);
        if self.prefetch && !self.policy.contains("concurrent") {
            builder = builder.prefetch(7, ms(50));
        }
        if self.replaces {
            builder = builder.revision(1);
        }
        let tokens = if self.policy.contains("tokens") {
            " and 1000 tokens/s"
        } else {
            ""
        };
        let local = || {
            format!("3 concurrent and 50/s burst 10{tokens}")
                .parse()
                .unwrap()
        };
        let on_down = match self.on_down {
            0 => OnStoreDown::Error,
            1 => OnStoreDown::Deny,
            2 => OnStoreDown::Allow,
            _ => OnStoreDown::Local(local()),
        };
        (bent, builder.on_store_down(on_down).build().unwrap())
    }

    /// Sends all requests. Each ends with a grant or an error. Returns the number of grants, and the most units held at a time.
    async fn run(&self, limiter: &SharedLimiter, always_timeouts: bool) -> (u64, i64) {
        let [held, most] = [(); 2].map(|()| Arc::new(AtomicI64::new(0)));
        let granted = Arc::new(AtomicU64::new(0));
        let mut tasks = Vec::new();
        for (nth, asked) in self.asked.iter().copied().enumerate() {
            sleep(asked.after).await;
            let [held, most] = [&held, &most].map(Arc::clone);
            let (limiter, granted) = (limiter.clone(), Arc::clone(&granted));
            let names_tokens = self.policy.contains("tokens");
            let task = tokio::spawn(async move {
                let mut request = limiter.request().cost(asked.cost);
                if names_tokens {
                    request = request.cost_of("tokens", 5);
                }
                let timeout = asked
                    .timeout
                    .or(always_timeouts.then_some(Duration::from_secs(2)));
                if let Some(timeout) = timeout {
                    request = request.timeout(timeout);
                }
                let permit = match asked.kind {
                    0..3 => request.acquire().await.ok(),
                    3 => request.try_acquire().await.ok(),
                    4 => request.try_acquire_explained().await.0.ok(),
                    5 => return drop(request.check().await),
                    _ => return drop(limiter.limits().await),
                };
                if let Some(permit) = permit {
                    granted.fetch_add(1, SeqCst);
                    let cost = i64::try_from(asked.cost).unwrap();
                    most.fetch_max(held.fetch_add(cost, SeqCst) + cost, SeqCst);
                    let loses = timeout_at_reclaim(&permit, asked.held).await;
                    held.fetch_sub(cost, SeqCst);
                    if !loses && nth % 3 == 0 {
                        let _settled = permit.settle(1);
                    }
                }
            });
            tasks.push(task);
        }
        for (nth, task) in tasks.into_iter().enumerate() {
            let ended = timeout(Duration::from_secs(120), task).await;
            ended
                .unwrap_or_else(|_| panic!("request {nth} does not end"))
                .expect("no panic");
        }
        (granted.load(SeqCst), most.load(SeqCst))
    }
}

/// Holds a permit for this time. Returns early with `true` if it is reclaimed.
async fn timeout_at_reclaim(permit: &tollgate::Permit, time: Duration) -> bool {
    timeout(time, permit.reclaimed()).await.is_ok()
}

fn in_virtual_time(
    test: impl Future<Output = Result<(), TestCaseError>>,
) -> Result<(), TestCaseError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(test)
}

/// Checks that the key works with valid replies: all places are free, and units come back.
async fn is_served(limiter: &SharedLimiter, policy: &str) -> Result<(), TestCaseError> {
    let served = async {
        for _ in 0..8 {
            let request = limiter.request();
            let request = if policy.contains("tokens") {
                request.cost_of("tokens", 5)
            } else {
                request
            };
            match request.acquire().await {
                Ok(permit) => drop(permit),
                Err(AcquireError::Store(_)) => sleep(ms(500)).await, // the breaker is still open
                Err(error) => return Err(TestCaseError::fail(format!("{error:?}"))),
            }
        }
        let request = limiter.request();
        let request = if policy.contains("tokens") {
            request.cost_of("tokens", 5)
        } else {
            request
        };
        request
            .acquire()
            .await
            .map(drop)
            .map_err(|error| TestCaseError::fail(format!("{error:?}")))
    };
    timeout(Duration::from_secs(60), served)
        .await
        .map_err(|_| TestCaseError::fail("it is not served"))?
}

proptest! {
    #![proptest_config(crate::common::replay::cases(400))]

    /// No reply of a store causes a panic or a hang. When its replies are valid again, the key works.
    #[test]
    fn any_replies_end_all_requests_and_leave_the_key_working(case in case(true)) {
        in_virtual_time(async {
            let (bent, limiter) = case.build();
            case.run(&limiter, true).await;
            bent.bends.lock().unwrap().clear();
            sleep(Duration::from_secs(20)).await;
            // A reply of valid form may have denied everything for years.
            while limiter.reset().await.is_err() {
                sleep(ms(500)).await;
            }
            is_served(&limiter, case.policy).await
        })?;
    }

    /// Invalid replies grant nothing. With valid replies between them, no limit is exceeded, and all places come back.
    #[test]
    fn wrong_replies_grant_nothing_and_lose_no_place(case in case(false)) {
        in_virtual_time(async {
            let (bent, limiter) = case.build();
            let (granted, most) = case.run(&limiter, false).await;
            let limit = case.policy.split(" and ").find_map(|limit| limit.split_once(" concurrent")?.0.parse().ok());
            if case.on_down < 2 {
                prop_assert!(most <= limit.unwrap_or(i64::MAX), "{most} of {limit:?}");
                let by_store = bent.granted.load(SeqCst);
                prop_assert!(granted <= by_store, "{granted} of {by_store}");
            }
            bent.bends.lock().unwrap().clear();
            sleep(Duration::from_secs(20)).await;
            is_served(&limiter, case.policy).await?;
            sleep(Duration::from_secs(3)).await;
            let limits = limiter.limits().await.unwrap();
            let places = limits.iter().filter(|status| status.limit.to_string().contains("concurrent"));
            for status in places {
                prop_assert_eq!(status.remaining, status.capacity, "all places are free");
            }
            Ok(())
        })?;
    }
}

#[test]
fn the_error_of_a_wrong_reply_says_what_is_wrong() {
    let faults = [
        ReplyFault::GrantsTooMany {
            granted: 3,
            asked: 2,
        },
        ReplyFault::UnknownLimit {
            limit: 99,
            limits: 2,
        },
        ReplyFault::Readings {
            found: 1,
            limits: 2,
        },
        ReplyFault::Instant { now: 0 },
    ];
    let texts: BTreeSet<_> = faults
        .map(|fault| {
            StoreError::BadReply {
                store: "bent".to_owned(),
                fault,
            }
            .to_string()
        })
        .into();
    assert!(
        texts.contains("the store bent has sent a reply that is wrong, which is a fault of the store: it grants 3 of 2 asks")
    );
    assert_eq!(texts.len(), 4);
}
