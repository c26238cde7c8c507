//! One connection for each runtime that calls, one for messages about released places, and the conversion of client errors.
//!
//! A connection's task runs in the runtime that made it, and ends with that runtime. So each runtime has a connection of its own,
//! which all its calls share. A connection that breaks, or has not answered in time, is given up, and the next call makes another
//! one. No command is sent twice here, because only the sender knows whether that is safe.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Shared, select};
use futures_util::{FutureExt, StreamExt};
use redis::aio::{MultiplexedConnection, PubSubSink};
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::runtime::{self, Handle};
use tokio::time::{Instant, timeout, timeout_at};

use super::names::{self, Names};
use crate::error::StoreError;
use crate::lock::Lock;
use crate::store::Release;
use crate::store::serve::{ASK_AFTER, ServedListeners};

/// The most connections. If more runtimes call, the oldest connection is given up for a new one.
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
    /// The connections that are not given up, the newest last.
    open: Lock<Vec<(runtime::Id, Connecting)>>,
}

/// A connection that is made, or is still being made.
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

    /// The deadline of a call that begins now.
    pub(super) fn deadline(&self) -> Instant {
        let now = Instant::now();
        now.checked_add(self.timeout).unwrap_or_else(|| now + NEVER)
    }

    /// Sends a command and awaits the answer until the deadline. The inner error is the client's error for a command that was
    /// sent.
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
        // A server may have become read-only because another one at the same address has taken its place.
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

// The client is left out, because it has the password.
debug_fields! { Connections, |connections| store = connections.store, timeout = connections.timeout }

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

/// The error of a command that was sent. `at` is the key of the command.
pub(super) fn call_error(store: &str, at: &str, error: RedisError) -> StoreError {
    let wrong_type = error.code() == Some("WRONGTYPE")
        || error
            .detail()
            .is_some_and(|detail| detail.contains("WRONGTYPE"));
    match error.kind() {
        _ if wrong_type => StoreError::damaged(store, at),
        // A server that is loading its data returns this error before it reads a command.
        ErrorKind::Server(ServerErrorKind::BusyLoading) => StoreError::unreachable(store, error),
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

/// Whether the server does not know the script, and so has not run it.
pub(super) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Passes the messages about released places on, until the connection breaks or no listener is left.
pub(super) async fn follow(client: Client, names: Names, served: Arc<ServedListeners>) {
    let Ok(Ok(connection)) = timeout(ASK_AFTER, client.get_async_pubsub()).await else {
        return;
    };
    let (mut sink, mut messages) = connection.split();
    let passes_on = pin!(async {
        while let Some(message) = messages.next().await {
            if let Some(limiter) = names.limiter_of(message.get_channel_name()) {
                match message.get_payload_bytes().split_first_chunk() {
                    Some((&names::OF_A_RESET, key)) => served.listeners.reset(&limiter, key),
                    Some((holders, key)) => {
                        let holders = u128::from_be_bytes(*holders);
                        let (turn, next) = ((holders >> 64) as u64, holders as u64);
                        let next = Some(next).filter(|next| *next > 0);
                        served.listeners.turns(&limiter, key, &[turn], next);
                    }
                    None => {}
                }
            }
        }
    });
    let subscribes = pin!(subscribe(&mut sink, &names, &served));
    select(passes_on, subscribes).await;
}

/// Subscribes to the channels of all listeners, until the connection breaks or no listener is left.
async fn subscribe(sink: &mut PubSubSink, names: &Names, served: &ServedListeners) -> Option<()> {
    let mut followed = BTreeSet::new();
    loop {
        let wanted = served.listeners.limiters();
        // The first channel is subscribed to again each time, to detect a connection that is dead without a sign of it.
        let first = wanted.first()?;
        for limiter in &wanted {
            let is_new = !followed.contains(limiter);
            if is_new || limiter == first {
                let subscribed = sink.subscribe(names.channel(limiter));
                timeout(ASK_AFTER, subscribed).await.ok()?.ok()?;
            }
            if is_new {
                served.listeners.each(Some(limiter), |listener| {
                    listener.released(Release::Unknown);
                });
            }
        }
        for limiter in followed.difference(&wanted) {
            let unsubscribed = sink.unsubscribe(names.channel(limiter));
            timeout(ASK_AFTER, unsubscribed).await.ok()?.ok()?;
        }
        followed = wanted;
        timeout(ASK_AFTER, served.added.notified()).await.ok();
    }
}
