//! Work that runs under a permit.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project::pin_project;

use super::future::AcquireOwned;
use crate::error::{AcquireError, RunError};
use crate::manager::Watch;
use crate::permit::Permit;

/// A future that runs under a permit: [`Limiter::run`](crate::Limiter::run), which has an example, returns it.
/// [`KeyedLimiter::run`](crate::KeyedLimiter::run) returns one whose permit is acquired by key.
///
/// # Cancel safety
///
/// Dropping it drops the future inside, and then releases the permit or leaves the queue.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct Run<F, A = AcquireOwned> {
    /// Dropped before the permit, so that the place is free only when the work is really over.
    #[pin]
    work: Option<F>,
    held: Option<UnderPermit>,
    #[pin]
    acquire: A,
}

struct UnderPermit {
    /// Completes when the permit is reclaimed. `None` if the permit has no TTL.
    reclaimed: Option<Watch>,
    permit: Permit,
}

impl<F, A> Run<F, A> {
    pub(crate) fn new(acquire: A, work: F) -> Self {
        Self {
            work: Some(work),
            held: None,
            acquire,
        }
    }
}

impl UnderPermit {
    /// Whether the permit is still live. If it is, the task is woken when it is reclaimed.
    fn poll_live(&mut self, cx: &mut Context<'_>) -> bool {
        self.reclaimed
            .as_mut()
            .is_none_or(|reclaimed| Pin::new(reclaimed).poll(cx).is_pending())
    }
}

impl<F: Future, A: Future<Output = Result<Permit, AcquireError>>> Future for Run<F, A> {
    type Output = Result<F::Output, RunError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let mut outcome = None;
        if this.held.is_none() {
            match ready!(this.acquire.poll(cx)) {
                // If its TTL passed between the grant and this poll, the future is not polled.
                Ok(permit) if !permit.is_live() => {
                    outcome = Some(Err(RunError::Reclaimed { id: permit.id() }));
                }
                Ok(permit) => {
                    *this.held = Some(UnderPermit {
                        reclaimed: permit.watch_reclaim(),
                        permit,
                    });
                }
                Err(error) => outcome = Some(Err(error.into())),
            }
        }
        if let (Some(work), Some(held)) = (this.work.as_mut().as_pin_mut(), &mut *this.held) {
            match work.poll(cx) {
                Poll::Ready(output) => outcome = Some(Ok(output)),
                Poll::Pending if held.poll_live(cx) => return Poll::Pending,
                Poll::Pending => {
                    outcome = Some(Err(RunError::Reclaimed {
                        id: held.permit.id(),
                    }));
                }
            }
        }
        this.work.set(None);
        *this.held = None;
        Poll::Ready(outcome.expect("a run future was polled after it had completed"))
    }
}

debug_fields! {
    [F, A: std::fmt::Debug] Run<F, A>,
    |run| acquire = run.acquire, permit = run.held.as_ref().map(|held| &held.permit)
}
