//! Tests of the MySQL store. They need a server.

use std::time::Duration;

use futures_util::future::join_all;
use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;

use super::{contended, take, unique};
use crate::store::{MysqlStore, MysqlStoreOptions, Store, StoreError};

fn url() -> String {
    super::url("TOLLGATE_MYSQL_URL")
}

crate::store::conformance::tests!(MysqlStore::open(&url()).unwrap());

/// A database of one test, which is dropped at its end.
struct Database {
    name: String,
    url: String,
    conn: Conn,
}

impl Database {
    async fn new() -> Self {
        let name = format!("tollgate_{}", uuid::Uuid::new_v4().simple());
        let url = format!("{}/{name}", url().rsplit_once('/').unwrap().0);
        let mut conn = Conn::from_url(super::url("TOLLGATE_MYSQL_URL"))
            .await
            .unwrap();
        conn.query_drop(format!("CREATE DATABASE {name}; USE {name}"))
            .await
            .unwrap();
        Self { name, url, conn }
    }

    fn store(&self) -> MysqlStore {
        MysqlStore::open(&self.url).unwrap()
    }

    async fn drop(mut self) {
        self.conn
            .query_drop(format!("DROP DATABASE {}", self.name))
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_that_contend_get_exactly_the_limit() {
    contended::stores_get_exactly_the_limit(|| MysqlStore::open(&url()).unwrap()).await;
}

/// Detects a clock that is read before the wait for the lock.
#[tokio::test]
async fn a_call_that_waited_for_the_lock_counts_from_when_it_got_it() {
    let mut database = Database::new().await;
    let store = database.store();
    let limiter = unique("locked");
    let first = store
        .call(take(&limiter, "1 concurrent ttl 1m", 1))
        .await
        .unwrap();
    // The row then has another version, so that the call must lock it.
    database
        .conn
        .query_drop("START TRANSACTION; UPDATE tollgate_keys SET ver = ver + 1")
        .await
        .unwrap();
    let mut returns = take(&limiter, "1 concurrent ttl 1m", 1);
    returns.returns = vec![1];
    returns.asks[0].first = 2;
    let returns = tokio::spawn(database.store().call(returns));
    tokio::time::sleep(Duration::from_millis(300)).await;
    database.conn.query_drop("COMMIT").await.unwrap();
    let reply = returns.await.unwrap().unwrap();
    assert_eq!(reply.granted, 1);
    assert!(
        reply.now >= first.now + 300_000_000,
        "{} ns after the first",
        reply.now - first.now
    );
    database.drop().await;
}

/// In some time zones an hour occurs twice a year, and `UNIX_TIMESTAMP` ends in 2038.
#[tokio::test]
async fn the_clock_is_utc() {
    let store = MysqlStore::open(&url()).unwrap();
    let now = store
        .call(take(&unique("clock"), "1/h", 1))
        .await
        .unwrap()
        .now;
    let here = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    assert!(
        here.abs_diff(Duration::from_nanos(now)) < Duration::from_secs(600),
        "{now} against {here:?}"
    );
}

#[tokio::test]
async fn broken_connections_are_made_anew() {
    let mut database = Database::new().await;
    let store = database.store();
    let limiter = unique("broken");
    for _ in 0..3 {
        let calls = (0..8).map(|_| store.call(take(&limiter, "1000000/h", 1)));
        join_all(calls)
            .await
            .into_iter()
            .for_each(|reply| assert_eq!(reply.unwrap().granted, 1));
        let select = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()";
        for id in database.conn.query::<u64, _>(select).await.unwrap() {
            database
                .conn
                .query_drop(format!("KILL {id}"))
                .await
                .unwrap();
        }
        // A busy server ends them late.
        while !database
            .conn
            .query::<u64, _>(select)
            .await
            .unwrap()
            .is_empty()
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    assert_eq!(
        store
            .call(take(&limiter, "1000000/h", 1))
            .await
            .unwrap()
            .granted,
        1
    );
    database.drop().await;
}

#[tokio::test]
async fn a_fault_of_the_server_is_a_typed_error() {
    assert!(matches!(
        MysqlStore::open("no url"),
        Err(StoreError::Unreachable { .. })
    ));
    let limiter = unique("wrong");
    let down = MysqlStore::open("mysql://user:secret@127.0.0.1:1/limits").unwrap();
    let error = down.call(take(&limiter, "1/h", 1)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the store MySQL at 127.0.0.1:1/limits cannot be reached"
    );
    assert!(!format!("{error:?} {down:?}").contains("secret"));

    let mut database = Database::new().await;
    let no_database = MysqlStore::open(&format!("{}_not", database.url)).unwrap();
    assert!(matches!(
        no_database.call(take(&limiter, "1/h", 1)).await,
        Err(StoreError::Refused { .. })
    ));
    let without_tables = MysqlStoreOptions::new()
        .create_tables(false)
        .open(&database.url)
        .unwrap();
    assert!(matches!(
        without_tables.call(take(&limiter, "1/h", 1)).await,
        Err(StoreError::Refused { .. })
    ));
    database
        .conn
        .query_drop(MysqlStore::schema())
        .await
        .unwrap();
    assert_eq!(
        without_tables
            .call(take(&limiter, "10/h", 7))
            .await
            .unwrap()
            .granted,
        7
    );
    database
        .conn
        .query_drop("UPDATE tollgate_keys SET ver = ver + 1, state = x'0102'")
        .await
        .unwrap();
    assert!(matches!(
        without_tables.call(take(&limiter, "10/h", 7)).await,
        Err(StoreError::Damaged { .. })
    ));
    database
        .conn
        .query_drop("INSERT INTO tollgate_schema VALUES (9)")
        .await
        .unwrap();
    let newer = database.store().call(take(&limiter, "10/h", 7)).await;
    assert!(
        matches!(
            newer,
            Err(StoreError::NewerSchema {
                found: 9,
                known: 1,
                ..
            })
        ),
        "{newer:?}"
    );
    database.drop().await;
}

/// Without the store's own purge, keys that are not used again would stay for ever.
#[tokio::test]
async fn expired_keys_go_by_themselves() {
    let mut database = Database::new().await;
    let store = database.store();
    for round in 0..2 {
        for key in 0..1_500_u32 {
            let mut call = take(&unique("purged"), "1000000/s", 1);
            call.scope.key = key.to_le_bytes().as_slice().into();
            store.call(call).await.unwrap();
        }
        if round == 0 {
            database
                .conn
                .query_drop("UPDATE tollgate_keys SET expires = expires - 20000000")
                .await
                .unwrap();
        }
    }
    let rows: Option<u64> = database
        .conn
        .query_first("SELECT count(*) FROM tollgate_keys")
        .await
        .unwrap();
    assert!(rows.is_some_and(|rows| rows < 2_000), "{rows:?} rows");
    database.drop().await;
}

#[tokio::test]
async fn stores_create_the_tables_at_the_same_time() {
    let database = Database::new().await;
    let limiter = unique("created");
    let stores: Vec<_> = (0..8).map(|_| database.store()).collect();
    let replies = join_all(
        stores
            .iter()
            .map(|store| store.call(take(&limiter, "5/h", 1))),
    )
    .await;
    assert_eq!(
        replies
            .into_iter()
            .map(|reply| reply.unwrap().granted)
            .sum::<u64>(),
        5
    );
    database.drop().await;
}

#[tokio::test]
async fn turns_in_this_process_reach_listeners() {
    super::turns_in_this_process_reach_listeners(&MysqlStore::open(&url()).unwrap()).await;
}
