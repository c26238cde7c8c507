//! One connection to a server for each runtime that calls, and the conversion of client errors.
//!
//! A connection's task runs in the runtime that made it, and ends with that runtime. So each runtime has a connection of its own,
//! which all its calls share. A connection that breaks, or has not answered in time, is given up, and the next call makes another
//! one. No command is sent twice here, because only the sender knows whether that is safe.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value,
};
use tokio::runtime::{self, Handle};
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::StoreError;

/// The most runtimes of which a task is kept. If more runtimes call, the oldest task is given up for a new one.
const MAX_RUNTIMES: usize = 32;

/// The tasks that are not given up, one for each runtime, the newest last.
pub(super) struct Tasks<T>(Mutex<Vec<(runtime::Id, Task<T>)>>);

/// The result of a task, which goes on when a caller is dropped.
pub(super) type Task<T> = Shared<BoxFuture<'static, Result<T, StoreError>>>;

impl<T: Clone + Send + Sync + 'static> Tasks<T> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// The task of this runtime, which runs `made` if there is none. `store` is the name in errors.
    pub(super) fn get<F>(
        &self,
        store: &str,
        made: impl FnOnce() -> F,
    ) -> Result<Task<T>, StoreError>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let runtime =
            Handle::try_current().map_err(|error| StoreError::unreachable(store, error))?;
        let mut tasks = self.0.lock();
        if let Some((_, task)) = tasks.iter().find(|(id, _)| *id == runtime.id()) {
            return Ok(task.clone());
        }
        if tasks.len() == MAX_RUNTIMES {
            drop(tasks.remove(0));
        }
        let store = store.to_owned();
        let task = runtime.spawn(made()).map(move |ended| {
            ended.unwrap_or_else(|error| Err(StoreError::unreachable(&store, error)))
        });
        let task = task.boxed().shared();
        tasks.push((runtime.id(), task.clone()));
        Ok(task)
    }

    pub(super) fn give_up(&self, given_up: &Task<T>) {
        self.0.lock().retain(|(_, task)| !task.ptr_eq(given_up));
    }
}

/// The connections to one server.
pub(super) struct Connections {
    pub(super) client: Client,
    /// Host and port, or a path.
    pub(super) address: String,
    /// The server, without any password.
    pub(super) store: String,
    /// The longest time to make a connection, and to wait for an answer.
    timeout: Duration,
    open: Tasks<MultiplexedConnection>,
}

impl Connections {
    pub(super) fn new(client: Client, timeout: Duration) -> Self {
        let address = client.get_connection_info().addr().to_string();
        Self {
            client,
            store: format!("Redis at {address}"),
            address,
            timeout,
            open: Tasks::new(),
        }
    }

    /// Sends a command and awaits the answer until the deadline, where `asks` is whether the server is asked for a key that is
    /// just being moved to it. The inner error is the client's error for a command that was sent.
    pub(super) async fn send(
        &self,
        cmd: &Cmd,
        asks: bool,
        by: Instant,
    ) -> Result<RedisResult<Value>, StoreError> {
        let connecting = self.open.get(&self.store, || self.connect())?;
        let made = timeout_at(by, connecting.clone()).await;
        let mut connection = made
            .unwrap_or_else(|elapsed| Err(StoreError::unreachable(&self.store, elapsed)))
            .inspect_err(|_| self.open.give_up(&connecting))?;
        let answered = async {
            if asks {
                ask(&mut connection, cmd).await
            } else {
                cmd.query_async(&mut connection).await
            }
        };
        let Ok(answer) = timeout_at(by, answered).await else {
            self.open.give_up(&connecting);
            return Err(StoreError::Unanswered {
                store: self.store.clone(),
                after: Some(self.timeout),
                source: None,
            });
        };
        // A server may have become read-only because another one at the same address has taken its place.
        let is_broken = |error: &RedisError| {
            error.is_unrecoverable_error()
                || error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
        };
        if answer.as_ref().is_err_and(is_broken) {
            self.open.give_up(&connecting);
        }
        Ok(answer)
    }

    fn connect(&self) -> impl Future<Output = Result<MultiplexedConnection, StoreError>> + use<> {
        let (client, store, limit) = (self.client.clone(), self.store.clone(), self.timeout);
        async move {
            // No timeout is set in the client, because the deadline of a call is awaited here.
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(None)
                .set_response_timeout(None);
            let connects = client.get_multiplexed_async_connection_with_config(&config);
            match timeout(limit, connects).await {
                Ok(connection) => connection.map_err(|error| connect_error(&store, error)),
                Err(elapsed) => Err(StoreError::unreachable(&store, elapsed)),
            }
        }
    }
}

/// Sends `ASKING` and the command, with no command of another caller in between.
async fn ask(connection: &mut MultiplexedConnection, cmd: &Cmd) -> RedisResult<Value> {
    let mut both = redis::pipe();
    both.cmd("ASKING").ignore().add_command(cmd.clone());
    let answers: Vec<RedisResult<Value>> = both.ignore_errors().query_async(connection).await?;
    answers.into_iter().next_back().unwrap_or(Ok(Value::Nil))
}

// The client is left out, because it has the password.
debug_fields! { Connections, |connections| store = connections.store }

/// The error of a connection that was not made, so nothing was sent.
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

/// Part of the error of a script whose key has been moved to another node of a cluster while the script ran.
const NOT_HERE: &str = "attempted to access a non local key";

/// The error of a command that was sent. `at` is the key of the command.
pub(super) fn call_error(store: &str, at: &str, error: RedisError) -> StoreError {
    let wrong_type = error.code() == Some("WRONGTYPE")
        || error
            .detail()
            .is_some_and(|detail| detail.contains("WRONGTYPE"));
    match error.kind() {
        _ if wrong_type => StoreError::damaged(store, at),
        // A server that is loading its data, or a node whose cluster is down or is moving the key, returns this error before it
        // carries out a command.
        ErrorKind::Server(
            ServerErrorKind::BusyLoading | ServerErrorKind::ClusterDown | ServerErrorKind::TryAgain,
        ) => StoreError::unreachable(store, error),
        // The script may have changed other keys before.
        _ if error
            .detail()
            .is_some_and(|detail| detail.contains(NOT_HERE)) =>
        {
            StoreError::unanswered(store, error)
        }
        ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed => {
            StoreError::refused(store, error)
        }
        _ => StoreError::unanswered(store, error),
    }
}

/// The error for an answer that no script of a limiter returns: it is from a proxy, or from another kind of server.
pub(super) fn answer_error(store: &str) -> StoreError {
    StoreError::unanswered(store, "the answer is none of a limiter's script")
}
