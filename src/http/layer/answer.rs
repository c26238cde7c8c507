//! How a `LimitLayer` asks its limiter, and what it makes of the answers of the limiter and of the service.

use std::mem;
use std::time::{Duration, SystemTime};

use http::header::CONTENT_LENGTH;
use http::{Method, Request, Response};

use super::{LayerOptions, LimitLayer};
use crate::acquire::random_up_to;
use crate::event::EventKind;
use crate::http::admission::{Admission, Admits};
use crate::http::answer::Refusal;
use crate::http::body::{HeldPermit, LimitBody, PermitBody};
use crate::http::fields::{FieldValues, set_retry_pushback};
use crate::http::grpc;
use crate::http::identity::{Identifies, NoIdentity};
use crate::permit::Permit;
use crate::snapshot::LimitStatus;

/// A permit, and what the limits said when they granted it.
pub(super) type Granted = (Permit, Vec<LimitStatus>);

/// How a refusal is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerForm {
    Plain,
    /// The answer to a HEAD request, which has no body.
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

impl<L, I> LimitLayer<L, I> {
    /// Asks the limiter for the key that was found, or for the one that requests share whose key is unknown. Stores it in `key`.
    #[inline]
    pub(super) fn ask<B>(
        &self,
        found: Result<I::Key, NoIdentity>,
        key: &mut Option<I::Key>,
    ) -> Admission
    where
        I: Identifies<B>,
        L: Admits<I::Key>,
    {
        match found.or_else(|unknown| self.identity.shared_key().ok_or(unknown)) {
            Ok(found) => self.limiter.ask(key.insert(found), self.options.terms()),
            Err(unknown) => Admission::Now(Err(Box::new(Refusal::NoIdentity(unknown)))),
        }
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
        let mut held = HeldPermit::new(Some(permit), (options.classify)(status));
        let mut response = result.inspect_err(|_| held.complete())?;
        if let (Some(penalty), Some(key), Some(status)) = (&options.penalty, key, status) {
            match penalty(status) {
                0 => {}
                units => self.limiter.penalize(key, units),
            }
        }
        // If the store was not asked, no limit has a state.
        if !limits.is_empty() {
            let values = FieldValues::granted(&limits).cost(options.cost);
            let (headers, known) = (response.headers_mut(), Some(&self.known_policies));
            options
                .fields
                .write_at(headers, &values, known, SystemTime::now);
        }
        let (head, body) = response.into_parts();
        let body = PermitBody::of_answer(&head.headers, body, held, options.until_head);
        Ok(Response::from_parts(head, LimitBody::of_service(body)))
    }

    pub(super) fn refuse<K, R>(
        &self,
        refusal: &Refusal,
        key: Option<&K>,
        form: AnswerForm,
    ) -> Response<LimitBody<R>>
    where
        L: Admits<K>,
    {
        let &LayerOptions {
            ref fields,
            ref respond,
            jitter,
            cost,
            caller,
            ..
        } = &self.options;
        if let Some(reason) = refusal.reason() {
            let event = || EventKind::Refused {
                cost,
                reason,
                error: refusal.in_words(),
                requested_in: caller,
            };
            self.limiter.tell(key, event);
        }
        let mut response = match respond {
            Some(respond) => respond(refusal),
            None if form == AnswerForm::Grpc => refusal.grpc_response(fields),
            None => refusal.response(fields),
        };
        let jitter = jitter.map_or(Duration::ZERO, random_up_to);
        let (headers, known) = (response.headers_mut(), Some(&self.known_policies));
        fields.write_at(
            headers,
            &refusal.values().jitter(jitter),
            known,
            SystemTime::now,
        );
        match form {
            AnswerForm::Plain => {}
            AnswerForm::Head => {
                // Over HTTP/2 no other layer takes the content from an answer to HEAD.
                let len = mem::take(response.body_mut()).len();
                let _full = response
                    .headers_mut()
                    .try_insert(CONTENT_LENGTH, len.into());
            }
            AnswerForm::Grpc => {
                if let Some(wait) = refusal.retry_after() {
                    set_retry_pushback(response.headers_mut(), wait.saturating_add(jitter));
                }
            }
        }
        response.map(LimitBody::of_refusal)
    }
}
