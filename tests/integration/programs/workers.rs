//! A pool of workers, some of which leak their permit: a leaked place comes back after its TTL, and is reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::{EventKind, Limiter, MaxConcurrency};

use super::Outcome;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn main() -> Outcome {
    let leaks = Arc::new(AtomicU64::new(0));
    let found = Arc::clone(&leaks);
    let places = Limiter::builder(MaxConcurrency::new(4).ttl(10 * SECOND))
        .name("workers")
        .on_event(move |event| {
            if let EventKind::Reclaimed { acquired_in, .. } = event.kind {
                println!("a permit leaked that was acquired in {acquired_in}");
                found.fetch_add(1, Relaxed);
            }
        })
        .build()?;

    let start = Instant::now();
    let mut jobs = JoinSet::new();
    for number in 0..40 {
        let places = places.clone();
        jobs.spawn(async move {
            let permit = places.acquire().await?;
            sleep(SECOND).await;
            if number % 20 == 0 {
                std::mem::forget(permit); // a bug
            }
            Ok::<_, tollgate::AcquireError>(())
        });
    }
    for job in jobs.join_all().await {
        job?;
    }
    // 40 seconds of work and 20 of leaked places, shared by four places.
    assert!(start.elapsed() <= 16 * SECOND, "{:?}", start.elapsed());
    sleep(10 * SECOND).await;
    assert_eq!((leaks.load(Relaxed), places.available()), (2, 4));
    Ok(())
}
