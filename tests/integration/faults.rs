//! Faults between processes and a store on a real server. No limit is exceeded, no request hangs, and lost places come back.
//!
//! Each fault is caused in each store. `docs/faults.md` says what callers see.

use std::future::Future;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
use crate::support::{proxy::Proxy, server::Server};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tollgate::store::{
    Call, DeniedUntil, KeyPage, OnStoreDown, ReleaseListener, Reply, Scope, Store, StoreError,
    StoreFuture,
};
use tollgate::{AcquireError, Policy, SharedLimiter, TryAcquireError};

/// A kind of store.
#[derive(Debug, Clone, Copy)]
struct Kind {
    /// The name of the server in `scripts/servers`, and of the module of its tests.
    name: &'static str,
    /// The environment variable with the URL of a server that tests share.
    variable: &'static str,
    open: fn(&str) -> Arc<dyn Store>,
}

const PLACES: u64 = 3;
const DEADLINE: Duration = ms(500);
/// A time that is enough for any step on a busy machine.
const SOON: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn unique(name: &str) -> String {
    format!("{name} {}", uuid::Uuid::new_v4())
}

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(SOON, future)
        .await
        .unwrap_or_else(|_| panic!("it hangs: {what}"))
}

impl Kind {
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
    fn url(&self) -> String {
        let url = std::env::var(self.variable)
            .ok()
            .filter(|url| !url.is_empty());
        url.unwrap_or_else(|| {
            panic!(
                "set {} to the URL of a server, or run the tests by scripts/servers",
                self.variable
            )
        })
    }

    /// A proxy, the URL of the server, and the one through the proxy.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
    async fn behind_proxy(&self) -> (Proxy, String, String) {
        let direct = self.url();
        let (proxy, url) = Proxy::before(&direct).await;
        // Otherwise the client would use the socket of a server on this host.
        let url = if self.name == "mariadb" {
            url + "?prefer_socket=false"
        } else {
            url
        };
        (proxy, direct, url)
    }

    /// A limiter of one process, with a store of its own. The clock of the process differs from the server's by `clock`.
    fn process(&self, url: &str, clock: Clock, name: &str, policy: &str) -> SharedLimiter {
        let store = WithClock {
            store: (self.open)(url),
            clock,
        };
        SharedLimiter::builder(store, name, policy)
            .deadline(DEADLINE)
            .build()
            .unwrap()
    }
}

/// The clock of a process, compared with the clock of the server.
#[derive(Debug, Clone, Copy)]
enum Clock {
    Right,
    Behind(Duration),
    Ahead(Duration),
}

/// A store as seen by a process whose clock is wrong: every instant that the process sends or receives is shifted.
#[derive(Debug)]
struct WithClock {
    store: Arc<dyn Store>,
    clock: Clock,
}

impl Clock {
    fn shifted(self, at: u64) -> u64 {
        match self {
            Self::Right => at,
            Self::Behind(by) => at + by.as_nanos() as u64,
            Self::Ahead(by) => at - by.as_nanos() as u64,
        }
    }

    fn telling(self, at: u64) -> u64 {
        match self {
            Self::Right => at,
            Self::Behind(by) => at - by.as_nanos() as u64,
            Self::Ahead(by) => at + by.as_nanos() as u64,
        }
    }
}

impl Store for WithClock {
    fn name(&self) -> String {
        self.store.name()
    }

    fn supports(&self, policy: &Policy) -> Result<(), StoreError> {
        self.store.supports(policy)
    }

    fn call(&self, mut call: Call) -> StoreFuture<Reply> {
        let clock = self.clock;
        call.valid_until = call.valid_until.map(|at| clock.telling(at));
        call.settlements
            .iter_mut()
            .for_each(|settlement| settlement.granted_at = clock.telling(settlement.granted_at));
        let reply = self.store.call(call);
        Box::pin(async move {
            let mut reply = reply.await?;
            reply.now = clock.shifted(reply.now);
            reply
                .limits
                .iter_mut()
                .for_each(|limit| limit.reset_at = clock.shifted(limit.reset_at));
            match reply.stop.as_mut().map(|stop| &mut stop.until) {
                Some(DeniedUntil::Instant(at) | DeniedUntil::Release { first_expiry: at }) => {
                    *at = clock.shifted(*at);
                }
                Some(DeniedUntil::Never) | None => {}
            }
            Ok(reply)
        })
    }

