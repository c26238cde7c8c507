//! Wakers run foreign code: when cloned, when woken and when dropped.

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::thread;
use std::time::Duration;

use crate::common::ms;
use tokio::time::sleep;
use tokio_test::{assert_pending, assert_ready, assert_ready_ok, task};
use tollgate::{AcquireError, Limiter, MaxConcurrency, Overflow, Policy, Throttle};

fn panic_on_purpose() -> ! {
    std::panic::resume_unwind(Box::new("on purpose, without the noise of the hook"))
}

struct PanicsWhenWoken;

impl Wake for PanicsWhenWoken {
    fn wake(self: Arc<Self>) {
        panic_on_purpose();
    }
}

fn panics_when_woken() -> Waker {
    Waker::from(Arc::new(PanicsWhenWoken))
}

/// A fixed bug: tokio's `Notify` stops at the first waker that panics.
#[tokio::test(start_paused = true)]
async fn a_panic_in_the_waker_of_a_reclaimed_future_leaves_no_other_asleep() {
    let limiter = Limiter::new(MaxConcurrency::new(1).ttl(ms(10))).unwrap();
    let permit = limiter.acquire().await.unwrap();
    let mut before = task::spawn(permit.reclaimed());
    assert_pending!(before.poll());
    let mut panics = pin!(permit.reclaimed());
    assert!(
        panics
            .as_mut()
            .poll(&mut Context::from_waker(&panics_when_woken()))
            .is_pending()
    );
    let mut after = task::spawn(permit.reclaimed());
    assert_pending!(after.poll());
    sleep(ms(20)).await;
    assert!(before.is_woken() && after.is_woken());
    assert_ready!(before.poll());
    assert_ready!(after.poll());
}

/// A fixed bug, as above. The panic also came out of the drop of the last permit.
#[tokio::test]
async fn a_panic_in_the_waker_of_a_drained_future_does_not_reach_the_last_drop() {
    let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
    let permit = limiter.acquire().await.unwrap();
    limiter.close();
    let mut before = task::spawn(limiter.drained());
    assert_pending!(before.poll());
    let mut panics = pin!(limiter.drained());
    assert!(
        panics
            .as_mut()
            .poll(&mut Context::from_waker(&panics_when_woken()))
            .is_pending()
    );
    let mut after = task::spawn(limiter.drained());
    assert_pending!(after.poll());
    drop(permit);
    assert!(before.is_woken() && after.is_woken());
    assert_ready!(before.poll());
    assert_ready!(after.poll());
}

/// A fixed bug: the panic came out of the poll that took the last answer, and the drop of its future hit an `expect`.
#[tokio::test(start_paused = true)]
async fn a_panic_in_the_waker_of_a_drained_future_does_not_reach_the_last_poll() {
    let limiter = Limiter::new(Throttle::every(ms(10))).unwrap();
    limiter.try_acquire().unwrap().release();
    let mut last = task::spawn(limiter.acquire());
    assert_pending!(last.poll());
    sleep(ms(20)).await;
    limiter.close();
    let mut panics = pin!(limiter.drained());
    assert!(
        panics
            .as_mut()
            .poll(&mut Context::from_waker(&panics_when_woken()))
            .is_pending()
    );
    drop(assert_ready_ok!(last.poll()));
}

#[tokio::test(start_paused = true)]
async fn awaiting_a_reclaim_or_the_drain_may_move_to_another_waker_and_be_given_up() {
    let limiter = Limiter::new(MaxConcurrency::new(1).ttl(ms(10))).unwrap();
    let permit = limiter.acquire().await.unwrap();
    limiter.close();
    let wakers: [Arc<AtomicUsize>; 4] = std::array::from_fn(|_| Arc::default());
    let [first, second, third, given_up] = wakers
        .each_ref()
        .map(|woken| Waker::from(Arc::new(Counts(Arc::clone(woken)))));
    let (mut reclaimed, mut drained) = (pin!(permit.reclaimed()), pin!(limiter.drained()));
    for waker in [&first, &second] {
        assert!(
            reclaimed
                .as_mut()
                .poll(&mut Context::from_waker(waker))
                .is_pending()
        );
    }
    for waker in [&first, &third] {
        assert!(
            drained
                .as_mut()
                .poll(&mut Context::from_waker(waker))
                .is_pending()
        );
    }
    {
        let (mut reclaimed, mut drained) = (pin!(permit.reclaimed()), pin!(limiter.drained()));
        assert!(
            reclaimed
                .as_mut()
                .poll(&mut Context::from_waker(&given_up))
                .is_pending()
        );
        assert!(
            drained
                .as_mut()
                .poll(&mut Context::from_waker(&given_up))
                .is_pending()
        );
    }
    sleep(ms(20)).await;
    assert_eq!(
        wakers.map(|woken| woken.load(Ordering::Relaxed)),
        [0, 1, 1, 0]
    );
}

