//! The memory that requests and permits with named units leave, by an allocator that counts for each thread.

use crate::common::counting::LIVE;
use crate::common::{ms, queued};
use tokio::time::advance;
use tollgate::Limiter;

/// The bytes that many rounds add to the bytes that a few rounds have left.
async fn growth(mut round: impl AsyncFnMut()) -> usize {
    for _ in 0..300 {
        round().await;
    }
    let before = LIVE.get();
    for _ in 0..5_000 {
        round().await;
    }
    LIVE.get().saturating_sub(before)
}

/// A fixed bug: each change of what is counted was recorded for as long as an earlier permit was out.
#[tokio::test(start_paused = true)]
async fn policies_that_alternate_without_a_grant_leave_no_record() {
    let limiter = Limiter::new("4 concurrent").unwrap();
    let held = limiter.try_acquire_many(3).unwrap();
    let grown = growth(async || {
        limiter.set_policy("4 concurrent per request").unwrap();
        limiter.set_policy("4 concurrent").unwrap();
    });
    assert!(grown.await < 2_000);
    assert!(limiter.try_acquire_many(2).is_err());
    drop(held);
    assert_eq!(limiter.available(), 4);
}

#[tokio::test(start_paused = true)]
async fn spent_permits_leave_no_record_however_they_end() {
    let (with_units, others) = ("1000000 mb/s and 1000000/s per request", "1000000 kb/s");
    let limiter = Limiter::new(with_units).unwrap();
    let request = || limiter.request().cost_of("mb", 1).cost_of("kb", 1);
    let grown = growth(async || {
        advance(ms(1)).await;
        request().try_acquire().unwrap().forget();
        drop(request().try_acquire_explained());
        drop(request().acquire_explained().await.0.unwrap());
        drop(request().reserve().unwrap());
        let (settled, forgotten) = (
            request().try_acquire().unwrap(),
            request().try_acquire().unwrap(),
        );
        limiter.set_policy(others).unwrap();
        assert!(settled.settle_costs([("mb", 5), ("kb", 2)]));
        let dropped = request().try_acquire().unwrap();
        limiter.set_policy("1000000/s").unwrap();
        forgotten.forget();
        limiter.set_policy(with_units).unwrap();
        drop(dropped);
    });
    assert!(grown.await < 2_000);
}

#[tokio::test(start_paused = true)]
async fn leased_permits_and_their_waiters_leave_no_record() {
    let limiter =
        Limiter::new("2 concurrent per request and 9 concurrent counting mb ttl 5ms").unwrap();
    let request = |megabytes| limiter.request().cost_of("mb", megabytes);
    let grown = growth(async || {
        request(1).try_acquire().unwrap().forget();
        request(0).ttl(ms(1)).acquire().await.unwrap().forget();
        let waiting = queued(request(3).acquire_explained());
        assert!(
            request(3)
                .timeout(ms(1))
                .acquire_explained()
                .await
                .0
                .is_err()
        );
        advance(ms(6)).await;
        drop(waiting); // granted, or not yet
        advance(ms(6)).await;
        assert!(request(9).try_acquire().is_ok());
    });
    assert!(grown.await < 2_000);
}
