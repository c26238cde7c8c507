//! Tells listeners of released places, from the server's messages.
//!
//! One task serves all listeners of a store, until nobody listens any more.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use redis::Client;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::store::ReleaseListener;
use crate::store::serve::serve;

/// How often it asks whether anybody listens still.
const ASK_AFTER: Duration = Duration::from_secs(5);

/// How long it waits before it connects again: at first, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// The listeners of a store.
#[derive(Clone, Default)]
pub(super) struct Releases {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    listening: Mutex<Listening>,
    /// A channel has come.
    changed: Notify,
}

#[derive(Default)]
struct Listening {
    by_channel: HashMap<String, Vec<ReleaseListener>>,
    served: bool,
}

impl Releases {
    /// Returns whether the listener will be told.
    pub(super) fn listen(&self, client: &Client, channel: String, listener: ReleaseListener) -> bool {
        let mut listening = self.lock();
        listening.by_channel.entry(channel).or_default().push(listener);
        self.shared.changed.notify_one();
        if std::mem::replace(&mut listening.served, true) {
            return true;
        }
        drop(listening); // a runtime that is shutting down drops the task at once
        let (this, client) = (self.clone(), client.clone());
        serve("tollgate-redis", move || {
            let (this, client) = (this.clone(), client.clone());
            async move { this.serve(&client).await }
        })
    }

    async fn serve(&self, client: &Client) {
        let mut pause = PAUSES.0;
        while self.is_wanted() {
            if self.follow(client, &mut pause).await.is_none() {
                sleep(pause).await;
                pause = (2 * pause).min(PAUSES.1);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Listening> {
        self.shared.listening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody listens. If not, the next listener is served anew.
    fn is_wanted(&self) -> bool {
        let mut listening = self.lock();
        listening.by_channel.retain(|_, listeners| {
            listeners.retain(|listener| !listener.is_closed());
            !listeners.is_empty()
        });
        listening.served = !listening.by_channel.is_empty();
        listening.served
    }

    /// Passes messages on until nobody listens. `None`: until the connection breaks.
    async fn follow(&self, client: &Client, pause: &mut Duration) -> Option<()> {
        let (mut sink, mut messages) = timeout(ASK_AFTER, client.get_async_pubsub()).await.ok()?.ok()?.split();
        let mut followed: Vec<String> = Vec::new();
        loop {
            let wanted: Vec<_> = self.lock().by_channel.keys().cloned().collect();
            // One of them anew each time: a connection can be dead without a sign of it.
            let first = wanted.first();
            for channel in wanted.iter().filter(|channel| Some(*channel) == first || !followed.contains(channel)) {
                timeout(ASK_AFTER, sink.subscribe(channel)).await.ok()?.ok()?;
                if !followed.contains(channel) {
                    self.each(channel, ReleaseListener::hears_again);
                }
            }
            for channel in followed.iter().filter(|channel| !wanted.contains(channel)) {
                timeout(ASK_AFTER, sink.unsubscribe(channel)).await.ok()?.ok()?;
            }
            (followed, *pause) = (wanted, PAUSES.0);
            let changed = pin!(self.shared.changed.notified());
            let passed_on = pin!(async {
                while let Some(message) = messages.next().await {
                    self.each(message.get_channel_name(), |listener| listener.released(message.get_payload_bytes()));
                }
            });
            match timeout(ASK_AFTER, select(passed_on, changed)).await {
                Ok(Either::Left(_)) => return None,
                Ok(Either::Right(_)) => {}
                Err(_) if self.is_wanted() => {}
                Err(_) => return Some(()),
            }
        }
    }

    /// Without the lock, since a listener is foreign code.
    fn each(&self, channel: &str, tell: impl Fn(&ReleaseListener)) {
        let listeners = self.lock().by_channel.get(channel).cloned().unwrap_or_default();
        listeners.iter().for_each(tell);
    }
}

impl fmt::Debug for Releases {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let channels = self.lock().by_channel.len();
        formatter.debug_struct("Releases").field("channels", &channels).finish()
    }
}
