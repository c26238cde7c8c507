//! A client of reqwest under an `OutboundLayer`.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use reqwest::{Body, Client, Error, ResponseBuilderExt as _};
use tower_layer::Layer;
use tower_service::Service;

use super::retry::{CloneBody, Cloned, NoRetry, OutboundRetry, Retry};
use super::{ByStatus, OutboundClassifier, OutboundError, OutboundLayer, OutboundService};

/// A client of reqwest whose requests wait for a limiter. [`OutboundLayer::reqwest`], which has an example, makes it.
#[derive(Debug, Clone)]
pub struct ReqwestClient<C = ByStatus, R = NoRetry>(OutboundService<ReqwestService, C, R>);

impl<C: Clone, R: RetriesReqwest> OutboundLayer<C, R> {
    /// Puts the layer around a client of reqwest. This needs the feature `reqwest`.
    ///
    /// Turn redirects off in the client, as here: it would follow them without a permit for the host that they lead to. With
    /// [`retry`](Self::retry), a request is sent again unless its body is a stream.
    ///
    /// ```no_run
    /// use reqwest::redirect::Policy;
    /// use tollgate::KeyedLimiter;
    /// use tollgate::layers::OutboundLayer;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = reqwest::Client::builder().redirect(Policy::none()).build()?;
    /// let limited = OutboundLayer::by_host(KeyedLimiter::new("8 concurrent and 100/min")?).retry(2).reqwest(client.clone());
    /// let response = limited.execute(client.get("https://example.org/").build()?).await?;
    /// println!("{}", response.text().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn reqwest(self, client: Client) -> ReqwestClient<C, R::ForBody> {
        let layer = OutboundLayer {
            common: self.common,
            classifier: self.classifier,
            retry: self.retry.for_body(),
        };
        ReqwestClient(layer.layer(ReqwestService(client)))
    }
}

impl<C: OutboundClassifier<Error>, R: OutboundRetry<Body>> ReqwestClient<C, R> {
    /// Waits for a permit and sends the request. The permit is held as the [layer](OutboundLayer) says. See
    /// [`OutboundLayer::reqwest`] for an example.
    ///
    /// # Cancel safety
    ///
    /// As that of an [`OutboundFuture`](super::OutboundFuture).
    ///
    /// # Errors
    ///
    /// [`OutboundError::Acquire`] without a permit, or the error of the client.
    pub async fn execute(
        &self,
        request: reqwest::Request,
    ) -> Result<reqwest::Response, OutboundError<Error>> {
        let request = request.try_into().map_err(OutboundError::Service)?;
        let mut service = self.0.clone();
        poll_fn(|cx| service.poll_ready(cx)).await?;
        let (head, body) = service.call(request).await?.into_parts();
        Ok(Response::from_parts(head, Body::wrap(body)).into())
    }
}

/// A client of reqwest as a service with the types of `http`.
#[derive(Debug, Clone)]
struct ReqwestService(Client);

impl Service<Request<Body>> for ReqwestService {
    type Response = Response<Body>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let client = self.0.clone();
        Box::pin(async move {
            let response = client.execute(request.try_into()?).await?;
            let url = Response::builder().url(response.url().clone()).body(());
            let mut response: Response<Body> = response.into();
            if let Ok(url) = url {
                // Else the conversion back would make a URL up.
                let (url, ()) = url.into_parts();
                response.extensions_mut().extend(url.extensions);
            }
            Ok(response)
        })
    }
}

/// How a layer sends a request of reqwest again. Other crates cannot name this trait.
pub trait RetriesReqwest {
    type ForBody: OutboundRetry<Body> + Clone;

    fn for_body(self) -> Self::ForBody;
}

impl RetriesReqwest for NoRetry {
    type ForBody = Self;

    fn for_body(self) -> Self {
        self
    }
}

impl<F: ClonesReqwest> RetriesReqwest for Retry<F> {
    type ForBody = Retry<F::ForBody>;

    fn for_body(self) -> Retry<F::ForBody> {
        Retry {
            times: self.times,
            unavailable: self.unavailable,
            clone: self.clone.for_body(),
            budget: self.budget,
        }
    }
}

/// How a layer clones a body of reqwest. Other crates cannot name this trait.
pub trait ClonesReqwest {
    type ForBody: CloneBody<Body> + Clone;

    fn for_body(self) -> Self::ForBody;
}

impl ClonesReqwest for Cloned {
    type ForBody = ClonedBytes;

    fn for_body(self) -> ClonedBytes {
        ClonedBytes
    }
}

impl<F: Fn(&Body) -> Option<Body> + Clone> ClonesReqwest for F {
    type ForBody = F;

    fn for_body(self) -> F {
        self
    }
}

/// Clones the body of a request unless it is a stream.
#[derive(Debug, Clone, Copy)]
pub struct ClonedBytes;

impl CloneBody<Body> for ClonedBytes {
    fn clone_body(&self, body: &Body) -> Option<Body> {
        let bytes = body.as_bytes()?;
        Some(bytes.to_vec().into())
    }
}
