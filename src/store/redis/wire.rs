//! A call as the arguments of its script, and the script's reply. A store counts nanoseconds, a server microseconds: all is rounded so
//! that nobody is admitted before it is time.

use std::sync::Arc;

use redis::{Cmd, Value};

use super::names::{self, Names};
use super::script::PolicyScript;
use crate::error::StoreError;
use crate::exchange::{Asks, Call, LimitReading, Reply, Stop, Until};

/// Larger numbers are not exact in a script. No limit is as large, so that such a cost is never granted.
const MAX_NUMBER: u64 = (1 << 52) + 1;

/// What became of a call that was answered.
#[derive(Debug)]
pub(super) enum Answer {
    Reply(Reply),
    TooLate,
    /// The text of the policy that is stored.
    PolicyDiffers(String),
    Damaged,
}

/// The names of the keys of a call: of the state first.
pub(super) fn keys(call: &Call, script: &PolicyScript, names: &Names) -> Vec<String> {
    let state = names.state(&call.scope);
    if !concerns_leases(call, script) && script.logs == 0 {
        return vec![state];
    }
    let own = [names::leases(&state), names::costs(&state)];
    let logs: Vec<_> = (0..script.logs).map(|number| names::log(&state, number)).collect();
    std::iter::once(state).chain(own).chain(logs).collect()
}

fn concerns_leases(call: &Call, script: &PolicyScript) -> bool {
    script.holds_places() || call.replaces_policy || !call.returns.is_empty() || !call.renewals.is_empty()
}

/// Adds the arguments after the keys.
pub(super) fn write_arguments(cmd: &mut Cmd, call: &Call, script: &PolicyScript, names: &Names) {
    cmd.arg(call.valid_until.map_or(u64::MAX, micros_up)).arg(u8::from(call.replaces_policy));
    cmd.arg(call.asks.len() + usize::from(call.peek.is_some()));
    for asks in &call.asks {
        cmd.arg(asks.count.min(MAX_NUMBER)).arg(u8::from(asks.waits));
        write_costs(cmd, script, &asks.costs);
    }
    if let Some(costs) = &call.peek {
        cmd.arg(0).arg(2);
        write_costs(cmd, script, costs);
    }
    let concerns_leases = concerns_leases(call, script);
    if call.settlements.is_empty() && !concerns_leases {
        return;
    }
    cmd.arg(call.settlements.len());
    for settlement in &call.settlements {
        cmd.arg(settlement.granted_at / 1_000);
        write_costs(cmd, script, &settlement.charged);
        write_costs(cmd, script, &settlement.actual);
    }
    if concerns_leases {
        cmd.arg(names.channel(&call.scope.limiter)).arg(&call.scope.key[..]).arg(micros_up(call.ttl).min(MAX_NUMBER));
        cmd.arg(call.returns.len()).arg(call.renewals.len());
        let opened = call.asks.iter().flat_map(|asks| asks.first..asks.first.saturating_add(most_leases(asks, script)));
        for number in call.returns.iter().chain(&call.renewals).copied().chain(opened) {
            cmd.arg(&id(call.holder, number)[..]);
        }
    }
}

/// As many as the script reads, whatever the call has.
fn write_costs(cmd: &mut Cmd, script: &PolicyScript, costs: &[u64]) {
    for cost in costs.iter().copied().chain(std::iter::repeat(0)).take(script.places.len()) {
        cmd.arg(cost.min(MAX_NUMBER));
    }
}

/// How many of these asks may get a lease: none if they take no place.
fn most_leases(asks: &Asks, script: &PolicyScript) -> u64 {
    let taken = script
        .places
        .iter()
        .zip(&asks.costs)
        .filter_map(|(places, cost)| places.filter(|_| *cost > 0).map(|places| places / cost));
    taken.min().map_or(0, |most| most.min(asks.count))
}

fn id(holder: u64, number: u64) -> [u8; 16] {
    (u128::from(holder) << 64 | u128::from(number)).to_be_bytes()
}

fn micros_up(nanos: u64) -> u64 {
    nanos.div_ceil(1_000)
}

/// The instant in nanoseconds; the last one where it lies beyond.
fn nanos(micros: i64) -> u64 {
    u64::try_from(micros).unwrap_or(0).saturating_mul(1_000)
}

/// Reads a reply. `None`: no script replies so.
pub(super) fn read(value: &Value, call: &Call) -> Option<Answer> {
    let Value::Array(items) = value else { return None };
    match items.split_first()? {
        (Value::Int(0), rest) => {
            let numbers = rest.iter().map(|item| if let Value::Int(number) = item { Some(*number) } else { None });
            read_reply(&numbers.collect::<Option<Vec<_>>>()?, call).map(Answer::Reply)
        }
        (Value::Int(1), _) => Some(Answer::TooLate),
        (Value::Int(2), [Value::BulkString(text), ..]) => Some(Answer::PolicyDiffers(String::from_utf8_lossy(text).into_owned())),
        (Value::Int(3), _) => Some(Answer::Damaged),
        _ => None,
    }
}

fn read_reply(numbers: &[i64], call: &Call) -> Option<Reply> {
    let ([now, granted, first_fence, reclaimed, limit, until, first_expiry], rest) = numbers.split_first_chunk()?;
    let count = call.policy.limits().len();
    let (readings, lost) = rest.split_at_checked(2 * count)?;
    let number = |number: i64| u64::try_from(number).ok();
    let stop = match usize::try_from(*limit).ok()?.checked_sub(1) {
        None => None,
        Some(limit) if limit < count => Some(Stop { limit, until: until_of(*until, *first_expiry) }),
        Some(_) => return None,
    };
    let reading = |pair: &[i64]| Some(LimitReading { remaining: number(pair[0])?, reset_at: nanos(pair[1]) });
    let lost = lost.iter().map(|index| call.renewals.get(usize::try_from(*index).ok()?).copied());
    Some(Reply {
        now: nanos(*now),
        granted: number(*granted)?,
        first_fence: number(*first_fence)?,
        stop,
        limits: readings.chunks_exact(2).map(reading).collect::<Option<_>>()?,
        lost: lost.collect::<Option<_>>()?,
        reclaimed: number(*reclaimed)?,
    })
}

fn until_of(until: i64, first_expiry: i64) -> Until {
    match u64::try_from(until) {
        Ok(micros) => micros.checked_mul(1_000).map_or(Until::Never, Until::Instant),
        Err(_) if until == -2 => Until::Release { first_expiry: if first_expiry < 0 { u64::MAX } else { nanos(first_expiry) } },
        Err(_) => Until::Never,
    }
}

/// The error of an answer that is no reply.
pub(super) fn refusal(answer: Answer, call: &Call, store: &str, state: &str) -> Result<Reply, StoreError> {
    let store = store.to_owned();
    Err(match answer {
        Answer::Reply(reply) => return Ok(reply),
        Answer::TooLate => StoreError::TooLate { store },
        Answer::Damaged => StoreError::Damaged { store, at: state.to_owned() },
        Answer::PolicyDiffers(stored) => {
            StoreError::PolicyDiffers { limiter: Arc::clone(&call.scope.limiter), stored, given: call.policy.to_string() }
        }
    })
}
