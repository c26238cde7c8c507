//! Orders of events that a fuzzer chooses.

use super::search::{Bounds, World};
use crate::core::session::PrefetchOptions;

/// The sessions of two processes: whatever the order of events, the limit holds, no unit is lost, and no request is forgotten.
///
/// The first three bytes of an input choose the policy and the numbers of requests. Then each byte chooses what happens next.
pub(crate) fn session(bytes: &[u8]) {
    const POLICIES: [(&str, u64); 6] = [
        ("1 concurrent ttl 400ms", 0),
        ("2 concurrent ttl 400ms", 0),
        ("sliding log 1/s", 0),
        ("sliding log 3/s", 0),
        ("sliding log 3/s", 2),
        ("sliding log 6/s", 4),
    ];
    let Some((&[policy, one, other], choices)) = bytes.split_first_chunk() else {
        return;
    };
    let (policy, prefetched) = POLICIES[usize::from(policy) % POLICIES.len()];
    let mut world = World::new(&Bounds {
        policy,
        requests: [one, other].map(|requests| 1 + usize::from(requests) % 4),
        losses: 4,
        deaths: 1,
        passes: 30,
        give_ups: 3,
        prefetch: (prefetched > 0).then_some(PrefetchOptions {
            max: prefetched,
            kept_for: 100_000_000,
        }),
    });
    for choice in choices {
        let choices = world.choices();
        if choices.is_empty() {
            break;
        }
        world.choose(choices[usize::from(*choice) % choices.len()]);
        world.check();
    }
    world.check_end();
}

#[cfg(test)]
mod tests {
    use crate::corpus::replay;

    #[test]
    fn the_limit_holds_in_orders_that_were_found() {
        replay(
            include_str!("../../../../tests/integration/fuzzed/session.txt"),
            super::session,
        );
    }
}
