use std::sync::Mutex as StdMutex;

use super::*;
use crate::exchange::Asks;

/// A table of one row in this process, which counts the flights. Its clock is that of the test.
#[derive(Default)]
struct Fake {
    row: StdMutex<Option<(i64, Row)>>,
    flights: AtomicU32,
    /// The answer to the next write is lost; before or after the write.
    loses: StdMutex<Option<bool>>,
}

impl Fake {
    fn flight(&self) -> i64 {
        self.flights.fetch_add(1, Ordering::Relaxed);
        1_000_000
    }

    fn found(&self) -> Found {
        let row = self.row.lock().unwrap();
        let row =
            row.as_ref().map(|(version, Row { expires, state })| (*version, Row { expires: *expires, state: state.clone() }));
        Found { now: self.flight(), row }
    }

    fn put(&self, write: &Write) -> Option<i64> {
        let now = self.flight();
        let mut row = self.row.lock().unwrap();
        if row.as_ref().map(|(version, _)| *version) != write.version {
            return None;
        }
        *row = Some((write.next_version, Row { expires: write.row.expires, state: write.row.state.clone() }));
        Some(now)
    }
}

impl Table for Fake {
    type Locked = ();

    fn name(&self) -> &str {
        "fake"
    }

    async fn read(&self, _: &Scope) -> Result<Found, StoreError> {
        Ok(self.found())
    }

    async fn swap(&self, write: &Write) -> Result<Option<i64>, StoreError> {
        let unanswered = StoreError::Unanswered { store: "fake".to_owned(), after: None, source: None };
        let loses = self.loses.lock().unwrap().take();
        match loses {
            None => Ok(self.put(write)),
            Some(was_written) => {
                if was_written {
                    self.put(write);
                }
                Err(unanswered)
            }
        }
    }

    async fn lock(&self, _: &Scope, _: i64) -> Result<((), Found), StoreError> {
        Ok(((), self.found()))
    }

    async fn unlock(&self, (): (), write: Option<&Write>) -> Result<(), StoreError> {
        write.map(|write| self.put(write));
        Ok(())
    }
}

/// A process.
#[derive(Default)]
struct Process(Policies, Known);

impl Process {
    /// Returns how many of as many asks were granted, and the flights that it took.
    async fn take(&self, table: &Fake, policy: &str, count: u64) -> (u64, u32) {
        let before = table.flights.load(Ordering::Relaxed);
        let call = Call { asks: vec![Asks { first: 1, count, costs: [1].into(), waits: true }], ..blank(policy) };
        let granted = carry_out(table, &self.0, &self.1, call).await.unwrap().granted;
        (granted, table.flights.load(Ordering::Relaxed) - before)
    }

    async fn give_back(&self, table: &Fake, policy: &str) -> u32 {
        let before = table.flights.load(Ordering::Relaxed);
        carry_out(table, &self.0, &self.1, Call { returns: vec![1], ..blank(policy) }).await.unwrap();
        table.flights.load(Ordering::Relaxed) - before
    }
}

fn blank(policy: &str) -> Call {
    Call {
        scope: Scope { limiter: "limiter".into(), key: [].into() },
        policy: policy.parse().unwrap(),
        holder: 1,
        valid_until: None,
        returns: Vec::new(),
        settlements: Vec::new(),
        renewals: Vec::new(),
        ttl: 1_000_000_000,
        asks: Vec::new(),
        peek: None,
        replaces_policy: false,
    }
}

#[tokio::test]
async fn a_row_that_nobody_else_writes_takes_one_flight() {
    let (table, process) = (Fake::default(), Process::default());
    assert_eq!(process.take(&table, "5/100d", 1).await, (1, 2));
    for _ in 0..3 {
        assert_eq!(process.take(&table, "5/100d", 1).await, (1, 1));
    }
    assert_eq!(process.take(&table, "5/100d", 2).await, (1, 1));
    assert_eq!(process.take(&table, "5/100d", 1).await, (0, 1), "a denial is the server's");
}

#[tokio::test]
async fn a_row_that_others_write_is_read_first() {
    let (table, [one, other]) = (Fake::default(), [Process::default(), Process::default()]);
    one.take(&table, "100/100d", 1).await;
    assert_eq!(other.take(&table, "100/100d", 1).await, (1, 2));
    assert_eq!(one.take(&table, "100/100d", 1).await, (1, 3), "it knew another row");
    for _ in 0..3 {
        assert_eq!(other.take(&table, "100/100d", 1).await.0, 1);
        assert_eq!(one.take(&table, "100/100d", 1).await, (1, 2));
    }
    assert_eq!((one.take(&table, "100/100d", 1).await, one.take(&table, "100/100d", 1).await), ((1, 2), (1, 1)), "alone again");
    assert_eq!(one.take(&table, "100/100d", 100).await.0, 100 - 11);
}

#[tokio::test]
async fn whoever_holds_the_only_place_gives_it_back_in_one_flight() {
    let policy = "1 concurrent ttl 1s";
    let (table, [one, other]) = (Fake::default(), [Process::default(), Process::default()]);
    for _ in 0..3 {
        for process in [&one, &other] {
            assert_eq!(process.take(&table, policy, 1).await.0, 1);
            assert_eq!(process.give_back(&table, policy).await, 1);
        }
    }
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_counts_once() {
    for was_written in [false, true] {
        let (table, process) = (Fake::default(), Process::default());
        for _ in 0..3 {
            *table.loses.lock().unwrap() = Some(was_written);
            assert_eq!(process.take(&table, "5/100d", 1).await.0, 1, "{was_written}");
        }
        assert_eq!(process.take(&table, "5/100d", 5).await.0, 2);
    }
}
