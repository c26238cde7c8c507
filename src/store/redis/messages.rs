//! Receives the messages about released places, on a connection of its own.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::select;
use redis::aio::PubSubSink;
use tokio::time::timeout;

use super::names::{self, Names};
use super::servers::Servers;
use crate::store::Release;
use crate::store::serve::{ASK_AFTER, ServedListeners};

/// Passes the messages about released places on, until the connection breaks, its server leaves the cluster, or no listener is
/// left.
///
/// A script publishes its messages at the node that has the key, and the cluster passes them on to all its nodes. So one
/// connection, to any node, receives all messages, also while slots move and masters change. Sharded messages (`SPUBLISH`, from Redis 7
/// on) would spare the other nodes that, but they need a connection to each master, and a new subscription after each move.
pub(super) async fn follow(servers: Arc<Servers>, names: Names, served: Arc<ServedListeners>) {
    let server = servers.next_to_follow();
    let Ok(Ok(connection)) = timeout(ASK_AFTER, server.client.get_async_pubsub()).await else {
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
    let subscribes = pin!(async {
        let mut followed = BTreeSet::new();
        while servers.has(&server)
            && let Some(wanted) = subscribe(&mut sink, &names, &served, followed).await
        {
            followed = wanted;
            timeout(ASK_AFTER, served.added.notified()).await.ok();
        }
    });
    select(passes_on, subscribes).await;
}

/// Subscribes to the channels of all listeners, and to no other ones. Returns their limiters; `None` if the connection is broken,
/// or no listener is left.
async fn subscribe(
    sink: &mut PubSubSink,
    names: &Names,
    served: &ServedListeners,
    followed: BTreeSet<Arc<str>>,
) -> Option<BTreeSet<Arc<str>>> {
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
    Some(wanted)
}
