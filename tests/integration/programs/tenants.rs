//! Fair tenants: one floods a small service, and the others do not notice.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::{AcquireError, Limiter, MaxConcurrency, Overflow};

use super::Outcome;

/// A request of a tenant, which takes 100 ms. How long it waited.
async fn request(service: Limiter, tenant: &str, weight: u64) -> Result<Duration, AcquireError> {
    let start = Instant::now();
    let _permit = service
        .request()
        .flow(tenant)
        .weight(weight)
        .acquire()
        .await?;
    let waited = start.elapsed();
    sleep(Duration::from_millis(100)).await;
    Ok(waited)
}

#[tokio::test(start_paused = true)]
async fn main() -> Outcome {
    let service = Limiter::builder(MaxConcurrency::new(10))
        .max_queue(1_000)
        .overflow(Overflow::DropLongest) // a full queue drops requests of the flood
        .build()?;
    let mut flood = JoinSet::new();
    for _ in 0..5_000 {
        flood.spawn(request(service.clone(), "flood", 1));
    }
    sleep(Duration::from_millis(1)).await;

    let mut others = JoinSet::new();
    for (tenant, weight) in [("bronze", 1), ("gold", 3)] {
        for _ in 0..5 {
            others.spawn(request(service.clone(), tenant, weight));
        }
    }
    for waited in others.join_all().await {
        assert!(waited? <= Duration::from_millis(300));
    }

    let (served, dropped): (Vec<_>, Vec<_>) =
        flood.join_all().await.into_iter().partition(Result::is_ok);
    assert_eq!((served.len(), dropped.len()), (1_000, 4_000));
    Ok(())
}
