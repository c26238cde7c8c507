//! A request to a group charges several limiters at once.

use std::future::Future as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use crate::common::{self, limiter, ms, queued};
use tokio::time::{Instant, advance, sleep};
use tokio_test::{assert_pending, assert_ready, task};
use tollgate::{
    AcquireError, FixedWindow, KeyedLimiter, Limiter, LimiterGroup, MaxConcurrency, Penalty,
    Policy, Rate, Throttle, TokenBucket, TryAcquireError,
};

/// Invariant 4, over several limiters: if any of them denies, none is charged, and the error names that one.
#[tokio::test(start_paused = true)]
async fn when_one_member_denies_no_other_is_charged_and_the_error_names_it() {
    let minute = Duration::from_secs(60);
    let members = [2, 5, 9].map(|units| {
        Limiter::builder(FixedWindow::new(units, minute))
            .name(format!("{units}"))
            .build()
            .unwrap()
    });
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let group = LimiterGroup::new(order.map(|index| members[index].clone()));
        let before = members.clone().map(|member| member.check(1).remaining());
        let denied = group.try_acquire_many(3).unwrap_err();
        // The cost is above the capacity of the first member. The windows of the others are not charged.
        assert_eq!(common::exceeded(&denied.error), Some((3, 2)));
        assert_eq!(
            (order[denied.member], denied.name.as_deref()),
            (0, Some("2"))
        );
        assert_eq!(
            members.clone().map(|member| member.check(1).remaining()),
            before
        );
    }
    let group = LimiterGroup::new(members.clone());
    let _two = group.try_acquire_many(2).unwrap();
    let denied = group.try_acquire().unwrap_err();
    assert_eq!(denied.to_string(), "the limiter `2` refused");
    assert_eq!(
        denied.error.to_string(),
        "denied by `window 2/min`; retry after 60s"
    );
    assert_eq!(members.map(|member| member.check(1).remaining()), [0, 3, 7]);
    assert_eq!(group.retry_after(1), Some(minute));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_group_is_granted_when_the_last_of_its_limiters_admits() {
    let (slow, fast, place) = (
        limiter(Throttle::every(ms(100))),
        limiter(Throttle::every(ms(30))),
        limiter(MaxConcurrency::new(1)),
    );
    let group = LimiterGroup::new([fast.clone(), slow.clone(), place.clone()]);
    let start = Instant::now();
    for round in 0..4 {
        let permit = group.acquire().await.unwrap();
        assert_eq!(start.elapsed(), round * ms(100));
        assert_eq!(permit.permits().len(), 3);
        permit.release();
    }
    assert_eq!(
        [&fast, &slow, &place].map(|member| member.snapshot().in_flight),
        [0; 3]
    );
}

/// A waiter of a group does not block a limiter that would admit others.
#[tokio::test(start_paused = true)]
async fn a_limiter_that_is_not_the_one_waited_for_goes_on_admitting_others() {
    let (busy, free) = (
        limiter(MaxConcurrency::new(1)),
        limiter(MaxConcurrency::new(1)),
    );
    let out = busy.try_acquire().unwrap();
    let group = LimiterGroup::new([free.clone(), busy.clone()]);
    let mut waiting = task::spawn(group.acquire());
    assert_pending!(waiting.poll());
    let other = free.try_acquire().unwrap();
    drop(out); // the group gets the place of the busy one, and returns it to wait for the free one
    assert_pending!(waiting.poll());
    let out = busy.try_acquire().unwrap();
    drop(other);
    assert_pending!(waiting.poll());
    drop(out);
    let _both = waiting.await.unwrap();
    assert!(busy.try_acquire().is_err() && free.try_acquire().is_err());
}

