//! The way to a store: a deadline for each call, and breakers that give the store time to recover when it does not answer.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until, timeout};

use super::breaker::Breakers;
use super::kept_keys::KeptKeys;
use crate::core::session::{CallAnswer, CallFailed, PolicyTerms};
use crate::error::{ReplyFault, StoreError};
use crate::event::EventKind;
use crate::exchange::{Call, ReplyTerms};
use crate::manager::time::runtimes;
use crate::observe::KeyedObservers;
use crate::snapshot::KeyTotals;
use crate::store::background::background;
use crate::store::{Store, StoreFuture};

/// The link of one limiter, with all its keys, to its store.
#[derive(Debug)]
pub(crate) struct StoreLink {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) name: Arc<str>,
    pub(crate) deadline: Duration,
    pub(crate) observer: Arc<KeyedObservers>,
    pub(crate) kept: KeptKeys,
    /// The totals of managers that were dropped.
    pub(crate) counted: Mutex<KeyTotals>,
    /// Also receives the messages of releases, as long as a request may wait, also without a handle of the limiter.
    pub(super) policy: Arc<dyn FollowsStore>,
    /// Whether the limiter was used since the latest look at the policy in the store.
    was_used: AtomicBool,
    /// The latest call for the empty key, by which the policy in the store is known.
    known_at: Mutex<Option<Instant>>,
    /// Whether a task looks at the policy in the store.
    is_watched: AtomicBool,
    breakers: Mutex<Breakers>,
}

/// The policy of a limiter, which follows that of the store.
pub(crate) trait FollowsStore: fmt::Debug + Send + Sync {
    /// Applies a policy of a later revision to all keys in this process, unless another thread does so already.
    ///
    /// # Errors
    ///
    /// Why this process cannot apply it.
    fn follow(&self, policy: &str, revision: u64) -> Result<(), StoreError>;

    /// The terms of the policy of this process. Another thread may still be applying them to the keys.
    fn terms(&self) -> Arc<PolicyTerms>;

    /// A call by which the store and this process agree on the later one of their policies.
    fn look(&self) -> Call;

    /// Whether a request waits.
    fn is_awaited(&self) -> bool;
}

/// How often a process looks at the policy in the store while the limiter is used, or a request waits. Its calls for keys that it
/// shares with other processes show a later policy sooner.
const LOOKS_EVERY: Duration = Duration::from_millis(500);

