//! What two processes are granted together, each with the same limit. Each is a program of its own, started from this one.

use std::error::Error;
use std::future::pending;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, fs, process};

use tokio::time::{Instant, sleep_until};
use tollgate::store::SqliteStore;
use tollgate::{MaxConcurrency, Policy, SharedLimiter};

use crate::limiters::{Contestant, Limits, OfPlaces, OfRates, Pace, Places, Rate, real};
use crate::table::{Row, brief};

/// The first argument of a process of a run.
pub(crate) const REPLICA: &str = "replica";
const PLACES: u32 = 8;
const PACE: (Duration, u32) = (Duration::from_millis(10), 10);
/// More than there are places.
const TASKS: usize = 16;
/// The time for both processes to start.
const START: Duration = Duration::from_millis(750);
/// The time in which both reach the end of the span, before one ends and gives its places back.
const COUNT: Duration = Duration::from_millis(200);
const SPAN: Duration = Duration::from_secs(1);

pub(crate) fn of_places() -> Row {
    let question = format!(
        "two processes have `{PLACES} concurrent`, and each takes all places that it gets: held at the same time"
    );
    Row::of_places(&question, |who| {
        let held = sum("places", who);
        who.guarantees(
            held == PLACES as usize,
            "two processes hold more places, or fewer, than there are",
        );
        format!("{held} of {PLACES}{}", by_store(who))
    })
}

pub(crate) fn of_rates() -> Row {
    let allowed = PACE.1 as usize + (SPAN.as_nanos() / PACE.0.as_nanos()) as usize;
    let question = format!(
        "two processes ask again and again, each at a unit per {}, burst {}: granted within {}",
        brief(PACE.0),
        PACE.1,
        brief(SPAN)
    );
    Row::of_rates(&question, |who| {
        let granted = sum("rates", who);
        who.guarantees(
            granted <= allowed,
            "two processes are granted more than the rate admits",
        );
        format!("{granted} of {allowed}{}", by_store(who))
    })
}

fn by_store<C: Contestant>(who: C) -> &'static str {
    if who == C::TOLLGATE {
        ", with a `SharedLimiter` in an SQLite file"
    } else {
        ", each process by itself"
    }
}

/// What two processes report, together.
fn sum(kind: &str, who: impl Contestant) -> usize {
    let folder = env::temp_dir().join(format!("tollgate-behaviour-{}", process::id()));
    fs::create_dir(&folder).expect("a folder");
    let reports = run(kind, who, &folder.join("limits.db"));
    fs::remove_dir_all(folder).expect("it can be removed");
    reports.expect("the processes run")
}

fn run(kind: &str, who: impl Contestant, file: &Path) -> Result<usize, Box<dyn Error>> {
    let begins_at = (SystemTime::now().duration_since(UNIX_EPOCH)? + START).as_micros();
    let start = |_| {
        Command::new(env::current_exe()?)
            .args([REPLICA, kind, who.name(), &begins_at.to_string()])
            .arg(file)
            .stdout(Stdio::piped())
            .spawn()
    };
    let children: Vec<_> = (0..2).map(start).collect::<Result<_, _>>()?;
    let mut sum = 0;
    for child in children {
        let report = String::from_utf8(child.wait_with_output()?.stdout)?;
        let number: usize = report
            .trim()
            .parse()
            .map_err(|_| "a process has reported no number")?;
        sum += number;
    }
    Ok(sum)
}

/// A process of a run, with the arguments after [`REPLICA`].
pub(crate) fn replica(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let [kind, name, begins_at, file] = arguments else {
        return Err("an argument is missing".into());
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let begin = Instant::now() + Duration::from_micros(begins_at.parse()?).saturating_sub(now);
    let pace = Pace::new(PACE.0, PACE.1);
    let granted = real().block_on(async {
        match kind.as_str() {
            "places" => {
                let limiter = match named(name)? {
                    OfPlaces::Tollgate => {
                        let limit = MaxConcurrency::new(PLACES.into()).ttl(Duration::from_secs(5));
                        Places::Shared(shared(file, limit).await?)
                    }
                    peer => peer.open(PLACES),
                };
                granted(limiter, begin, true).await
            }
            _ => {
                let limiter = match named(name)? {
                    OfRates::Tollgate => Rate::Shared(shared(file, pace.throttle()).await?),
                    peer => peer.open(pace),
                };
                granted(limiter, begin, false).await
            }
        }
    })?;
    println!("{granted}");
    Ok(())
}

fn named<C: Contestant>(name: &str) -> Result<C, String> {
    let found = C::ALL.iter().find(|contestant| contestant.name() == name);
    found
        .copied()
        .ok_or_else(|| format!("nothing is named {name}"))
}

async fn shared(file: &str, limit: impl Into<Policy>) -> Result<SharedLimiter, Box<dyn Error>> {
    let limiter = SharedLimiter::new(SqliteStore::open(file)?, "behaviour", limit)?;
    limiter.limits().await?; // opens the file
    Ok(limiter)
}

/// The number of grants in the span from `begin` on. A task that keeps its grant asks no more.
async fn granted<L: Limits>(
    limiter: L,
    begin: Instant,
    keep: bool,
) -> Result<usize, Box<dyn Error>> {
    if Instant::now() > begin {
        return Err("a process has started too late: the machine is too busy".into());
    }
    let (count, end) = (Arc::new(AtomicUsize::new(0)), begin + SPAN);
    for _ in 0..TASKS {
        let (limiter, count) = (limiter.clone(), Arc::clone(&count));
        tokio::spawn(async move {
            sleep_until(begin).await;
            loop {
                let _grant = limiter.acquire(1).await;
                count.fetch_add((Instant::now() < end).into(), Relaxed);
                if keep {
                    pending::<()>().await;
                }
            }
        });
    }
    sleep_until(end + COUNT).await;
    Ok(count.load(Relaxed))
}
