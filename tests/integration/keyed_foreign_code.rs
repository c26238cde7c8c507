//! The code of a key's type (`Hash`, `Eq`, `Clone`, `Drop`) runs outside the locks of the limiter: it may use the limiter and it
//! may panic.

use std::cell::Cell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use crate::common::ms;
use tokio::time::advance;
use tollgate::{AcquireError, KeyedLimiter, MaxConcurrency, Rate, Throttle, TokenBucket, WhenFull};

/// What a key's code does with the limiter that holds the key.
struct Shared {
    limiter: OnceLock<KeyedLimiter<Key>>,
    calls: AtomicUsize,
}

/// A key whose `Hash`, `Clone` and `Drop` use the limiter. A call of them under a lock would be a deadlock.
struct Key(u32, Arc<Shared>);

impl Key {
    fn use_limiter(&self) {
        thread_local! { static WITHIN: Cell<bool> = const { Cell::new(false) } }
        if !WITHIN.replace(true) {
            if let Some(limiter) = self.1.limiter.get() {
                let _ = limiter.check(&Self(u32::MAX, Arc::clone(&self.1)), 1);
                self.1.calls.fetch_add(1, Relaxed);
            }
            WITHIN.set(false);
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.use_limiter();
        self.0.fmt(f)
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.use_limiter();
        self.0.hash(state);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Clone for Key {
    fn clone(&self) -> Self {
        self.use_limiter();
        Self(self.0, Arc::clone(&self.1))
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.use_limiter();
    }
}

/// Grows, evicts, forgets, activates and deactivates keys in a limiter of one shard.
fn every_path(shared: &Arc<Shared>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let limiter = shared.limiter.get().unwrap();
        let key = |number| Key(number, Arc::clone(shared));
        for number in 0..200 {
            drop(limiter.try_acquire(&key(number)).unwrap());
            if number % 3 == 0 {
                drop(limiter.limiter(&key(number)).unwrap());
            }
            if number % 5 == 0 {
                let key = key(number);
                let mut waiting = Box::pin(limiter.acquire_many(&key, 3));
                assert!(
                    waiting
                        .as_mut()
                        .poll(&mut Context::from_waker(Waker::noop()))
                        .is_pending()
                );
            }
            _ = limiter.penalize(&key(number / 2), 1);
            limiter.reset(&key(number / 3));
            if number % 50 == 49 {
                advance(ms(10_000)).await;
            }
        }
    });
}

#[test]
fn the_code_of_a_key_may_use_the_limiter() {
    let shared = Arc::new(Shared {
        limiter: OnceLock::new(),
        calls: AtomicUsize::new(0),
    });
    let limiter = KeyedLimiter::builder(TokenBucket::new(Rate::per_second(1), 3))
        .max_keys(30)
        .when_full(WhenFull::EvictSoonestReset)
        .on_event(|event| drop(format!("{event:?}")))
        .build()
        .unwrap();
    shared.limiter.set(limiter).ok().unwrap();
    let (done, waiting) = mpsc::channel();
    let within = Arc::clone(&shared);
    std::thread::spawn(move || {
        every_path(&within);
        done.send(()).unwrap();
    });
    assert_eq!(
        waiting.recv_timeout(Duration::from_secs(20)),
        Ok(()),
        "a deadlock"
    );
    assert!(shared.calls.load(Relaxed) > 600, "the code of keys ran");
}

/// A key whose copies panic on demand.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Uncopyable(u32);

static ARMED: AtomicBool = AtomicBool::new(false);

impl Clone for Uncopyable {
    fn clone(&self) -> Self {
        if ARMED.load(Relaxed) {
            resume_unwind(Box::new("on purpose, without the noise of the hook"));
        }
        Self(self.0)
    }
}

/// A fixed bug: a key that panicked while it was copied was lost from the table with its usage.
#[tokio::test(start_paused = true)]
async fn a_key_that_panics_when_it_is_copied_keeps_what_it_has_used() {
    let keyed = KeyedLimiter::builder(Throttle::every(ms(100)))
        .on_event(|_| {})
        .max_keys(30)
        .build()
        .unwrap();
    drop(keyed.try_acquire(&Uncopyable(1)).unwrap());
    ARMED.store(true, Relaxed);
    let one = Uncopyable(1);
    let mut waiting = Box::pin(keyed.acquire(&one));
    let poll = || {
        drop(
            waiting
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop())),
        );
    };
    assert!(catch_unwind(AssertUnwindSafe(poll)).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| keyed.limiter(&Uncopyable(1)))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| keyed.try_acquire(&Uncopyable(2)))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| keyed.snapshots().count())).is_err());
    ARMED.store(false, Relaxed);
    assert_eq!((keyed.len(), keyed.snapshots().count()), (1, 1));
    assert!(
        keyed.try_acquire(&Uncopyable(1)).is_err(),
        "what it has used stays used"
    );
    advance(ms(100)).await;
    assert!(keyed.try_acquire(&Uncopyable(1)).is_ok() && keyed.try_acquire(&Uncopyable(2)).is_ok());
}

