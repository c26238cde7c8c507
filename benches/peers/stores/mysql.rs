//! W10: limits in MariaDB or MySQL, compared with single statements on the same server, that of `TOLLGATE_MYSQL_URL`.
//!
//! The raw side executes a prepared statement for each decision, on eight connections.

use std::sync::Arc;

use futures_util::future::join_all;
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, Statement};
use tokio::sync::Mutex;
use tollgate::store::MysqlStore;

use super::{Cases, Raw};
use crate::table::Row;

const CONNECTIONS: usize = 8;

const TABLES: [&str; 3] = [
    "DROP TABLE IF EXISTS tollgate_keys, tollgate_schema, raw_pace, raw_window",
    "CREATE TABLE raw_pace (k varchar(255) PRIMARY KEY, tat datetime(6) NOT NULL) ENGINE = InnoDB",
    "CREATE TABLE raw_window (k varchar(255) PRIMARY KEY, began datetime NOT NULL, n bigint NOT NULL) ENGINE = InnoDB",
];

/// A pace of a million a second with a burst of a minute. A denial changes no row.
const PACE: &str = "INSERT INTO raw_pace (k, tat) VALUES (?, SYSDATE(6) + INTERVAL 1 MICROSECOND) ON DUPLICATE KEY UPDATE \
    tat = IF(tat <= SYSDATE(6) + INTERVAL 1 MINUTE, GREATEST(tat, SYSDATE(6)) + INTERVAL 1 MICROSECOND, tat)";

/// A window of a hundred million in each second.
const WINDOW: &str = "INSERT INTO raw_window (k, began, n) VALUES (?, SYSDATE(), 1) ON DUPLICATE KEY UPDATE \
    n = IF(began = VALUES(began), LEAST(n + 1, 100000000), 1), began = VALUES(began)";

#[derive(Clone)]
struct Upsert(Arc<[Mutex<(Conn, Statement)>]>);

impl Raw for Upsert {
    async fn decide(&self, caller: usize, key: &str) {
        let mut connection = self.0[caller % self.0.len()].lock().await;
        let (conn, statement) = &mut *connection;
        conn.exec_drop(&*statement, (key,))
            .await
            .expect("it is carried out");
        assert!(conn.affected_rows() > 0, "a grant");
    }
}

async fn upsert(url: &str, sql: &str) -> Upsert {
    let connections = (0..CONNECTIONS).map(async |_| {
        let mut conn = connect(url).await;
        let statement = conn.prep(sql).await.expect("a sound statement");
        Mutex::new((conn, statement))
    });
    Upsert(join_all(connections).await.into())
}

async fn connect(url: &str) -> Conn {
    Conn::new(Opts::from_url(url).expect("an address"))
        .await
        .expect("a server")
}

pub(crate) fn rows() -> Vec<Row> {
    let (url, runtime) = (super::url("TOLLGATE_MYSQL_URL"), super::runtime());
    let (pace, window, durable) = runtime.block_on(async {
        let mut conn = connect(&url).await;
        for sql in TABLES {
            conn.query_drop(sql).await.expect("they are created");
        }
        let durable: Option<u8> = conn
            .query_first("SELECT @@innodb_flush_log_at_trx_commit")
            .await
            .expect("it is shown");
        (
            upsert(&url, PACE).await,
            upsert(&url, WINDOW).await,
            durable == Some(1),
        )
    });
    let of = if durable {
        "MariaDB, durable: "
    } else {
        "MariaDB: "
    };
    let open = || MysqlStore::open(&url).expect("an address");
    let peers = vec![
        ("a statement of a pace", pace),
        ("a statement of a window", window),
    ];
    let cases = Cases {
        workload: "W10",
        of: of.to_owned(),
        runtime,
        open,
        peers,
    };
    let mut rows = Vec::new();
    for callers in [1, 8, 64, 1_000] {
        rows.extend(cases.one_key(callers, None));
    }
    rows.extend(cases.one_caller(None));
    rows.extend(cases.one_key_of_processes(4, 16));
    rows.extend(cases.many_keys(None));
    rows.push(cases.heartbeat(None));
    rows
}