impl StoreLink {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        name: Arc<str>,
        deadline: Duration,
        longest_pause: Duration,
        observer: Arc<KeyedObservers>,
        policy: Arc<dyn FollowsStore>,
    ) -> Self {
        Self {
            store,
            name,
            deadline,
            observer,
            kept: KeptKeys::new(),
            counted: Mutex::default(),
            policy,
            was_used: AtomicBool::new(false),
            known_at: Mutex::default(),
            is_watched: AtomicBool::new(false),
            breakers: Mutex::new(Breakers::new(longest_pause)),
        }
    }

    /// Calls the store, within the deadline. If the store has a policy of a later revision, it is that of this process when the call
    /// has failed with [`PolicyDiffers`](StoreError::PolicyDiffers). Another thread may still be applying it to the keys.
    pub(crate) async fn call(&self, call: Call) -> CallAnswer {
        let revision = call.revision;
        if call.scope.key.is_empty() {
            *self.known_at.lock() = Some(Instant::now());
        }
        let mut answer = self.call_once(call).await;
        if let Err(failed) = &mut answer
            && let StoreError::PolicyDiffers {
                stored,
                stored_revision,
                ..
            } = &failed.error
            && *stored_revision > revision
            && let Err(cause) = self.policy.follow(stored, *stored_revision)
        {
            failed.error = failed.error.clone().unknown_policy(cause);
        }
        answer
    }

    /// Follows the policy in the store, if it is later. Requests learn whether the store answers, and whether it can be followed.
    async fn look(&self) {
        let call = self.policy.look();
        let revision = call.revision;
        let answer = AssertUnwindSafe(async { self.store.call(call).await }).catch_unwind();
        match timeout(self.deadline, answer).await {
            Ok(Ok(Err(StoreError::PolicyDiffers {
                stored,
                stored_revision,
                ..
            }))) if stored_revision > revision => {
                let _followed = self.policy.follow(&stored, stored_revision);
            }
            Ok(Err(panic)) => std::mem::forget(panic), // its drop may panic too
            _ => {}
        }
    }

    /// Records that the limiter is in use. From then on, a task looks at the policy in the store from time to time.
    pub(super) fn note_use(self: &Arc<Self>) {
        self.was_used.store(true, Relaxed);
        if self.is_watched.load(Relaxed) || self.is_watched.swap(true, Relaxed) {
            return;
        }
        if let Some(runtime) = runtimes::with_timers_here().or_else(background) {
            runtime.spawn(watch_policy(Arc::downgrade(self)));
        }
    }

    async fn call_once(&self, call: Call) -> CallAnswer {
        let (terms, part) = (ReplyTerms::of(&call), self.store.part_of(&call.scope));
        // A store that keeps the deadline itself saves a timer.
        let time = self.store.answers_within();
        let is_sure = time.is_some_and(|time| time <= self.deadline);
        let answer = async { self.store.call(call).await };
        self.ask(part, answer, is_sure, |answer| terms.check(answer))
            .await
    }

    /// Awaits another operation of a part of the store within the deadline, and checks its answer.
    pub(crate) async fn within_deadline<T>(
        &self,
        part: u64,
        ask: impl FnOnce() -> StoreFuture<T>,
        check: impl FnOnce(&T) -> Result<(), ReplyFault>,
    ) -> Result<T, CallFailed> {
        let answer = async { ask().await };
        self.ask(part, answer, false, |answer| {
            answer.as_ref().map_or(Ok(()), check)
        })
        .await
    }

    /// Awaits an answer of a part, unless its breaker is open. `is_sure`: the store itself keeps the deadline. An answer that breaks a
    /// rule is an error of the store.
    async fn ask<T>(
        &self,
        part: u64,
        answer: impl Future<Output = Result<T, StoreError>>,
        is_sure: bool,
        check: impl FnOnce(&Result<T, StoreError>) -> Result<(), ReplyFault>,
    ) -> Result<T, CallFailed> {
        let admitted = self.breakers.lock().admit(part, Instant::now);
        let is_probe = admitted.map_err(|error| CallFailed {
            error,
            may_have_run: false,
        })?;
        let probe = is_probe.then(|| OnDrop(|| self.breakers.lock().probe_was_dropped(part)));
        let answer = AssertUnwindSafe(answer).catch_unwind();
        let answer = if is_sure {
            Ok(answer.await)
        } else {
            timeout(self.deadline, answer).await
        };
        drop(probe);
        let unanswered = |after| CallFailed::unanswered(self.store.name(), after).error;
        let answer = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(panic)) => {
                std::mem::forget(panic); // its drop may panic too
                Err(unanswered(None))
            }
            Err(_) => Err(unanswered(Some(self.deadline))),
        };
        let checked = check(&answer).map_err(|fault| StoreError::BadReply {
            store: self.store.name(),
            fault,
        });
        let answer = checked.and(answer);
        self.note(part, &answer);
        answer.map_err(|error| CallFailed {
            may_have_run: error.may_have_run(),
            error,
        })
    }

    /// Reports an answer of a part to its breaker, and a change of the store to the observer.
    fn note<T>(&self, part: u64, answer: &Result<T, StoreError>) {
        let event = match answer {
            Err(error) if error.is_down() => {
                let opened = self.breakers.lock().failed(part, Instant::now(), error);
                let error = error.clone();
                opened.then_some(EventKind::StoreDown { error })
            }
            _ => {
                let was_down = self.breakers.lock().answered(part, Instant::now);
                was_down.map(|since| EventKind::StoreUp {
                    down_for: since.elapsed(),
                })
            }
        };
        if let Some(event) = event {
            self.observer.tell(None::<&Arc<[u8]>>, || event);
        }
    }

    /// Whether calls for all keys are made at present, because no breaker is open.
    pub(crate) fn is_up(&self) -> bool {
        self.breakers.lock().are_closed()
    }
}

