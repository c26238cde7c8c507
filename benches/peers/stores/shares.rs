//! W12: how processes that wait for the same key share it. Each process is a program of its own, started from this one.

use std::env;
use std::error::Error;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tollgate::SharedLimiter;
use tollgate::store::{
    Call, KeyPage, ReleaseListener, Reply, Scope, Store, StoreError, StoreFuture,
};

use crate::stores::url;
use crate::table::Row;

/// How long the shares are counted.
const RUN: Duration = Duration::from_secs(8);
/// How long the processes run before that: nobody waits for the first burst.
const WARM_UP: Duration = Duration::from_secs(1);
/// The time for all processes to start.
const START: Duration = Duration::from_secs(1);
/// The first argument of a process of a run.
pub(crate) const REPLICA: &str = "replica";

/// Tasks of a process, each of which takes one permit after the other.
#[derive(Clone, Copy)]
struct Load {
    tasks: usize,
    /// How long a permit is held.
    hold: Duration,
    /// The pause before a task asks again.
    pause: Duration,
}

impl Load {
    const fn new(tasks: usize, hold: u64, pause: u64) -> Self {
        let (hold, pause) = (Duration::from_millis(hold), Duration::from_millis(pause));
        Self { tasks, hold, pause }
    }
}

struct Case {
    policy: &'static str,
    /// The load of each process.
    loads: Vec<Load>,
    /// What the limit admits.
    most: Most,
}

#[derive(Clone, Copy)]
enum Most {
    Places(f64),
    UnitsPerSecond(f64),
}

fn cases() -> Vec<Case> {
    let case = |policy, loads: &[Load], most| Case {
        policy,
        loads: loads.to_vec(),
        most,
    };
    let flood = Load::new(16, 20, 0);
    let flood_of_rate = Load::new(16, 0, 0);
    let (places, units) = (Most::Places, Most::UnitsPerSecond);
    vec![
        case("8 concurrent", &[flood; 3], places(8.0)),
        case("1 concurrent", &[Load::new(2, 200, 0); 3], places(1.0)),
        case("2 concurrent", &[Load::new(1, 50, 0); 5], places(2.0)),
        case("10/s burst 1", &[Load::new(4, 0, 0); 2], units(10.0)),
        case("100/s burst 10", &[Load::new(8, 0, 0); 4], units(100.0)),
        case("sliding log 50/s", &[Load::new(8, 0, 0); 3], units(50.0)),
        case("100/s burst 10", &[Load::new(4, 0, 0); 30], units(100.0)),
        case(
            "8 concurrent",
            &[flood, flood, Load::new(1, 20, 80)],
            places(8.0),
        ),
        case(
            "100/s burst 10",
            &[flood_of_rate, flood_of_rate, Load::new(1, 0, 100)],
            units(100.0),
        ),
    ]
}

/// What a process was granted.
struct Share {
    calls: u64,
    /// How long it held permits, in microseconds.
    held: u64,
    /// How long each request waited, in microseconds.
    waits: Vec<u64>,
}

impl FromStr for Share {
    type Err = Box<dyn Error>;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut numbers = text.split_whitespace().map(str::parse);
        let calls = numbers.next().ok_or("a process has reported nothing")??;
        let held = numbers.next().ok_or("a process has held nothing")??;
        let waits = numbers.collect::<Result<_, _>>()?;
        Ok(Self { calls, held, waits })
    }
}

#[cfg(feature = "redis")]
pub(crate) fn in_redis() -> Vec<Row> {
    rows("Redis", &url("TOLLGATE_REDIS_URL"))
}

#[cfg(feature = "postgres")]
pub(crate) fn in_postgres() -> Vec<Row> {
    rows("PostgreSQL", &url("TOLLGATE_POSTGRES_URL"))
}

#[cfg(feature = "mysql")]
pub(crate) fn in_mysql() -> Vec<Row> {
    rows("MariaDB", &url("TOLLGATE_MYSQL_URL"))
}

