//! Wakers run foreign code when they are woken and when they are dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use tollgate::{Limiter, MaxConcurrency};

/// Uses the limiter when it is woken and when it is dropped. Under the limiter's lock this would be a deadlock.
struct UsesLimiter(Limiter, Arc<AtomicUsize>);

impl Wake for UsesLimiter {
    fn wake(self: Arc<Self>) {
        let _ = self.0.snapshot();
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for UsesLimiter {
    fn drop(&mut self) {
        let _ = self.0.snapshot();
    }
}

#[tokio::test]
async fn wakers_may_use_the_limiter_when_woken_and_when_dropped() {
    let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
    let woken = Arc::new(AtomicUsize::new(0));
    let uses_limiter = || Waker::from(Arc::new(UsesLimiter(limiter.clone(), Arc::clone(&woken))));
    let out = limiter.try_acquire().unwrap();
    let (mut first, mut second) = (Box::pin(limiter.acquire()), Box::pin(limiter.acquire()));
    for _ in 0..3 {
        // Each poll has a new waker, so the former waker is replaced and dropped.
        assert!(
            first
                .as_mut()
                .poll(&mut Context::from_waker(&uses_limiter()))
                .is_pending()
        );
        assert!(
            second
                .as_mut()
                .poll(&mut Context::from_waker(&uses_limiter()))
                .is_pending()
        );
    }
    drop(out);
    drop(first); // with its grant
    assert_eq!(woken.load(Ordering::Relaxed), 2);
    assert!(matches!(
        second
            .as_mut()
            .poll(&mut Context::from_waker(&uses_limiter())),
        Poll::Ready(Ok(_))
    ));
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        std::panic::resume_unwind(Box::new("on purpose, without the noise of the hook"));
    }
}

#[tokio::test]
async fn a_waker_that_panics_does_not_keep_others_asleep() {
    let limiter = Limiter::new(MaxConcurrency::new(100)).unwrap();
    let out = limiter.try_acquire_many(100).unwrap();
    let mut panics = Box::pin(limiter.acquire());
    assert!(
        panics
            .as_mut()
            .poll(&mut Context::from_waker(&Waker::from(Arc::new(Panics))))
            .is_pending()
    );
    let mut others: Vec<_> = (0..99)
        .map(|_| tokio_test::task::spawn(limiter.acquire()))
        .collect();
    for other in &mut others {
        tokio::task::consume_budget().await;
        assert!(other.poll().is_pending());
    }
    drop(out);
    assert!(others.iter().all(tokio_test::task::Spawn::is_woken));
}