/// Looks at the policy in the store from time to time, as long as the limiter exists.
async fn watch_policy(link: Weak<StoreLink>) {
    let _ends = OnDrop(|| {
        if let Some(link) = link.upgrade() {
            link.is_watched.store(false, Relaxed); // the runtime was shut down
        }
    });
    // A policy with a revision is kept in the store at once.
    let is_revised = |link: Arc<StoreLink>| link.policy.terms().revision > 0;
    let mut looks_at = match link.upgrade().is_some_and(is_revised) {
        true => Instant::now(),
        false => Instant::now() + LOOKS_EVERY,
    };
    loop {
        sleep_until(looks_at).await;
        let Some(link) = link.upgrade() else { return };
        let known_until = link.known_at.lock().map(|at| at + LOOKS_EVERY);
        let now = Instant::now();
        looks_at = now + LOOKS_EVERY;
        match known_until {
            Some(until) if until > now => looks_at = until,
            _ if !link.is_up() => {}
            _ if link.was_used.swap(false, Relaxed) || link.policy.is_awaited() => {
                link.look().await;
            }
            _ => {}
        }
    }
}

/// Runs code at the end of a scope, also if the future that it belongs to is dropped.
pub(super) struct OnDrop<F: FnMut()>(pub(super) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;
    use crate::core::gate::plan::Plan;
    use crate::core::session::PrefetchOptions;
    use crate::exchange::{Reply, Scope};
    use crate::manager::nonzero_nanos;
    use crate::observe::{Observers, format_nothing};
    use crate::policy::Policy;
    use crate::store::KeyPage;

    const DEADLINE: Duration = Duration::from_millis(100);

    /// A limiter with a policy of one revision, over a store that has a policy of another revision or does not answer.
    #[derive(Debug)]
    struct Revisions {
        own: u64,
        stored: Option<u64>,
        answers_within: Option<Duration>,
        panics: bool,
        start: Instant,
        /// When the store was called, in milliseconds.
        calls: Mutex<Vec<u128>>,
        followed: Mutex<Vec<u64>>,
    }

    impl Revisions {
        fn new(own: u64, stored: Option<u64>) -> Self {
            Self {
                own,
                stored,
                answers_within: None,
                panics: false,
                start: Instant::now(),
                calls: Mutex::default(),
                followed: Mutex::default(),
            }
        }

        fn link(self) -> (Arc<StoreLink>, Arc<Self>) {
            let this = Arc::new(self);
            let observer = KeyedObservers {
                name: None,
                observers: Observers::NONE,
                format: format_nothing,
            };
            let link = StoreLink::new(
                Arc::clone(&this) as Arc<dyn Store>,
                "test".into(),
                DEADLINE,
                DEADLINE,
                Arc::new(observer),
                Arc::clone(&this) as Arc<dyn FollowsStore>,
            );
            (Arc::new(link), this)
        }
    }

    struct PanicsWhenDropped;

    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }

    impl FollowsStore for Revisions {
        fn follow(&self, _: &str, revision: u64) -> Result<(), StoreError> {
            self.followed.lock().push(revision);
            Ok(())
        }

        fn terms(&self) -> Arc<PolicyTerms> {
            let plan = Plan::new("1/s".parse().unwrap(), Duration::ZERO).unwrap();
            Arc::new(PolicyTerms {
                plan: Arc::new(plan),
                revision: self.own,
                ttl: nonzero_nanos(DEADLINE),
                polls_every: 0,
                hears_turns: false,
                prefetch: PrefetchOptions::default(),
            })
        }

        fn look(&self) -> Call {
            let scope = Scope {
                limiter: "test".into(),
                key: Arc::default(),
            };
            Call {
                revision: self.own,
                ..Call::new(scope, "1/s".parse().unwrap(), 1)
            }
        }

        fn is_awaited(&self) -> bool {
            false
        }
    }

    impl Store for Revisions {
        fn name(&self) -> String {
            "test".to_owned()
        }

        fn supports(&self, _: &Policy) -> Result<(), StoreError> {
            Ok(())
        }

        fn call(&self, call: Call) -> StoreFuture<Reply> {
            self.calls.lock().push(self.start.elapsed().as_millis());
            let (stored, panics) = (self.stored, self.panics);
            Box::pin(async move {
                if panics {
                    panic_any(PanicsWhenDropped);
                }
                match stored {
                    None => std::future::pending().await,
                    Some(stored_revision) => Err(StoreError::PolicyDiffers {
                        limiter: call.scope.limiter,
                        stored: "2/s".to_owned(),
                        stored_revision,
                        given: call.policy.to_string(),
                        given_revision: call.revision,
                    }),
                }
            })
        }

        fn answers_within(&self) -> Option<Duration> {
            self.answers_within
        }

        fn keys(&self, _: &Arc<str>, _: Option<Vec<u8>>, _: usize) -> StoreFuture<KeyPage> {
            Box::pin(async { Ok(KeyPage::default()) })
        }

        fn reset(&self, _: Scope) -> StoreFuture<()> {
            Box::pin(async { Ok(()) })
        }

        fn purge(&self, _: &Arc<str>, _: usize) -> StoreFuture<u64> {
            Box::pin(async { Ok(0) })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_policy_of_a_later_revision_is_followed() {
        for (stored, followed) in [(1, vec![]), (2, vec![]), (3, vec![3, 3])] {
            let (link, revisions) = Revisions::new(2, Some(stored)).link();
            assert!(link.call(revisions.look()).await.is_err());
            link.look().await;
            assert_eq!(*revisions.followed.lock(), followed, "{stored}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_the_store_may_end_later_ends_at_the_deadline() {
        for answers_within in [None, Some(2 * DEADLINE)] {
            let revisions = Revisions {
                answers_within,
                ..Revisions::new(0, None)
            };
            let (link, revisions) = revisions.link();
            let failed = timeout(10 * DEADLINE, link.call(revisions.look())).await;
            let error = failed.unwrap().unwrap_err().error;
            assert!(matches!(error, StoreError::Unanswered { .. }), "{error}");
            assert_eq!(revisions.start.elapsed(), DEADLINE);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_limiter_in_use_looks_at_the_policy_every_500_ms_and_at_once_if_it_has_a_revision() {
        for (own, looks) in [(0, vec![500, 1_000]), (1, vec![0, 500, 1_000])] {
            let (link, revisions) = Revisions::new(own, Some(0)).link();
            for _ in 0..12 {
                link.note_use();
                sleep_until(Instant::now() + DEADLINE).await;
            }
            assert_eq!(*revisions.calls.lock(), looks);
        }
    }

    #[tokio::test]
    async fn a_store_that_panics_is_looked_at_again() {
        let panics = Revisions {
            panics: true,
            ..Revisions::new(0, None)
        };
        let (link, revisions) = panics.link();
        link.look().await;
        link.look().await;
        assert_eq!(revisions.calls.lock().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_for_the_empty_key_is_a_look() {
        let (link, revisions) = Revisions::new(0, Some(0)).link();
        link.note_use();
        sleep_until(revisions.start + 3 * DEADLINE).await;
        drop(link.call(revisions.look()).await);
        sleep_until(revisions.start + 10 * DEADLINE).await;
        assert_eq!(*revisions.calls.lock(), [300, 800]);
    }
}
