mod held;
mod limited;

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use http::header::{CONTENT_LENGTH, HeaderMap};
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

use crate::permit::Permit;
use crate::strategy::Outcome;

pub use limited::LimitBody;

pub(super) use held::Held;

/// The body of a response, with the permit under which it is sent or received. The permit is released when the body has ended or
/// failed, or is dropped.
///
/// In the answer of an [`OutboundLayer`](super::OutboundLayer), or of a [`LimitLayer`](super::LimitLayer) within its
/// [`LimitBody`], the outcome is [reported](Permit::report) when the body has ended. When it fails or is dropped before, only an overload is.
///
/// ```
/// use http_body::Body as _;
/// use tollgate::http::PermitBody;
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
    held: Held,
    /// What the head has announced, less what was sent: in bytes.
    left: Option<u64>,
}

impl<B> PermitBody<B> {
    /// A body that holds this permit. One that has nothing to send keeps it all the same until it is dropped.
    pub const fn new(body: B, permit: Option<Permit>) -> Self {
        Self { body, held: Held::new(permit, Outcome::Ignored), left: None }
    }

    /// Of an answer with this head. Nobody polls a body that has nothing to send.
    pub(super) fn of_answer(head: &HeaderMap, body: B, mut held: Held, until_head: bool) -> Self
    where
        B: Body,
    {
        if until_head || body.is_end_stream() {
            held.complete();
        }
        let announced = || head.get(CONTENT_LENGTH)?.to_str().ok().filter(|text| !text.starts_with('+'))?.parse().ok();
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

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.body.as_mut().poll_frame(cx));
        if let (Some(left), Some(Ok(frame))) = (this.left.as_mut(), &frame) {
            *left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.remaining() as u64));
        }
        match &frame {
            Some(Err(_)) => this.held.give_up(),
            None => this.held.complete(),
            // A server does not ask for a frame after the last one.
            Some(Ok(frame)) if frame.is_trailers() || *this.left == Some(0) || this.body.is_end_stream() => this.held.complete(),
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
