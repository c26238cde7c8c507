//! Two replicas of a service that share a limit in Redis. When Redis is gone, each goes on with its part of the limit.

use std::time::Duration;

use tokio::time::sleep;
use tollgate::SharedLimiter;
use tollgate::store::{OnStoreDown, RedisStore};

use super::Outcome;
use crate::support::redis_server::RedisServer;

fn replica(url: &str) -> Result<SharedLimiter, Box<dyn std::error::Error>> {
    let store = RedisStore::builder(url)
        .timeout(Duration::from_millis(200))
        .build()?;
    Ok(SharedLimiter::builder(store, "api", "window 100/h")
        .on_store_down(OnStoreDown::Local("window 20/h".parse()?))
        .build()?)
}

/// How many of so many requests are granted.
async fn granted(replica: &SharedLimiter, requests: u32) -> u32 {
    let mut granted = 0;
    for _ in 0..requests {
        granted += u32::from(replica.try_acquire().await.is_ok());
    }
    granted
}

#[tokio::test(flavor = "multi_thread")]
async fn main() -> Outcome {
    let mut server = RedisServer::start(&[]);
    let replicas = [replica(&server.url())?, replica(&server.url())?];
    let (one, other) = tokio::join!(granted(&replicas[0], 30), granted(&replicas[1], 30));
    assert_eq!(one + other, 60);

    server.kill();
    let (one, other) = tokio::join!(granted(&replicas[0], 80), granted(&replicas[1], 80));
    assert!(
        (1..=20).contains(&one) && (1..=20).contains(&other),
        "{one} {other}"
    );

    server.restart(); // empty
    for replica in &replicas {
        while replica.try_acquire().await.is_err() {
            sleep(Duration::from_millis(50)).await; // it asks the store again now and then
        }
    }
    let (one, other) = tokio::join!(granted(&replicas[0], 80), granted(&replicas[1], 80));
    assert!((50..=98).contains(&(one + other)), "{one} {other}");
    Ok(())
}
