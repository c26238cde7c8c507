//! Observers get each event once, with exact times, in the promised order, and as often as the snapshot counts.

use std::collections::HashMap;
use std::panic::{Location, resume_unwind};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::common::{Random, ms, queued};
use tokio::task::yield_now;
use tokio::time::{advance, sleep};
use tokio_test::{assert_pending, assert_ready, assert_ready_ok, task};
use tollgate::{
    AcquireError, Adapt, EventKind, FixedWindow, KeyedLimiter, Limiter, LimiterBuilder,
    LimiterEvent, LimiterGroup, MaxConcurrency, Outcome, Overflow, Penalty, Permit, Policy,
    Priority, Rate, SlidingWindow, Throttle, TryAcquireError, UpstreamSignal,
};

/// The name of the limiter, and the event.
type Seen = (Option<Arc<str>>, EventKind);

/// Collects events until they are taken.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<Seen>>>);

impl Events {
    fn of(builder: LimiterBuilder) -> (Limiter, Self) {
        let events = Self::default();
        let seen = events.clone();
        (
            builder
                .on_event(move |event| seen.note(event))
                .build()
                .unwrap(),
            events,
        )
    }

    fn of_policy(policy: impl Into<Policy>) -> (Limiter, Self) {
        Self::of(Limiter::builder(policy.into()))
    }

    fn note(&self, event: &LimiterEvent<'_>) {
        let event = (event.limiter.cloned(), event.kind.clone());
        self.0.lock().unwrap().push(event);
    }

    fn take(&self) -> Vec<EventKind> {
        std::mem::take(&mut *self.0.lock().unwrap())
            .into_iter()
            .map(|(_, kind)| kind)
            .collect()
    }

    #[track_caller]
    fn only(&self) -> EventKind {
        let events = self.take();
        let [event] = &events[..] else {
            panic!("{events:?}")
        };
        event.clone()
    }
}

fn name(event: &EventKind) -> &'static str {
    match event {
        EventKind::GrantedAfterWait { .. } => "granted",
        EventKind::TimedOut { .. } => "timed out",
        EventKind::Shed { .. } => "shed",
        EventKind::Denied { .. } => "denied",
        EventKind::Banned { .. } => "banned",
        EventKind::Reclaimed { .. } => "reclaimed",
        EventKind::ReleasedLate { .. } => "released late",
        EventKind::LimitMoved { .. } => "limit moved",
        EventKind::Paused { .. } => "paused",
        EventKind::Resumed { .. } => "resumed",
        EventKind::PolicyChanged { .. } => "policy changed",
        EventKind::Closed => "closed",
        EventKind::TooManyKeys => "too many",
        other => panic!("{other:?}"),
    }
}

fn names(events: &[EventKind]) -> Vec<&'static str> {
    events.iter().map(name).collect()
}

#[track_caller]
fn here(line: u32, place: &Location<'_>) {
    assert_eq!((place.file(), place.line()), (file!(), line));
}

/// Only the throttle needs a clock. The observers of both get the exact wait.
#[tokio::test(start_paused = true)]
async fn a_grant_after_a_wait_names_the_request_and_how_long_it_waited() {
    for (policy, waits) in [
        (Policy::from(Throttle::every(ms(7))), [7, 14]),
        (MaxConcurrency::new(1).into(), [7, 7]),
    ] {
        let (limiter, events) = Events::of(Limiter::builder(policy).name("jobs"));
        let held = limiter.acquire().await.unwrap();
        assert_eq!(events.take(), [], "it did not wait");
        let line = line!();
        let first = limiter.request().priority(Priority::HIGH);
        let second = limiter.acquire();
        let (mut first, mut second) = (queued(first.acquire()), queued(second));
        sleep(ms(7)).await;
        held.release();
        yield_now().await; // the driver runs
        let permit = assert_ready_ok!(first.poll());
        let reported = events.0.lock().unwrap().clone();
        let [(Some(name), kind)] = &reported[..] else {
            panic!("{reported:?}")
        };
        let EventKind::GrantedAfterWait {
            id,
            fence,
            cost,
            priority,
            waited,
            requested_in,
            ..
        } = kind
        else {
            panic!("{kind:?}")
        };
        assert_eq!(&**name, "jobs");
        assert_eq!(
            (*id, *fence, *cost, *priority, *waited),
            (permit.id(), permit.fence(), 1, Priority::HIGH, ms(waits[0]))
        );
        here(line + 1, requested_in);
        drop(permit);
        sleep(ms(7)).await;
        yield_now().await;
        events.0.lock().unwrap().remove(0);
        let EventKind::GrantedAfterWait {
            priority,
            waited,
            requested_in,
            ..
        } = events.only()
        else {
            panic!()
        };
        assert_eq!((priority, waited), (Priority::NORMAL, ms(waits[1])));
        here(line + 2, requested_in);
        drop(assert_ready_ok!(second.poll()));
    }
}

