//! Any answer of a node about the slots of its cluster.

use std::time::Duration;

use super::*;

/// An answer is refused, or each slot that has an owner has one of the nodes that were named.
pub(in crate::store) fn slots(bytes: &[u8]) {
    let Ok(answer) = redis::parse_redis_value(bytes) else {
        return;
    };
    let client = Client::open("redis://127.0.0.1:7000").unwrap();
    let servers = Servers::cluster(vec![client], Duration::from_secs(1));
    let by = Arc::clone(&servers.given[0]);
    if let Ok(slots) = servers.read_slots(answer, &by) {
        assert_eq!(slots.owners.len(), usize::from(SLOTS));
        for slot in 0..SLOTS {
            assert_eq!(
                slots.node_of(slot).is_some(),
                slots.number_of(slot).is_some()
            );
        }
    }
}
