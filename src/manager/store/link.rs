//! The way to a store: a deadline for each call, and breakers that give the store time to recover when it does not answer.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, sleep_until, timeout};

use super::breaker::Breakers;
use super::kept_keys::KeptKeys;
use crate::core::session::{CallAnswer, CallFailed};
use crate::error::{ReplyFault, StoreError};
use crate::event::EventKind;
use crate::exchange::{Call, ReplyTerms};
use crate::lock::Lock;
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
    pub(crate) counted: Lock<KeyTotals>,
    /// Also receives the messages of releases, as long as a request may wait, also without a handle of the limiter.
    policy: Arc<dyn FollowsStore>,
    /// Whether the limiter was used since the latest look at the policy in the store.
    was_used: AtomicBool,
    /// The latest call for the empty key, by which the policy in the store is known.
    known_at: Lock<Option<Instant>>,
    /// Whether a task looks at the policy in the store.
    is_watched: AtomicBool,
    breakers: Lock<Breakers>,
}

/// The policy of a limiter, which follows that of the store.
pub(crate) trait FollowsStore: fmt::Debug + Send + Sync {
    /// Applies a policy of a later revision to all keys in this process.
    ///
    /// # Errors
    ///
    /// Why this process cannot apply it.
    fn follow(&self, policy: &str, revision: u64) -> Result<(), StoreError>;

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
            counted: Lock::default(),
            policy,
            was_used: AtomicBool::new(false),
            known_at: Lock::default(),
            is_watched: AtomicBool::new(false),
            breakers: Lock::new(Breakers::new(longest_pause)),
        }
    }

    /// Calls the store, within the deadline. If the store has a policy of a later revision, all keys of this process follow it
    /// when the call has failed with [`PolicyDiffers`](StoreError::PolicyDiffers).
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
    let is_revised = |link: Arc<StoreLink>| link.policy.look().revision > 0;
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
