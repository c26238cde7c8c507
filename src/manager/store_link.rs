//! The way to a store: a deadline for each call, and a breaker that gives a store which does not answer time to recover.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep, timeout};

use super::kept_keys::KeptKeys;
use crate::error::{ReplyFault, StoreError};
use crate::event::{EventKind, LimiterEvent};
use crate::exchange::{Call, Reply, ReplyTerms};
use crate::observe::{Observation, Observers};
use crate::snapshot::KeyTotals;
use crate::store::{Store, StoreFuture};

/// The way of one limiter, with all its keys, to its store.
#[derive(Debug)]
pub(crate) struct StoreLink {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) name: Arc<str>,
    pub(crate) deadline: Duration,
    pub(crate) observer: Observers,
    pub(crate) kept: KeptKeys,
    /// What was counted of managers that were dropped.
    counted: Mutex<KeyTotals>,
    /// What hears of releases: as long as anybody may wait, also without a handle of the limiter.
    _hears: Arc<dyn Any + Send + Sync>,
    breaker: Mutex<Breaker>,
}

/// Why a call brought no reply, and whether it may have been carried out all the same.
#[derive(Debug)]
pub(crate) struct CallFailed {
    pub(crate) error: StoreError,
    pub(crate) may_have_run: bool,
}

/// Opens after some failures in a row. While it is open, calls fail at once; then one call at a time probes the store.
#[derive(Debug)]
struct Breaker {
    failures: u32,
    open: Option<Open>,
    /// The longest pause between two probes.
    longest: Duration,
}

#[derive(Debug)]
struct Open {
    error: StoreError,
    since: Instant,
    probe_at: Instant,
    probing: bool,
}

impl Breaker {
    const FAILURES: u32 = 2;
    const FIRST: Duration = Duration::from_millis(100);

    fn new(longest: Duration) -> Self {
        Self { failures: 0, open: None, longest }
    }

    /// Whether a call may be made now, and is a probe.
    fn admit(&mut self, now: impl FnOnce() -> Instant) -> Result<bool, StoreError> {
        match &mut self.open {
            Some(open) if open.probing || now() < open.probe_at => Err(open.error.clone()),
            Some(open) => {
                open.probing = true;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// A call has failed. Returns whether the breaker opened.
    fn failed(&mut self, now: Instant, error: &StoreError) -> bool {
        self.failures = self.failures.saturating_add(1);
        if self.failures < Self::FAILURES {
            return false;
        }
        let pause = Self::FIRST.saturating_mul(1 << (self.failures - Self::FAILURES).min(16)).min(self.longest);
        let opens = self.open.is_none();
        let since = self.open.as_ref().map_or(now, |open| open.since);
        self.open = Some(Open { error: error.clone(), since, probe_at: now + pause, probing: false });
        opens
    }

    /// A call was answered. Returns since when the breaker was open, if it was.
    fn answered(&mut self) -> Option<Instant> {
        self.failures = 0;
        self.open.take().map(|open| open.since)
    }

    /// A probe ended without a result: its future was dropped.
    fn probe_was_dropped(&mut self) {
        self.open.iter_mut().for_each(|open| open.probing = false);
    }
}

/// Ends a probe that is dropped on its way.
#[derive(Debug)]
struct Probe(Arc<StoreLink>);

impl Drop for Probe {
    fn drop(&mut self) {
        self.0.breaker().probe_was_dropped();
    }
}

/// A call on its way. It ends by the deadline.
pub(crate) struct CallUnderWay {
    reply: StoreFuture<Reply>,
    terms: ReplyTerms,
    /// `None`: the store sees to it.
    deadline: Option<Pin<Box<Sleep>>>,
    link: Arc<StoreLink>,
    probe: Option<Probe>,
}

impl Future for CallUnderWay {
    type Output = Result<Reply, CallFailed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { reply, deadline, link, .. } = &mut *self;
        let poll = || match reply.as_mut().poll(cx) {
            Poll::Pending => deadline.as_mut()?.as_mut().poll(cx).is_ready().then(|| Err(link.missed())),
            Poll::Ready(answer) => Some(answer),
        };
        let answer = match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(None) => return Poll::Pending,
            Ok(Some(answer)) => answer,
            Err(panic) => Err(self.link.panicked(panic)),
        };
        self.probe = None;
        Poll::Ready(self.link.note(self.link.checked(answer, |answer| self.terms.check(answer))))
    }
}

impl fmt::Debug for CallUnderWay {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CallUnderWay").field("link", &self.link).finish_non_exhaustive()
    }
}

