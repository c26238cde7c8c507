//! The bodies of responses: they hold a permit until they have ended, and then report the outcome.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::StatusCode;
use http::header::{CONTENT_LENGTH, HeaderMap};
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

use super::actual_cost::ActualCost;
use super::upstream::whole;
use crate::permit::Permit;
use crate::strategy::Outcome;

/// The body of a response, with the permit under which it is sent or received. The permit is released when the body has ended or
/// failed, or is dropped.
///
/// In the response of an [`OutboundLayer`](super::OutboundLayer), or of a [`LimitLayer`](super::LimitLayer) within its
/// [`LimitBody`], the outcome is [reported](Permit::report) when the body has ended. If the body fails or is dropped earlier,
/// only an overload is reported.
///
/// ```
/// use http_body::Body as _;
/// use tollgate::layers::PermitBody;
/// use tollgate::{Limiter, MaxConcurrency};
///
/// let limiter = Limiter::new(MaxConcurrency::new(1))?;
/// let body = PermitBody::new(String::from("hello"), Some(limiter.try_acquire()?));
/// assert_eq!((body.size_hint().exact(), limiter.snapshot().in_flight), (Some(5), 1));
/// drop(body);
/// assert_eq!(limiter.snapshot().in_flight, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[pin_project]
#[derive(Debug)]
pub struct PermitBody<B> {
    #[pin]
    body: B,
    held: HeldPermit,
    /// The bytes that the head announced and that have not passed yet.
    left: Option<u64>,
}

impl<B> PermitBody<B> {
    /// A body that holds this permit. Even an empty body keeps the permit until it is dropped.
    pub fn new(body: B, mut permit: Option<Permit>) -> Self {
        Self {
            body,
            held: HeldPermit::new(&mut permit, None, || Outcome::Ignored),
            left: None,
        }
    }

    /// The body of a response with this head. An empty body is complete at once, because it is never polled.
    pub(super) fn of_answer(
        head: &HeaderMap,
        body: B,
        mut held: HeldPermit,
        until_head: bool,
    ) -> Self
    where
        B: Body,
    {
        if until_head || body.is_end_stream() {
            held.complete();
        }
        let announced = || whole(head.get(CONTENT_LENGTH)?.to_str().ok()?);
        let left = if held.holds() { announced() } else { None };
        Self { body, held, left }
    }
}

impl<B: Default> Default for PermitBody<B> {
    fn default() -> Self {
        Self::new(B::default(), None)
    }
}

impl<B: Body> Body for PermitBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.body.as_mut().poll_frame(cx));
        if let (Some(left), Some(Ok(frame))) = (this.left.as_mut(), &frame) {
            *left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.remaining() as u64));
        }
        match &frame {
            Some(Err(_)) => this.held.give_up(),
            None => this.held.complete(),
            // A server does not poll for a frame after the last one.
            Some(Ok(frame))
                if frame.is_trailers() || *this.left == Some(0) || this.body.is_end_stream() =>
            {
                this.held.complete();
            }
            Some(Ok(_)) => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a response through a [`LimitLayer`](crate::layers::LimitLayer): the body of the service, which holds the permit, or
/// the body of a refusal.
#[pin_project]
#[derive(Debug)]
pub struct LimitBody<B>(#[pin] BodyContent<B>);

#[pin_project(project = ContentProjection)]
#[derive(Debug)]
enum BodyContent<B> {
    OfService(#[pin] PermitBody<B>),
    OfRefusal(Bytes),
}

impl<B> LimitBody<B> {
    pub(super) const fn of_service(body: PermitBody<B>) -> Self {
        Self(BodyContent::OfService(body))
    }

    pub(super) const fn of_refusal(body: Bytes) -> Self {
        Self(BodyContent::OfRefusal(body))
    }
}

/// An empty body.
impl<B> Default for LimitBody<B> {
    fn default() -> Self {
        Self::of_refusal(Bytes::new())
    }
}

impl<B: Body<Data = Bytes>> Body for LimitBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().0.project() {
            ContentProjection::OfService(body) => body.poll_frame(cx),
            ContentProjection::OfRefusal(bytes) => {
                let bytes = std::mem::take(bytes);
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            BodyContent::OfService(body) => body.is_end_stream(),
            BodyContent::OfRefusal(bytes) => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            BodyContent::OfService(body) => body.size_hint(),
            BodyContent::OfRefusal(bytes) => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}

/// A permit that is held until the work has ended; nothing if the end does not matter to its limiter. It is boxed, because most
/// responses hold nothing, and are moved several times.
#[derive(Debug)]
pub(super) struct HeldPermit(Option<Box<Held>>);

#[derive(Debug)]
struct Held {
    permit: Permit,
    /// What is reported when the work ends.
    outcome: Outcome,
    settled_by: Option<SettledBy>,
}

/// What a permit is settled by, and when.
#[derive(Debug)]
pub(super) enum SettledBy {
    /// When the work ends.
    AtEnd(ActualCost),
    /// When the work has ended, and no clone of the cost is left.
    LastClone(ActualCost),
}

impl HeldPermit {
    /// Takes the permit out, and drops it if it holds nothing.
    #[inline]
    pub(super) fn new(
        permit: &mut Option<Permit>,
        settled_by: Option<SettledBy>,
        outcome: impl FnOnce() -> Outcome,
    ) -> Self {
        if permit.as_ref().is_some_and(Permit::may_hold_place) || settled_by.is_some() {
            return Self::holding(permit, settled_by, outcome());
        }
        *permit = None;
        Self(None)
    }

    #[inline(never)]
    fn holding(
        permit: &mut Option<Permit>,
        settled_by: Option<SettledBy>,
        outcome: Outcome,
    ) -> Self {
        let held = |permit| Held {
            permit,
            outcome,
            settled_by,
        };
        Self(permit.take().map(|permit| Box::new(held(permit))))
    }

    /// Whether the end of the work matters to the limiter.
    pub(super) fn holds(&self) -> bool {
        self.0.is_some()
    }

    /// Reports the outcome of finished work, and settles and releases the permit.
    pub(super) fn complete(&mut self) {
        if let Some(held) = self.0.take() {
            let outcome = held.outcome;
            held.end(Some(outcome));
        }
    }

    /// Releases the permit of work that was broken off. The duration means nothing then, so only an overload is reported.
    pub(super) fn give_up(&mut self) {
        if let Some(held) = self.0.take() {
            let outcome = Some(held.outcome);
            held.end(outcome.filter(|outcome| *outcome == Outcome::Overloaded));
        }
    }
}

impl Drop for HeldPermit {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Held {
    fn end(self, outcome: Option<Outcome>) {
        match (self.settled_by, outcome) {
            (Some(SettledBy::AtEnd(actual)), _) => actual.settle(self.permit, outcome),
            (Some(SettledBy::LastClone(actual)), _) => actual.settle_last(self.permit, outcome),
            (None, Some(outcome)) => {
                self.permit.report(outcome);
            }
            (None, None) => drop(self.permit),
        }
    }
}

/// The outcome of a call by the status of its response.
///
/// 408, 429, 503, 504 and 529 are overloads, and so is a missing response, usually a timeout or a failed connection. Other errors
/// are ignored: they show nothing about the load, because they may have taken no work.
pub(super) fn outcome_of(status: Option<StatusCode>) -> Outcome {
    match status.map(|status| status.as_u16()) {
        Some(408 | 429 | 503 | 504 | 529) | None => Outcome::Overloaded,
        Some(400..) => Outcome::Ignored,
        Some(_) => Outcome::Ok,
    }
}
