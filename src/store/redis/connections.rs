//! A connection for each runtime that calls, and what an error of the client means for the call.
//!
//! A connection's task lives in the runtime that made it, and ends with it. So each runtime has a connection of its own, which
//! all its calls share. A connection that breaks, or has not answered in time, is given up: the next call makes another. Nothing
//! is sent twice: only the sender knows whether that is safe.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::runtime::{self, Handle};
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::StoreError;
use crate::lock::Lock;

/// The most connections. If more runtimes call, connections are made and given up in turn.
const MAX_RUNTIMES: usize = 32;

/// The longest time that a timer can have.
const NEVER: Duration = Duration::from_secs(86_400 * 365 * 30);

/// The connections to one server.
pub(super) struct Connections {
    pub(super) client: Client,
    /// The server, without any password.
    pub(super) store: String,
    /// The longest time to make a connection, and to wait for an answer.
    pub(super) timeout: Duration,
    /// The connections that are not given up, the latest one last.
    open: Lock<Vec<(runtime::Id, Connecting)>>,
}

/// A connection, which may still be in the making.
type Connecting = Shared<BoxFuture<'static, Result<MultiplexedConnection, StoreError>>>;

impl Connections {
    pub(super) fn new(client: Client, timeout: Duration) -> Self {
        let store = format!("Redis at {}", client.get_connection_info().addr());
        Self {
            client,
            store,
            timeout,
            open: Lock::default(),
        }
    }

    /// When a call that begins now must have ended.
    pub(super) fn deadline(&self) -> Instant {
        let now = Instant::now();
        now.checked_add(self.timeout).unwrap_or_else(|| now + NEVER)
    }

    /// Sends a command and awaits the answer, until that instant. The inner error is the client's, for a command that was sent.
    pub(super) async fn send(
        &self,
        cmd: &Cmd,
        by: Instant,
    ) -> Result<Result<Value, RedisError>, StoreError> {
        let connecting = self.connection()?;
        let made = timeout_at(by, connecting.clone()).await;
        let mut connection = made
            .unwrap_or_else(|elapsed| Err(StoreError::unreachable(&self.store, elapsed)))
            .inspect_err(|_| self.give_up(&connecting))?;
        let Ok(answer) = timeout_at(by, cmd.query_async(&mut connection)).await else {
            self.give_up(&connecting);
            return Err(StoreError::Unanswered {
                store: self.store.clone(),
                after: Some(self.timeout),
                source: None,
            });
        };
        // A server that only reads may have been replaced by another one at the same address.
        let is_broken = |error: &RedisError| {
            error.is_unrecoverable_error()
                || error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
        };
        if answer.as_ref().is_err_and(is_broken) {
            self.give_up(&connecting);
        }
        Ok(answer)
    }

    /// The connection of this runtime.
    fn connection(&self) -> Result<Connecting, StoreError> {
        let runtime =
            Handle::try_current().map_err(|error| StoreError::unreachable(&self.store, error))?;
        let mut open = self.open.lock();
        if let Some((_, connecting)) = open.iter().find(|(id, _)| *id == runtime.id()) {
            return Ok(connecting.clone());
        }
        if open.len() == MAX_RUNTIMES {
            drop(open.remove(0));
        }
        let connecting = self.connect(&runtime);
        open.push((runtime.id(), connecting.clone()));
        Ok(connecting)
    }

    /// Connects in a task, which goes on when a caller is dropped.
    fn connect(&self, runtime: &Handle) -> Connecting {
        let (client, store, limit) = (self.client.clone(), self.store.clone(), self.timeout);
        let made = runtime.spawn(async move {
            // No timeout is set in the client, because the deadline of a call is awaited here.
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(None)
                .set_response_timeout(None);
            let connects = client.get_multiplexed_async_connection_with_config(&config);
            match timeout(limit, connects).await {
                Ok(connection) => connection.map_err(|error| connect_error(&store, error)),
                Err(elapsed) => Err(StoreError::unreachable(&store, elapsed)),
            }
        });
        let store = self.store.clone();
        let made = made.map(move |made| {
            made.unwrap_or_else(|error| Err(StoreError::unreachable(&store, error)))
        });
        made.boxed().shared()
    }

    fn give_up(&self, connecting: &Connecting) {
        self.open
            .lock()
            .retain(|(_, open)| !open.ptr_eq(connecting));
    }
}

// Without the client, which has the password.
debug_fields! { Connections, |connections| store = connections.store, timeout = connections.timeout }

/// The connection was not made, so that nothing was sent.
pub(super) fn connect_error(store: &str, error: RedisError) -> StoreError {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::BusyLoading) => StoreError::unreachable(store, error),
        ErrorKind::Server(_)
        | ErrorKind::Extension
        | ErrorKind::AuthenticationFailed
        | ErrorKind::RESP3NotSupported => StoreError::refused(store, error),
        _ => StoreError::unreachable(store, error),
    }
}

/// A command was sent. `at` is the key that it was for.
pub(super) fn call_error(store: &str, at: &str, error: RedisError) -> StoreError {
    let wrong_type = error.code() == Some("WRONGTYPE")
        || error
            .detail()
            .is_some_and(|detail| detail.contains("WRONGTYPE"));
    match error.kind() {
        _ if wrong_type => StoreError::damaged(store, at),
        // A server that loads its data gives this error before it looks at a command.
        ErrorKind::Server(ServerErrorKind::BusyLoading) => StoreError::unreachable(store, error),
        ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed => {
            StoreError::refused(store, error)
        }
        _ => StoreError::unanswered(store, error),
    }
}

/// An answer that no script of a limiter gives: from a proxy, or from another kind of server.
pub(super) fn answer_error(store: &str) -> StoreError {
    StoreError::unanswered(store, "the answer is none of a limiter's script")
}

/// Whether the server does not know a script, and so has not run it.
pub(super) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
