//! W10: limits in an SQLite file, compared with single statements on another file with the same settings, both in the folder for temporary
//! files.
//!
//! The raw side has a thread with a connection, to which the callers send each decision, as the store has; and eight connections,
//! on which each decision is a blocking task.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, fs, process, thread};

use rusqlite::Connection;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tollgate::store::{SqliteStore, SqliteStoreOptions, SqliteSynchronous};

use super::{Cases, Raw};
use crate::table::Row;

/// A pace of a million a second with a burst of a minute: the time is read before the lock, which may take seconds.
const PACE: &str = "INSERT INTO raw_pace (k, tat) VALUES (?1, ?2 + 1) ON CONFLICT (k) DO UPDATE SET tat = max(tat, ?2) + 1 \
    WHERE tat <= ?2 + 60000000 RETURNING tat";

#[derive(Clone)]
enum Statements {
    OnThread(mpsc::Sender<(String, oneshot::Sender<()>)>),
    InTasks(Arc<[Mutex<Connection>]>),
}

impl Raw for Statements {
    async fn decide(&self, caller: usize, key: &str) {
        let key = key.to_owned();
        match self {
            Self::OnThread(jobs) => {
                let (answer, answered) = oneshot::channel();
                jobs.send((key, answer)).expect("the thread runs");
                answered.await.expect("a grant");
            }
            Self::InTasks(connections) => {
                let connections = Arc::clone(connections);
                let decided = spawn_blocking(move || {
                    let connection = &connections[caller % connections.len()];
                    decide(
                        &connection.lock().unwrap_or_else(PoisonError::into_inner),
                        &key,
                    );
                });
                decided.await.expect("a grant");
            }
        }
    }
}

fn decide(connection: &Connection, key: &str) {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_micros() as i64;
    let mut statement = connection.prepare_cached(PACE).expect("a sound statement");
    let tat: i64 = statement
        .query_row((key, now), |row| row.get(0))
        .expect("a grant");
    assert!(tat > now);
}

fn connect(path: &Path, synchronous: &str) -> Connection {
    let connection = Connection::open(path).expect("a file");
    connection
        .busy_timeout(std::time::Duration::from_secs(5))
        .expect("a timeout");
    connection
        .query_row("PRAGMA journal_mode = WAL", (), |_| Ok(()))
        .expect("it is set");
    connection
        .pragma_update(None, "synchronous", synchronous)
        .expect("it is set");
    let table = "CREATE TABLE IF NOT EXISTS raw_pace (k TEXT PRIMARY KEY, tat INTEGER NOT NULL) WITHOUT ROWID";
    connection.execute_batch(table).expect("it is created");
    connection
}

pub(crate) fn rows() -> Vec<Row> {
    let folder = env::temp_dir().join(format!("tollgate-peers-{}", process::id()));
    let settings = [
        (SqliteSynchronous::Normal, "NORMAL", 10.0),
        (SqliteSynchronous::Full, "FULL", 8.0),
    ];
    let mut rows = Vec::new();
    for (synchronous, name, bar) in settings {
        fs::create_dir_all(&folder).expect("a folder");
        rows.extend(with_setting(&folder, synchronous, name, bar));
        fs::remove_dir_all(&folder).expect("it is removed");
    }
    rows
}

fn with_setting(folder: &Path, synchronous: SqliteSynchronous, name: &str, bar: f64) -> Vec<Row> {
    let raw = folder.join("raw.db");
    let connection = connect(&raw, name);
    let (jobs, receiver) = mpsc::channel::<(String, oneshot::Sender<()>)>();
    thread::spawn(move || {
        for (key, answer) in receiver {
            decide(&connection, &key);
            answer.send(()).ok();
        }
    });
    let connections = (0..8).map(|_| Mutex::new(connect(&raw, name))).collect();
    let peers = vec![
        ("a statement on a thread", Statements::OnThread(jobs)),
        (
            "a statement on 8 connections",
            Statements::InTasks(connections),
        ),
    ];
    let open = || -> SqliteStore {
        let options = SqliteStoreOptions::new().synchronous(synchronous);
        options.open(folder.join("limits.db")).expect("a file")
    };
    let cases = Cases {
        workload: "W10",
        of: format!("SQLite {name}: "),
        runtime: super::runtime(),
        open,
        peers,
    };
    let mut rows = Vec::new();
    for (callers, bar) in [(1, None), (8, None), (64, Some(bar)), (1_000, None)] {
        rows.extend(cases.one_key(callers, bar));
    }
    rows.extend(cases.one_caller(None));
    rows.extend(cases.one_key_of_processes(4, 16));
    rows.extend(cases.many_keys(None));
    rows.push(cases.heartbeat(None));
    rows
}