/// A key whose drop panics on demand.
#[derive(Clone, PartialEq, Eq, Hash)]
struct PanicsAtItsEnd(u32);

static AT_ITS_END: AtomicBool = AtomicBool::new(false);

impl Drop for PanicsAtItsEnd {
    fn drop(&mut self) {
        if AT_ITS_END.load(Relaxed) && !std::thread::panicking() && self.0 < 1_000 {
            resume_unwind(Box::new("on purpose, without the noise of the hook"));
        }
    }
}

/// A panic in the drop of a forgotten key does not reach the call that forgets it.
#[tokio::test(start_paused = true)]
async fn a_key_that_panics_when_it_is_forgotten_loses_no_permit() {
    let keyed = KeyedLimiter::builder(Throttle::every(ms(100)))
        .max_keys(30)
        .build()
        .unwrap();
    (0..30).for_each(|number| drop(keyed.try_acquire(&PanicsAtItsEnd(number)).unwrap()));
    advance(ms(100)).await;
    AT_ITS_END.store(true, Relaxed);
    for number in 1_000..1_030 {
        assert_eq!(
            keyed.try_acquire(&PanicsAtItsEnd(number)).unwrap().cost(),
            1
        );
    }
    AT_ITS_END.store(false, Relaxed);
    assert_eq!(keyed.snapshots().count(), keyed.len());
}

/// A key whose drop panics once [`IN_DRIVER`] is set.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PanicsInDriver(bool);

static IN_DRIVER: AtomicBool = AtomicBool::new(false);

impl Drop for PanicsInDriver {
    fn drop(&mut self) {
        if self.0 && IN_DRIVER.load(Relaxed) {
            resume_unwind(Box::new("on purpose, without the noise of the hook"));
        }
    }
}

/// Drops its value when it is woken, and lets the key panic from then on.
struct LetsGo<T>(Mutex<Option<T>>);

impl<T: Send + 'static> Wake for LetsGo<T> {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
        IN_DRIVER.store(true, Relaxed);
    }
}

/// A fixed bug: the panic ended the driver of all keys, and its runtime never got another one.
#[tokio::test(start_paused = true)]
async fn a_key_that_panics_in_the_driver_does_not_end_the_driver() {
    let keyed = KeyedLimiter::builder(MaxConcurrency::new(1))
        .on_event(|_| ())
        .build()
        .unwrap();
    let [panics, other] =
        [true, false].map(|panics| keyed.limiter(&PanicsInDriver(panics)).unwrap());
    let out = [&panics, &other].map(|limiter| limiter.try_acquire().unwrap());
    let [out_of_panics, _out] = out;
    // The driver times this request out. Its waker then drops all other handles, so the driver has the last one.
    let waiting = Arc::new(Mutex::new(Box::pin(async move {
        panics.request().timeout(ms(20)).acquire().await.map(drop)
    })));
    let waker = Waker::from(Arc::new(LetsGo(Mutex::new(Some((
        keyed,
        out_of_panics,
        Arc::clone(&waiting),
    ))))));
    assert!(
        waiting
            .lock()
            .unwrap()
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    drop(waiting);
    let answer = other.request().timeout(ms(100)).acquire().await;
    assert!(IN_DRIVER.load(Relaxed));
    assert!(
        matches!(answer, Err(AcquireError::TimedOut { .. })),
        "{answer:?}"
    );
}