#[cfg(feature = "sqlite")]
pub(crate) fn in_sqlite() -> Vec<Row> {
    let folder = env::temp_dir().join(format!("tollgate-shares-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let rows = rows("SQLite", &folder.join("limits.db").to_string_lossy());
    std::fs::remove_dir_all(folder).expect("it can be removed");
    rows
}

/// Prints the shares in the store at this address.
fn rows(store: &str, address: &str) -> Vec<Row> {
    println!(
        "| {store} | processes | grants of each | furthest from its share | of the limit | p99 wait of the slowest; of the last | calls per grant |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (number, case) in cases().iter().enumerate() {
        eprintln!("  {}, {} processes", case.policy, case.loads.len());
        let shares = run(address, number, case).expect("the processes run");
        print(case, shares);
    }
    println!();
    Vec::new()
}

fn print(case: &Case, mut shares: Vec<Share>) {
    let grants: Vec<_> = shares.iter().map(|share| share.waits.len()).collect();
    let total: usize = grants.iter().sum();
    let calls: u64 = shares.iter().map(|share| share.calls).sum();
    let p99 = shares.iter_mut().map(|share| {
        share.waits.sort_unstable();
        share
            .waits
            .get(share.waits.len() * 99 / 100)
            .map_or(f64::NAN, |wait| *wait as f64 / 1_000.0)
    });
    let p99s: Vec<_> = p99.collect();
    let seconds = RUN.as_secs_f64();
    let used = match case.most {
        Most::Places(places) => {
            shares.iter().map(|share| share.held as f64).sum::<f64>() / 1e6 / (places * seconds)
        }
        Most::UnitsPerSecond(units) => total as f64 / (units * seconds),
    };
    let first = case.loads[0];
    let equal = case
        .loads
        .iter()
        .filter(|load| load.tasks == first.tasks)
        .count();
    let share = grants[..equal].iter().sum::<usize>() as f64 / equal as f64;
    let off = grants[..equal]
        .iter()
        .map(|grants| (*grants as f64 - share).abs() / share);
    let off = 100.0 * off.fold(0.0, f64::max);
    let few: Vec<_> = grants.iter().take(6).map(usize::to_string).collect();
    let ellipsis = if grants.len() > few.len() { " …" } else { "" };
    let slowest = p99s.iter().copied().fold(0.0, f64::max);
    println!(
        "| {} | {} × {} | {}{ellipsis} | {off:.1} % | {:.1} % | {slowest:.0} ms; {:.0} ms | {:.2} |",
        case.policy,
        grants.len(),
        first.tasks,
        few.join(" / "),
        100.0 * used,
        p99s.last().copied().unwrap_or(0.0),
        calls as f64 / total as f64,
    );
}

fn run(address: &str, number: usize, case: &Case) -> Result<Vec<Share>, Box<dyn Error>> {
    let starts_at = SystemTime::now().duration_since(UNIX_EPOCH)? + START;
    let name = format!("shares {} {number}", starts_at.as_micros());
    let children = case.loads.iter().map(|load| {
        let numbers = [
            load.hold.as_micros(),
            load.pause.as_micros(),
            starts_at.as_micros(),
        ];
        Command::new(env::current_exe()?)
            .args([
                REPLICA,
                address,
                &name,
                case.policy,
                &load.tasks.to_string(),
            ])
            .args(numbers.map(|number| number.to_string()))
            .stdout(Stdio::piped())
            .spawn()
    });
    let children: Vec<_> = children.collect::<Result<_, _>>()?;
    let outputs = children.into_iter().map(|child| {
        let output = child.wait_with_output()?;
        String::from_utf8(output.stdout)?.parse()
    });
    outputs.collect()
}

/// Counts the calls of a process.
#[derive(Debug)]
struct Counted<S> {
    store: S,
    calls: Arc<AtomicU64>,
}

impl<S: Store> Store for Counted<S> {
    fn name(&self) -> String {
        self.store.name()
    }
    fn supports(&self, policy: &tollgate::Policy) -> Result<(), StoreError> {
        self.store.supports(policy)
    }
    fn call(&self, call: Call) -> StoreFuture<Reply> {
        self.calls.fetch_add(1, Relaxed);
        self.store.call(call)
    }
    fn answers_within(&self) -> Option<Duration> {
        self.store.answers_within()
    }
    fn listen(&self, limiter: &Arc<str>, listener: ReleaseListener) -> bool {
        self.store.listen(limiter, listener)
    }
    fn keys(&self, limiter: &Arc<str>, from: Option<Vec<u8>>, max: usize) -> StoreFuture<KeyPage> {
        self.store.keys(limiter, from, max)
    }
    fn reset(&self, scope: Scope) -> StoreFuture<()> {
        self.store.reset(scope)
    }
    fn purge(&self, limiter: &Arc<str>, max: usize) -> StoreFuture<u64> {
        self.store.purge(limiter, max)
    }
}

/// A process of a run, with the arguments after [`REPLICA`].
pub(crate) fn replica(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let [address, name, policy, numbers @ ..] = arguments else {
        return Err("an argument is missing".into());
    };
    let numbers: Vec<u64> = numbers
        .iter()
        .map(|number| number.parse())
        .collect::<Result<_, _>>()?;
    let &[tasks, hold, pause, starts_at] = &numbers[..] else {
        return Err("a number is missing".into());
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let _within = runtime.enter();
    let calls = Arc::new(AtomicU64::new(0));
    let counts = Arc::clone(&calls);
    let limiter = open(address, name, policy, counts)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let begin = Instant::now() + Duration::from_micros(starts_at).saturating_sub(now);
    let load = Load {
        tasks: tasks as usize,
        hold: Duration::from_micros(hold),
        pause: Duration::from_micros(pause),
    };
    let (calls, held, waits) = runtime.block_on(async {
        limiter.limits().await?; // connects
        let mut tasks: JoinSet<_> = (0..load.tasks)
            .map(|_| work(limiter.clone(), load, begin))
            .collect();
        sleep_until(begin + WARM_UP).await;
        let before = calls.load(Relaxed);
        sleep_until(begin + WARM_UP + RUN).await;
        let calls = calls.load(Relaxed) - before;
        let (mut held, mut waits) = (0, Vec::new());
        while let Some(of_one) = tasks.join_next().await {
            let (its_held, its_waits) = of_one?;
            held += its_held;
            waits.extend(its_waits);
        }
        Ok::<_, Box<dyn Error>>((calls, held, waits))
    })?;
    let waits: Vec<_> = waits.iter().map(u64::to_string).collect();
    println!("{calls} {held} {}", waits.join(" "));
    Ok(())
}

/// Takes one permit after the other. Returns for how long it held them, and how long each request waited, in microseconds.
async fn work(limiter: SharedLimiter, load: Load, begin: Instant) -> (u64, Vec<u64>) {
    let (start, end) = (begin + WARM_UP, begin + WARM_UP + RUN);
    let (mut held, mut waits) = (0, Vec::new());
    sleep_until(begin).await;
    while Instant::now() < end {
        let asked = Instant::now();
        let Ok(granted) = tokio::time::timeout_at(end, limiter.acquire()).await else {
            break;
        };
        let permit = granted.expect("the store answers");
        let granted = Instant::now();
        if granted >= start {
            waits.push((granted - asked).as_micros() as u64);
        }
        if !load.hold.is_zero() {
            sleep(load.hold).await;
        }
        drop(permit);
        let counted = Instant::now()
            .min(end)
            .saturating_duration_since(granted.max(start));
        held += counted.as_micros() as u64;
        if !load.pause.is_zero() {
            sleep(load.pause).await;
        }
    }
    (held, waits)
}

fn open(
    address: &str,
    name: &str,
    policy: &str,
    calls: Arc<AtomicU64>,
) -> Result<SharedLimiter, Box<dyn Error>> {
    #[cfg(feature = "redis")]
    if address.starts_with("redis://") {
        let store = tollgate::store::RedisStore::connect(address)?;
        return Ok(SharedLimiter::new(Counted { store, calls }, name, policy)?);
    }
    #[cfg(feature = "postgres")]
    if address.starts_with("postgres") {
        let store = tollgate::store::PostgresStore::open(address)?;
        return Ok(SharedLimiter::new(Counted { store, calls }, name, policy)?);
    }
    #[cfg(feature = "mysql")]
    if address.starts_with("mysql://") {
        let store = tollgate::store::MysqlStore::open(address)?;
        return Ok(SharedLimiter::new(Counted { store, calls }, name, policy)?);
    }
    #[cfg(feature = "sqlite")]
    if !address.contains("://") {
        let store = tollgate::store::SqliteStore::open(address)?;
        return Ok(SharedLimiter::new(Counted { store, calls }, name, policy)?);
    }
    Err(format!("no store of this program is at {address}, for {name}, {policy}, {calls:?}").into())
}
