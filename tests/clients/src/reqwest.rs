use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use reqwest::{Body, Client, ClientBuilder};
use tollgate::layers::{OutboundLayer, UpstreamFamily, UpstreamReader};
use tollgate::{Limiter, MaxConcurrency};

use crate::server::{Limits, PLACES, QUEUE, serve};

/// One client for HTTP/1 and one for HTTP/2.
fn clients(with: impl Fn(ClientBuilder) -> ClientBuilder) -> [Client; 2] {
    // With the features of the whole workspace, reqwest needs a provider of TLS, also for http://.
    let _ = rustls::crypto::ring::default_provider().install_default();
    [Client::builder(), Client::builder().http2_prior_knowledge()]
        .map(|builder| with(builder.no_proxy()).build().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reqwest_is_granted_and_refused_with_the_fields() {
    for client in clients(|builder| builder) {
        let limits = Limits::new("window 1/h");
        let url = format!("http://{}/", serve(&limits).await);
        let granted = client.get(&url).send().await.unwrap();
        assert_eq!(granted.status(), 200);
        assert!(
            granted.headers()["ratelimit"]
                .to_str()
                .unwrap()
                .starts_with(r#""places";r=3, "quota";r=0;t="#)
        );
        assert_eq!(granted.text().await.unwrap(), "hello");
        let refused = client.get(&url).send().await.unwrap();
        assert_eq!(
            (
                refused.status().as_u16(),
                &refused.headers()["content-type"]
            ),
            (429, &"application/problem+json".parse().unwrap())
        );
        let after: u64 = refused.headers()["retry-after"]
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        assert!((3_500..=3_600).contains(&after));
        assert!(
            refused
                .text()
                .await
                .unwrap()
                .contains(r#""violated-policies":["quota"]"#)
        );
        limits.come_to_rest().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_are_cut_leave_nothing_behind() {
    for client in clients(|builder| builder) {
        let limits = Limits::new("window 1000/h");
        let address = serve(&limits).await;
        let mut response = client
            .get(format!("http://{address}/endless"))
            .send()
            .await
            .unwrap();
        assert!(response.chunk().await.unwrap().is_some());
        limits.come_to([1, 0, 1]).await;
        drop(response);
        limits.come_to_rest().await;

        let response = client
            .get(format!("http://{address}/cut"))
            .send()
            .await
            .unwrap();
        assert!(response.bytes().await.is_err());
        limits.come_to_rest().await;

        // The body of the request breaks off.
        let parts = futures_util::stream::iter([Ok(Bytes::from("half")), Err("the file is gone")]);
        assert!(
            client
                .post(format!("http://{address}/upload"))
                .body(Body::wrap_stream(parts))
                .send()
                .await
                .is_err()
        );
        limits.come_to_rest().await;
        assert!(
            client
                .get(format!("http://{address}/panics"))
                .send()
                .await
                .is_err()
        );
        limits.come_to_rest().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_gives_up_leaves_its_place_and_the_queue() {
    for client in clients(|builder| builder.timeout(Duration::from_millis(500))) {
        let limits = Limits::new("window 1000/h");
        let url = format!("http://{}/never", serve(&limits).await);
        let all = futures_util::stream::iter(0..PLACES + QUEUE).map(|_| client.get(&url).send());
        let gave_up: Vec<_> = all
            .buffer_unordered(64)
            .map(|result| result.unwrap_err().is_timeout())
            .collect()
            .await;
        assert_eq!(gave_up, [true; (PLACES + QUEUE) as usize]);
        limits.come_to_rest().await;
        assert!(limits.granted() >= PLACES);
    }
}

/// The layer of clients obeys the fields of the layer of servers, so no request is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_layers_together_refuse_nothing() {
    for client in clients(|builder| builder) {
        let limits = Limits::new("window 3/s");
        let url = format!("http://{}/", serve(&limits).await);
        let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
        let limited = OutboundLayer::new(&limiter)
            .upstream(UpstreamReader::new(UpstreamFamily::Draft10))
            .reqwest(client.clone());
        for _ in 0..8 {
            let response = limited.execute(client.get(&url).build().unwrap()).await;
            let response = response.unwrap();
            assert_eq!(
                (response.status().as_u16(), response.url().as_str()),
                (200, &*url)
            );
            assert_eq!(limiter.snapshot().in_flight, 1);
            response.bytes().await.unwrap();
        }
        limits.come_to_rest().await;
        assert_eq!(limiter.snapshot().in_flight, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_of_bytes_is_sent_again_and_a_stream_is_not() {
    for client in clients(|builder| builder) {
        let limits = Limits::new("window 1/s");
        let url = format!("http://{}/", serve(&limits).await);
        let limiter = Limiter::new(MaxConcurrency::new(8)).unwrap();
        let limited = OutboundLayer::new(&limiter)
            .retry(2)
            .reqwest(client.clone());
        let send = async |body: Body| {
            let request = client.get(&url).body(body).build().unwrap();
            limited.execute(request).await.unwrap().status().as_u16()
        };
        let stream =
            || Body::wrap_stream(futures_util::stream::iter([Ok::<_, Infallible>("text")]));
        assert_eq!(send("text".into()).await, 200);
        assert_eq!(send("text".into()).await, 200);
        assert_eq!(send(stream()).await, 429);
        limits.come_to_rest().await;
        assert_eq!(limiter.snapshot().in_flight, 0);
    }
}
