use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

use super::PermitBody;

/// The body of an answer through a [`LimitLayer`](crate::http::LimitLayer): that of the service, which holds the permit, or that of a
/// refusal.
#[pin_project]
#[derive(Debug)]
pub struct LimitBody<B>(#[pin] Content<B>);

#[pin_project(project = ContentProjection)]
#[derive(Debug)]
enum Content<B> {
    OfService(#[pin] PermitBody<B>),
    OfRefusal(Bytes),
}

impl<B> LimitBody<B> {
    pub(in crate::http) const fn of_service(body: PermitBody<B>) -> Self {
        Self(Content::OfService(body))
    }

    pub(in crate::http) const fn of_refusal(body: Bytes) -> Self {
        Self(Content::OfRefusal(body))
    }
}

/// Empty.
impl<B> Default for LimitBody<B> {
    fn default() -> Self {
        Self::of_refusal(Bytes::new())
    }
}

impl<B: Body<Data = Bytes>> Body for LimitBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
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
            Content::OfService(body) => body.is_end_stream(),
            Content::OfRefusal(bytes) => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Content::OfService(body) => body.size_hint(),
            Content::OfRefusal(bytes) => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}
