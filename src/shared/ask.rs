use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::task::coop;

use crate::core::dialogue::Denied;
use crate::core::schedule::{Asked, Enqueued};
use crate::core::waiter::WaiterId;
use crate::error::{AcquireError, TryAcquireError};
use crate::manager::{FromGrant, Manager, RequestOptions, TimedGrant};
use crate::permit::Permit;
use crate::snapshot::LimitStatus;

/// A request to a store that does not wait for its turn, only for the reply. [`SharedLimiter::try_acquire`](super::SharedLimiter::try_acquire)
/// returns it.
///
/// # Cancel safety
///
/// Dropping it loses nothing: what the store has granted goes back.
#[must_use = "futures do nothing unless polled"]
pub struct TryAcquireShared {
    manager: Arc<Manager>,
    options: RequestOptions,
    stage: Stage,
    /// What each limit said when it denied.
    limits: Vec<LimitStatus>,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    New,
    Queued(WaiterId),
    Done,
}

impl TryAcquireShared {
    pub(super) fn new(manager: Arc<Manager>, options: RequestOptions) -> Self {
        Self { manager, options, stage: Stage::New, limits: Vec::new() }
    }

    /// Its answer, and what each limit said then.
    pub(super) async fn explained(mut self) -> (Result<Permit, TryAcquireError>, Vec<LimitStatus>) {
        self.options.ask_for_explanation();
        let answer = (&mut self).await;
        let limits = match &answer {
            Ok(permit) => self.manager.take_explanation(permit.fence()),
            Err(_) => std::mem::take(&mut self.limits),
        };
        (answer, limits)
    }

    fn denied(&mut self, denied: Denied) -> TryAcquireError {
        self.limits = denied.limits;
        TryAcquireError::Denied(denied.decision)
    }

    /// Asks, if that was not done yet.
    fn begin(&mut self, cx: &Context<'_>) -> Result<Option<Permit>, TryAcquireError> {
        if let Stage::New = self.stage {
            self.stage = Stage::Done;
            match self.manager.ask_once(&self.options, cx.waker()).map_err(without_decision)? {
                Asked::Queued(id) => self.stage = Stage::Queued(id),
                Asked::Denied(denied) => return Err(self.denied(denied)),
                Asked::Granted(grant) => {
                    let granted = TimedGrant { grant, origin: self.manager.clock_origin() };
                    return Ok(Some(Permit::held(&self.manager, granted, self.options.cost)));
                }
            }
        }
        Ok(None)
    }

    fn answer(&mut self, cx: &Context<'_>) -> Poll<Result<Permit, TryAcquireError>> {
        let Stage::Queued(id) = self.stage else { panic!("a try_acquire future was polled after it had completed") };
        let mut granted = TimedGrant::NOTHING;
        match self.manager.poll(id, self.options.cost, cx.waker(), &mut granted) {
            Ok(Enqueued::Queued(_)) => Poll::Pending,
            Ok(Enqueued::Granted(())) => {
                self.stage = Stage::Done;
                Poll::Ready(Ok(Permit::held(&self.manager, granted, self.options.cost)))
            }
            Err(error) => {
                self.stage = Stage::Done;
                Poll::Ready(Err(match self.manager.take_denied(id) {
                    Some(denied) => self.denied(denied),
                    None => without_decision(error.error),
                }))
            }
        }
    }
}

/// The error of a request that was not denied by the store.
fn without_decision(error: AcquireError) -> TryAcquireError {
    match error {
        AcquireError::ExceedsLimit { cost, max, limit } => TryAcquireError::ExceedsLimit { cost, max, limit },
        AcquireError::MissingCost { unit, limit } => TryAcquireError::MissingCost { unit, limit },
        AcquireError::ZeroCost => TryAcquireError::ZeroCost,
        AcquireError::Store(error) => TryAcquireError::Store(error),
        AcquireError::Closed => TryAcquireError::Closed,
        error => TryAcquireError::NotAsked(Box::new(error)),
    }
}

impl Future for TryAcquireShared {
    type Output = Result<Permit, TryAcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // A task that is denied in a loop must let its neighbours have a turn: nothing else may be awaited there.
        let progress = ready!(coop::poll_proceed(cx));
        let answer = match self.begin(cx) {
            Ok(None) => ready!(self.answer(cx)),
            Ok(Some(permit)) => Ok(permit),
            Err(error) => Err(error),
        };
        progress.made_progress();
        Poll::Ready(answer)
    }
}

impl Drop for TryAcquireShared {
    fn drop(&mut self) {
        if let Stage::Queued(id) = self.stage {
            self.manager.abandon(id, self.options.cost);
        }
    }
}

impl fmt::Debug for TryAcquireShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TryAcquireShared").field("stage", &self.stage).finish_non_exhaustive()
    }
}
