//! A limiter reports its current policy, and the units that are available now.

use crate::common::{Random, limiter, ms, queued};
use tokio::time::advance;
use tollgate::{KeyedLimiter, Limiter, MaxConcurrency, Policy, Throttle, UpstreamSignal};

/// The largest cost that `try_acquire_many` grants.
fn by_trial(limiter: &Limiter) -> u64 {
    (1..=40)
        .rev()
        .find(|cost| limiter.check(*cost).is_allowed())
        .unwrap_or(0)
}

#[tokio::test(start_paused = true)]
async fn available_is_the_largest_cost_that_would_be_granted() {
    let mut random = Random(7);
    for text in [
        "8 concurrent",
        "8 concurrent ttl 1s and 20/s burst 30",
        "20/s burst 40 initial 3",
        "throttle every 10ms burst 5",
        "window 12/s",
        "sliding log 9/s and 4 concurrent",
        "sliding counter 9/s",
        "penalty 6 falling 1/100ms ban 1s",
        "20 concurrent aimd from 4 to 30",
    ] {
        let limiter = Limiter::builder(text).spread_below(20).build().unwrap();
        let mut permits = Vec::new();
        for step in 0..200 {
            match random.below(8) {
                0..=3 => permits.extend(limiter.try_acquire_many(1 + random.below(6))),
                4 => permits.truncate(permits.len() / 2),
                5 => advance(ms(random.below(300))).await,
                6 => limiter.pause_for(ms(random.below(3) * 20)),
                _ => limiter.apply_upstream_signal(
                    &UpstreamSignal::new()
                        .remaining(1 + random.below(15))
                        .reset_after(ms(200)),
                ),
            }
            assert_eq!(
                limiter.available(),
                by_trial(&limiter),
                "{text}, step {step}"
            );
        }
        limiter.close();
        assert_eq!(limiter.available(), 0, "{text}");
    }
}

#[tokio::test]
async fn nothing_is_available_while_a_request_waits() {
    let limiter = limiter(MaxConcurrency::new(4));
    let _held = limiter.try_acquire_many(3).unwrap();
    assert_eq!(limiter.available(), 1);
    let waiting = queued(limiter.acquire_many(2));
    assert_eq!(limiter.available(), 0);
    drop(waiting);
    assert_eq!(limiter.available(), 1);
}

#[test]
fn policy_returns_the_current_policy() {
    let slots = MaxConcurrency::new(4);
    let limiter = limiter(slots);
    assert_eq!(limiter.policy(), slots.into());
    let clone = limiter.clone();
    clone.set_policy((slots, Throttle::every(ms(5)))).unwrap();
    assert_eq!(
        limiter.policy(),
        Policy::from((slots, Throttle::every(ms(5))))
    );
    assert!(limiter.set_policy(MaxConcurrency::new(0)).is_err());
    assert_eq!(limiter.policy().limits().len(), 2);

    let keyed = KeyedLimiter::new(slots).unwrap();
    let _held = keyed.try_acquire_many(&"a", 3).unwrap();
    let a = keyed.limiter(&"a").unwrap();
    assert_eq!((a.policy(), a.available()), (slots.into(), 1));
}
