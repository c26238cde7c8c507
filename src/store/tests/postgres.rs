//! Tests of the PostgreSQL store. They need a server.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio_postgres::{Client, NoTls};

use super::{contended, take, unique};
use crate::store::{
    PostgresStore, PostgresStoreOptions, Release, ReleaseListener, Store, StoreError,
};

fn url() -> String {
    super::url("TOLLGATE_POSTGRES_URL")
}

crate::store::conformance::tests!(PostgresStore::open(&url()).unwrap());

async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A database of one test, which is dropped at its end.
struct Database {
    name: String,
    url: String,
}

impl Database {
    async fn new() -> Self {
        let name = format!("tollgate_{}", uuid::Uuid::new_v4().simple());
        client(&url())
            .await
            .batch_execute(&format!("CREATE DATABASE {name}"))
            .await
            .unwrap();
        let (server, _) = url()
            .rsplit_once('/')
            .map(|(server, name)| (server.to_owned(), name.to_owned()))
            .unwrap();
        Self {
            url: format!("{server}/{name}"),
            name,
        }
    }

    async fn drop(self) {
        client(&url())
            .await
            .batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", self.name))
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_that_contend_get_exactly_the_limit() {
    contended::stores_get_exactly_the_limit(|| PostgresStore::open(&url()).unwrap()).await;
}

/// Detects a clock that is read before the wait for the lock.
#[tokio::test]
async fn a_call_that_waited_for_the_lock_counts_from_when_it_got_it() {
    let store = PostgresStore::open(&url()).unwrap();
    let limiter = unique("locked");
    let first = store
        .call(take(&limiter, "1 concurrent ttl 1m", 1))
        .await
        .unwrap();
    let mut other = client(&url()).await;
    let transaction = other.transaction().await.unwrap();
    // The row then has another version, so that the call must lock it.
    let change = "UPDATE tollgate_keys SET ver = ver + 1 WHERE limiter = $1";
    transaction
        .execute(change, &[&limiter.as_bytes()])
        .await
        .unwrap();
    let mut returns = take(&limiter, "1 concurrent ttl 1m", 1);
    returns.returns = vec![1];
    returns.asks[0].first = 2;
    let returns = tokio::spawn(PostgresStore::open(&url()).unwrap().call(returns));
    tokio::time::sleep(Duration::from_millis(300)).await;
    transaction.commit().await.unwrap();
    let reply = returns.await.unwrap().unwrap();
    assert_eq!(reply.granted, 1);
    assert!(
        reply.now >= first.now + 300_000_000,
        "{} ns after the first",
        reply.now - first.now
    );
}

/// A fixed bug: messages were received in the runtime in which the limiter was built, if there was one.
#[test]
fn a_store_listens_although_no_runtime_does() {
    let (limiter, (sender, receiver)) = (unique("listened"), std::sync::mpsc::channel());
    let (store, listener) = (PostgresStore::open(&url()).unwrap(), Arc::new(sender));
    assert!(store.listen(
        &limiter,
        ReleaseListener::new(&listener, |sender, _| sender.send(()).unwrap())
    ));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let other = PostgresStore::open(&url()).unwrap();
    // A message may be lost before the store follows the channel.
    let released = || {
        runtime
            .block_on(other.reset(take(&limiter, "1 concurrent ttl 1m", 1).scope))
            .unwrap();
    };
    let hears = || receiver.recv_timeout(Duration::from_millis(100)).is_ok();
    assert!((0..50).any(|_| {
        released();
        hears()
    }));
}

/// Messages were lost while the connection was broken.
#[tokio::test]
async fn listeners_learn_that_the_connection_was_made_anew() {
    let database = Database::new().await;
    let (limiter, (sender, receiver)) = (unique("listened"), std::sync::mpsc::channel());
    let (store, listener) = (
        PostgresStore::open(&database.url).unwrap(),
        Arc::new(sender),
    );
    assert!(store.listen(
        &limiter,
        ReleaseListener::new(&listener, |sender, release| {
            sender.send(release == Release::Unknown).unwrap();
        })
    ));
    let hears = || receiver.recv_timeout(Duration::from_secs(20));
    assert_eq!(hears(), Ok(true));
    let ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'";
    client(&database.url)
        .await
        .execute(ends, &[])
        .await
        .unwrap();
    assert_eq!(hears(), Ok(true));
}

/// Any client that can connect can send messages, also one with a wrong row.
#[tokio::test(flavor = "multi_thread")]
async fn the_row_in_a_message_is_not_trusted() {
    let database = Database::new().await;
    let (limiter, (sender, receiver)) = (unique("messages"), std::sync::mpsc::channel());
    let [here, other] = [(); 2].map(|()| PostgresStore::open(&database.url).unwrap());
    let listener = Arc::new(sender);
    assert!(here.listen(
        &limiter,
        ReleaseListener::new(&listener, |sender, release| {
            sender.send(release != Release::Unknown).unwrap();
        })
    ));
    assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok(false));
    let places = || take(&limiter, "1 concurrent ttl 1m", 1);
    let sql = client(&database.url).await;
    let row = async || {
        let row = sql
            .query_one(
                "SELECT ver, expires, encode(state, 'hex') FROM tollgate_keys",
                &[],
            )
            .await
            .unwrap();
        (
            row.get::<_, i64>(0),
            row.get::<_, i64>(1),
            row.get::<_, String>(2),
        )
    };
    assert_eq!(here.call(places()).await.unwrap().granted, 1);
    let mut back = places();
    back.asks = Vec::new();
    back.returns = vec![1];
    here.call(back).await.unwrap();
    let (_, expires, free) = row().await;
    assert_eq!(other.call(places()).await.unwrap().granted, 1);
    let (version, ..) = row().await;
    while receiver.recv_timeout(Duration::from_millis(300)).is_ok() {} // its own release
    let limiter = crate::store::sql::hex_digits(limiter.as_bytes());
    let message = format!("{limiter}//{:032x}/{version}/{expires}/{free}", 1);
    sql.execute("SELECT pg_notify('tollgate', $1)", &[&message])
        .await
        .unwrap();
    assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok(true));
    let mut again = places();
    again.asks = vec![crate::store::Asks::new(2, 1, [1])];
    assert_eq!(here.call(again).await.unwrap().granted, 0);
}