/// A more urgent request that passes a larger one is decided in its own call.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_granted_in_its_own_call_has_not_waited() {
    let (limiter, events) = Events::of_policy(MaxConcurrency::new(3));
    let _held = limiter.acquire_many(2).await.unwrap();
    let _large = queued(limiter.acquire_many(2));
    let small = limiter
        .request()
        .priority(Priority::HIGH)
        .acquire()
        .await
        .unwrap();
    assert_eq!(events.take(), []);
    drop(small);
    assert_eq!(events.take(), []);
}

#[tokio::test(start_paused = true)]
async fn a_grant_is_reported_before_its_waiter_is_woken_also_when_the_place_was_given_up() {
    let (limiter, events) = Events::of_policy(MaxConcurrency::new(1));
    let held = limiter.acquire().await.unwrap();
    let (first, mut second) = (queued(limiter.acquire()), queued(limiter.acquire()));
    advance(ms(3)).await;
    drop(held);
    assert_eq!(names(&events.take()), ["granted"]);
    advance(ms(2)).await;
    drop(first); // its grant is refunded
    let EventKind::GrantedAfterWait {
        waited, fence: 3, ..
    } = events.only()
    else {
        panic!()
    };
    assert_eq!(waited, ms(5));
    drop(assert_ready_ok!(second.poll()));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_says_how_long_the_request_waited_and_when_to_retry() {
    let (limiter, events) = Events::of_policy(MaxConcurrency::new(1).ttl(ms(50)));
    let held = limiter.acquire().await.unwrap();
    let line = line!() + 1;
    let waiting = limiter.request().cost(1).timeout(ms(20)).acquire().await;
    assert_eq!(
        waiting.unwrap_err(),
        AcquireError::TimedOut {
            retry_after: None,
            decision: None
        }
    );
    let EventKind::TimedOut {
        cost,
        priority,
        waited,
        retry_after,
        requested_in,
        ..
    } = events.only()
    else {
        panic!()
    };
    assert_eq!(
        (cost, priority, waited, retry_after),
        (1, Priority::NORMAL, ms(20), None)
    );
    here(line, requested_in);
    drop(held);

    let (limiter, events) = Events::of_policy(Throttle::every(ms(100)));
    limiter.acquire().await.unwrap().release();
    let at_once = limiter
        .request()
        .timeout(ms(99))
        .acquire()
        .await
        .unwrap_err();
    assert_eq!(
        at_once,
        AcquireError::TimedOut {
            retry_after: Some(ms(100)),
            decision: None
        }
    );
    let EventKind::TimedOut {
        waited,
        retry_after,
        ..
    } = events.only()
    else {
        panic!()
    };
    assert_eq!((waited, retry_after), (Duration::ZERO, Some(ms(100))));
}

/// The denial comes from the open word, from the lock, from a group, and from a pause.
#[tokio::test(start_paused = true)]
async fn a_denial_is_reported_with_the_decision_of_its_caller() {
    let policies = [
        Policy::from(MaxConcurrency::new(1)),
        Throttle::every(ms(10)).into(),
        Policy::from(MaxConcurrency::new(1)).and(FixedWindow::new(1, ms(10))),
        Penalty::new(1, Rate::per_second(1)).into(),
    ];
    for policy in policies {
        let (limiter, events) = Events::of_policy(policy.clone());
        let _held = limiter.try_acquire().unwrap();
        assert!(
            limiter
                .check(1)
                .retry_after()
                .is_none_or(|after| after > Duration::ZERO)
        );
        assert_eq!(events.take(), [], "a check is no attempt");
        let line = line!() + 1;
        let TryAcquireError::Denied(answer) = limiter.try_acquire().unwrap_err() else {
            panic!()
        };
        let EventKind::Denied {
            cost,
            decision,
            requested_in,
            ..
        } = events.only()
        else {
            panic!()
        };
        assert_eq!((cost, &decision), (1, &answer), "{policy}");
        here(line, requested_in);
        assert!(matches!(
            limiter.try_acquire_many(2),
            Err(TryAcquireError::ExceedsLimit { .. })
        ));
        assert!(matches!(
            limiter.try_acquire_many(0),
            Err(TryAcquireError::ZeroCost)
        ));
        assert_eq!(events.take(), [], "no denials");
        assert!(LimiterGroup::new([limiter.clone()]).try_acquire().is_err());
        assert_eq!(names(&events.take()), ["denied"]);
        limiter.pause_for(ms(3));
        assert!(limiter.try_acquire().is_err());
        assert_eq!(names(&events.take()), ["paused", "denied"]);
        assert_eq!(limiter.snapshot().denied, 3);
    }
}

/// It is tried with a limiter, and with a key that has no manager.
#[tokio::test(start_paused = true)]
async fn a_ban_is_reported_once_after_the_denial_that_started_it() {
    let second = ms(1_000);
    let ban = Penalty::new(1, Rate::per_second(1))
        .ban(second)
        .escalate(2 * second);
    let policy = Policy::from(Throttle::every(ms(1)).burst(9)).and(ban);
    let (limiter, events) = Events::of_policy(policy.clone());
    let by_key = Events::default();
    let seen = by_key.clone();
    let keyed = KeyedLimiter::builder(policy)
        .name("clients")
        .on_event(move |event| {
            assert_eq!(event.key_as(), Some(&"alice"));
            assert_eq!(event.name(), Some("clients"));
            seen.note(event);
        });
    let keyed = keyed.build().unwrap();
    for banned_for in [second, 2 * second, 2 * second] {
        assert!(limiter.try_acquire().is_ok() && keyed.try_acquire(&"alice").is_ok());
        for after in [Duration::ZERO, ms(400)] {
            advance(after).await;
            let lines = [line!() + 1, line!() + 2];
            assert!(limiter.try_acquire().is_err());
            assert!(keyed.try_acquire(&"alice").is_err());
            for (events, line) in [events.take(), by_key.take()].into_iter().zip(lines) {
                let [
                    EventKind::Denied {
                        cost: 1, decision, ..
                    },
                    ban @ ..,
                ] = &events[..]
                else {
                    panic!("{events:?}")
                };
                assert_eq!(
                    (decision.denied_by_index(), decision.retry_after()),
                    (Some(1), Some(banned_for - after))
                );
                match ban {
                    [] => assert!(after > Duration::ZERO, "no ban"),
                    [
                        EventKind::Banned {
                            limit_index: 1,
                            banned_for: reported,
                            requested_in,
                            ..
                        },
                    ] => {
                        assert_eq!((*reported, after), (banned_for, Duration::ZERO));
                        here(line, requested_in);
                    }
                    more => panic!("{more:?}"),
                }
            }
        }
        advance(banned_for - ms(400)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_move_of_an_adaptive_limit_is_reported_with_its_start_and_its_end() {
    let (limiter, events) =
        Events::of_policy(MaxConcurrency::new(10).adapt(Adapt::aimd().between(1, 12).backoff(500)));
    let moves = || {
        let of = |event| {
            if let EventKind::LimitMoved { from, to, .. } = event {
                Some((from, to))
            } else {
                None
            }
        };
        events.take().into_iter().filter_map(of).collect::<Vec<_>>()
    };
    let report = async |outcome| {
        let held = limiter.try_acquire().unwrap();
        sleep(ms(1)).await;
        held.report(outcome);
    };
    report(Outcome::Overloaded).await;
    assert_eq!(moves(), [(10, 5)]);
    report(Outcome::Ignored).await;
    assert_eq!(events.take(), [], "it has not moved");
    for _ in 0..2 {
        let held = [(); 5].map(|()| limiter.try_acquire().unwrap());
        assert!(held.into_iter().all(|permit| permit.report(Outcome::Ok)));
    }
    assert_eq!(moves(), [(5, 6)]);
    assert_eq!(limiter.snapshot().concurrency, Some(6));
    sleep(ms(600_000)).await;
    assert_eq!(limiter.snapshot().concurrency, Some(10), "it has restarted");
    report(Outcome::Overloaded).await;
    assert_eq!(moves(), [(6, 5)]);
    limiter
        .set_policy(MaxConcurrency::new(8).adapt(Adapt::aimd().between(1, 8).backoff(500)))
        .unwrap();
    let from = limiter.snapshot().concurrency.unwrap();
    report(Outcome::Overloaded).await;
    let to = limiter.snapshot().concurrency.unwrap();
    assert_eq!(moves(), [(from, to)]);
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_reported_when_it_begins_when_its_end_moves_and_when_it_ends() {
    let paused = |event: EventKind| {
        if let EventKind::Paused { paused_for, .. } = event {
            paused_for
        } else {
            panic!("{event:?}")
        }
    };
    let resumed = |event: EventKind| {
        if let EventKind::Resumed { ended_ago, .. } = event {
            ended_ago
        } else {
            panic!("{event:?}")
        }
    };
    let (limiter, events) = Events::of(Limiter::builder(MaxConcurrency::new(1)).spread_below(5));
    limiter.pause_for(Duration::ZERO);
    limiter.resume();
    assert_eq!(events.take(), []);

    limiter.pause_for(ms(30));
    assert_eq!(paused(events.only()), ms(30));
    advance(ms(10)).await;
    limiter.pause_for(ms(5));
    assert_eq!(events.take(), [], "it ends when it did");
    limiter.apply_upstream_signal(&UpstreamSignal::new().limited().retry_after(ms(40)));
    assert_eq!(paused(events.only()), ms(40));
    limiter.pause_for(Duration::MAX);
    assert_eq!(paused(events.only()), Duration::MAX);
    limiter.resume();
    assert_eq!(resumed(events.only()), Duration::ZERO);
    limiter.resume();
    assert_eq!(events.take(), []);

    // A waiter has a timer.
    limiter.pause_for(ms(30));
    drop(limiter.acquire().await.unwrap());
    let reported = events.take();
    assert_eq!(names(&reported), ["paused", "resumed", "granted"]);
    assert_eq!(resumed(reported[1].clone()), Duration::ZERO);
    let EventKind::GrantedAfterWait { waited, .. } = reported[2] else {
        panic!()
    };
    assert_eq!(waited, ms(30));

    // Without a timer, the next call of any kind notices the end of the pause and reports it.
    type Call = fn(&Limiter);
    let calls: [Call; 5] = [
        |limiter| drop(limiter.try_acquire()),
        |limiter| drop(limiter.check(1)),
        |limiter| assert_eq!(limiter.snapshot().paused_for, None),
        |limiter| limiter.resume(),
        |limiter| limiter.set_policy(MaxConcurrency::new(1)).unwrap(),
    ];
    for spread in [false, true] {
        for call in calls {
            limiter.pause_for(ms(30));
            if spread {
                limiter.apply_upstream_signal(
                    &UpstreamSignal::new().remaining(3).reset_after(ms(1_000)),
                );
            }
            advance(ms(50)).await;
            assert_eq!(names(&events.take()), ["paused"]);
            call(&limiter);
            assert_eq!(resumed(events.take().remove(0)), ms(20));
            limiter.resume();
            assert_eq!(events.take(), []);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_policy_and_a_close_are_reported_before_what_they_cause() {
    let (limiter, events) = Events::of_policy(MaxConcurrency::new(1));
    let _held = limiter.acquire().await.unwrap();
    let (mut first, mut second) = (queued(limiter.acquire()), queued(limiter.acquire()));
    limiter.set_policy("2 concurrent").unwrap();
    let reported = events.take();
    let [
        EventKind::PolicyChanged { from, to, .. },
        EventKind::GrantedAfterWait { .. },
    ] = &reported[..]
    else {
        panic!("{reported:?}")
    };
    assert_eq!(
        (from.to_string(), to.to_string()),
        ("1 concurrent".into(), "2 concurrent".into())
    );
    assert!(limiter.set_policy(MaxConcurrency::new(0)).is_err());
    let _permit = assert_ready_ok!(first.poll());
    limiter.close();
    limiter.close();
    assert_eq!(events.take(), [EventKind::Closed]);
    assert_eq!(
        assert_ready!(second.poll()).unwrap_err(),
        AcquireError::Closed
    );
    assert_eq!(limiter.try_acquire().unwrap_err(), TryAcquireError::Closed);
    assert_eq!(events.take(), []);
}

/// A key without a manager, one with a manager, and the events of keys themselves.
#[tokio::test(start_paused = true)]
async fn events_by_key_have_the_key_and_the_name() {
    let reported: Arc<Mutex<Vec<(u8, &str)>>> = Arc::default();
    let seen = Arc::clone(&reported);
    let tier = Arc::new(Mutex::new(Policy::from(Throttle::every(ms(10)))));
    let tier_of = Arc::clone(&tier);
    let keyed = KeyedLimiter::<u8>::builder("1/s")
        .tiers(move |_| tier_of.lock().unwrap().clone())
        .name("users")
        .max_keys(3);
    let keyed = keyed
        .on_event(move |event| {
            assert_eq!(event.name(), Some("users"));
            let key = *event.key_as().unwrap();
            seen.lock().unwrap().push((key, name(event.kind)));
        })
        .build()
        .unwrap();
    let take = || std::mem::take(&mut *reported.lock().unwrap());
    assert!(keyed.try_acquire(&1).is_ok() && keyed.try_acquire(&1).is_err());
    assert_eq!(take(), [(1, "denied")]);
    drop(keyed.acquire(&1).await.unwrap());
    assert_eq!(take(), [(1, "granted")]);
    assert!(keyed.try_acquire(&2).is_ok());
    *tier.lock().unwrap() = "3/s".parse().unwrap();
    assert_eq!(keyed.check(&2, 1).limit(), 3);
    assert_eq!(take(), [(2, "policy changed")]);
    *tier.lock().unwrap() = SlidingWindow::log(1, ms(1_000)).into(); // its state does not fit into words
    assert!(keyed.try_acquire(&2).is_err());
    assert_eq!(take(), [(2, "policy changed"), (2, "denied")]);
    assert!(keyed.try_acquire(&3).is_ok() && keyed.try_acquire(&4).is_err());
    assert_eq!(take(), [(4, "too many")]);
    // What needs no room reports none.
    keyed.reward(&4, 1);
    assert!(!keyed.reset(&4) && keyed.snapshot(&4).is_none());
    assert_eq!(take(), []);
    assert!(!keyed.penalize(&4, 1));
    assert_eq!(take(), [(4, "too many")]);
}

/// It is tried with a policy of rates, and with one that counts by unit, whose keys have a manager.
#[tokio::test(start_paused = true)]
async fn events_of_a_borrowed_key_have_an_owned_one() {
    for policy in ["1/s", "1/s per request and 5 tokens/s"] {
        let reported: Arc<Mutex<Vec<(String, &str)>>> = Arc::default();
        let seen = Arc::clone(&reported);
        let keyed = KeyedLimiter::<String>::builder(policy)
            .max_keys(1)
            .on_event(move |event| {
                let key: &String = event.key_as().unwrap();
                seen.lock().unwrap().push((key.clone(), name(event.kind)));
            });
        let keyed = keyed.build().unwrap();
        assert!(
            keyed
                .request("alice")
                .cost_of("tokens", 2)
                .try_acquire()
                .is_ok()
        );
        assert!(
            !keyed
                .request("alice")
                .cost_of("tokens", 2)
                .check()
                .is_allowed()
        );
        assert!(
            keyed
                .request("alice")
                .cost_of("tokens", 2)
                .try_acquire()
                .is_err()
                && keyed.try_acquire("bob").is_err()
        );
        let reported = std::mem::take(&mut *reported.lock().unwrap());
        assert_eq!(
            reported,
            [("alice", "denied"), ("bob", "too many")].map(|(key, what)| (key.to_owned(), what))
        );
    }
}

/// Over random schedules, each count of the snapshot is the number of events, and every grant either was in place or is an event.
#[tokio::test(start_paused = true)]
async fn the_snapshot_counts_as_many_events_as_were_reported() {
    let policies = [
        "3 concurrent",
        "3 concurrent ttl 20ms",
        "200/s",
        "3 concurrent and 200/s burst 3",
        "window 4/50ms",
        "penalty 3 falling 100/s ban 20ms",
    ];
    let mut kinds: HashMap<&str, u64> = HashMap::new();
    for seed in 1..60 {
        let mut random = Random(seed);
        let mut below = move |end| random.below(end);
        let policy: Policy = policies[below(6) as usize].parse().unwrap();
        let overflow = [
            Overflow::Reject,
            Overflow::DropOldest,
            Overflow::DropLowestPriority,
            Overflow::Block { penalty: ms(9) },
        ];
        let builder = Limiter::builder(policy)
            .max_queue(below(6) as usize)
            .overflow(overflow[below(4) as usize]);
        let (limiter, events) = Events::of(builder);
        let (mut waiting, mut held, mut in_place) = (Vec::new(), Vec::new(), 0);
        for _ in 0..300 {
            match below(12) {
                0..=3 => {
                    let request = limiter
                        .request()
                        .priority([Priority::LOW, Priority::HIGH][below(2) as usize]);
                    let request = if below(2) == 0 {
                        request.timeout(ms(below(30)))
                    } else {
                        request
                    };
                    let mut acquire = task::spawn(request.cost(1 + below(3)).acquire());
                    match acquire.poll() {
                        std::task::Poll::Pending => waiting.push(acquire),
                        std::task::Poll::Ready(answer) => {
                            in_place += u64::from(answer.is_ok());
                            held.extend(answer);
                        }
                    }
                }
                4..=5 => {
                    let answer = limiter.try_acquire_many(1 + below(3));
                    in_place += u64::from(answer.is_ok());
                    held.extend(answer);
                }
                6 if !waiting.is_empty() => {
                    drop(waiting.swap_remove(below(waiting.len() as u64) as usize));
                }
                7 if !waiting.is_empty() => {
                    let mut acquire = waiting.swap_remove(below(waiting.len() as u64) as usize);
                    match acquire.poll() {
                        std::task::Poll::Pending => waiting.push(acquire),
                        std::task::Poll::Ready(answer) => held.extend(answer),
                    }
                }
                8..=9 if !held.is_empty() => {
                    let permit: Permit = held.swap_remove(below(held.len() as u64) as usize);
                    if below(4) == 0 {
                        _ = permit.refund();
                    } else {
                        permit.release();
                    }
                }
                10 => match below(12) {
                    0 => limiter.pause_for(ms(below(20))),
                    1 => limiter.resume(),
                    2 => limiter.set_policy(policies[below(6) as usize]).unwrap(),
                    _ => {}
                },
                _ => match below(2) {
                    0 => sleep(ms(below(9))).await, // the driver runs in time
                    _ => assert_pending!(task::spawn(advance(ms(below(9)))).poll()), // the driver has not run
                },
            }
            let (now, reported) = (limiter.snapshot(), events.0.lock().unwrap());
            let count = |what| {
                reported
                    .iter()
                    .filter(|event| name(&event.1) == what)
                    .count() as u64
            };
            let of_events = ["denied", "shed", "timed out", "reclaimed"].map(count);
            assert_eq!(
                of_events,
                [now.denied, now.shed, now.timed_out, now.reclaimed],
                "seed {seed}"
            );
            assert_eq!(in_place + count("granted"), now.granted, "seed {seed}");
            let latest = reported
                .iter()
                .rev()
                .map(|event| name(&event.1))
                .find(|name| ["paused", "resumed"].contains(name));
            assert_eq!(
                latest == Some("paused"),
                now.paused_for.is_some(),
                "seed {seed}"
            );
        }
        events
            .take()
            .iter()
            .for_each(|event| *kinds.entry(name(event)).or_default() += 1);
    }
    for kind in [
        "denied",
        "shed",
        "timed out",
        "reclaimed",
        "granted",
        "paused",
        "resumed",
        "policy changed",
        "banned",
    ] {
        assert!(
            kinds.get(kind).is_some_and(|count| *count > 5),
            "{kind}: {kinds:?}"
        );
    }
}

/// A fixed bug: it overflowed the stack.
#[tokio::test(start_paused = true)]
async fn an_observer_that_causes_its_own_event_does_not_recurse_without_end() {
    static LIMITER: OnceLock<Limiter> = OnceLock::new();
    static KEYED: OnceLock<KeyedLimiter<u8>> = OnceLock::new();
    let again = || {
        assert!(
            LIMITER.get().unwrap().try_acquire().is_err()
                && KEYED.get().unwrap().try_acquire(&1).is_err()
        );
        resume_unwind(Box::new("on purpose, without the noise of the hook"));
    };
    let policy = Throttle::every(ms(1_000));
    let limiter = LIMITER.get_or_init(|| {
        Limiter::builder(policy)
            .on_event(move |_| again())
            .build()
            .unwrap()
    });
    let keyed = KEYED.get_or_init(|| {
        KeyedLimiter::builder(policy)
            .on_event(move |_| again())
            .build()
            .unwrap()
    });
    assert!(limiter.try_acquire().is_ok() && keyed.try_acquire(&1).is_ok());
    for _ in 0..2 {
        let before = limiter.snapshot().denied;
        assert!(limiter.try_acquire().is_err());
        assert_eq!(limiter.snapshot().denied - before, 1 + 1 + 2);
    }
}