    fn part_of(&self, scope: &Scope) -> u64 {
        self.store.part_of(scope)
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

#[derive(Debug, Default)]
struct Counts {
    granted: AtomicU64,
    /// Requests that failed because of a fault. Only their units may be charged without a grant.
    failed: AtomicU64,
    held: AtomicU64,
}

/// Callers of three processes that together take all units, and never hold more places than there are.
struct Load {
    control: SharedLimiter,
    processes: Vec<SharedLimiter>,
    units: u64,
    counts: Arc<Counts>,
    callers: JoinSet<()>,
}

impl Load {
    /// The processes use `url`, on which faults happen. Checks use `direct`, on which none happens.
    fn begin(kind: Kind, url: &str, direct: &str, units: u64) -> Self {
        Self::with_clocks(kind, url, direct, units, [Clock::Right; 3])
    }

    fn with_clocks(kind: Kind, url: &str, direct: &str, units: u64, clocks: [Clock; 3]) -> Self {
        let (name, policy) = (
            unique("load"),
            format!("{PLACES} concurrent ttl 1m and window {units}/100d from first grant"),
        );
        let control = kind.process(direct, Clock::Right, &name, &policy);
        let (counts, mut callers) = (Arc::new(Counts::default()), JoinSet::new());
        let processes = clocks
            .map(|clock| kind.process(url, clock, &name, &policy))
            .to_vec();
        for process in &processes {
            (0..6).for_each(|_| {
                _ = callers.spawn(call_until_used_up(process.clone(), Arc::clone(&counts)));
            });
        }
        Self {
            control,
            processes,
            units,
            counts,
            callers,
        }
    }

    async fn has_granted(&self, count: u64) {
        let granted = async {
            while self.counts.granted.load(SeqCst) < count {
                sleep(ms(1)).await;
            }
        };
        soon("the load", granted).await;
    }

    /// Waits until every caller was served or got an error. Checks that no limit was exceeded, that only units of failed requests are lost,
    /// and that all places come back.
    async fn end(mut self) {
        let callers = async {
            while let Some(caller) = self.callers.join_next().await {
                caller.unwrap();
            }
        };
        soon("callers", callers).await;
        let (granted, failed) = (
            self.counts.granted.load(SeqCst),
            self.counts.failed.load(SeqCst),
        );
        assert!(granted <= self.units, "{granted} of {}", self.units);
        assert!(
            granted + failed >= self.units,
            "of {} units {granted} were granted, and {failed} requests failed because of a fault",
            self.units
        );
        drop(self.processes);
        let places = async {
            while self
                .control
                .limits()
                .await
                .is_ok_and(|limits| limits[0].remaining < PLACES)
            {
                sleep(ms(20)).await;
            }
        };
        timeout(ms(40_000), places)
            .await
            .expect("places come back before they expire");
    }
}

async fn call_until_used_up(limiter: SharedLimiter, counts: Arc<Counts>) {
    loop {
        match limiter
            .request()
            .timeout(Duration::from_secs(5))
            .acquire()
            .await
        {
            Ok(permit) => {
                counts.granted.fetch_add(1, SeqCst);
                let held = counts.held.fetch_add(1, SeqCst) + 1;
                assert!(held <= PLACES, "{held} of {PLACES} places are held");
                sleep(ms(4)).await;
                counts.held.fetch_sub(1, SeqCst);
                drop(permit);
            }
            Err(AcquireError::Store(_)) => {
                counts.failed.fetch_add(1, SeqCst);
                sleep(ms(20)).await;
            }
            Err(_)
                if limiter
                    .limits()
                    .await
                    .is_ok_and(|limits| limits[1].remaining == 0) =>
            {
                return;
            }
            Err(_) => _ = counts.failed.fetch_add(1, SeqCst), // its timeout
        }
    }
}

/// A request ends at the deadline of its call, or soon after.
async fn ends_by_the_deadline(limiter: &SharedLimiter) {
    let start = Instant::now();
    let failed = limiter.try_acquire().await;
    assert!(
        matches!(failed, Err(TryAcquireError::Store(_))),
        "{failed:?}"
    );
    assert!(
        start.elapsed() < DEADLINE + ms(5_000),
        "{:?}",
        start.elapsed()
    );
}

/// The store is used again as soon as it answers again.
async fn is_served_again(limiter: &SharedLimiter) {
    let served = async {
        while let Err(TryAcquireError::Store(_)) = limiter.try_acquire().await {
            sleep(ms(20)).await;
        }
    };
    soon("the store is back", served).await;
}

/// Whether the store grants a request; otherwise the local fallback does.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
async fn is_granted_by_store(limiter: &SharedLimiter) -> bool {
    let permit = limiter.try_acquire().await.unwrap();
    permit.fence() > 1_000_000_000_000 // the microseconds since 1970, or more
}

#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
async fn connections_are_cut(kind: Kind) {
    let (proxy, direct, url) = kind.behind_proxy().await;
    let load = Load::begin(kind, &url, &direct, 200);
    for granted in [20, 50, 80] {
        load.has_granted(granted).await;
        proxy.cut();
    }
    load.has_granted(110).await;
    proxy.refuse(true);
    proxy.cut();
    let cut_off = kind.process(&url, Clock::Right, &unique("cut off"), "10/s");
    ends_by_the_deadline(&cut_off).await;
    sleep(ms(300)).await;
    proxy.refuse(false);
    is_served_again(&cut_off).await;
    load.end().await;
}

#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
async fn nothing_arrives_for_longer_than_the_deadline(kind: Kind) {
    let (proxy, direct, url) = kind.behind_proxy().await;
    let load = Load::begin(kind, &url, &direct, 150);
    let cut_off = kind.process(&url, Clock::Right, &unique("held"), "10/s");
    drop(cut_off.acquire().await.unwrap());
    load.has_granted(50).await;
    proxy.hold(true);
    for _ in 0..4 {
        ends_by_the_deadline(&cut_off).await;
    }
    sleep(ms(1_000)).await;
    proxy.hold(false);
    is_served_again(&cut_off).await;
    load.end().await;
}

/// The connections die as behind a router that has lost their state.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
async fn connections_die_without_notice(kind: Kind) {
    let (proxy, direct, url) = kind.behind_proxy().await;
    let load = Load::begin(kind, &url, &direct, 150);
    let name = unique("messages");
    let cut_off = kind.process(&url, Clock::Right, &unique("unseen"), "10/s");
    drop(cut_off.acquire().await.unwrap());
    load.has_granted(50).await;
    let [one, other] =
        [(); 2].map(|()| kind.process(&url, Clock::Right, &name, "1 concurrent ttl 10m"));
    drop(other.acquire().await.unwrap());
    let held = one.acquire().await.unwrap();
    proxy.lose_connections();
    ends_by_the_deadline(&cut_off).await;
    is_served_again(&cut_off).await;
    load.end().await;
    is_served_again(&one).await;
    is_served_again(&other).await;
    let waiting = tokio::spawn(other.acquire_owned());
    sleep(ms(12_000)).await;
    drop(held);
    drop(
        soon("messages of releases come again", waiting)
            .await
            .unwrap()
            .unwrap(),
    );
}

#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
async fn the_network_takes_50_ms(kind: Kind) {
    let (proxy, direct, url) = kind.behind_proxy().await;
    proxy.delay(ms(50));
    let load = Load::begin(kind, &url, &direct, 40);
    load.end().await;
}

#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
async fn the_clock_of_a_process_is_an_hour_off(kind: Kind) {
    let url = kind.url();
    Load::with_clocks(
        kind,
        &url,
        &url,
        150,
        [Clock::Right, Clock::Behind(HOUR), Clock::Ahead(HOUR)],
    )
    .end()
    .await;
    // Processes also send instants in refunds and leases.
    let name = unique("clocks");
    let process = |clock| {
        kind.process(
            &url,
            clock,
            &name,
            "1 concurrent ttl 3s and window 2/h from first grant",
        )
    };
    let [behind, ahead] = [process(Clock::Behind(HOUR)), process(Clock::Ahead(HOUR))];
    let permit = behind.acquire().await.unwrap();
    assert!(permit.settle(0));
    let held = ahead.acquire().await.unwrap();
    sleep(ms(4_000)).await;
    assert!(held.is_live(), "it is renewed");
    assert!(behind.try_acquire().await.is_err(), "it is held");
    drop(held);
    drop(soon("the place", behind.acquire()).await.unwrap());
    for process in [behind, ahead] {
        let Err(TryAcquireError::Denied(decision)) = process.try_acquire().await else {
            panic!("two of two are used")
        };
        let retry_after = decision.retry_after().unwrap();
        assert!(
            retry_after < HOUR && retry_after > ms(3_000_000),
            "{retry_after:?}"
        );
    }
}

const HOLDER: &str = "TOLLGATE_TEST_HOLDER";

/// The test program runs itself as the process that is killed. That process holds a place and is the next in line for another one.
async fn a_killed_process_gives_its_places_back_within_a_ttl(kind: Kind, url: &str) {
    const PLACES: &str = "3 concurrent ttl 3s";
    if let Ok(name) = std::env::var(HOLDER) {
        let (name, url) = name.split_once(' ').unwrap();
        let limiter = kind.process(url, Clock::Right, name, PLACES);
        let _held = limiter.acquire().await.unwrap();
        let waits = limiter.acquire_owned();
        tokio::spawn(async move { drop(waits.await) });
        sleep(ms(500)).await;
        println!("\nit holds one and waits");
        return std::future::pending().await;
    }
    let name = uuid::Uuid::new_v4().to_string();
    let [one, other, third] = [(); 3].map(|()| kind.process(url, Clock::Right, &name, PLACES));
    let (place, _held) = (one.acquire().await.unwrap(), other.acquire().await.unwrap());
    let test = format!(
        "faults::{}::a_killed_process_gives_its_places_back_within_a_ttl",
        kind.name
    );
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "--nocapture", &test])
        .env(HOLDER, format!("{name} {url}"))
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(
        lines
            .map(Result::unwrap)
            .any(|line| line == "it holds one and waits")
    );
    let waits = other.acquire_owned();
    let waits = tokio::spawn(async move { (waits.await.unwrap(), Instant::now()) });
    sleep(ms(4_000)).await;
    assert!(
        matches!(third.try_acquire().await, Err(TryAcquireError::Denied(_))),
        "it renews its lease"
    );
    child.kill().unwrap();
    child.wait().unwrap();
    let killed = Instant::now();
    drop(place);
    let (_place, granted) = soon("its turn passes", waits).await.unwrap();
    let passed = granted - killed;
    println!("{}: its turn has passed after {passed:?}", kind.name);
    assert!(passed < ms(2_000), "{passed:?}");
    let _last = soon("its place comes back", other.acquire()).await.unwrap();
    let back = killed.elapsed();
    println!("{}: its place is back after {back:?}", kind.name);
    assert!(back < ms(3_000 + 5_000), "{back:?}");
}

