//! A pool of connections to a database: at most three, and a timeout for those who wait.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::join_all;
use rusqlite::{Connection, Result};
use tollgate::{Limiter, MaxConcurrency};

use super::Outcome;

struct Pool {
    file: PathBuf,
    idle: Mutex<Vec<Connection>>,
    limiter: Limiter,
}

impl Pool {
    async fn run<T>(
        &self,
        work: impl Fn(&Connection) -> Result<T>,
    ) -> std::result::Result<T, Box<dyn std::error::Error>> {
        let request = self.limiter.request().timeout(Duration::from_secs(5));
        let _permit = request.acquire().await?;
        let idle = self.idle.lock().unwrap().pop();
        let connection = idle.map_or_else(|| Connection::open(&self.file), Ok)?;
        let result = work(&connection)?; // a connection that fails is closed
        tokio::time::sleep(Duration::from_millis(1)).await; // the answer is sent
        self.idle.lock().unwrap().push(connection);
        Ok(result)
    }
}

#[tokio::test]
async fn main() -> Outcome {
    let folder = tempfile::tempdir()?;
    let pool = Pool {
        file: folder.path().join("app.db"),
        idle: Mutex::default(),
        limiter: Limiter::new(MaxConcurrency::new(3))?,
    };
    pool.run(|db| db.execute_batch("CREATE TABLE visits (nth INTEGER)"))
        .await?;
    let insert = |nth: u32| pool.run(move |db| db.execute("INSERT INTO visits VALUES (?1)", [nth]));
    let inserted = join_all((0..50).map(insert)).await;
    assert!(inserted.iter().all(|rows| matches!(rows, Ok(1))));
    let count = |db: &Connection| {
        db.query_row("SELECT count(*) FROM visits", [], |row| {
            row.get::<_, u32>(0)
        })
    };
    assert_eq!(pool.run(count).await?, 50);
    assert!(pool.run(|db| db.execute("oops", [])).await.is_err());
    assert_eq!(pool.idle.lock().unwrap().len(), 2);
    Ok(())
}
