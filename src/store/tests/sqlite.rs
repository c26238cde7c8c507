//! Tests of the SQLite store.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::{TempDir, tempdir};

use super::take as call;
use crate::exchange::Scope;
use crate::store::{SqliteStore, SqliteStoreOptions, SqliteSynchronous, Store, StoreError};

fn file(folder: &TempDir) -> PathBuf {
    folder.path().join("limits.db")
}

async fn new() -> (SqliteStore, TempDir) {
    let folder = tempdir().unwrap();
    (SqliteStore::open(file(&folder)).unwrap(), folder)
}

crate::store::conformance::tests!(@keeping new());

fn scope() -> Scope {
    Scope {
        limiter: "api".into(),
        key: [].into(),
    }
}

async fn take(store: &SqliteStore, policy: &str, count: u64) -> u64 {
    store
        .call(call(&"api".into(), policy, count))
        .await
        .unwrap()
        .granted
}

#[tokio::test]
async fn the_limits_survive_a_restart() {
    let folder = tempdir().unwrap();
    let options = SqliteStoreOptions::new().synchronous(SqliteSynchronous::Full);
    assert_eq!(
        take(&options.clone().open(file(&folder)).unwrap(), "10/h", 7).await,
        7
    );
    assert_eq!(
        take(
            &options.create_tables(false).open(file(&folder)).unwrap(),
            "10/h",
            7
        )
        .await,
        3
    );
}

#[tokio::test]
async fn its_name_is_its_file() {
    let (store, folder) = new().await;
    let file = file(&folder).to_string_lossy().into_owned();
    assert!(store.name().contains(&file), "{}", store.name());
    assert!(format!("{store:?}").contains(&file), "{store:?}");
}

#[tokio::test]
async fn a_call_is_carried_out_although_its_future_is_dropped() {
    let folder = tempdir().unwrap();
    let store = SqliteStore::open(file(&folder)).unwrap();
    drop(store.call(call(&"api".into(), "10/h", 7)));
    assert_eq!(take(&store, "10/h", 7).await, 3);
}

const TAKES: u64 = 200;
const IN_ALL: u64 = 500;

/// The test starts its own program several times.
#[tokio::test]
async fn processes_that_contend_get_exactly_the_limit() {
    const FILE: &str = "TOLLGATE_TEST_SQLITE";
    if let Ok(path) = std::env::var(FILE) {
        let store = SqliteStore::open(path).unwrap();
        let mut granted = 0;
        for _ in 0..TAKES {
            granted += take(&store, &format!("{IN_ALL}/100d"), 1).await;
        }
        println!("granted {granted}.");
        return;
    }
    let folder = tempdir().unwrap();
    let start = |_| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "--nocapture",
            "store::tests::sqlite::processes_that_contend_get_exactly_the_limit",
        ]);
        command
            .env(FILE, file(&folder))
            .stdout(std::process::Stdio::piped());
        command.spawn().unwrap()
    };
    let children: Vec<_> = (0..4).map(start).collect();
    let granted = children.into_iter().map(|child| {
        let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        let granted = output
            .split_once("granted ")
            .and_then(|(_, rest)| rest.split_once('.'))
            .expect(&output)
            .0;
        granted.parse::<u64>().unwrap()
    });
    assert_eq!(granted.sum::<u64>(), IN_ALL, "of {}", 4 * TAKES);
}

fn execute(path: &Path, sql: &str) {
    rusqlite::Connection::open(path)
        .unwrap()
        .execute_batch(sql)
        .unwrap();
}

