//! The grant time of a permit, as the permit reports it and as a refund uses it.

use crate::common::{ms, paused};
use tokio::time::{Instant, advance, sleep};
use tokio_test::{assert_pending, assert_ready_ok, task};
use tollgate::{Limiter, MaxConcurrency, Policy, SlidingWindow, Throttle};

/// A fixed bug: `acquired_at` was off by 50 s.
#[tokio::test(start_paused = true)]
async fn a_grant_for_which_no_clock_was_read_names_no_instant_after_a_change_of_policy() {
    let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
    let held = limiter.try_acquire().unwrap();
    let mut waiting = task::spawn(limiter.acquire());
    assert_pending!(waiting.poll());
    advance(ms(50_000)).await;
    drop(held);
    advance(ms(50_000)).await;
    limiter
        .set_policy(Policy::from(MaxConcurrency::new(1)).and(SlidingWindow::log(5, ms(1_000))))
        .unwrap();
    assert_eq!(assert_ready_ok!(waiting.poll()).acquired_at(), None);
    assert_eq!(
        limiter.acquire().await.unwrap().acquired_at(),
        Some(Instant::now())
    );
}

/// The same bug, if only the new policy reads a clock.
#[tokio::test(start_paused = true)]
async fn a_grant_from_before_the_clock_was_read_keeps_no_wrong_instant() {
    for granted_by_policy in [false, true] {
        let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
        sleep(ms(50_000)).await;
        let first = limiter.try_acquire().unwrap();
        let mut second = task::spawn(limiter.acquire());
        assert_pending!(second.poll());
        let held = granted_by_policy.then_some(first); // otherwise it is released here
        limiter.set_policy(Throttle::every(ms(10))).unwrap();
        let known = granted_by_policy.then(Instant::now);
        assert_eq!(assert_ready_ok!(second.poll()).acquired_at(), known);
        drop(held);
        sleep(ms(10)).await;
        assert_eq!(
            limiter.acquire().await.unwrap().acquired_at(),
            Some(Instant::now())
        );
    }
}

/// A fixed bug: after a second clock was read, a refund was lost.
#[test]
fn a_refund_is_exact_after_a_second_clock_was_seen() {
    let limiter = Limiter::new(SlidingWindow::log(10, ms(60_000))).unwrap();
    let (ahead, behind) = (paused(), paused());
    ahead.block_on(async {
        advance(ms(3_600_000)).await;
        drop(limiter.acquire().await.unwrap());
    });
    behind.block_on(async {
        let permit = limiter.acquire_many(4).await.unwrap();
        assert_eq!(permit.acquired_at(), Some(Instant::now()));
        advance(ms(10)).await;
        assert_eq!(limiter.check(1).remaining(), 5);
        let granted_at = permit.acquired_at().unwrap();
        assert_eq!(Instant::now() - granted_at, ms(10));
        assert!(permit.refund());
        assert_eq!(limiter.check(1).remaining(), 9);
    });
}
