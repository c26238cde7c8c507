//! The keys of a shared limiter that are kept while no handle uses them: those that are paused, closed, or denied by the store.
//! Other keys are forgotten. If denied keys were not kept, each request of a client that is denied again and again would be a call to
//! the store.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

use crate::manager::time::Driven;
use crate::strategy::MAX_SPAN_NANOS;

/// A manager takes two kilobytes, and clients may have a million keys.
const MAX_DENIED: usize = if cfg!(test) { 100 } else { 10_000 };

/// Keeps the managers until their pauses or denials have ended. They hold the [link](super::link) that this is part of:
/// [`end`](Self::end) breaks the circle.
#[derive(Debug)]
pub(crate) struct KeptKeys(Mutex<Option<KeptManagers>>);

#[derive(Debug, Default)]
struct KeptManagers {
    /// Each manager, with the end of its pause or denial.
    by_addr: HashMap<usize, (Arc<dyn Driven>, Instant)>,
    /// After this number of further calls of `keep`, the managers whose pauses or denials have ended are dropped. The number is that of
    /// the managers that were kept, so that each call pays the same for the sweeps, however many keys there are.
    sweeps_after: usize,
}

impl KeptKeys {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Some(KeptManagers::default())))
    }

    /// Keeps a manager for a pause or a close, which must not be lost.
    pub(super) fn keep_paused<D: Driven>(&self, manager: &Arc<D>, duration: Duration) {
        self.keep(
            manager,
            duration.min(Duration::from_nanos(MAX_SPAN_NANOS)),
            usize::MAX,
        );
    }

    /// Keeps a manager for a denial, if few keys are kept. It is not kept for long, because another process may reset the key.
    pub(super) fn keep_denied<D: Driven>(&self, manager: &Arc<D>, duration: Duration) {
        const MINUTE: Duration = Duration::from_secs(60);
        self.keep(manager, duration.min(MINUTE), MAX_DENIED);
    }

    fn keep<D: Driven>(&self, manager: &Arc<D>, duration: Duration, most: usize) {
        let now = Instant::now();
        let mut kept = self.0.lock();
        let Some(KeptManagers {
            by_addr,
            sweeps_after,
        }) = kept.as_mut()
        else {
            return;
        };
        let mut ended = Vec::new();
        if *sweeps_after == 0 {
            ended.extend(by_addr.extract_if(|_, (_, until)| *until <= now));
            *sweeps_after = by_addr.len();
            by_addr.shrink_to(2 * by_addr.len()); // the next sweep goes through every bucket
        } else {
            *sweeps_after -= 1;
        }
        let has_room = by_addr.len() < most;
        let until = now + duration;
        match by_addr.entry(Arc::as_ptr(manager) as usize) {
            Entry::Occupied(mut kept) => kept.get_mut().1 = until.max(kept.get().1),
            Entry::Vacant(vacant) if has_room => {
                _ = vacant.insert((Arc::clone(manager) as Arc<dyn Driven>, until));
            }
            Entry::Vacant(_) => {}
        }
        drop(kept);
        drop(ended); // outside the lock: the managers may be the last owners of what they hold
    }

    /// Forgets a key that was resumed, unless it must stay. `must_stay` runs under the lock: a call that pauses or closes the key
    /// after that keeps it again.
    pub(super) fn forget<D: Driven>(&self, manager: &D, must_stay: impl FnOnce() -> bool) {
        let addr = std::ptr::from_ref(manager) as usize;
        let mut kept = self.0.lock();
        let resumed = if must_stay() {
            None
        } else {
            kept.as_mut().and_then(|kept| kept.by_addr.remove(&addr))
        };
        drop(kept);
        drop(resumed);
    }

    /// Drops all keys: no handle of the limiter is left that could lead to one.
    pub(crate) fn end(&self) {
        let _all = self.0.lock().take();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, Weak};
    use std::thread;
    use std::time::Duration;

    use tokio::runtime;
    use tokio::time::advance;

    use super::*;
    use crate::SharedLimiter;
    use crate::manager::time::Next;
    use crate::store::MemoryStore;

    #[derive(Debug)]
    struct Key;

    impl Driven for Key {
        fn run_due(self: Arc<Self>) -> Next {
            Next::End
        }

        fn driver_gone(&self, _: runtime::Id) {}
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn alive(keys: &[Weak<Key>]) -> usize {
        keys.iter().filter(|key| key.strong_count() > 0).count()
    }

    #[tokio::test(start_paused = true)]
    async fn denials_are_few_and_end_within_a_minute() {
        let kept = KeptKeys::new();
        let deny = || {
            let key = Arc::new(Key);
            kept.keep_denied(&key, Duration::MAX);
            Arc::downgrade(&key)
        };
        let first: Vec<_> = (0..1_000).map(|_| deny()).collect();
        assert_eq!(alive(&first), MAX_DENIED);
        let paused = Arc::new(Key);
        kept.keep_paused(&paused, Duration::MAX);
        advance(60 * SECOND).await;
        let later: Vec<_> = (0..1_000).map(|_| deny()).collect();
        assert_eq!((alive(&first), alive(&later)), (0, MAX_DENIED - 1));
        assert_eq!(
            Arc::strong_count(&paused),
            2,
            "a pause is kept even where there are many denials"
        );
        kept.end();
        assert_eq!((alive(&later), Arc::strong_count(&paused)), (0, 1));
        kept.keep_paused(&paused, SECOND);
        assert_eq!(Arc::strong_count(&paused), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn managers_whose_pause_has_ended_are_dropped() {
        let kept = KeptKeys::new();
        let mut keys = Vec::new();
        for _ in 0..10_000 {
            let key = Arc::new(Key);
            kept.keep_paused(&key, SECOND);
            keys.push(Arc::downgrade(&key));
            advance(SECOND / 10).await; // ten are paused at a time
        }
        assert!(alive(&keys) <= 40, "{}", alive(&keys));
    }

    /// A fixed bug: after a burst of pauses, each sweep went through as many empty buckets for ever.
    #[tokio::test(start_paused = true)]
    async fn after_a_burst_its_table_is_small_again() {
        let kept = KeptKeys::new();
        (0..10_000).for_each(|_| kept.keep_paused(&Arc::new(Key), SECOND));
        advance(SECOND).await;
        let key = Arc::new(Key);
        (0..10_000).for_each(|_| kept.keep_paused(&key, SECOND));
        let capacity = kept.0.lock().as_ref().unwrap().by_addr.capacity();
        assert!(capacity <= 10, "{capacity}");
    }

    /// A fixed bug: whether a key is closed was asked before the lock was taken, and one that was closed meanwhile was forgotten.
    #[test]
    fn a_key_that_is_closed_while_it_is_resumed_is_kept() {
        let (kept, key, asked) = (KeptKeys::new(), Arc::new(Key), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                asked.wait();
                kept.keep_paused(&key, Duration::MAX);
            });
            kept.forget(&*key, || {
                asked.wait();
                thread::sleep(Duration::from_millis(20)); // the other thread has time to close it
                false
            });
        });
        assert_eq!(Arc::strong_count(&key), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn the_later_end_holds_and_a_resumed_key_is_forgotten() {
        let kept = KeptKeys::new();
        let key = Arc::new(Key);
        kept.keep_paused(&key, 10 * SECOND);
        kept.keep_denied(&key, SECOND);
        advance(5 * SECOND).await;
        let other = Arc::new(Key);
        (0..10).for_each(|_| kept.keep_denied(&other, SECOND));
        assert_eq!(Arc::strong_count(&key), 2);
        kept.forget(&*key, || true);
        assert_eq!(Arc::strong_count(&key), 2);
        kept.forget(&*key, || false);
        assert_eq!(Arc::strong_count(&key), 1);
    }

    /// The counts of a key end with it.
    #[tokio::test(start_paused = true)]
    async fn a_key_without_a_handle_is_kept_until_it_is_resumed() {
        let limiter = SharedLimiter::builder(MemoryStore::new(), "test", "1000/min");
        let limiter = limiter.build().unwrap();
        let alice = || limiter.key("alice");
        let granted = || alice().snapshot().granted;
        drop(alice().try_acquire().await.unwrap());
        advance(SECOND).await;
        assert_eq!(granted(), 0);
        let handle = alice();
        drop(handle.try_acquire().await.unwrap());
        handle.pause_for(60 * SECOND);
        drop(handle);
        advance(SECOND).await;
        assert_eq!(granted(), 1);
        alice().resume();
        assert_eq!(granted(), 0);
        alice().close();
        alice().resume();
        assert!(alice().is_closed());
    }
}
