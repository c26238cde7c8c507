//! Receives the server's messages about released places.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::select;
use redis::Client;
use redis::aio::PubSubSink;
use tokio::time::timeout;

use super::names::Names;
use crate::store::ReleaseListener;
use crate::store::serve::{ASK_AFTER, ServedListeners};

/// Passes messages on until the connection breaks or no listener is left.
pub(super) async fn follow(client: Client, names: Names, served: Arc<ServedListeners>) {
    let Ok(Ok(connection)) = timeout(ASK_AFTER, client.get_async_pubsub()).await else {
        return;
    };
    let (mut sink, mut messages) = connection.split();
    let passes_on = pin!(async {
        while let Some(message) = messages.next().await {
            if let Some(limiter) = names.limiter_of(message.get_channel_name()) {
                let key = message.get_payload_bytes();
                served.listeners.released(&limiter, key);
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
                served
                    .listeners
                    .each(Some(limiter), ReleaseListener::hears_again);
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
