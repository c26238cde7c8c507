//! A rolling deployment: processes with a policy are replaced, one after the other, by processes with another one. The test program
//! runs itself as each of them.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tollgate::SharedLimiter;
use tollgate::store::Store;

/// In the environment of a process that is deployed: the name of the limiter, the rate, the burst, the revision, and the address of
/// the store.
const DEPLOYED: &str = "TOLLGATE_TEST_DEPLOYED";

/// Units a second, and the burst.
type Limit = (f64, f64);

/// What a process has printed.
#[derive(Default)]
struct Printed {
    /// Microseconds of the store's clock, or later by the number of grants since then.
    fences: Vec<u64>,
    /// When its revision was the second one.
    follows_at: Option<Instant>,
}

struct Replica {
    child: Child,
    printed: Arc<Mutex<Printed>>,
    /// Reads what it prints.
    reader: thread::JoinHandle<()>,
}

impl Replica {
    /// Runs `test` of this program as another process, and returns after its first grant.
    fn start(
        (module, store): (&str, &str),
        name: &str,
        address: &str,
        (rate, burst): Limit,
        revision: u64,
    ) -> Self {
        let test = format!("{module}::{store}::no_window_has_more_than_the_larger_limit");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "--nocapture", &test])
            .env(
                DEPLOYED,
                format!("{name} {rate} {burst} {revision} {address}"),
            )
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let printed = Arc::<Mutex<Printed>>::default();
        let prints = Arc::clone(&printed);
        let reader = thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut printed = prints.lock().unwrap();
                match line.split_once(' ') {
                    Some(("granted", fence)) => printed.fences.push(fence.parse().unwrap()),
                    Some(("follows", _)) => printed.follows_at = Some(Instant::now()),
                    _ => {} // of the test harness
                }
            }
        });
        let replica = Self {
            child,
            printed,
            reader,
        };
        let start = Instant::now();
        while replica.printed.lock().unwrap().fences.is_empty() {
            assert!(start.elapsed() < Duration::from_secs(30), "{test} hangs");
            thread::sleep(Duration::from_millis(2));
        }
        replica
    }

    fn follows_at(&self) -> Option<Instant> {
        self.printed.lock().unwrap().follows_at
    }

    fn latest_fence(&self) -> u64 {
        *self.printed.lock().unwrap().fences.last().unwrap()
    }

    /// Kills it, and returns its fences. It runs until then, unless a request has failed.
    fn end(mut self) -> Vec<u64> {
        assert!(self.child.try_wait().unwrap().is_none(), "a request failed");
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.reader.join().unwrap();
        std::mem::take(&mut self.printed.lock().unwrap().fences)
    }
}

/// What a deployed process does: three callers take units until it is killed.
async fn serve(store: impl Store, name: &str, policy: &str, revision: u64) {
    let builder = SharedLimiter::builder(store, name, policy);
    let limiter = builder.revision(revision).build().unwrap();
    let callers = (0..3).map(|_| async {
        loop {
            let permit = limiter.acquire().await.unwrap();
            println!("\ngranted {}", permit.fence());
        }
    });
    let follows = async {
        while limiter.revision() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        println!("\nfollows now");
    };
    tokio::join!(futures_util::future::join_all(callers), follows);
}

async fn no_window_has_more_than_the_larger_limit<S: Store>(
    store: &'static str,
    open: fn(&str) -> S,
    address: &str,
) {
    const LARGER: Limit = (100.0, 10.0);
    const SMALLER: Limit = (40.0, 5.0);
    if let Ok(deployed) = std::env::var(DEPLOYED) {
        let words: Vec<_> = deployed.splitn(5, ' ').collect();
        let [name, rate, burst, revision, address] = words.try_into().unwrap();
        let policy = format!("{rate}/s burst {burst}");
        return serve(open(address), name, &policy, revision.parse().unwrap()).await;
    }
    let (name, test) = (uuid::Uuid::new_v4().to_string(), ("deployment", store));
    let deploy = |limit, revision| Replica::start(test, &name, address, limit, revision);
    let pause = || thread::sleep(Duration::from_millis(250));

    let mut old: Vec<_> = (0..4).map(|_| deploy(LARGER, 1)).collect();
    pause();
    let deployed = Instant::now();
    let mut new = vec![deploy(SMALLER, 2)];
    let first_new_at = new[0].latest_fence();
    while old.iter().any(|old| old.follows_at().is_none()) {
        assert!(
            deployed.elapsed() < Duration::from_secs(20),
            "not all follow"
        );
        pause();
    }
    let followed = old.iter().filter_map(Replica::follows_at).max().unwrap();
    println!(
        "{store}: all follow {:?} after the start of a process with a new policy",
        followed - deployed
    );
    let mut fences = old.pop().unwrap().end();
    while let Some(old) = old.pop() {
        new.push(deploy(SMALLER, 2));
        pause();
        fences.extend(old.end());
    }
    let all_deployed_at = new.last().unwrap().latest_fence();
    pause();
    fences.extend(new.into_iter().flat_map(Replica::end));
    fences.sort_unstable();
    never_over(&fences, LARGER);
    let since = |at: u64| fences.partition_point(|fence| *fence < at);
    never_over(&fences[since(first_new_at + 1_000_000)..], SMALLER);
    let last = fences.len() - since(all_deployed_at);
    assert!(last > 2, "requests are still granted");
}

fn never_over(fences: &[u64], (rate, burst): Limit) {
    for (first, from) in fences.iter().enumerate() {
        for (last, to) in fences.iter().enumerate().skip(first) {
            let (granted, time) = ((last - first + 1) as f64, to - from);
            let most = burst + rate * time as f64 / 1e6;
            assert!(granted <= most + 1.0, "{granted} of {most} in {time} us");
        }
    }
}

macro_rules! deployed {
    ($store:ident, $open:expr, $address:expr) => {
        mod $store {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn no_window_has_more_than_the_larger_limit() {
                let (address, _alive) = $address;
                super::no_window_has_more_than_the_larger_limit(
                    stringify!($store),
                    $open,
                    &address,
                )
                .await;
            }
        }
    };
}

#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
fn url(variable: &str) -> (String, ()) {
    let url = std::env::var(variable).ok().filter(|url| !url.is_empty());
    let url = url.unwrap_or_else(|| {
        panic!("set {variable} to the URL of a server, or run the tests by scripts/servers")
    });
    (url, ())
}

#[cfg(feature = "sqlite")]
deployed!(
    sqlite,
    |file| tollgate::store::SqliteStore::open(file).unwrap(),
    {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("limits.db");
        (file.to_str().unwrap().to_owned(), folder)
    }
);
#[cfg(feature = "redis")]
deployed!(
    redis,
    |url| tollgate::store::RedisStore::connect(url).unwrap(),
    super::url("TOLLGATE_REDIS_URL")
);
#[cfg(feature = "redis")]
deployed!(
    redis_cluster,
    |urls| {
        let store = tollgate::store::RedisStore::cluster(urls.split(','));
        store.build().unwrap()
    },
    super::url("TOLLGATE_REDIS_CLUSTER_URLS")
);
#[cfg(feature = "postgres")]
deployed!(
    postgres,
    |url| tollgate::store::PostgresStore::open(url).unwrap(),
    super::url("TOLLGATE_POSTGRES_URL")
);
#[cfg(feature = "mysql")]
deployed!(
    mysql,
    |url| tollgate::store::MysqlStore::open(url).unwrap(),
    super::url("TOLLGATE_MYSQL_URL")
);