#[tokio::test]
async fn a_fault_of_the_file_is_a_typed_error() {
    let folder = tempdir().unwrap();
    assert!(matches!(
        SqliteStore::open(folder.path().join("no/such.db")),
        Err(StoreError::Unreachable { .. })
    ));
    std::fs::write(
        folder.path().join("text"),
        "no database, but a text of more than a hundred bytes\n".repeat(100),
    )
    .unwrap();
    assert!(matches!(
        SqliteStore::open(folder.path().join("text")),
        Err(StoreError::Refused { .. })
    ));
    let without_tables = SqliteStoreOptions::new().create_tables(false);
    assert!(matches!(
        without_tables.clone().open(file(&folder)),
        Err(StoreError::Refused { .. })
    ));
    execute(&file(&folder), SqliteStore::schema());
    let store = without_tables.open(file(&folder)).unwrap();
    assert_eq!(take(&store, "10/h", 7).await, 7);
    execute(
        &file(&folder),
        "UPDATE tollgate_keys SET state = x'01020304'",
    );
    let error = store
        .call(call(&"api".into(), "10/h", 1))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, StoreError::Damaged { at, .. } if at == "api/"),
        "{error:?}"
    );
    store.reset(scope()).await.unwrap();
    assert_eq!(take(&store, "10/h", 7).await, 7);
    execute(&file(&folder), "INSERT INTO tollgate_schema VALUES (9)");
    match SqliteStore::open(file(&folder)) {
        Err(StoreError::NewerSchema {
            found: 9, known: 1, ..
        }) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_file_that_is_locked_for_too_long_is_unreachable() {
    let folder = tempdir().unwrap();
    let options = SqliteStoreOptions::new().busy_timeout(std::time::Duration::from_millis(20));
    let store = options.open(file(&folder)).unwrap();
    let other = rusqlite::Connection::open(file(&folder)).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let call = call(&"api".into(), "10/h", 1);
    let waits = store.call(call.clone());
    assert!(matches!(waits.await, Err(StoreError::Unreachable { .. })));
    other.execute_batch("ROLLBACK").unwrap();
    store.call(call).await.unwrap();
}

/// Stores that kept the removed file would grant its limits beside those of the new one.
#[cfg(unix)]
#[tokio::test]
async fn stores_follow_a_file_that_was_removed_or_replaced() {
    let folder = tempdir().unwrap();
    let old = SqliteStore::open(file(&folder)).unwrap();
    assert_eq!(take(&old, "10/h", 7).await, 7);
    let remove = || {
        for name in ["limits.db", "limits.db-wal", "limits.db-shm"] {
            std::fs::remove_file(folder.path().join(name)).unwrap();
        }
    };
    remove();
    let new = SqliteStore::open(file(&folder)).unwrap();
    assert_eq!(take(&new, "10/h", 6).await, 6);
    assert_eq!(take(&old, "10/h", 7).await, 4);
    drop(new);

    remove();
    std::fs::write(file(&folder), "no database\n".repeat(100)).unwrap();
    let error = old.call(call(&"api".into(), "10/h", 1)).await.unwrap_err();
    assert!(
        matches!(error, StoreError::Refused { .. }) && error.is_down(),
        "{error:?}"
    );
    std::fs::remove_dir_all(folder.path()).unwrap();
    let error = old.call(call(&"api".into(), "10/h", 1)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    std::fs::create_dir(folder.path()).unwrap();
    assert_eq!(take(&old, "10/h", 12).await, 10);
}

/// Without the store's own purge, keys that are not used again would stay for ever.
#[tokio::test]
async fn expired_keys_go_by_themselves() {
    let folder = tempdir().unwrap();
    let store = SqliteStore::open(file(&folder)).unwrap();
    let connection = rusqlite::Connection::open(file(&folder)).unwrap();
    for round in 0..2_u32 {
        for key in 0..500 {
            let mut call = call(&"api".into(), "1000000/s", 1);
            call.scope.key = [round, key].map(u32::to_le_bytes).as_flattened().into();
            store.call(call).await.unwrap();
        }
        if round == 0 {
            connection
                .execute("UPDATE tollgate_keys SET expires = expires - 20000000", ())
                .unwrap();
        }
    }
    let rows: u32 = connection
        .query_row("SELECT count(*) FROM tollgate_keys", (), |row| row.get(0))
        .unwrap();
    assert!(rows < 600, "{rows} rows");
}

#[tokio::test]
async fn turns_in_this_process_reach_listeners() {
    let (store, _folder) = new().await;
    super::turns_in_this_process_reach_listeners(&store).await;
}