/// The test starts its own server, kills it under load and starts it again, stops it for longer than the deadline, and makes it refuse
/// writes, as a server does after another one has taken over.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
async fn a_server_is_killed_stands_still_or_only_reads(kind: Kind, read_only: fn(&str, bool)) {
    let mut server = Server::start(kind.name);
    let url = server.url();
    is_served_again(&kind.process(&url, Clock::Right, "first", "10/s")).await;

    let load = Load::begin(kind, &url, &url, 150);
    let other = kind.process(&url, Clock::Right, "other", "10/s");
    let own_policy = OnStoreDown::Local("100000/s".parse().unwrap());
    let store = WithClock {
        store: (kind.open)(&url),
        clock: Clock::Right,
    };
    let local = SharedLimiter::builder(store, "local", "100000/s")
        .on_store_down(own_policy)
        .build()
        .unwrap();
    load.has_granted(50).await;
    server.kill();
    ends_by_the_deadline(&other).await;
    let killed = Instant::now();
    while killed.elapsed() < ms(8_000) {
        assert!(!is_granted_by_store(&local).await);
        sleep(ms(10)).await;
    }
    server.restart();
    let restarted = Instant::now();
    while !is_granted_by_store(&local).await {
        assert!(
            restarted.elapsed() < ms(1_000 + 5_000),
            "it probes each second, and the machine may be busy"
        );
        sleep(ms(10)).await;
    }
    println!(
        "{}: decided by the store again after {:?}",
        kind.name,
        restarted.elapsed()
    );
    is_served_again(&other).await;
    load.end().await;

    let load = Load::begin(kind, &url, &url, 150);
    load.has_granted(50).await;
    server.signal("STOP");
    for _ in 0..4 {
        ends_by_the_deadline(&other).await;
    }
    sleep(ms(1_000)).await;
    server.signal("CONT");
    is_served_again(&other).await;
    load.end().await;

    let load = Load::begin(kind, &url, &url, 150);
    load.has_granted(50).await;
    read_only(&url, true);
    let refused = async {
        loop {
            match other.try_acquire().await {
                Err(TryAcquireError::Store(error))
                    if matches!(*error, StoreError::Refused { .. }) =>
                {
                    return;
                }
                _ => sleep(ms(20)).await,
            }
        }
    };
    soon("it refuses", refused).await;
    read_only(&url, false);
    is_served_again(&other).await;
    load.end().await;
}