/// Invariant 2: dropping a waiting group at any time leaves everything as it was.
#[tokio::test(start_paused = true)]
async fn a_dropped_group_acquire_gives_back_what_it_holds() {
    let (first, second) = (
        limiter(TokenBucket::new(Rate::per_second(10), 1)),
        limiter(MaxConcurrency::new(1)),
    );
    let place = second.try_acquire().unwrap();
    drop(first.try_acquire().unwrap());
    let group = LimiterGroup::new([first.clone(), second.clone()]);
    let mut waiting = task::spawn(group.acquire());
    assert_pending!(waiting.poll());
    sleep(ms(150)).await;
    assert_pending!(waiting.poll()); // it got the first's token, and waits for the second without it
    assert_eq!(first.check(1).remaining(), 1);
    drop(waiting);
    drop(place);
    assert_eq!(
        (first.check(1).remaining(), second.check(1).remaining()),
        (1, 1)
    );
    assert!(group.try_acquire().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_limiter_given_twice_is_charged_once_and_none_admits_all() {
    let only = limiter(TokenBucket::new(Rate::per_minute(2), 2));
    let group = LimiterGroup::new([only.clone(), only.clone()]);
    assert_eq!(group.members().len(), 1);
    drop(group.acquire().await.unwrap());
    assert_eq!(only.check(1).remaining(), 1);
    let none = LimiterGroup::default();
    assert!(
        none.try_acquire().is_ok() && none.acquire().await.is_ok() && none.retry_after(1).is_none()
    );
}

#[tokio::test(start_paused = true)]
async fn permits_of_a_group_are_settled_and_refunded_together() {
    let members = [100, 200].map(|burst| limiter(TokenBucket::new(Rate::per_second(1), burst)));
    let group = LimiterGroup::new(members.clone());
    assert!(group.acquire_many(50).await.unwrap().settle(20));
    assert_eq!(
        members.clone().map(|member| member.check(1).remaining()),
        [80, 180]
    );
    assert!(group.acquire_many(50).await.unwrap().refund());
    assert_eq!(members.map(|member| member.check(1).remaining()), [80, 180]);
}

#[tokio::test(start_paused = true)]
async fn a_closed_member_is_named_by_the_error_of_the_group() {
    let members = [
        limiter(MaxConcurrency::new(1)),
        limiter(MaxConcurrency::new(1)),
    ];
    let group = LimiterGroup::new(members.clone());
    let _out = group.try_acquire().unwrap();
    let mut waiting = task::spawn(group.acquire());
    assert_pending!(waiting.poll());
    members[0].close();
    let error = waiting.await.unwrap_err();
    assert_eq!((error.member, error.error), (0, AcquireError::Closed));
    let error = group.try_acquire().unwrap_err();
    assert_eq!((error.member, error.error), (0, TryAcquireError::Closed));
}

/// A limiter of one unit an hour, which is used up, and a limiter of places.
fn used_up_per_host_and_global() -> [Limiter; 2] {
    let members = [
        limiter("1/h".parse::<Policy>().unwrap()),
        limiter(MaxConcurrency::new(9)),
    ];
    drop(members[0].try_acquire().unwrap());
    members
}

/// A fixed bug: a closed member was noticed only when the wait for another one had ended.
#[tokio::test(start_paused = true)]
async fn closing_a_member_ends_the_wait_for_another_at_once() {
    let closes: [fn(&Limiter); 2] = [Limiter::close, Limiter::close_to_new];
    for close in closes {
        for order in [[0, 1], [1, 0]] {
            let members = used_up_per_host_and_global();
            let group = LimiterGroup::new(order.map(|index| members[index].clone()));
            let start = Instant::now();
            let waiting: Vec<_> = (0..100).map(|_| tokio::spawn(group.acquire())).collect();
            sleep(ms(10_000)).await;
            assert_eq!(members[0].snapshot().queued, 100);
            close(&members[1]);
            assert_eq!(members[1].snapshot().queued, 0);
            for waiting in waiting {
                let error = waiting.await.unwrap().unwrap_err();
                assert_eq!(
                    (order[error.member], error.error),
                    (1, AcquireError::Closed)
                );
            }
            assert_eq!(
                (start.elapsed(), members[0].snapshot().queued),
                (ms(10_000), 0)
            );
            let error = group.acquire().await.unwrap_err();
            assert_eq!(
                (start.elapsed(), order[error.member], error.is_closed()),
                (ms(10_000), 1, true)
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn closing_all_keys_ends_the_wait_of_a_group_for_another_limiter() {
    let closes: [fn(&KeyedLimiter<u32>); 2] = [KeyedLimiter::close, KeyedLimiter::close_to_new];
    for (close, policy) in closes.into_iter().zip(["9 concurrent", "100/s"]) {
        let [per_host, _] = used_up_per_host_and_global();
        let per_user = KeyedLimiter::<u32>::new(policy).unwrap();
        let group = LimiterGroup::new([per_user.limiter(&7).unwrap(), per_host]);
        let start = Instant::now();
        let waiting = tokio::spawn(group.acquire());
        sleep(ms(250)).await;
        close(&per_user);
        let error = waiting.await.unwrap().unwrap_err();
        assert_eq!(
            (start.elapsed(), error.member, error.error),
            (ms(250), 0, AcquireError::Closed)
        );
    }
}

/// Requests that wait in the queue of the member, or already have its permit, are served.
#[tokio::test(start_paused = true)]
async fn a_member_that_is_closed_to_new_requests_serves_the_groups_in_its_queue() {
    let members = [
        limiter(MaxConcurrency::new(1)),
        limiter(MaxConcurrency::new(1)),
    ];
    let out = members[0].try_acquire().unwrap();
    let mut waiting = queued(LimiterGroup::new(members.clone()).acquire());
    members[0].close_to_new();
    assert!(!waiting.is_woken());
    drop(out);
    assert_eq!(assert_ready!(waiting.poll()).unwrap().permits().len(), 2);

    // If the other member denies, the group would have to join the closed queue again.
    let members = [
        limiter(MaxConcurrency::new(1)),
        limiter(MaxConcurrency::new(1)),
    ];
    let outs = members.clone().map(|member| member.try_acquire().unwrap());
    let mut waiting = queued(LimiterGroup::new(members.clone()).acquire());
    members[0].close_to_new();
    let [first, _second] = outs;
    drop(first);
    let error = assert_ready!(waiting.poll()).unwrap_err();
    assert_eq!((error.member, error.error), (0, AcquireError::Closed));
    assert_eq!(
        members.map(|member| (member.snapshot().queued, member.snapshot().in_flight)),
        [(0, 0), (0, 1)]
    );
}

/// A group that has failed often enough keeps the permit of one member while it waits for the other.
#[tokio::test(start_paused = true)]
async fn closing_a_member_whose_permit_a_group_keeps_ends_its_wait_and_closing_to_new_does_not() {
    for closes in [true, false] {
        let members = [
            limiter(MaxConcurrency::new(1)),
            limiter(MaxConcurrency::new(1)),
        ];
        let mut outs = members.clone().map(|member| member.try_acquire().ok());
        let mut waiting = queued(LimiterGroup::new(members.clone()).acquire());
        let waits_for = || {
            members
                .iter()
                .position(|member| member.snapshot().queued == 1)
                .unwrap()
        };
        while members
            .iter()
            .zip(&outs)
            .all(|(member, out)| out.is_some() || member.snapshot().in_flight == 0)
        {
            let member = waits_for();
            outs[member] = None;
            assert_pending!(waiting.poll());
            if waits_for() != member {
                outs[member] = members[member].try_acquire().ok(); // `None` if the group keeps it
            }
        }
        let (kept, missing) = (1 - waits_for(), waits_for());
        assert_eq!(
            (members[kept].snapshot().in_flight, outs[kept].is_none()),
            (1, true)
        );
        if closes {
            members[kept].close();
            let error = assert_ready!(waiting.poll()).unwrap_err();
            assert_eq!((error.member, error.error), (kept, AcquireError::Closed));
            assert_eq!(members[kept].snapshot().in_flight, 0);
        } else {
            members[kept].close_to_new();
            assert!(!waiting.is_woken());
            outs[missing] = None;
            assert_eq!(assert_ready!(waiting.poll()).unwrap().permits().len(), 2);
        }
    }
}

/// A value whose references the test counts.
struct Counted;

impl Wake for Counted {
    fn wake(self: Arc<Self>) {}
}

#[tokio::test(start_paused = true)]
async fn a_group_leaves_nothing_registered_however_its_wait_ends() {
    type End = fn(&[Limiter; 3]);
    let ends: [(&str, End); 4] = [
        ("cancelled", |_| {}),
        ("granted", |members| members[0].resume()),
        ("closed where it waits", |members| members[0].close()),
        ("closed elsewhere", |members| members[2].close()),
    ];
    for (how, end) in ends {
        let members = [(); 3].map(|()| limiter(MaxConcurrency::new(1)));
        members[0].pause_for(Duration::MAX);
        let counted = Arc::new(Counted);
        let waker = Waker::from(Arc::clone(&counted));
        let mut waiting = Box::pin(LimiterGroup::new(members.clone()).acquire());
        assert!(
            waiting
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        assert!(Arc::strong_count(&counted) > 2 + 2, "{how}: at each member");
        end(&members);
        if how != "cancelled" {
            assert!(
                waiting
                    .as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_ready(),
                "{how}"
            );
        } else {
            drop(waiting);
        }
        drop(waker);
        assert_eq!(Arc::strong_count(&counted), 1, "{how}");
        assert_eq!(
            members.map(|member| (member.snapshot().queued, member.snapshot().in_flight)),
            [(0, 0); 3],
            "{how}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn closing_a_group_closes_its_members_and_it_is_drained_when_all_are() {
    let (member, keyed) = (
        limiter(MaxConcurrency::new(1)),
        KeyedLimiter::new(MaxConcurrency::new(2)).unwrap(),
    );
    let group = LimiterGroup::new([member.clone(), keyed.limiter(&7).unwrap()]);
    group.drained().await;
    let permit = group.acquire().await.unwrap();
    let others = keyed.try_acquire(&7).unwrap();
    let (mut waiting, mut waits_at_a_member) = (queued(group.acquire()), queued(member.acquire()));
    assert!(!group.is_closed());
    group.close_to_new();
    assert!(
        group.is_closed()
            && member.is_closed()
            && keyed.limiter(&7).unwrap().is_closed()
            && !keyed.is_closed()
    );
    assert_eq!(
        group.acquire().await.unwrap_err().error,
        AcquireError::Closed
    );
    let refused = assert_ready!(waiting.poll()).unwrap_err();
    assert_eq!(
        (refused.member, refused.error),
        (1, AcquireError::Closed),
        "it waited at the other, and has no place here"
    );
    assert!(!waits_at_a_member.is_woken());
    let mut drained = queued(group.drained());
    drop(permit);
    drop(assert_ready!(waits_at_a_member.poll()).unwrap());
    assert_pending!(drained.poll());
    drop(others);
    assert!(drained.is_woken());
    assert_ready!(drained.poll());

    let members = [
        limiter(MaxConcurrency::new(1)),
        limiter(MaxConcurrency::new(1)),
    ];
    let group = LimiterGroup::new(members.clone());
    members[1].close();
    assert!(
        group.is_closed(),
        "one closed member refuses all requests of the group"
    );
    let _out = members[0].try_acquire().unwrap();
    let mut waiting = queued(members[0].acquire());
    group.close();
    assert_eq!(
        assert_ready!(waiting.poll()).unwrap_err(),
        AcquireError::Closed
    );
    let none = LimiterGroup::default();
    none.close();
    none.drained().await;
    assert!(
        !none.is_closed() && none.try_acquire().is_ok(),
        "nothing to close"
    );
}

/// A waiting request is not denied: a penalty counts only the attempts of callers that do not wait.
#[tokio::test(start_paused = true)]
async fn waiting_for_a_group_raises_no_penalty() {
    let penalty = Penalty::new(1, Rate::per_second(1)).ceiling(100);
    for ban in [None, Some(Duration::from_secs(60))] {
        let penalty = ban.map_or(penalty, |ban| penalty.ban(ban));
        let (guarded, place) = (limiter(penalty), limiter(MaxConcurrency::new(1)));
        let group = LimiterGroup::new([guarded.clone(), place.clone()]);
        let start = Instant::now();
        drop(group.acquire().await.unwrap());
        drop(group.acquire().await.unwrap());
        assert_eq!(start.elapsed(), Duration::from_secs(1));
        assert_eq!(
            [&guarded, &place].map(|member| member.snapshot().denied),
            [0; 2]
        );
    }
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        std::panic::resume_unwind(Box::new("on purpose, without the noise of the hook"));
    }
}

/// A call to a group may serve waiters of its members. A waker that panics keeps no other waiter asleep.
#[test]
fn a_panicking_waker_of_one_member_keeps_no_waiter_of_another_asleep() {
    let members = [(); 2].map(|()| limiter(Throttle::every(ms(300)).burst(2)));
    members
        .iter()
        .for_each(|member| drop(member.try_acquire_many(2).unwrap()));
    let panics = Waker::from(Arc::new(Panics));
    let mut panicking = Box::pin(members[0].acquire());
    let mut waiting = task::spawn(members[1].acquire());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let entered = runtime.enter(); // the runtime is not polled, so only the call of the group serves them
    assert!(
        panicking
            .as_mut()
            .poll(&mut Context::from_waker(&panics))
            .is_pending()
    );
    assert_pending!(waiting.poll());
    std::thread::sleep(ms(700));
    assert!(LimiterGroup::new(members.clone()).try_acquire().is_ok());
    assert!(waiting.is_woken());
    drop(entered);
}

/// Invariant 2: a request to a group can be dropped at any time, whichever member it waits for and whichever permits it holds.
#[tokio::test(start_paused = true)]
async fn requests_to_groups_that_are_dropped_at_any_time_lose_no_unit() {
    let members = [
        limiter(MaxConcurrency::new(1)),
        limiter(Throttle::every(ms(3))),
        limiter(MaxConcurrency::new(2).ttl(ms(60_000))),
    ];
    let tasks: Vec<_> = (0..60_u64)
        .map(|task| {
            let members = members.clone();
            tokio::spawn(async move {
                let order = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]][task as usize % 4];
                let group = LimiterGroup::new(
                    order[..1 + task as usize % 3]
                        .iter()
                        .map(|index| members[*index].clone()),
                );
                let mut got = 0;
                for round in 0..30 {
                    let patience = ms((task * 7 + round * 13) % 29);
                    if let Ok(permit) = tokio::time::timeout(patience, group.acquire()).await {
                        let permit = permit.unwrap();
                        got += 1;
                        sleep(ms((task + round) % 4)).await;
                        permit.release();
                    }
                }
                got
            })
        })
        .collect();
    let mut got = 0;
    for task in tasks {
        got += task.await.unwrap();
    }
    assert!(got > 100, "{got}");
    for member in &members {
        let numbers = member.snapshot();
        assert_eq!((numbers.in_flight, numbers.queued), (0, 0));
    }
    sleep(ms(10)).await;
    assert!(LimiterGroup::new(members).try_acquire().is_ok());
}

/// A client and an endpoint are charged in one call, each by a keyed limiter. The keys become idle again.
#[tokio::test(start_paused = true)]
async fn keys_of_several_keyed_limiters_are_charged_together() {
    let per_client = KeyedLimiter::new(TokenBucket::new(Rate::per_second(1), 3)).unwrap();
    let per_endpoint = KeyedLimiter::new(TokenBucket::new(Rate::per_second(1), 5)).unwrap();
    let ask = |client: u32, endpoint: u32| {
        let group = LimiterGroup::new([
            per_client.limiter(&client).unwrap(),
            per_endpoint.limiter(&endpoint).unwrap(),
        ]);
        group
            .try_acquire()
            .map(drop)
            .map_err(|denied| denied.member)
    };
    assert_eq!(
        [(); 4].map(|()| ask(1, 1)),
        [Ok(()), Ok(()), Ok(()), Err(0)]
    );
    assert_eq!([(); 3].map(|()| ask(2, 1)), [Ok(()), Ok(()), Err(1)]);
    assert_eq!(per_client.check(&2, 1).remaining(), 1);
    advance(ms(1_000)).await;
    assert_eq!((ask(1, 1), ask(1, 2)), (Ok(()), Err(0)));
}

/// Never over and no deadlock: threads that take the same limiters in different orders, and some that take one alone.
#[test]
fn threads_with_groups_in_any_order_neither_deadlock_nor_exceed() {
    let members =
        [7, 8, 9].map(|units| limiter(FixedWindow::new(units * 1_000, Duration::from_secs(3_600))));
    let granted = Arc::new([const { AtomicU64::new(0) }; 3]);
    std::thread::scope(|scope| {
        for thread in 0..6_usize {
            let (members, granted) = (&members, Arc::clone(&granted));
            scope.spawn(move || {
                let mut order = [thread % 3, (thread + 1) % 3, (thread + 2) % 3];
                if thread >= 3 {
                    order.reverse();
                }
                let take = if thread == 5 { 1 } else { 3 };
                let group =
                    LimiterGroup::new(order[..take].iter().map(|index| members[*index].clone()));
                for _ in 0..3_000 {
                    if group.try_acquire().is_ok() {
                        for index in &order[..take] {
                            granted[*index].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    for (member, granted) in members.iter().zip(&*granted) {
        let granted = granted.load(Ordering::Relaxed);
        assert_eq!(
            member.check(1).remaining() + granted,
            member.check(1).limit(),
            "as many as it says, and never more"
        );
    }
    assert!(
        members
            .iter()
            .any(|member| member.check(1).remaining() == 0),
        "they went on until one was spent"
    );
}

/// A fixed bug: a waiter of a group went to the end of a queue each time, and was never granted where others always wait.
#[tokio::test(start_paused = true)]
async fn a_group_is_granted_although_others_always_wait_for_each_of_its_members() {
    for policies in [
        [MaxConcurrency::new(1).into(), MaxConcurrency::new(1).into()],
        [
            Policy::from(Throttle::every(ms(3))),
            Throttle::every(ms(5)).into(),
        ],
    ] {
        let members = policies.map(limiter);
        let crowd: Vec<_> = (0..16)
            .map(|number| {
                let member = members[number % 2].clone();
                tokio::spawn(async move {
                    loop {
                        let permit = member.acquire().await.unwrap();
                        sleep(ms(1 + number as u64)).await;
                        drop(permit);
                    }
                })
            })
            .collect();
        sleep(ms(100)).await;
        let start = Instant::now();
        let groups =
            [members.clone(), [members[1].clone(), members[0].clone()]].map(LimiterGroup::new);
        for _ in 0..10 {
            let through = |group: &LimiterGroup| {
                let group = group.clone();
                async move { drop(group.acquire().await.unwrap()) }
            };
            tokio::join!(through(&groups[0]), through(&groups[1]));
        }
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{:?}",
            start.elapsed()
        );
        crowd.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// A fixed bug: a call to a group did only one batch of the due work of a member, and denied if that was not enough.
#[test]
fn a_call_to_a_group_reclaims_all_expired_permits_itself() {
    let leaky = limiter(MaxConcurrency::new(200).ttl(ms(20)));
    for _ in 0..200 {
        leaky.try_acquire().unwrap().forget();
    }
    std::thread::sleep(ms(25)); // no runtime, so no driver
    let group = LimiterGroup::new([leaky, limiter(MaxConcurrency::new(200))]);
    assert!(group.try_acquire_many(200).is_ok());
}
