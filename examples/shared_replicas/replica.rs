//! One of the processes: its callers acquire permits of the shared limiter, and report them.

use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use common::store::AnyStore;
use common::{chain, say};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};
use tollgate::{Permit, SharedLimiter};

use crate::message::{Message, since_epoch};
use crate::options::Options;

/// SQLite announces releases only to waiters in the same process. Waiters in other processes ask this often.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// Runs one process. Errors go to the process that started it, which prints them.
pub(crate) async fn run(options: &Options) -> ExitCode {
    let Err(error) = work(options).await else {
        return ExitCode::SUCCESS;
    };
    say!("{}", Message::Failed(chain(&*error)));
    ExitCode::from(2)
}

async fn work(options: &Options) -> Result<(), Box<dyn Error>> {
    let (Some(store), Some(name)) = (&options.store, &options.name) else {
        return Err("no store".into());
    };
    let limiter = SharedLimiter::builder(AnyStore::open(store)?, name, options.policy.as_str())
        .poll_every(POLL_EVERY)
        .build()?;
    limiter.limits().await?; // connects to the store
    say!("{}", Message::Ready);
    let mut line = String::new();
    if io::stdin().read_line(&mut line)? == 0 {
        return Ok(()); // the process that started it has ended
    }
    let start = Duration::from_micros(line.trim().parse()?);

    let shared = Arc::new((limiter, options.clone()));
    let mut callers = JoinSet::new();
    for _ in 0..options.callers {
        callers.spawn(call(Arc::clone(&shared), start));
    }
    while let Some(done) = callers.join_next().await {
        done??;
    }
    shared.0.drained().await;
    Ok(())
}

/// One caller: holds one permit after the other.
async fn call(
    shared: Arc<(SharedLimiter, Options)>,
    start: Duration,
) -> Result<(), tollgate::AcquireError> {
    let (limiter, options) = &*shared;
    let end = Instant::now()
        + options
            .run
            .saturating_sub(since_epoch().saturating_sub(start));
    loop {
        let asked = Instant::now();
        let Ok(permit) = timeout_at(end, limiter.acquire()).await else {
            return Ok(());
        };
        let (permit, at) = (permit?, since_epoch());
        say!(
            "{}",
            Message::Granted {
                fence: permit.fence(),
                at,
                waited: asked.elapsed()
            }
        );
        hold(permit, options.work(at.saturating_sub(start), random(at))).await;
    }
}

async fn hold(permit: Permit, time: Duration) {
    tokio::select! {
        () = sleep(time) => {}
        () = permit.reclaimed() => {}
    }
    // The instant is read before the permit is checked: if the permit is live at the check, it was live at that instant.
    let (fence, at) = (permit.fence(), since_epoch());
    say!(
        "{}",
        if permit.is_live() {
            Message::Released { fence, at }
        } else {
            Message::Lost { fence }
        }
    );
}

/// A number from 0 to 1 that looks random.
fn random(at: Duration) -> f64 {
    let hash = (at.as_nanos() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> 11) as f64 / (1_u64 << 53) as f64
}