struct Counts(Arc<AtomicUsize>);

impl Wake for Counts {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The code that a waker of [`waker`] runs when it is cloned. The argument counts the clones from 0.
type OnClone = dyn Fn(usize) + Send + Sync;

struct Custom {
    on_clone: Box<OnClone>,
    clones: AtomicUsize,
    woken: AtomicUsize,
}

/// A waker that runs code when it is cloned, which std's safe wakers cannot do. It is never freed.
fn waker(on_clone: impl Fn(usize) + Send + Sync + 'static) -> (Waker, &'static Custom) {
    static VTABLE: RawWakerVTable = RawWakerVTable::new(
        |data| {
            // SAFETY: every data pointer of this table comes from a leaked box of this type.
            let custom = unsafe { &*data.cast::<Custom>() };
            (custom.on_clone)(custom.clones.fetch_add(1, Ordering::Relaxed));
            RawWaker::new(data, &VTABLE)
        },
        wake,
        wake,
        |_| (),
    );
    fn wake(data: *const ()) {
        // SAFETY: as above.
        unsafe { &*data.cast::<Custom>() }
            .woken
            .fetch_add(1, Ordering::Relaxed);
    }
    let custom: &'static Custom = Box::leak(Box::new(Custom {
        on_clone: Box::new(on_clone),
        clones: AtomicUsize::new(0),
        woken: AtomicUsize::new(0),
    }));
    // SAFETY: the table's functions are thread-safe, and what they point to lives for ever.
    (
        unsafe { Waker::from_raw(RawWaker::new(std::ptr::from_ref(custom).cast(), &VTABLE)) },
        custom,
    )
}

/// Runs `body` on a thread of its own, with a runtime. A deadlock fails the test.
fn must_not_hang(body: impl AsyncFnOnce() + Send + 'static) {
    let (done, ended) = std::sync::mpsc::channel();
    let thread = thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(body());
        done.send(()).unwrap();
    });
    match ended.recv_timeout(Duration::from_secs(10)) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        _ => thread.join().unwrap(),
    }
}

fn policies() -> [Policy; 3] {
    [
        MaxConcurrency::new(1).into(),
        MaxConcurrency::new(1).ttl(ms(10_000)).into(),
        Throttle::every(ms(10_000)).into(),
    ]
}

/// A fixed bug: a waker was cloned under the limiter's lock.
#[test]
fn a_waker_may_use_the_limiter_when_it_is_cloned() {
    for policy in policies() {
        must_not_hang(async move || {
            let limiter = Limiter::new(policy).unwrap();
            let out = limiter.try_acquire().unwrap();
            let nosy = || {
                let handle = limiter.clone();
                waker(move |_| _ = handle.snapshot())
            };
            let mut futures: Vec<_> = (0..4).map(|_| Box::pin(limiter.acquire())).collect();
            for _ in 0..2 {
                for future in &mut futures {
                    let (waker, custom) = nosy();
                    assert!(
                        future
                            .as_mut()
                            .poll(&mut Context::from_waker(&waker))
                            .is_pending()
                    );
                    assert_ne!(custom.clones.load(Ordering::Relaxed), 0);
                }
            }
            assert_eq!(limiter.snapshot().queued, 4);
            limiter.close();
            drop(futures);
            let (mut reclaimed, mut drained) = (pin!(out.reclaimed()), pin!(limiter.drained()));
            let (waker, _) = nosy();
            let _ = reclaimed.as_mut().poll(&mut Context::from_waker(&waker));
            let _ = drained.as_mut().poll(&mut Context::from_waker(&waker));
        });
    }
}

