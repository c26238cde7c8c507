use std::mem;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::header::CONTENT_LENGTH;
use http::{Method, Request, Response};

use super::options::Options;
use crate::acquire::random_up_to;
use crate::event::EventKind;
use crate::http::admission::Admits;
use crate::http::answer::Refusal;
use crate::http::body::{Held, LimitBody, PermitBody};
use crate::http::fields::{FieldValues, KnownPolicies};
use crate::http::grpc;
use crate::http::identity::{FindsKey, Identifies, NoIdentity};
use crate::permit::Permit;
use crate::snapshot::LimitStatus;

/// A permit, and what the limits said when they granted it.
pub(super) type Granted = (Permit, Vec<LimitStatus>);

/// How a refusal is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerForm {
    Plain,
    /// To a request with the method HEAD: without the body.
    Head,
    Grpc,
}

impl AnswerForm {
    pub(super) fn to<B>(request: &Request<B>) -> Self {
        match *request.method() {
            Method::HEAD => Self::Head,
            Method::POST if grpc::is_message(request.headers()) => Self::Grpc,
            _ => Self::Plain,
        }
    }
}

/// What the clones of a service share.
#[derive(Debug)]
pub(super) struct Shared<L, I> {
    pub(super) limiter: L,
    pub(super) identity: Arc<I>,
    pub(super) options: Options,
    pub(super) known_policies: KnownPolicies,
}

impl<L, I> Shared<L, I> {
    /// The key that was found, or the one that all share whose key is unknown.
    pub(super) fn key<B>(&self, found: Result<I::Key, NoIdentity>) -> Result<I::Key, Box<Refusal>>
    where
        I: Identifies<B>,
    {
        found.or_else(|unknown| self.identity.shared_key().ok_or_else(|| Box::new(Refusal::NoIdentity(unknown))))
    }

    /// The service has answered or failed.
    pub(super) fn end<K, R, E>(
        &self,
        result: Result<Response<R>, E>,
        (permit, limits): Granted,
        key: Option<&K>,
    ) -> Result<Response<LimitBody<R>>, E>
    where
        L: Admits<K>,
        R: http_body::Body,
    {
        let options = &self.options;
        let status = match &result {
            Ok(response) => Some(grpc::http_status(response.status(), response.headers())),
            Err(_) => None,
        };
        let mut held = Held::new(Some(permit), (options.classify)(status));
        let mut response = result.inspect_err(|_| held.complete())?;
        if let (Some(penalty), Some(key), Some(status)) = (&options.penalty, key, status) {
            match penalty(status) {
                0 => {}
                units => self.limiter.penalize(key, units),
            }
        }
        // A store that was not asked says nothing.
        if !limits.is_empty() {
            let (values, known) = (FieldValues::granted(&limits).cost(options.cost), Some(&self.known_policies));
            options.fields.write_at(response.headers_mut(), &values, known, SystemTime::now);
        }
        let (head, body) = response.into_parts();
        let body = PermitBody::of_answer(&head.headers, body, held, options.until_head);
        Ok(Response::from_parts(head, LimitBody::of_service(body)))
    }

    pub(super) fn refuse<K, R>(&self, refusal: &Refusal, key: Option<&K>, form: AnswerForm) -> Response<LimitBody<R>>
    where
        L: Admits<K>,
    {
        let &Options { ref fields, ref respond, jitter, cost, caller, .. } = &self.options;
        if let Some(reason) = refusal.reason() {
            let event = || EventKind::Refused { cost, reason, error: refusal.in_words(), requested_in: caller };
            self.limiter.tell(key, event);
        }
        let mut response = match respond {
            Some(respond) => respond(refusal),
            None if form == AnswerForm::Grpc => refusal.grpc_response(fields),
            None => refusal.response(fields),
        };
        let jitter = jitter.map_or(Duration::ZERO, random_up_to);
        refusal.write(fields, response.headers_mut(), jitter, &self.known_policies);
        match form {
            AnswerForm::Plain => {}
            AnswerForm::Head => {
                // Over HTTP/2 nobody else takes the content from an answer to HEAD.
                let len = mem::take(response.body_mut()).len();
                let _full = response.headers_mut().try_insert(CONTENT_LENGTH, len.into());
            }
            AnswerForm::Grpc => refusal.write_retry_pushback(response.headers_mut(), jitter),
        }
        response.map(LimitBody::of_refusal)
    }
}
