//! Any bytes as the state of a key: they are an error, or a ledger whose decisions keep the limits.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{KeyState, Rules};
use crate::core::ledger::{Encoded, Ledger};
use crate::error::{ReplyFault, StoreError};
use crate::exchange::{Asks, Call, Reply, ReplyTerms, Scope, Settlement};
use crate::policy::{Limit, Policy};
use crate::strategy::SlidingMethod;

/// With every kind of limit, and two of which one is a change of the other.
const POLICIES: [&str; 12] = [
    "7/s burst 5",
    "100/s burst 3 and 4 concurrent ttl 1s",
    "100/s burst 20 refilled each period",
    "window 5/100ms and window 9/s wall clock",
    "window 3/50ms from first grant",
    "sliding log 4/80ms and 2 concurrent",
    "sliding counter 6/100ms",
    "throttle every 20ms burst 4",
    "penalty 5 falling 10/s ban 1s up to 5s",
    "3 concurrent and sliding log 100/s and 20/s burst 8",
    "2 concurrent",
    "sliding log 3/s",
];

/// Takes parts off an input.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    /// The next byte; 0 at the end.
    fn byte(&mut self) -> u64 {
        let first = self.0.split_off_first();
        first.copied().unwrap_or_default().into()
    }

    fn policy(&mut self) -> Policy {
        let nth = self.byte() as usize % POLICIES.len();
        POLICIES[nth].parse().unwrap()
    }

    /// A number of any size, mostly a small one.
    fn number(&mut self) -> u64 {
        let [low, high] = [self.byte(), self.byte()];
        low << (high % 64)
    }
}

/// What the decisions so far have granted.
#[derive(Default)]
struct Granted {
    fence: u64,
    /// For each limit: when, and how many units.
    units: Vec<Vec<(u64, u64)>>,
    /// By holder and number.
    leases: BTreeMap<(u64, u64), Held>,
    was_refunded: bool,
}

/// The places of a lease.
struct Held {
    until: u64,
    costs: Box<[u64]>,
}

/// A state of any bytes is refused, or its decisions keep the limits, and each state that they write is read as it was written.
///
/// An input has the policy, the stored policy, an instant and some calls; the rest is the state: after the text of the policy, or with it.
pub(crate) fn ledger(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (policy, stored, form) = (input.policy(), input.policy(), input.byte());
    let (mut now, expires_at) = (input.number(), input.number());
    let calls: Vec<_> = (0..input.byte() % 8)
        .map(|_| call(&mut input, &policy, &mut now))
        .collect();
    let stored = if form & 1 == 0 { &policy } else { &stored };
    let bytes = match form / 2 % 4 {
        3 => input.0.to_vec(),
        version => encoded(version as u8 + 2, stored, form & 8 == 0, input.0),
    };
    let (rules, mut granted) = (Rules::new("fuzzed"), Granted::default());
    granted.units = vec![Vec::new(); policy.limits().len()];
    let mut state = Some(KeyState { bytes, expires_at });
    for (now, call) in &calls {
        let decided = match rules.decide(*now, state.as_ref(), call) {
            Ok(decided) => decided,
            Err(
                StoreError::Damaged { .. }
                | StoreError::PolicyDiffers { .. }
                | StoreError::UnknownPolicy { .. }
                | StoreError::TooLate { .. },
            ) => return,
            Err(error) => panic!("{error}"),
        };
        match ReplyTerms::of(call).check(&Ok(decided.reply.clone())) {
            Ok(()) => granted.check(call, &decided.reply),
            // Fences and instants of a state may be as large as they can be. Whoever called refuses this reply.
            Err(ReplyFault::Fence { .. } | ReplyFault::Instant { .. }) => return,
            Err(fault) => panic!("{fault} {:?}", decided.reply),
        }
        if let Some(written) = &decided.state {
            let (text, plan) = (policy.to_string(), crate::store::plan(&policy).unwrap());
            let read = Encoded::read(&written.bytes).unwrap();
            assert_eq!(read.text, text);
            let ledger = Ledger::decode(plan, read).unwrap();
            assert_eq!(ledger.encode(&text), written.bytes);
        }
        state = decided.state.or(state);
    }
}

