//! A pipeline of streams: items are read at a rate, worked on four at a time in order, and their bytes written at a rate.

use std::cell::Cell;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::time::{Instant, sleep};
use tollgate::{Limiter, MaxConcurrency, Rate, StreamLimitExt, TokenBucket};

use super::Outcome;

#[tokio::test(start_paused = true)]
async fn main() -> Outcome {
    let reads = Limiter::new("100/s")?;
    let workers = Limiter::new(MaxConcurrency::new(4))?;
    let bytes = Limiter::new(TokenBucket::new(Rate::per_second(10_000), 2_000))?;
    let (running, most) = (Cell::new(0), Cell::new(0));
    let work = async |number: usize| {
        running.set(running.get() + 1);
        most.set(most.get().max(running.get()));
        sleep(Duration::from_millis(30)).await;
        running.set(running.get() - 1);
        vec![0; 500 + number]
    };

    let start = Instant::now();
    let written = stream::iter(0..200)
        .throttled(&reads)
        .map_permitted(&workers, work)
        .map(|worked| worked.expect("the limiter stays open"))
        .throttled(&bytes)
        .cost_by(|chunk| chunk.len() as u64);
    let written: Vec<_> = written.map(|chunk| chunk.len()).collect().await;

    assert!(written.is_sorted() && written.len() == 200, "in order");
    assert!((2..=4).contains(&most.get()), "{most:?}");
    let seconds = start.elapsed().as_secs_f64();
    let expected = (written.iter().sum::<usize>() - 2_000) as f64 / 10_000.0;
    assert!(
        (expected..expected + 0.1).contains(&seconds),
        "{seconds} {expected}"
    );
    Ok(())
}
