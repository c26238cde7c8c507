//! A connection for each runtime that calls.
//!
//! A connection's task lives in the runtime that made it, and ends with it. So each runtime has a connection of its own, which all its
//! calls share. A connection that breaks, or has not answered in time, is given up: the next call makes another. Nothing is sent twice:
//! only who sends knows whether that is safe.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::runtime::{self, Handle};
use tokio::time::{Instant, timeout, timeout_at};

use super::error;
use crate::error::{Cause, StoreError};

/// More runtimes than this at once make and give up connections in turn.
const MAX_RUNTIMES: usize = 32;

/// As far as a timer reaches.
const NEVER: Duration = Duration::from_secs(86_400 * 365 * 30);

/// The connections to one server.
pub(super) struct Connections {
    pub(super) client: Client,
    /// The server, without any password.
    pub(super) store: String,
    /// For a connection, and for an answer.
    pub(super) timeout: Duration,
    lines: Mutex<Lines>,
}

/// The latest one last.
#[derive(Default)]
struct Lines {
    open: Vec<Line>,
    made: u64,
}

#[derive(Clone)]
struct Line {
    runtime: runtime::Id,
    number: u64,
    connection: Shared<BoxFuture<'static, Result<MultiplexedConnection, StoreError>>>,
}

/// What became of a command.
pub(super) enum Failure {
    /// It was not sent, or nothing is known of it.
    Known(StoreError),
    /// What the client says of a command that was sent.
    Client(RedisError),
}

impl Connections {
    pub(super) fn new(client: Client, timeout: Duration) -> Self {
        let store = format!("Redis at {}", client.get_connection_info().addr());
        Self { client, store, timeout, lines: Mutex::default() }
    }

    /// When a call that begins now must have ended.
    pub(super) fn deadline(&self) -> Instant {
        let now = Instant::now();
        now.checked_add(self.timeout).unwrap_or_else(|| now + NEVER)
    }

    /// Sends a command and awaits the answer, until that instant.
    pub(super) async fn send(&self, cmd: &Cmd, by: Instant) -> Result<Value, Failure> {
        let line = self.line().map_err(Failure::Known)?;
        let made = timeout_at(by, line.connection.clone()).await;
        let made = made
            .unwrap_or_else(|elapsed| Err(StoreError::Unreachable { store: self.store.clone(), source: Cause::new(elapsed) }));
        let mut connection = match made {
            Ok(connection) => connection,
            Err(error) => {
                self.give_up(line.number);
                return Err(Failure::Known(error));
            }
        };
        match timeout_at(by, cmd.query_async(&mut connection)).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                // Of a server that only reads: another one may have its place by now.
                if error.is_unrecoverable_error() || error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly) {
                    self.give_up(line.number);
                }
                Err(Failure::Client(error))
            }
            Err(_) => {
                self.give_up(line.number);
                let store = self.store.clone();
                Err(Failure::Known(StoreError::Unanswered { store, after: Some(self.timeout), source: None }))
            }
        }
    }

    /// The connection of this runtime, which may still be in the making.
    fn line(&self) -> Result<Line, StoreError> {
        let handle = Handle::try_current()
            .map_err(|error| StoreError::Unreachable { store: self.store.clone(), source: Cause::new(error) })?;
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.open.iter().find(|line| line.runtime == handle.id()) {
            return Ok(line.clone());
        }
        if lines.open.len() == MAX_RUNTIMES {
            lines.open.remove(0);
        }
        lines.made += 1;
        let line = Line { runtime: handle.id(), number: lines.made, connection: self.connect(&handle) };
        lines.open.push(line.clone());
        Ok(line)
    }

    /// In a task, so that it goes on whoever is dropped.
    fn connect(&self, handle: &Handle) -> Shared<BoxFuture<'static, Result<MultiplexedConnection, StoreError>>> {
        let (client, store, limit) = (self.client.clone(), self.store.clone(), self.timeout);
        let unreachable = |store: String, source: Cause| StoreError::Unreachable { store, source };
        let made = handle.spawn(async move {
            // The deadline of a call is awaited here.
            let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
            match timeout(limit, client.get_multiplexed_async_connection_with_config(&config)).await {
                Ok(connection) => connection.map_err(|error| error::of_connecting(&store, error)),
                Err(elapsed) => Err(unreachable(store, Cause::new(elapsed))),
            }
        });
        let store = self.store.clone();
        let made = made.map(move |made| made.unwrap_or_else(|error| Err(unreachable(store, Cause::new(error)))));
        made.boxed().shared()
    }

    fn give_up(&self, number: u64) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.open.retain(|line| line.number != number);
    }
}

/// Without the client, which has the password.
impl fmt::Debug for Connections {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Connections").field("store", &self.store).field("timeout", &self.timeout).finish_non_exhaustive()
    }
}