/// The bytes of a state, with the text of the policy, or without it if `body` has one.
fn encoded(version: u8, policy: &Policy, has_text: bool, body: &[u8]) -> Vec<u8> {
    let text = policy.to_string();
    let text = if has_text { &text } else { "" };
    let length = has_text.then_some(text.len() as u8); // less than 128: one byte
    let rest: Vec<_> = length
        .into_iter()
        .chain(text.bytes())
        .chain(body.iter().copied())
        .collect();
    // FNV-1a.
    let checksum = rest.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    [&[version][..], &checksum.to_le_bytes(), &rest].concat()
}

/// A call, some time after the one before.
fn call(input: &mut Input<'_>, policy: &Policy, now: &mut u64) -> (u64, Call) {
    let scope = Scope {
        limiter: "fuzzed".into(),
        key: Arc::default(),
    };
    *now = now.saturating_add(input.number()).min(u64::MAX - 1);
    let holder = input.byte() % 4;
    let mut call = Call::new(scope, policy.clone(), holder);
    let parts = input.byte();
    call.ttl = 1 + 1_000 * input.byte();
    call.revision = (parts >> 6) % 2;
    let costs = |cost: u64| vec![cost; policy.limits().len()];
    for kind in 0..parts % 4 {
        let (first, count, cost) = (input.byte() % 16, 1 + input.byte() % 5, input.byte() % 7);
        let mut asks = Asks::new(first, count, costs(cost));
        (asks.waits, asks.ahead) = (kind % 2 == 0, kind == 2);
        call.asks.push(asks);
    }
    if parts & 4 != 0 {
        call.returns.push(input.byte() % 16);
    }
    if parts & 8 != 0 {
        call.renewals.push(input.byte() % 16);
    }
    if parts & 16 != 0 {
        let (at, charged, actual) = (input.number(), input.byte() % 9, input.byte() % 9);
        let settled = Settlement::new(at, costs(charged), costs(actual));
        call.settlements.push(settled);
    }
    if parts & 32 != 0 && call.asks.is_empty() {
        call.peek = Some(costs(input.byte() % 7).into());
    }
    (*now, call)
}

impl Granted {
    /// Adds what a reply grants. No window of a log, no instant of another limit of time, and no concurrency holds more than it allows.
    fn check(&mut self, call: &Call, reply: &Reply) {
        let now = reply.now;
        if reply.granted > 0 {
            assert!(reply.first_fence > self.fence, "a fence is given twice");
            self.fence = reply.first_fence + reply.granted - 1;
        }
        self.leases.retain(|_, held| held.until > now);
        for number in &call.returns {
            self.leases.remove(&(call.holder, *number));
        }
        for number in call.renewals.iter().filter(|it| !reply.lost.contains(it)) {
            if let Some(held) = self.leases.get_mut(&(call.holder, *number)) {
                held.until = now.saturating_add(call.ttl);
            }
        }
        let refunds = |settled: &Settlement| settled.actual < settled.charged;
        self.was_refunded |= call.settlements.iter().any(refunds);
        let asked = call.asks.iter().flat_map(|asks| {
            (asks.first..asks.first + asks.count).map(move |number| (number, &asks.costs))
        });
        for (number, costs) in asked.take(reply.granted as usize) {
            let held = Held {
                until: now.saturating_add(call.ttl),
                costs: costs.clone(),
            };
            self.leases.insert((call.holder, number), held);
            for (units, cost) in self.units.iter_mut().zip(costs) {
                units.push((now, *cost));
            }
        }
        for (index, (limit, units)) in call.policy.limits().iter().zip(&self.units).enumerate() {
            let held = if limit.counts_places() {
                self.leases.values().map(|held| held.costs[index]).sum()
            } else if self.was_refunded {
                0
            } else {
                let span = match limit {
                    Limit::SlidingWindow(window) if window.method() == SlidingMethod::Log => {
                        window.period().as_nanos() as u64
                    }
                    _ => 1,
                };
                let counts = |(at, _): &&(u64, u64)| now - at < span;
                units.iter().filter(counts).map(|(_, units)| units).sum()
            };
            assert!(held <= limit.capacity(), "{held} units of {limit}");
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::corpus::replay;

    #[test]
    fn any_bytes_are_refused_or_decide_within_the_limits() {
        replay(
            include_str!("../../../tests/integration/fuzzed/ledger.txt"),
            super::ledger,
        );
    }
}
