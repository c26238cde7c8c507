//! TLS between a process and its store: on the real servers of `scripts/servers`, with certificates of an authority of its own.

use std::error::Error;
use std::time::{Duration, Instant};

use tokio::time::timeout;
use tollgate::store::{Store, StoreError};
use tollgate::{AcquireError, SharedLimiter};

use crate::support::server::Server;

const SOON: Duration = Duration::from_secs(60);

fn variable(name: &str) -> String {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty());
    value.unwrap_or_else(|| panic!("set {name}, or run the tests by scripts/servers"))
}

fn certificate(name: &str) -> Vec<u8> {
    std::fs::read(variable(name)).unwrap()
}

/// The error and its causes.
fn chain(error: &StoreError) -> String {
    let mut texts = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        texts.push(error.to_string());
        cause = error.source();
    }
    texts.join(": ")
}

async fn calls_and_messages_arrive<S: Store>(open: impl Fn() -> S) {
    let name = uuid::Uuid::new_v4().to_string();
    let [one, other] = [(); 2].map(|()| SharedLimiter::new(open(), &name, "1 concurrent").unwrap());
    let held = timeout(SOON, one.acquire()).await.unwrap().unwrap();
    let waits = other.acquire_owned();
    let waits = tokio::spawn(async move { (waits.await.unwrap(), Instant::now()) });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let released = Instant::now();
    drop(held);
    let (_place, granted) = timeout(SOON, waits).await.unwrap().unwrap();
    assert!(
        granted - released < Duration::from_millis(400),
        "{:?}",
        granted - released
    );
}

/// Nothing is granted, and the error says why.
async fn is_refused(store: Result<impl Store, StoreError>, because: &[&str]) {
    let error = match store {
        Err(error) => error,
        Ok(store) => {
            let limiter = SharedLimiter::builder(store, "refused", "1000/s")
                .deadline(SOON)
                .build()
                .unwrap();
            match timeout(SOON, limiter.acquire()).await.unwrap() {
                Err(AcquireError::Store(error)) => *error,
                other => panic!("{other:?}"),
            }
        }
    };
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    let text = chain(&error);
    assert!(because.iter().any(|reason| text.contains(reason)), "{text}");
}

macro_rules! tls {
    ($store:ident, $url:literal, $server:literal, $open:expr, $plain:expr) => {
        mod $store {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn calls_and_messages_arrive() {
                let (url, authority) = (variable($url), certificate("TOLLGATE_TLS_AUTHORITY"));
                super::calls_and_messages_arrive(|| {
                    ($open)(&url, Some(authority.clone())).unwrap()
                })
                .await;
            }

            #[tokio::test]
            async fn a_server_with_a_certificate_that_is_not_trusted_is_refused() {
                let (url, other) = (variable($url), certificate("TOLLGATE_TLS_OTHER_AUTHORITY"));
                let unknown = ["UnknownIssuer", "BadSignature"];
                is_refused(($open)(&url, Some(other)), &unknown).await;
                // Those of the system, if it has any.
                let none = "the system has no trusted certificates";
                is_refused(($open)(&url, None), &["UnknownIssuer", none]).await;
            }

            #[tokio::test]
            async fn a_server_with_the_certificate_of_another_host_is_refused() {
                let url = variable($url).replace("localhost", "127.0.0.1");
                let authority = certificate("TOLLGATE_TLS_AUTHORITY");
                let names = ["not valid for", "NotValidForName"];
                is_refused(($open)(&url, Some(authority)), &names).await;
            }

            #[tokio::test]
            async fn a_server_without_tls_is_refused() {
                let server = Server::start($server);
                let url = ($plain)(server.url());
                let authority = certificate("TOLLGATE_TLS_AUTHORITY");
                // Redis awaits the end of the line that it takes the greeting for.
                let silent = "deadline has elapsed";
                let reasons = [
                    silent,
                    "TLS",
                    "tls",
                    "InvalidContentType",
                    "corrupt message",
                    "ssl",
                    "SSL",
                ];
                is_refused(($open)(&url, Some(authority)), &reasons).await;
            }

            #[test]
            fn certificates_that_are_none_and_would_not_be_used_are_refused() {
                let url = variable($url);
                for text in ["", "no certificate"] {
                    let error = ($open)(&url, Some(text.into())).unwrap_err();
                    assert!(
                        chain(&error).contains("no certificate"),
                        "{}",
                        chain(&error)
                    );
                }
                let plain = url
                    .replace("rediss:", "redis:")
                    .replace("?sslmode=require", "")
                    .replace("require_ssl=true&", "");
                assert!(($open)(&plain, Some(certificate("TOLLGATE_TLS_AUTHORITY"))).is_err());
            }
        }
    };
}

#[cfg(feature = "redis-tls")]
tls!(
    redis,
    "TOLLGATE_REDIS_TLS_URL",
    "redis",
    |url: &str, pem: Option<Vec<u8>>| {
        let builder = tollgate::store::RedisStore::builder(url).timeout(Duration::from_secs(2));
        match pem {
            Some(pem) => builder.root_certificates(pem),
            None => builder,
        }
        .build()
    },
    |url: String| url.replace("redis:", "rediss:")
);

#[cfg(feature = "postgres-tls")]
tls!(
    postgres,
    "TOLLGATE_POSTGRES_TLS_URL",
    "postgres",
    |url: &str, pem: Option<Vec<u8>>| {
        let options = tollgate::store::PostgresStoreOptions::new();
        match pem {
            Some(pem) => options.root_certificates(pem),
            None => options,
        }
        .open(url)
    },
    |url: String| url + "?sslmode=require"
);

#[cfg(feature = "mysql-tls")]
tls!(
    mysql,
    "TOLLGATE_MYSQL_TLS_URL",
    "mariadb",
    |url: &str, pem: Option<Vec<u8>>| {
        let options = tollgate::store::MysqlStoreOptions::new();
        match pem {
            Some(pem) => options.root_certificates(pem),
            None => options,
        }
        .open(url)
    },
    |url: String| url + "?require_ssl=true&prefer_socket=false"
);
