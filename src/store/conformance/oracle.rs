//! Compares the replies to random calls with those of the rules of this crate.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::fault::{Outcome, same};
use super::holder::Holder;
use crate::exchange::{Asks, Call, DeniedAsk, DeniedUntil, Reply, Settlement};
use crate::policy::Limit;
use crate::store::{Decided, Rules, Store};

/// Policies with every kind of limit. Their times are so short that they pass between the calls, and are whole microseconds.
pub(crate) const POLICIES: [&str; 12] = [
    "700/s burst 5",
    "500/s burst 5000 initial 3", // it fills for so long that no store forgets the key meanwhile
    "2/4ms burst 5000 refilled each period initial 3",
    "1000/s burst 3 and 4 concurrent ttl 1s",
    "1000/s burst 20 refilled each period and window 30/100ms from first grant",
    "window 5/10ms wall clock",
    "window 3/5ms from first grant and 900/s burst 8",
    "sliding log 4/8ms and 2 concurrent",
    "sliding counter 6/10ms",
    "throttle every 2ms burst 4 and 5 concurrent",
    "penalty 5 falling 1000/s ban 10ms up to 50ms",
    "3 concurrent and sliding log 9/10ms and 2000/s burst 8",
];

const CALLS: usize = 60;
/// A xorshift generator: the same numbers in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// A grant: its instant, its costs, and the number of its lease.
type Granted = (u64, Box<[u64]>, u64);

pub(super) async fn random_calls_have_the_replies_of_the_rules(store: &Arc<dyn Store>) -> Outcome {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    for text in POLICIES {
        let mut holder = Holder::new(store, text)?;
        let rules = Rules::new("the oracle");
        let (mut state, mut grants, mut last_fence) = (None, Vec::new(), 0);
        for nth in 1..=CALLS {
            let call = random_call(&mut random, &mut holder, &grants);
            let mut reply = holder.send(|sent| *sent = call.clone()).await?;
            let Decided {
                reply: expected,
                state: next,
                ..
            } = rules.decide(reply.now, state.as_ref(), &call)?;
            state = next.or(state);
            let what = |of| format!("{of} to call {nth} under `{text}`, {call:?}");
            if reply.granted > 0 {
                let (fence, rises) = (reply.first_fence, reply.first_fence > last_fence);
                same(
                    what(format!(
                        "whether the fence {fence} is more than {last_fence}, in the reply"
                    )),
                    rises,
                    true,
                )?;
                last_fence = fence + reply.granted - 1;
            }
            note(&mut grants, &call, &reply);
            reply.first_fence = expected.first_fence; // fences need only rise
            let_clocks_differ(&mut reply, &expected);
            same(what("the reply".to_owned()), reply, expected)?;
            if random.one_in(20) {
                holder.reset().await?; // later settlements are of grants from before it, too
                state = None;
                sleep(Duration::from_millis(1)).await; // fences and instants follow the clock, in microseconds
            }
            if random.one_in(3) {
                sleep(Duration::from_micros(500 + random.below(4_000))).await;
            }
        }
    }
    Ok(())
}

fn random_call(random: &mut Random, holder: &mut Holder, grants: &[Granted]) -> Call {
    let mut call = holder.other(random.below(2)).call;
    for _ in 0..random.below(3) {
        let known = grants
            .len()
            .checked_sub(1 + random.below(6) as usize)
            .map(|at| grants[at].2);
        let number = known.unwrap_or(1_000_000 + random.below(5)); // of any holder
        let list = if random.one_in(2) {
            &mut call.renewals
        } else {
            &mut call.returns
        };
        if !list.contains(&number) {
            list.push(number);
        }
    }
    let count = call.policy.limits().len();
    let costs =
        |random: &mut Random| -> Box<[u64]> { (0..count).map(|_| random.below(4)).collect() };
    if random.one_in(4)
        && let Some((granted_at, charged, _)) = grants.last()
    {
        let actual = costs(random);
        let actual = actual.iter().zip(charged).zip(call.policy.limits());
        let actual = actual.map(|((actual, charged), limit)| {
            // A store need not know the past grants of a rate.
            if matches!(limit, Limit::Throttle(_) | Limit::TokenBucket(_)) {
                *actual.max(charged)
            } else {
                *actual
            }
        });
        let actual: Box<[u64]> = actual.collect();
        call.settlements
            .push(Settlement::new(*granted_at, charged.clone(), actual));
    }
    if random.one_in(6) {
        call.settlements.push(Settlement::charge(costs(random)));
    }
    if random.one_in(6) {
        call.peek = Some(costs(random));
        return call;
    }
    for _ in 0..random.below(4) {
        let asked = Asks {
            waits: random.one_in(2),
            ..Asks::new(holder.next, 1 + random.below(4), costs(random))
        };
        holder.next += asked.count;
        call.asks.push(asked);
    }
    call
}

/// Notes the grants of a reply.
fn note(grants: &mut Vec<Granted>, call: &Call, reply: &Reply) {
    let asked = call
        .asks
        .iter()
        .flat_map(|asks| (asks.first..asks.first + asks.count).map(move |number| (number, asks)));
    grants.extend(
        asked
            .take(reply.granted as usize)
            .map(|(number, asks)| (reply.now, asks.costs.clone(), number)),
    );
}

/// Allows for differing clocks: an instant may be up to a microsecond later. If limits stop an ask about equally long, either may
/// be reported.
fn let_clocks_differ(reply: &mut Reply, expected: &Reply) {
    let settle = |got: &mut u64, expected: u64| {
        if (expected..expected.saturating_add(1_000)).contains(got) {
            *got = expected;
        }
    };
    for (reading, expected) in reply.limits.iter_mut().zip(&expected.limits) {
        settle(&mut reading.available_at, expected.available_at);
        settle(&mut reading.reset_at, expected.reset_at);
    }
    if let (Some(DeniedAsk { limit, until }), Some(expected)) = (&mut reply.stop, &expected.stop) {
        match (until, expected.until) {
            (DeniedUntil::Instant(at), DeniedUntil::Instant(expected_at)) => {
                settle(at, expected_at);
                *limit = expected.limit;
            }
            (until @ DeniedUntil::Release { .. }, DeniedUntil::Release { .. }) => {
                *until = expected.until;
            } // another claim looks at it
            _ => {}
        }
    }
}