/// The last handle of a waker is the one in the queue. It goes when another waker replaces it, and when its future is dropped.
#[test]
fn a_waker_may_use_the_limiter_when_it_is_dropped() {
    struct Nosy(Limiter);
    impl Wake for Nosy {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Nosy {
        fn drop(&mut self) {
            let _ = self.0.snapshot();
        }
    }
    for policy in policies() {
        must_not_hang(async move || {
            let limiter = Limiter::new(policy).unwrap();
            let _out = limiter.try_acquire().unwrap();
            let mut future = Box::pin(limiter.acquire());
            for _ in 0..2 {
                let waker = Waker::from(Arc::new(Nosy(limiter.clone())));
                let mut context = Context::from_waker(&waker);
                assert!(future.as_mut().poll(&mut context).is_pending());
            }
            drop(future);
        });
    }
}

/// The waker is cloned outside the lock, so the answer can come between the two readings of the slot.
#[test]
fn a_waker_may_cause_the_answer_while_it_replaces_another() {
    for closes in [false, true] {
        for policy in [
            Policy::from(MaxConcurrency::new(1)),
            MaxConcurrency::new(1).ttl(ms(10_000)).into(),
        ] {
            must_not_hang(async move || {
                let limiter = Limiter::new(policy).unwrap();
                let out = Mutex::new(Some(limiter.try_acquire().unwrap()));
                let mut waiting = Box::pin(limiter.acquire());
                let (first, first_woken) = waker(|_| ());
                assert!(
                    waiting
                        .as_mut()
                        .poll(&mut Context::from_waker(&first))
                        .is_pending()
                );
                let handle = limiter.clone();
                let (second, _) = waker(move |_| {
                    if closes {
                        handle.close();
                    } else {
                        drop(out.lock().unwrap().take());
                    }
                });
                let Poll::Ready(answer) = waiting.as_mut().poll(&mut Context::from_waker(&second))
                else {
                    panic!("its answer lies in its slot")
                };
                assert_eq!(first_woken.woken.load(Ordering::Relaxed), 1);
                assert_eq!(limiter.snapshot().queued, 0);
                if closes {
                    assert_eq!(answer.unwrap_err(), AcquireError::Closed);
                } else {
                    let permit = answer.unwrap();
                    assert_eq!((permit.fence(), limiter.snapshot().in_flight), (2, 1));
                    drop(permit);
                    assert_eq!(limiter.snapshot().in_flight, 0);
                }
            });
        }
    }
}

/// A fixed bug: a request whose waker panicked when it was cloned had by then dropped another one from the full queue without
/// waking it.
#[test]
fn a_waker_that_panics_when_it_is_cloned_harms_no_other_request() {
    for policy in policies() {
        must_not_hang(async move || {
            let limiter = Limiter::builder(policy)
                .max_queue(1)
                .overflow(Overflow::DropOldest)
                .build()
                .unwrap();
            let out = limiter.try_acquire().unwrap();
            let mut oldest = task::spawn(limiter.acquire());
            assert_pending!(oldest.poll());
            let (panics, _) = waker(|_| panic_on_purpose());
            let mut newest = Box::pin(limiter.acquire());
            let polled = catch_unwind(AssertUnwindSafe(|| {
                newest.as_mut().poll(&mut Context::from_waker(&panics))
            }));
            assert!(polled.is_err());
            assert_eq!((limiter.snapshot().queued, limiter.snapshot().shed), (1, 0));
            let moved = catch_unwind(AssertUnwindSafe(|| {
                let Poll::Pending =
                    oldest.enter(|_, future| future.poll(&mut Context::from_waker(&panics)))
                else {
                    return;
                };
            }));
            assert!(moved.is_err());
            drop(newest);
            assert_eq!(limiter.snapshot().queued, 1, "it waits as before");
            drop(out);
            limiter.close();
            assert!(oldest.is_woken());
            match oldest.poll() {
                Poll::Ready(answer) => assert!(matches!(answer, Ok(_) | Err(AcquireError::Closed))),
                Poll::Pending => panic!("it was not answered"),
            }
        });
    }
}

/// A fixed bug: the panic came before the permit was made, so its place was never released.
#[test]
fn a_waker_that_panics_when_it_is_dropped_loses_no_permit() {
    static VTABLE: RawWakerVTable = RawWakerVTable::new(
        |data| RawWaker::new(data, &VTABLE),
        |_| (),
        |_| (),
        |_| panic_on_purpose(),
    );
    // SAFETY: the table's functions do not use the data.
    let panics =
        ManuallyDrop::new(unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), &VTABLE)) });
    must_not_hang(async move || {
        let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
        let out = limiter.try_acquire().unwrap();
        assert_pending!(task::spawn(limiter.acquire()).poll()); // the next request expects to wait, and clones its waker
        drop(out);
        let mut future = Box::pin(limiter.acquire());
        let polled = catch_unwind(AssertUnwindSafe(|| {
            future.as_mut().poll(&mut Context::from_waker(&panics))
        }));
        drop((polled, future));
        assert_eq!(limiter.snapshot().in_flight, 0);
    });
}
