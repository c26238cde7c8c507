use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

use crate::permit::Permit;
use crate::strategy::Outcome;

/// The body of a response to an [`Outbound`](super::Outbound) service, with the permit of its request. When it has ended, the outcome is
/// [reported](Permit::report) and the permit released; when it fails or is dropped before, the permit is released, and only an overload
/// is reported.
///
/// ```
/// use http::{Request, Response};
/// use http_body::Body as _;
/// use tollgate::http::OutboundLayer;
/// use tollgate::{Limiter, MaxConcurrency};
/// use tower::{Layer, ServiceExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(MaxConcurrency::new(1))?;
/// let client = tower::service_fn(|_: Request<()>| async { Ok::<_, std::io::Error>(Response::new(String::from("hello"))) });
/// let response = OutboundLayer::new(limiter.clone()).layer(client).oneshot(Request::new(())).await?;
/// assert_eq!((response.body().size_hint().exact(), limiter.snapshot().in_flight), (Some(5), 1));
/// drop(response);
/// assert_eq!(limiter.snapshot().in_flight, 0);
/// # Ok(())
/// # }
/// ```
#[pin_project]
#[derive(Debug)]
pub struct OutboundBody<B> {
    #[pin]
    body: B,
    call: Option<Call>,
    /// If it is received to its end.
    outcome: Outcome,
}

/// A permit whose drop tells the outcome.
#[derive(Debug)]
pub(super) struct Call {
    permit: Option<Permit>,
    /// If it ends now.
    outcome: Outcome,
}

impl Call {
    pub(super) fn new(permit: Permit) -> Self {
        Self { permit: Some(permit), outcome: Outcome::Ignored }
    }

    pub(super) fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            permit.report(self.outcome);
        }
    }
}

impl<B: Body> OutboundBody<B> {
    /// The outcome is that of the head.
    pub(super) fn new(body: B, mut call: Option<Call>, outcome: Outcome, until_head: bool) -> Self {
        if until_head || body.is_end_stream() {
            call.take().into_iter().for_each(|call| call.end(outcome));
        }
        if let Some(call) = call.as_mut().filter(|_| outcome == Outcome::Overloaded) {
            call.outcome = outcome; // whatever becomes of the body
        }
        Self { body, call, outcome }
    }
}

impl<B: Body> Body for OutboundBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.body.as_mut().poll_frame(cx));
        // Whoever reads does not ask for a frame after the last one.
        if frame.is_none() || this.body.is_end_stream() {
            this.call.take().into_iter().for_each(|call| call.end(*this.outcome));
        } else if matches!(frame, Some(Err(_))) {
            *this.call = None;
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
