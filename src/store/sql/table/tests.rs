//! Tests of the SQL call protocol against a table in memory.

use std::sync::Mutex as StdMutex;

use super::*;
use crate::exchange::Asks;

/// A table of one row in this process, which counts the round trips. Its clock stands still.
#[derive(Default)]
struct Fake {
    row: StdMutex<Option<KeyRow>>,
    flights: AtomicU32,
    /// Whether the answer to the next write is lost, and if so, whether the row is written.
    loses: StdMutex<Option<bool>>,
}

/// A process.
#[derive(Clone)]
struct Process {
    table: Arc<Fake>,
    sql: Arc<SqlServer>,
}

impl Fake {
    fn flight(&self) -> i64 {
        self.flights.fetch_add(1, Ordering::Relaxed);
        1_000_000
    }

    fn found(&self) -> ReadRow {
        let row = self.row.lock().unwrap().clone();
        ReadRow {
            now: self.flight(),
            row,
        }
    }

    fn put(&self, write: &Write) -> Option<i64> {
        let now = self.flight();
        let mut row = self.row.lock().unwrap();
        if row.as_ref().map(|row| row.version) != write.version {
            return None;
        }
        *row = Some(write.row.clone());
        Some(now)
    }
}

impl RowTable for Process {
    type Locked = ();

    fn sql(&self) -> &SqlServer {
        &self.sql
    }

    async fn read(&self, _: &Scope) -> Result<ReadRow, StoreError> {
        Ok(self.table.found())
    }

    async fn swap(&self, write: &Write) -> Result<Option<i64>, StoreError> {
        let unanswered = StoreError::unanswered("fake", "the connection broke");
        let loses = self.table.loses.lock().unwrap().take();
        match loses {
            None => Ok(self.table.put(write)),
            Some(was_written) => {
                if was_written {
                    self.table.put(write);
                }
                Err(unanswered)
            }
        }
    }

    async fn lock(&self, _: &Scope, _: i64) -> Result<((), ReadRow), StoreError> {
        Ok(((), self.table.found()))
    }

    async fn unlock(&self, (): (), write: Option<&Write>) -> Result<(), StoreError> {
        write.map(|write| self.table.put(write));
        Ok(())
    }

    async fn purge_some(&self, _: &[u8], _: u32) -> Result<Vec<u8>, StoreError> {
        Ok(Vec::new())
    }
}

impl Default for Process {
    fn default() -> Self {
        let sql = SqlServer::new("fake".to_owned(), true, Duration::from_secs(5));
        Self {
            table: Arc::default(),
            sql: Arc::new(sql),
        }
    }
}

impl Process {
    /// Another process that shares the table.
    fn other(&self) -> Self {
        Self {
            table: Arc::clone(&self.table),
            ..Self::default()
        }
    }

    async fn call(&self, call: Call) -> (u64, u32) {
        let before = self.table.flights.load(Ordering::Relaxed);
        let caller = Arc::new(());
        let reply = carry_out(self, call, &CallAwaited::by(&caller)).await;
        let granted = reply.unwrap().granted;
        (granted, self.table.flights.load(Ordering::Relaxed) - before)
    }

    /// Makes `count` asks. Returns how many were granted, and the number of round trips.
    async fn take(&self, policy: &str, count: u64) -> (u64, u32) {
        self.call(Call {
            asks: vec![Asks {
                first: 1,
                count,
                costs: [1].into(),
                waits: true,
                ahead: false,
            }],
            ..blank(policy)
        })
        .await
    }

    async fn give_back(&self, policy: &str) -> u32 {
        self.call(Call {
            returns: vec![1],
            ..blank(policy)
        })
        .await
        .1
    }
}

fn blank(policy: &str) -> Call {
    Call {
        scope: Scope {
            limiter: "limiter".into(),
            key: [].into(),
        },
        policy: policy.parse().unwrap(),
        holder: 1,
        valid_until: None,
        returns: Vec::new(),
        settlements: Vec::new(),
        renewals: Vec::new(),
        ttl: 1_000_000_000,
        asks: Vec::new(),
        peek: None,
        polls_every: 0,
        waits_no_more: false,
        revision: 0,
        keeps_policy: false,
    }
}

#[tokio::test]
async fn a_row_without_other_writers_takes_one_flight() {
    let process = Process::default();
    assert_eq!(process.take("5/100d", 1).await, (1, 2));
    for _ in 0..3 {
        assert_eq!(process.take("5/100d", 1).await, (1, 1));
    }
    assert_eq!(process.take("5/100d", 2).await, (1, 1));
    assert_eq!(
        process.take("5/100d", 1).await,
        (0, 1),
        "a denial is the server's"
    );
}

#[tokio::test]
async fn a_row_that_others_write_is_read_first() {
    let one = Process::default();
    let other = one.other();
    one.take("100/100d", 1).await;
    assert_eq!(other.take("100/100d", 1).await, (1, 2));
    assert_eq!(one.take("100/100d", 1).await, (1, 3), "it knew another row");
    for _ in 0..3 {
        assert_eq!(other.take("100/100d", 1).await.0, 1);
        assert_eq!(one.take("100/100d", 1).await, (1, 2));
    }
    assert_eq!(
        (one.take("100/100d", 1).await, one.take("100/100d", 1).await),
        ((1, 2), (1, 1)),
        "the only writer again"
    );
    assert_eq!(one.take("100/100d", 100).await.0, 100 - 11);
}

#[tokio::test]
async fn the_holder_of_the_only_place_returns_it_in_one_flight() {
    let policy = "1 concurrent ttl 1s";
    let one = Process::default();
    let other = one.other();
    for _ in 0..3 {
        for process in [&one, &other] {
            assert_eq!(process.take(policy, 1).await.0, 1);
            assert_eq!(process.give_back(policy).await, 1);
        }
    }
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_counts_once() {
    for was_written in [false, true] {
        let process = Process::default();
        for _ in 0..3 {
            *process.table.loses.lock().unwrap() = Some(was_written);
            assert_eq!(process.take("5/100d", 1).await.0, 1, "{was_written}");
        }
        assert_eq!(process.take("5/100d", 5).await.0, 2);
    }
}
