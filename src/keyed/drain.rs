//! Waits until no key has a waiter or a place in flight.
//!
//! Grants and releases keep no count for it: they do not know whether a task awaits the drain. The task looks at one shard after
//! the other, and waits for the keys that are in use. It sees different shards at different moments. So while the limiter is open,
//! it must find each shard drained twice, one round apart, with no grant between. Then all shards were drained when the second
//! round began. The keys of a closed limiter stay drained, so one round is enough.

use std::hash::Hash;

use tokio::task::coop::consume_budget;

use super::table::{AnyTable, with_table};
use crate::manager::Awaited;

pub(super) async fn drained<K: Hash + Eq + Clone + Send + Sync + 'static>(table: &AnyTable<K>) {
    let shards = with_table!(table, |table| table.shards.count());
    let mut marks = vec![None; shards];
    // How many of the latest looks in a row found no change since the round before, and how many found a closed shard.
    let (mut unchanged, mut closed) = (0, 0);
    for shard in (0..shards).cycle() {
        let look = with_table!(table, |table| table.shards.get(shard).look());
        if look.in_use.is_empty() {
            unchanged = if marks[shard].replace(look.mark) == Some(look.mark) {
                unchanged + 1
            } else {
                0
            };
            closed = if look.closed { closed + 1 } else { 0 };
        } else {
            unchanged = 0;
            closed = 0;
            marks[shard] = None;
            for manager in look.in_use {
                manager.watch(Awaited::Drain).await;
            }
        }
        if unchanged.max(closed) == shards {
            return;
        }
        if look.asked > 0 || shard + 1 == shards {
            consume_budget().await; // other tasks must have a turn
        }
    }
}
