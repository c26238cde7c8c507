//! Flows share a limiter fairly: by the units that they hold, then by the units that they were granted, by weight, within a parent.

use std::cell::{Cell, RefCell};
use std::hash::{Hash, Hasher};
use std::time::Duration;

use crate::common::counting::LIVE;
use crate::common::{Random, ms};
use tokio::task::{LocalSet, yield_now};
use tokio::time::sleep;
use tollgate::store::MemoryStore;
use tollgate::{
    AcquireError, EventKind, FlowId, KeyedLimiter, Limiter, LimiterEvent, LimiterGroup,
    MaxConcurrency, Overflow, Permit, PermitRequest, Priority, Rate, Reservation, SharedLimiter,
    TokenBucket, TryAcquireError,
};

/// Joins the queue.
fn wait(request: PermitRequest<&Limiter>) -> Reservation {
    request.reserve().unwrap()
}

/// The permit, if it was granted by now.
async fn now(reservation: Reservation) -> Option<Permit> {
    let granted = tokio::time::timeout(Duration::ZERO, reservation);
    granted.await.ok().map(Result::unwrap)
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_behind_10_000_waiters_of_one_flow_is_granted_at_the_next_release() {
    let limiter = Limiter::new(MaxConcurrency::new(2)).unwrap();
    let request = |flow: &str| limiter.request().flow(flow);
    let mut permits = [(); 2].map(|()| request("flood").try_acquire().ok());
    let flood: Vec<_> = (0..10_000).map(|_| wait(request("flood"))).collect();
    let newcomer = wait(request("newcomer"));
    permits[0] = None;
    let permit = now(newcomer).await;
    assert!(permit.is_some());
    assert_eq!(limiter.snapshot().queued, 10_000);
    drop(flood);
}

/// Runs `works` for this long at the same time, each again and again.
async fn run_for<F: Future>(
    time: Duration,
    works: impl IntoIterator<Item = impl Fn() -> F + 'static>,
) {
    let tasks = LocalSet::new();
    for work in works {
        tasks.spawn_local(async move {
            loop {
                work().await;
            }
        });
    }
    let _ = tokio::time::timeout(time, tasks).await;
}

#[tokio::test(start_paused = true)]
async fn weights_of_3_to_1_share_3_to_1_at_mixed_costs() {
    const GRANTS: u64 = 100_000;
    let limiter = Limiter::new(TokenBucket::new(Rate::new(9, ms(1)), 9)).unwrap();
    let (units, grants) = (RefCell::new([0_u64; 2]), Cell::new(0));
    let random = RefCell::new(Random(7));
    let flow = |nth: usize| {
        let (limiter, units, grants, random) = (&limiter, &units, &grants, &random);
        async move {
            while grants.get() < GRANTS {
                let cost = 1 + random.borrow_mut().below(9);
                let request = limiter.request().flow(nth).weight([3, 1][nth]).cost(cost);
                let _permit = request.acquire().await.unwrap();
                units.borrow_mut()[nth] += cost;
                grants.set(grants.get() + 1);
            }
        }
    };
    let tasks = (0..40).map(|nth| flow(nth % 2));
    futures_util::future::join_all(tasks).await;
    let [paying, free] = *units.borrow();
    let ratio = paying as f64 / free as f64;
    assert!((ratio / 3.0 - 1.0).abs() < 0.01, "{paying} : {free}");
}

/// The place-time that each of two flows gets of 8 places, if each has 16 tasks that hold a place for so long.
async fn place_time(holds: [Duration; 2], weights: [u64; 2]) -> [f64; 2] {
    let limiter = Limiter::new(MaxConcurrency::new(8)).unwrap();
    let shares = std::rc::Rc::new(RefCell::new([0.0; 2]));
    let works = (0..32).map(|nth| {
        let (limiter, shares, flow) = (limiter.clone(), shares.clone(), nth % 2);
        move || {
            let (limiter, shares) = (limiter.clone(), shares.clone());
            async move {
                let request = limiter.request().flow(flow).weight(weights[flow]);
                let _permit = request.acquire().await.unwrap();
                sleep(holds[flow]).await;
                shares.borrow_mut()[flow] += holds[flow].as_secs_f64();
            }
        }
    });
    run_for(Duration::from_secs(4_000), works).await;
    shares.take()
}

#[tokio::test(start_paused = true)]
async fn long_and_short_holds_get_equal_place_time() {
    let [long, short] = place_time([Duration::from_secs(10), ms(100)], [1, 1]).await;
    assert!((long / short - 1.0).abs() < 0.05, "{long} s and {short} s");
    let [long, short] = place_time([Duration::from_secs(10), ms(100)], [3, 1]).await;
    assert!(
        (long / short / 3.0 - 1.0).abs() < 0.05,
        "{long} s and {short} s"
    );
}

#[tokio::test(start_paused = true)]
async fn a_tenant_gets_no_more_by_spreading_over_100_flows_of_its_parent() {
    let limiter = Limiter::new(MaxConcurrency::new(8)).unwrap();
    let grants = std::rc::Rc::new(RefCell::new([0_u64; 2]));
    let works = (0..200).map(|nth| {
        let (limiter, grants) = (limiter.clone(), grants.clone());
        move || {
            let (limiter, grants) = (limiter.clone(), grants.clone());
            async move {
                let request = match nth % 2 {
                    0 => limiter.request().flow("single"),
                    _ => limiter.request().flow_within("many", nth),
                };
                let _permit = request.acquire().await.unwrap();
                sleep(ms(100)).await;
                grants.borrow_mut()[nth % 2] += 1;
            }
        }
    });
    run_for(Duration::from_secs(1_000), works).await;
    let [single, many] = *grants.borrow();
    assert!(
        (single as f64 / many as f64 - 1.0).abs() < 0.02,
        "{single} and {many}"
    );
}

#[tokio::test(start_paused = true)]
async fn priorities_rank_above_flows_and_requests_without_one_are_a_flow() {
    let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
    let permit = limiter.request().flow("a").try_acquire().unwrap();
    let a = wait(limiter.request().flow("a"));
    let none = wait(limiter.request());
    let urgent = wait(limiter.request().flow("a").priority(Priority::HIGH));
    drop(permit);
    let permit = now(urgent).await.unwrap();
    drop(permit);
    let permit = now(none).await.unwrap();
    drop(permit);
    assert!(now(a).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_large_cost_whose_turn_has_come_is_not_passed() {
    let limiter = Limiter::new(MaxConcurrency::new(4)).unwrap();
    let mut permits: Vec<_> = (0..4).map(|_| limiter.try_acquire().unwrap()).collect();
    let large = wait(limiter.request().flow("large").cost(4));
    permits.pop();
    let small: Vec<_> = (0..10)
        .map(|nth| wait(limiter.request().flow(nth)))
        .collect();
    permits.pop();
    assert_eq!(limiter.snapshot().queued, 11);
    permits.clear();
    assert_eq!(now(large).await.unwrap().cost(), 4);
    drop(small);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_drops_the_newest_request_of_the_longest_flow() {
    let limiter = Limiter::builder(MaxConcurrency::new(1))
        .max_queue(4)
        .overflow(Overflow::DropLongest)
        .build()
        .unwrap();
    let permit = limiter.request().flow("flood").try_acquire().unwrap();
    let mut flood: Vec<_> = (0..4)
        .map(|_| wait(limiter.request().flow("flood")))
        .collect();
    let refused = limiter.request().flow("flood").reserve().unwrap_err();
    assert!(matches!(refused, AcquireError::QueueFull { .. }));
    let quiet = wait(limiter.request().flow("quiet"));
    let shed = flood.pop().unwrap().await.unwrap_err();
    assert!(matches!(shed, AcquireError::Shed { .. }));
    // 3 and 1 wait: with one more, the quiet flow is as long as the other is without its newest request.
    let second = wait(limiter.request().flow("quiet"));
    assert!(flood.pop().unwrap().await.is_err());
    let refused = limiter.request().flow("quiet").reserve().unwrap_err();
    assert!(matches!(refused, AcquireError::QueueFull { .. }));
    // A request without a flow is of one more flow. One with a higher priority is not dropped for it.
    let urgent = || limiter.request().flow("flood").priority(Priority::HIGH);
    assert!(urgent().reserve().is_err());
    let unnamed = wait(limiter.request());
    assert!(second.await.is_err());
    drop(permit);
    let permit = now(quiet).await.unwrap();
    drop(permit);
    let permit = now(unnamed).await;
    assert!(permit.is_some());
    drop((permit, flood));
}

#[tokio::test(start_paused = true)]
async fn a_key_a_group_and_a_shared_limiter_have_flows() {
    let keyed = KeyedLimiter::new(MaxConcurrency::new(1)).unwrap();
    let request = |flow: &str| keyed.request(&7).flow(flow).acquire_owned();
    let permit = request("a").await.unwrap();
    let (first, second) = (tokio::spawn(request("a")), tokio::spawn(request("b")));
    yield_now().await;
    drop(permit);
    let permit = second.await.unwrap().unwrap();
    assert!(!first.is_finished());
    drop(permit);
    drop(first.await.unwrap().unwrap());

    let places = Limiter::new(MaxConcurrency::new(1)).unwrap();
    let group = LimiterGroup::new([places, Limiter::new("1000/s burst 1000").unwrap()]);
    let permit = group.request().flow("a").acquire().await.unwrap();
    let mut first = Box::pin(group.request().flow("a").acquire());
    let mut second = Box::pin(group.request().flow("b").acquire());
    assert!(futures_util::poll!(&mut first).is_pending());
    assert!(futures_util::poll!(&mut second).is_pending());
    drop(permit);
    drop(second.await.unwrap());
    drop(first.await.unwrap());

    let shared = SharedLimiter::new(MemoryStore::new(), "name", "1 concurrent").unwrap();
    let permit = shared.request().flow("a").acquire().await.unwrap();
    let mut first = Box::pin(shared.request().flow("a").acquire());
    let mut second = Box::pin(shared.request().flow("b").acquire());
    assert!(futures_util::poll!(&mut first).is_pending());
    assert!(futures_util::poll!(&mut second).is_pending());
    sleep(ms(10)).await;
    drop(permit);
    drop(second.await.unwrap());
    drop(first.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn weights_out_of_range_are_refused_with_the_weight() {
    let limiter = Limiter::new("1 concurrent").unwrap();
    let keyed = KeyedLimiter::new("10/s").unwrap();
    for weight in [0, 1_000_001, u64::MAX] {
        let max = 1_000_000;
        let of_flow = limiter.request().flow(1).weight(weight);
        let of_parent = limiter.request().flow_within(1, 2).parent_weight(weight);
        for request in [of_flow, of_parent] {
            let denied = request.clone().try_acquire().unwrap_err();
            assert_eq!(denied, TryAcquireError::WeightOutOfRange { weight, max });
            let refused = request.await.unwrap_err();
            assert_eq!(refused, AcquireError::WeightOutOfRange { weight, max });
        }
        let of_key = keyed.request(&1).flow(1).weight(weight);
        let refused = of_key.clone().acquire().await.unwrap_err();
        assert_eq!(refused, AcquireError::WeightOutOfRange { weight, max });
        assert!(of_key.try_acquire().is_err());
    }
    assert!(
        limiter
            .request()
            .flow(1)
            .weight(1_000_000)
            .try_acquire()
            .is_ok()
    );
}

#[tokio::test(start_paused = true)]
async fn flows_that_come_and_go_leave_no_memory() {
    let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
    let mut number = 0_u64;
    let mut round = |flows: u64| {
        let permit = limiter.try_acquire().unwrap();
        let waiting: Vec<_> = (0..flows)
            .map(|_| {
                number += 1;
                wait(limiter.request().flow(number).weight(1 + number % 3))
            })
            .collect();
        drop(waiting);
        drop(permit);
        for _ in 0..flows {
            number += 1;
            drop(
                limiter
                    .request()
                    .flow_within(number / 10, number)
                    .try_acquire()
                    .unwrap(),
            );
        }
    };
    round(1_000);
    let before = LIVE.get();
    for _ in 0..250 {
        round(2_000); // a million flows in all
    }
    assert!(LIVE.get().saturating_sub(before) < 10_000);
}

/// A value whose hash is that of all others.
struct Colliding;

impl Hash for Colliding {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

#[tokio::test(start_paused = true)]
async fn flows_whose_hashes_collide_are_one_flow_and_lose_nothing() {
    let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
    let held = limiter.request().flow(Colliding).try_acquire().unwrap();
    let waiting = [
        wait(limiter.request().flow(Colliding).weight(3)),
        wait(limiter.request().flow_within(Colliding, Colliding)),
        wait(limiter.request().flow(Colliding)),
    ];
    let flows = limiter.flows(10);
    assert_eq!(
        flows
            .iter()
            .map(|flow| (flow.queued, flow.in_flight))
            .collect::<Vec<_>>(),
        [(2, 1), (1, 0)],
        "a flow and one within a parent do not collide"
    );
    drop(held);
    let released = waiting.map(async |waiting| waiting.await.unwrap().release());
    futures_util::future::join_all(released).await;
    assert_eq!((limiter.available(), limiter.flows(10).len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn permits_that_are_never_settled_nor_returned_hold_up_no_other_flow() {
    let policy = MaxConcurrency::new(8).ttl(Duration::from_secs(1));
    let policy = policy.and(TokenBucket::new(Rate::per_second(1_000), 1_000));
    let limiter = Limiter::new(policy).unwrap();
    let mut before = 0;
    for round in 0..100_u64 {
        for nth in 0..8 {
            let flow = round * 8 + nth;
            std::mem::forget(limiter.request().flow(flow).acquire().await.unwrap()); // its reply never comes
        }
        let other = limiter
            .request()
            .flow("other")
            .timeout(Duration::from_secs(2));
        drop(other.acquire().await.unwrap());
        if round == 10 {
            before = LIVE.get();
        }
    }
    sleep(Duration::from_secs(2)).await;
    assert_eq!(limiter.snapshot().reclaimed, 800);
    assert_eq!((limiter.available(), limiter.flows(10).len()), (8, 0));
    assert!(LIVE.get().saturating_sub(before) < 20_000);
}

#[tokio::test(start_paused = true)]
async fn snapshots_list_the_longest_flows_and_no_more() {
    let limiter = Limiter::new(MaxConcurrency::new(3)).unwrap();
    let request = |flow: u64| limiter.request().flow_within("all", flow).weight(2);
    let held = request(7).cost(3).try_acquire().unwrap();
    let waiting: Vec<_> = (0..50)
        .flat_map(|flow| (0..=flow % 10).map(move |_| flow))
        .map(|flow| wait(request(flow)))
        .collect();
    let longest = limiter.flows(5);
    assert_eq!(longest.len(), 5);
    assert!(longest.iter().all(|flow| flow.queued == 10));
    let all = limiter.flows(usize::MAX);
    assert_eq!(all.len(), 50);
    assert!(all.is_sorted_by(|one, next| one.queued >= next.queued));
    let seven = all
        .iter()
        .find(|flow| flow.id == FlowId::within("all", 7_u64))
        .unwrap();
    assert_eq!((seven.queued, seven.in_flight, seven.weight), (8, 3, 2));
    assert_eq!(seven.parent, Some(FlowId::of_parent("all")));
    drop((held, waiting));
    assert_eq!((limiter.flows(5), limiter.flows(0)), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn events_name_the_flow_of_a_request() {
    let (sender, events) = std::sync::mpsc::channel();
    let limiter = Limiter::builder(MaxConcurrency::new(1))
        .max_queue(1)
        .observer(move |event: &LimiterEvent<'_>| {
            let flow = match event.kind {
                EventKind::GrantedAfterWait { flow, .. }
                | EventKind::TimedOut { flow, .. }
                | EventKind::Shed { flow, .. }
                | EventKind::Denied { flow, .. } => *flow,
                _ => None,
            };
            sender.send((event.kind.clone(), flow)).unwrap();
        })
        .build()
        .unwrap();
    let of = |flow: &'static str| limiter.request().flow(flow);
    let held = of("a").try_acquire().unwrap();
    of("b").try_acquire().unwrap_err();
    of("c").timeout(ms(1)).acquire().await.unwrap_err();
    let waiting = wait(of("d"));
    of("e").acquire().await.unwrap_err();
    sleep(ms(1)).await;
    drop(held);
    drop(waiting.await.unwrap());
    limiter.try_acquire().unwrap().release();
    let named: Vec<_> = events.try_iter().map(|(_, flow)| flow).collect();
    assert_eq!(
        named,
        ["b", "c", "e", "d"].map(|flow| Some(FlowId::of(flow)))
    );
    assert_eq!(FlowId::of("b").to_string().len(), 16);
}

/// Requests are given up in every order, under pauses, other policies and a close.
#[tokio::test(start_paused = true)]
async fn nothing_is_lost_and_nothing_over_while_requests_of_flows_are_given_up() {
    let mut random = Random(3);
    for nth in 0..300 {
        let limiter = Limiter::builder(MaxConcurrency::new(3).ttl(Duration::from_secs(5)))
            .max_queue(20)
            .overflow(
                [
                    Overflow::DropOldest,
                    Overflow::DropLongest,
                    Overflow::Reject,
                ][nth % 3],
            )
            .build()
            .unwrap();
        let (mut waiting, mut held) = (Vec::new(), Vec::new());
        for _ in 0..100 {
            match random.below(12) {
                0..=4 => {
                    let request = limiter
                        .request()
                        .cost(1 + random.below(3))
                        .weight(1 + random.below(3));
                    let request = match random.below(3) {
                        0 => request,
                        1 => request.flow(random.below(3)),
                        _ => request.flow_within(random.below(2), random.below(3)),
                    };
                    waiting.extend(request.reserve());
                }
                5..=6 if !waiting.is_empty() => {
                    drop(waiting.swap_remove(random.below(waiting.len() as u64) as usize));
                }
                7 if !waiting.is_empty() => {
                    let one = waiting.swap_remove(random.below(waiting.len() as u64) as usize);
                    if let Ok(Ok(permit)) = tokio::time::timeout(Duration::ZERO, one).await {
                        held.push(permit);
                    }
                }
                8 if !held.is_empty() => {
                    drop(held.swap_remove(random.below(held.len() as u64) as usize));
                }
                9 => limiter
                    .set_policy(MaxConcurrency::new(3 + random.below(3)))
                    .unwrap(),
                10 => limiter.pause_for(ms(random.below(50))),
                _ => tokio::time::advance(ms(random.below(2_000))).await,
            }
            assert!(limiter.snapshot().in_flight <= 5);
        }
        if nth % 3 == 0 {
            limiter.close();
        }
        drop((waiting, held));
        sleep(Duration::from_secs(10)).await;
        let left = limiter.snapshot();
        assert_eq!((left.in_flight, left.queued), (0, 0));
    }
}