/// A fixed bug: the purge may delete the row between the statement that inserts it if it is missing and the one that locks it.
#[tokio::test]
async fn a_row_that_is_deleted_before_it_is_locked_is_made_anew() {
    let database = Database::new().await;
    let store = PostgresStore::open(&database.url).unwrap();
    let limiter = unique("deleted");
    store.call(take(&limiter, "10/h", 3)).await.unwrap();
    let mut other = client(&database.url).await;
    let deletes = "CREATE SEQUENCE claims; \
        CREATE FUNCTION delete_once() RETURNS trigger LANGUAGE plpgsql AS \
        $$BEGIN IF nextval('claims') = 1 THEN DELETE FROM tollgate_keys; END IF; RETURN NULL; END$$; \
        CREATE TRIGGER deletes AFTER INSERT ON tollgate_keys FOR EACH STATEMENT EXECUTE FUNCTION delete_once()";
    other.batch_execute(deletes).await.unwrap();
    let transaction = other.transaction().await.unwrap();
    transaction
        .execute("UPDATE tollgate_keys SET ver = ver + 1", &[])
        .await
        .unwrap();
    // This process does not know the row, and has read it when it waits to write.
    let locks = tokio::spawn(
        PostgresStore::open(&database.url)
            .unwrap()
            .call(take(&limiter, "10/h", 3)),
    );
    tokio::time::sleep(Duration::from_millis(300)).await;
    transaction.commit().await.unwrap();
    assert_eq!(locks.await.unwrap().unwrap().granted, 3);
    let claims: i64 = other
        .query_one("SELECT last_value FROM claims", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(claims, 2, "it was locked, and once more");
    database.drop().await;
}

#[tokio::test]
async fn broken_connections_are_made_anew() {
    let database = Database::new().await;
    let store = PostgresStore::open(&database.url).unwrap();
    let limiter = unique("broken");
    for _ in 0..3 {
        let calls = (0..8).map(|_| store.call(take(&limiter, "1000000/h", 1))); // with locks
        join_all(calls)
            .await
            .into_iter()
            .for_each(|reply| assert_eq!(reply.unwrap().granted, 1));
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1";
        client(&url())
            .await
            .execute(end, &[&database.name])
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(250)).await;
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
        PostgresStore::open("no url"),
        Err(StoreError::Unreachable { .. })
    ));
    let limiter = unique("wrong");
    let down = PostgresStore::open("postgres://user:secret@127.0.0.1:1/limits").unwrap();
    let error = down.call(take(&limiter, "1/h", 1)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the store PostgreSQL at 127.0.0.1:1/limits cannot be reached"
    );
    assert!(!format!("{error:?} {down:?}").contains("secret"));
    let (server, _) = url()
        .rsplit_once('/')
        .map(|(server, name)| (server.to_owned(), name.to_owned()))
        .unwrap();
    let no_database = PostgresStore::open(&format!("{server}/no_such_database")).unwrap();
    assert!(matches!(
        no_database.call(take(&limiter, "1/h", 1)).await,
        Err(StoreError::Refused { .. })
    ));

    let database = Database::new().await;
    let without_tables = PostgresStoreOptions::new()
        .create_tables(false)
        .open(&database.url)
        .unwrap();
    assert!(matches!(
        without_tables.call(take(&limiter, "1/h", 1)).await,
        Err(StoreError::Refused { .. })
    ));
    let client = client(&database.url).await;
    client.batch_execute(PostgresStore::schema()).await.unwrap();
    assert_eq!(
        without_tables
            .call(take(&limiter, "10/h", 7))
            .await
            .unwrap()
            .granted,
        7
    );
    client
        .batch_execute("UPDATE tollgate_keys SET ver = ver + 1, state = '\\x0102'")
        .await
        .unwrap();
    assert!(matches!(
        without_tables.call(take(&limiter, "10/h", 7)).await,
        Err(StoreError::Damaged { .. })
    ));
    let read_only = format!(
        "ALTER DATABASE {} SET default_transaction_read_only = on",
        database.name
    );
    client.batch_execute(&read_only).await.unwrap();
    let refused = PostgresStore::open(&database.url)
        .unwrap()
        .call(take(&unique("new"), "10/h", 1))
        .await;
    assert!(
        matches!(refused, Err(StoreError::Refused { .. })),
        "{refused:?}"
    );
    client
        .batch_execute("INSERT INTO tollgate_schema VALUES (9)")
        .await
        .unwrap();
    let newer = PostgresStore::open(&database.url)
        .unwrap()
        .call(take(&limiter, "10/h", 7))
        .await;
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
    let database = Database::new().await;
    let store = PostgresStore::open(&database.url).unwrap();
    let client = client(&database.url).await;
    for round in 0..2 {
        for key in 0..1_500_u32 {
            let mut call = take(&unique("purged"), "1000000/s", 1);
            call.scope.key = key.to_le_bytes().as_slice().into();
            store.call(call).await.unwrap();
        }
        if round == 0 {
            client
                .batch_execute("UPDATE tollgate_keys SET expires = expires - 20000000")
                .await
                .unwrap();
        }
    }
    let rows: i64 = client
        .query_one("SELECT count(*) FROM tollgate_keys", &[])
        .await
        .unwrap()
        .get(0);
    assert!(rows < 2_000, "{rows} rows");
    database.drop().await;
}

#[tokio::test]
async fn stores_create_the_tables_at_the_same_time() {
    let database = Database::new().await;
    let limiter = unique("created");
    let stores: Vec<_> = (0..8)
        .map(|_| PostgresStore::open(&database.url).unwrap())
        .collect();
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
