use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project::pin_project;
use tower_service::Service;

use super::shared::{AnswerForm, Granted, Shared};
use crate::http::admission::{Admits, Asked, Asking};
use crate::http::answer::Refusal;
use crate::http::body::LimitBody;
use crate::http::identity::{FoundKey, Identifies};

/// The answer of a service behind a [`LimitLayer`](super::LimitLayer), which has an example.
///
/// # Cancel safety
///
/// Dropped while it waits, it leaves the queue, and nothing was taken. Dropped later, it releases its permit; units of a rate stay spent.
#[pin_project]
pub struct LimitFuture<S: Service<Request<B>>, B, L, I: Identifies<B>> {
    #[pin]
    stage: Stage<S, B, I::Future, S::Future>,
    key: Option<I::Key>,
    shared: Arc<Shared<L, I>>,
}

/// A call of a ready service that waits. It is taken once.
type Call<S, B> = Option<(S, Request<B>)>;

#[pin_project(project = StageProjection)]
enum Stage<S, B, F, G> {
    Identifying(#[pin] F, Call<S, B>),
    Asking(#[pin] Asking, Call<S, B>),
    Calling(#[pin] G, Option<Granted>),
    Refused(Box<Refusal>, AnswerForm),
    Done,
}

impl<S: Service<Request<B>>, B, L, I: Identifies<B>> LimitFuture<S, B, L, I> {
    pub(super) fn identifying(finding: I::Future, service: S, request: Request<B>, shared: Arc<Shared<L, I>>) -> Self {
        Self { stage: Stage::Identifying(finding, Some((service, request))), key: None, shared }
    }

    pub(super) fn asking(asking: Asking, key: I::Key, service: S, request: Request<B>, shared: Arc<Shared<L, I>>) -> Self {
        Self { stage: Stage::Asking(asking, Some((service, request))), key: Some(key), shared }
    }

    pub(super) fn calling(call: S::Future, granted: Granted, key: I::Key, shared: Arc<Shared<L, I>>) -> Self {
        Self { stage: Stage::Calling(call, Some(granted)), key: Some(key), shared }
    }

    pub(super) fn refused(refusal: Box<Refusal>, key: Option<I::Key>, request: &Request<B>, shared: Arc<Shared<L, I>>) -> Self {
        Self { stage: Stage::refused(refusal, request), key, shared }
    }
}

impl<S, B, R, L, I> Future for LimitFuture<S, B, L, I>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: http_body::Body,
    I: Identifies<B>,
    L: Admits<I::Key>,
{
    type Output = Result<Response<LimitBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let shared = &**this.shared;
        loop {
            let next = match this.stage.as_mut().project() {
                StageProjection::Identifying(finding, call) => {
                    let found = ready!(finding.poll(cx)).found();
                    match (shared.key(found), call.take()) {
                        (Ok(key), Some(call)) => {
                            let asked = shared.limiter.ask(&key, shared.options.terms());
                            *this.key = Some(key);
                            match asked {
                                Asked::Later(asking) => Stage::Asking(asking, Some(call)),
                                Asked::Now(answer) => Stage::answered(answer, call),
                            }
                        }
                        (Err(refusal), Some((_, request))) => Stage::refused(refusal, &request),
                        (_, None) => Stage::Done,
                    }
                }
                StageProjection::Asking(asking, call) => {
                    let answer = ready!(asking.poll(cx));
                    match call.take() {
                        Some(call) => Stage::answered(answer, call),
                        None => Stage::Done,
                    }
                }
                StageProjection::Calling(call, granted) => {
                    let result = ready!(call.poll(cx));
                    let granted = granted.take();
                    this.stage.set(Stage::Done);
                    let Some(granted) = granted else { continue };
                    return Poll::Ready(shared.end(result, granted, this.key.as_ref()));
                }
                StageProjection::Refused(refusal, form) => {
                    if I::HAS_KEYS {
                        refusal.set_by_key();
                    }
                    let response = shared.refuse(refusal, this.key.as_ref(), *form);
                    this.stage.set(Stage::Done);
                    return Poll::Ready(Ok(response));
                }
                StageProjection::Done => panic!("a LimitFuture was polled after it had completed"),
            };
            this.stage.set(next);
        }
    }
}

impl<S, B, F, G> Stage<S, B, F, G> {
    fn refused(refusal: Box<Refusal>, request: &Request<B>) -> Self {
        Self::Refused(refusal, AnswerForm::to(request))
    }
}

impl<S: Service<Request<B>>, B, F> Stage<S, B, F, S::Future> {
    fn answered(answer: Result<Granted, Box<Refusal>>, (mut service, request): (S, Request<B>)) -> Self {
        match answer {
            Ok(granted) => Self::Calling(service.call(request), Some(granted)),
            Err(refusal) => Self::refused(refusal, &request),
        }
    }
}

impl<S: Service<Request<B>>, B, L, I: Identifies<B>> fmt::Debug for LimitFuture<S, B, L, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            Stage::Identifying(..) => "identifying",
            Stage::Asking(..) => "asking",
            Stage::Calling(..) => "calling",
            Stage::Refused(..) => "refused",
            Stage::Done => "done",
        };
        f.debug_struct("LimitFuture").field("stage", &stage).finish_non_exhaustive()
    }
}
