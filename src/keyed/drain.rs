//! Waits until no key has a waiter or a place in flight.
//!
//! Nothing is counted for it: grants and releases do not know whether somebody waits. It looks at one shard after the other, and
//! where keys are in use it waits for these. Looks at different shards are of different moments. So while the limiter is open, it
//! must find each shard drained twice, a round apart, with no grant between: then all were drained when the second round began.
//! The keys of a closed limiter stay drained, so one round is enough.

use std::hash::Hash;

use tokio::task::coop::consume_budget;

use super::any_table::{AnyTable, with_table};

pub(super) async fn drained<K: Hash + Eq + Clone + Send + Sync + 'static>(table: &AnyTable<K>) {
    let shards = with_table!(table, |table| table.shards());
    let mut marks = vec![None; shards];
    // How many of the latest looks, one after the other, found no change since the round before, and how many a closed shard.
    let (mut unchanged, mut closed) = (0, 0);
    for shard in (0..shards).cycle() {
        let look = with_table!(table, |table| table.look(shard));
        if look.in_use.is_empty() {
            unchanged = if marks[shard].replace(look.mark) == Some(look.mark) { unchanged + 1 } else { 0 };
            closed = if look.closed { closed + 1 } else { 0 };
        } else {
            (unchanged, closed, marks[shard]) = (0, 0, None);
            for manager in look.in_use {
                manager.drained().await;
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