#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
macro_rules! faults {
    ($kind:ident, $read_only:path) => {
        faults!($kind,
            connections_are_cut
            nothing_arrives_for_longer_than_the_deadline
            connections_die_without_notice
            the_network_takes_50_ms
            the_clock_of_a_process_is_an_hour_off
        );

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a_killed_process_gives_its_places_back_within_a_ttl() {
            super::a_killed_process_gives_its_places_back_within_a_ttl($kind, &$kind.url()).await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a_server_is_killed_stands_still_or_only_reads() {
            super::a_server_is_killed_stands_still_or_only_reads($kind, $read_only).await;
        }
    };
    ($kind:ident, $($fault:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $fault() {
                super::$fault($kind).await;
            }
        )*
    };
}

#[cfg(feature = "redis")]
mod redis {
    use super::{Kind, ms};

    const REDIS: Kind = Kind {
        name: "redis",
        variable: "TOLLGATE_REDIS_URL",
        open: |url| {
            std::sync::Arc::new(
                tollgate::store::RedisStore::builder(url)
                    .timeout(ms(400))
                    .build()
                    .unwrap(),
            )
        },
    };

    faults!(REDIS, only_reads);

    fn only_reads(url: &str, reads: bool) {
        let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
        let [host, port] = if reads {
            ["127.0.0.1", "1"]
        } else {
            ["NO", "ONE"]
        };
        redis::cmd("REPLICAOF")
            .arg(host)
            .arg(port)
            .exec(&mut connection)
            .unwrap();
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use tollgate::store::PostgresStoreOptions;

    use super::{Kind, ms};

    const POSTGRES: Kind = Kind {
        name: "postgres",
        variable: "TOLLGATE_POSTGRES_URL",
        open: |url| {
            std::sync::Arc::new(
                PostgresStoreOptions::new()
                    .timeout(ms(1_000))
                    .open(url)
                    .unwrap(),
            )
        },
    };

    faults!(POSTGRES, only_reads);

    /// As after a failover: writes on old connections are still refused, and those on new connections are not.
    fn only_reads(url: &str, reads: bool) {
        let for_all = [
            "ALTER SYSTEM SET default_transaction_read_only = on",
            "SELECT pg_reload_conf()",
        ];
        let for_new = [
            "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
            "ALTER ROLE tollgate SET default_transaction_read_only = off",
        ];
        let sql = if reads { for_all } else { for_new };
        let url = url.to_owned();
        let run = async move {
            let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
                .await
                .unwrap();
            tokio::spawn(connection);
            for sql in sql {
                client.batch_execute(sql).await.unwrap();
            }
        };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(run));
    }
}

#[cfg(feature = "mysql")]
mod mariadb {
    use mysql_async::prelude::Queryable as _;
    use tollgate::store::MysqlStoreOptions;

    use super::{Kind, ms};

    const MARIADB: Kind = Kind {
        name: "mariadb",
        variable: "TOLLGATE_MYSQL_URL",
        open: |url| {
            std::sync::Arc::new(
                MysqlStoreOptions::new()
                    .timeout(ms(1_000))
                    .open(url)
                    .unwrap(),
            )
        },
    };

    faults!(MARIADB, only_reads);

    /// As after a failover: writes on old connections are still refused, and those on new connections are not.
    fn only_reads(url: &str, reads: bool) {
        let url = url.to_owned();
        let run = async move {
            let mut conn = mysql_async::Conn::from_url(&url).await.unwrap();
            conn.query_drop(format!("SET GLOBAL tx_read_only = {reads}"))
                .await
                .unwrap();
            if reads {
                let select = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()";
                for id in conn.query::<u64, _>(select).await.unwrap() {
                    conn.query_drop(format!("KILL {id}")).await.ok();
                }
            }
            conn.disconnect().await.unwrap();
        };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(run));
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use super::Kind;

    const SQLITE: Kind = Kind {
        name: "sqlite",
        variable: "",
        open: |path| std::sync::Arc::new(tollgate::store::SqliteStore::open(path).unwrap()),
    };

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_killed_process_gives_its_places_back_within_a_ttl() {
        let folder = std::env::temp_dir().join(format!("tollgate-test-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&folder).unwrap();
        let file = folder.join("limits.db").display().to_string();
        super::a_killed_process_gives_its_places_back_within_a_ttl(SQLITE, &file).await;
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
