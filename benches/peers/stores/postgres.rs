//! W10: limits in PostgreSQL, compared with single statements on the same server, that of `TOLLGATE_POSTGRES_URL`.
//!
//! The raw side sends a prepared statement for each decision, over eight connections, on each of which the callers' statements
//! follow one another without a wait.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use tokio::sync::{Mutex, mpsc};
use tokio_postgres::{AsyncMessage, Client, NoTls, Statement};
use tollgate::store::PostgresStore;

use super::{Cases, Raw};
use crate::table::Row;

const CONNECTIONS: usize = 8;

/// What [`PostgresStore`] writes goes into a table of its own. The raw tables have as much room in their pages for updates.
const TABLES: &str = "DROP TABLE IF EXISTS tollgate_keys, tollgate_schema, raw_pace, raw_window; \
    CREATE TABLE raw_pace (k text PRIMARY KEY, tat timestamptz NOT NULL) WITH (fillfactor = 50); \
    CREATE TABLE raw_window (k text PRIMARY KEY, began timestamptz NOT NULL, n bigint NOT NULL) WITH (fillfactor = 50)";

/// A pace of a million a second with a burst of a million.
const PACE: &str = "INSERT INTO raw_pace AS t (k, tat) VALUES ($1, clock_timestamp() + interval '1 microsecond') \
    ON CONFLICT (k) DO UPDATE SET tat = greatest(t.tat, clock_timestamp()) + interval '1 microsecond' \
    WHERE t.tat <= clock_timestamp() + interval '1 second' RETURNING tat";

/// A window of a hundred million in each second.
const WINDOW: &str = "INSERT INTO raw_window AS t (k, began, n) VALUES ($1, date_trunc('second', clock_timestamp()), 1) \
    ON CONFLICT (k) DO UPDATE SET began = excluded.began, n = CASE WHEN t.began = excluded.began THEN t.n + 1 ELSE 1 END \
    WHERE t.began <> excluded.began OR t.n < 100000000 RETURNING n";

#[derive(Clone)]
struct Upsert(Arc<[(Client, Statement)]>);

impl Raw for Upsert {
    async fn decide(&self, caller: usize, key: &str) {
        let (client, statement) = &self.0[caller % self.0.len()];
        client.query_one(statement, &[&key]).await.expect("a grant");
    }
}

async fn connect(url: &str) -> (Client, mpsc::UnboundedReceiver<()>) {
    let (client, mut connection) = tokio_postgres::connect(url, NoTls).await.expect("a server");
    let (heard, hears) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut messages =
            futures_util::stream::poll_fn(|context| connection.poll_message(context));
        while let Some(Ok(message)) = messages.next().await {
            if let AsyncMessage::Notification(_) = message {
                heard.send(()).ok();
            }
        }
    });
    (client, hears)
}

async fn upsert(url: &str, sql: &str) -> Upsert {
    let connections = (0..CONNECTIONS).map(async |_| {
        let (client, _) = connect(url).await;
        let statement = client.prepare(sql).await.expect("a sound statement");
        (client, statement)
    });
    Upsert(join_all(connections).await.into())
}

pub(crate) fn rows() -> Vec<Row> {
    let (url, runtime) = (super::url("TOLLGATE_POSTGRES_URL"), super::runtime());
    let (pace, window, durable, notifier, listens) = runtime.block_on(async {
        let (notifier, _) = connect(&url).await;
        notifier
            .batch_execute(TABLES)
            .await
            .expect("they are created");
        let durable: String = notifier
            .query_one("SHOW synchronous_commit", &[])
            .await
            .expect("it is shown")
            .get(0);
        let (listener, hears) = connect(&url).await;
        listener
            .batch_execute("LISTEN bench")
            .await
            .expect("a channel");
        (
            upsert(&url, PACE).await,
            upsert(&url, WINDOW).await,
            durable == "on",
            notifier,
            (listener, hears),
        )
    });
    let of = if durable {
        "PostgreSQL, durable: "
    } else {
        "PostgreSQL: "
    };
    let open = || PostgresStore::open(&url).expect("an address");
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
    for (callers, bar) in [(1, None), (8, None), (64, Some(10.0)), (1_000, None)] {
        rows.extend(cases.one_key(callers, bar));
    }
    rows.extend(cases.one_caller(None));
    rows.extend(cases.one_key_of_processes(4, 16));
    rows.extend(cases.many_keys(None));
    let (notifier, listens) = (Arc::new(notifier), Arc::new(Mutex::new(listens)));
    let message = move || {
        let (notifier, listens) = (Arc::clone(&notifier), Arc::clone(&listens));
        async move {
            notifier
                .execute("SELECT pg_notify('bench', 'x')", &[])
                .await
                .expect("the message is sent");
            listens.lock().await.1.recv().await;
        }
    };
    let none = None::<(&str, fn() -> std::future::Ready<()>)>;
    rows.extend(cases.release_elsewhere(("NOTIFY to receive, and one statement", message), none));
    rows.push(cases.heartbeat(None));
    rows
}