impl StoreLink {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        name: Arc<str>,
        deadline: Duration,
        longest_pause: Duration,
        observer: Observers,
        hears: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self {
            store,
            name,
            deadline,
            observer,
            kept: KeptKeys::new(),
            counted: Mutex::default(),
            _hears: hears,
            breaker: Mutex::new(Breaker::new(longest_pause)),
        }
    }

    /// What was counted of managers that were dropped, to read and to add to.
    pub(crate) fn counted(&self) -> MutexGuard<'_, KeyTotals> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(self: &Arc<Self>) -> Result<Option<Probe>, CallFailed> {
        let is_probe = self.breaker().admit(Instant::now).map_err(|error| CallFailed { error, may_have_run: false })?;
        Ok(is_probe.then(|| Probe(Arc::clone(self))))
    }

    /// Begins a call of the store.
    pub(crate) fn begin(self: &Arc<Self>, call: Call) -> Result<CallUnderWay, CallFailed> {
        let probe = self.admit()?;
        let terms = ReplyTerms::of(&call);
        let reply = catch_unwind(AssertUnwindSafe(|| self.store.call(call))).unwrap_or_else(|panic| {
            let error = self.panicked(panic);
            Box::pin(std::future::ready(Err(error)))
        });
        let is_sure = self.store.answers_within().is_some_and(|time| time <= self.deadline);
        let deadline = (!is_sure).then(|| Box::pin(sleep(self.deadline)));
        Ok(CallUnderWay { reply, terms, deadline, link: Arc::clone(self), probe })
    }

    /// Calls the store, within the deadline.
    pub(crate) async fn call(self: &Arc<Self>, call: Call) -> Result<Reply, CallFailed> {
        self.begin(call)?.await
    }

    /// Asks the store something, within the deadline, and checks what it answers.
    pub(crate) async fn within_deadline<T>(
        self: &Arc<Self>,
        ask: impl FnOnce() -> StoreFuture<T>,
        check: impl FnOnce(&T) -> Result<(), ReplyFault>,
    ) -> Result<T, CallFailed> {
        let probe = self.admit()?;
        let answer = timeout(self.deadline, ask()).await;
        drop(probe);
        let answer = answer.unwrap_or_else(|_| Err(self.missed()));
        self.note(self.checked(answer, |answer| answer.as_ref().map_or(Ok(()), check)))
    }

    /// An answer that is wrong is an error of the store.
    fn checked<T>(
        &self,
        answer: Result<T, StoreError>,
        check: impl FnOnce(&Result<T, StoreError>) -> Result<(), ReplyFault>,
    ) -> Result<T, StoreError> {
        let checked = check(&answer);
        checked.map_or_else(|fault| Err(StoreError::BadReply { store: self.store.name(), fault }), |()| answer)
    }

    fn panicked(&self, panic: Box<dyn Any + Send>) -> StoreError {
        std::mem::forget(panic); // its drop may panic too
        StoreError::Unanswered { store: self.store.name(), after: None, source: None }
    }

    fn missed(&self) -> StoreError {
        StoreError::Unanswered { store: self.store.name(), after: Some(self.deadline), source: None }
    }

    /// Tells the breaker of an answer.
    fn note<T>(&self, answer: Result<T, StoreError>) -> Result<T, CallFailed> {
        match &answer {
            Err(error) if error.is_down() => self.note_failure(error),
            _ => {
                let was_down = self.breaker().answered();
                if let Some(since) = was_down {
                    self.tell(EventKind::StoreUp { down_for: since.elapsed() });
                }
            }
        }
        answer.map_err(|error| CallFailed { may_have_run: error.may_have_run(), error })
    }

    fn note_failure(&self, error: &StoreError) {
        let opened = self.breaker().failed(Instant::now(), error);
        if opened {
            self.tell(EventKind::StoreDown { error: error.clone() });
        }
    }

    /// Whether calls are made, and not given up for a while.
    pub(crate) fn is_up(&self) -> bool {
        self.breaker().open.is_none()
    }

    fn tell(&self, kind: EventKind) {
        self.observer.emit(&Observation::new(&LimiterEvent::new(Some(Arc::clone(&self.name)), kind)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_opens_after_two_failures_and_lets_one_probe_through_after_a_pause() {
        let error = StoreError::Unanswered { store: "s".to_owned(), after: None, source: None };
        let (mut breaker, now) = (Breaker::new(Duration::from_secs(1)), Instant::now());
        assert_eq!((breaker.admit(|| now), breaker.failed(now, &error)), (Ok(false), false));
        assert_eq!((breaker.admit(|| now), breaker.failed(now, &error)), (Ok(false), true));
        assert_eq!(breaker.admit(|| now), Err(error.clone()));
        let later = now + Breaker::FIRST;
        assert_eq!((breaker.admit(|| later), breaker.admit(|| later)), (Ok(true), Err(error.clone())));
        assert!(!breaker.failed(later, &error), "it is open already");
        assert_eq!(breaker.admit(|| later + Breaker::FIRST), Err(error.clone()), "the pause has doubled");
        let much_later = later + 2 * Breaker::FIRST;
        assert_eq!(breaker.admit(|| much_later), Ok(true));
        assert_eq!(breaker.answered(), Some(now));
        assert_eq!((breaker.admit(|| much_later), breaker.admit(|| much_later)), (Ok(false), Ok(false)));
    }

    #[tokio::test(start_paused = true)]
    async fn its_pause_grows_to_the_longest_one() {
        let error = StoreError::Unanswered { store: "s".to_owned(), after: None, source: None };
        let longest = Duration::from_millis(300);
        let (mut breaker, now) = (Breaker::new(longest), Instant::now());
        (0..100).for_each(|_| _ = breaker.failed(now, &error));
        assert!(breaker.admit(|| now + longest - Duration::from_nanos(1)).is_err());
        assert_eq!(breaker.admit(|| now + longest), Ok(true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_is_dropped_does_not_keep_it_open() {
        let error = StoreError::Unanswered { store: "s".to_owned(), after: None, source: None };
        let (mut breaker, now) = (Breaker::new(Duration::from_secs(1)), Instant::now());
        (0..Breaker::FAILURES).for_each(|_| _ = breaker.failed(now, &error));
        let later = now + Breaker::FIRST;
        assert_eq!(breaker.admit(|| later), Ok(true));
        breaker.probe_was_dropped();
        assert_eq!(breaker.admit(|| later), Ok(true));
    }
}
