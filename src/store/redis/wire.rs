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
    let peek = call.peek.as_deref();
    let runs = call.asks.len() + usize::from(peek.is_some());
    let limits = script.places.len();
    let mut packed = Packed(Vec::with_capacity(8 * (7 + runs * (2 + limits) + call.settlements.len() * (1 + 2 * limits))));
    packed.push(call.valid_until.map_or(f64::INFINITY, |instant| micros_up(instant) as f64));
    packed.push_all([u8::from(call.replaces_policy).into(), runs as f64, call.settlements.len() as f64]);
    for asks in &call.asks {
        packed.push_all([whole(asks.count), u8::from(asks.waits).into()]);
        packed.push_costs(&asks.costs, limits);
    }
    if let Some(costs) = peek {
        packed.push_all([0.0, 2.0]);
        packed.push_costs(costs, limits);
    }
    for settlement in &call.settlements {
        packed.push((settlement.granted_at / 1_000) as f64);
        packed.push_costs(&settlement.charged, limits);
        packed.push_costs(&settlement.actual, limits);
    }
    if !concerns_leases(call, script) {
        cmd.arg(&packed.0);
        return;
    }
    packed.push_all([whole(micros_up(call.ttl)), call.returns.len() as f64, call.renewals.len() as f64]);
    cmd.arg(&packed.0).arg(names.channel(&call.scope.limiter)).arg(&call.scope.key[..]);
    let opened = call.asks.iter().flat_map(|asks| asks.first..asks.first.saturating_add(most_leases(asks, script)));
    for number in call.returns.iter().chain(&call.renewals).copied().chain(opened) {
        cmd.arg(&id(call.holder, number)[..]);
    }
}

/// Numbers as a script unpacks them: that takes less time than an argument for each of them.
struct Packed(Vec<u8>);

impl Packed {
    fn push(&mut self, number: f64) {
        self.0.extend(number.to_le_bytes());
    }

    fn push_all<const COUNT: usize>(&mut self, numbers: [f64; COUNT]) {
        numbers.into_iter().for_each(|number| self.push(number));
    }

    /// As many as the script reads, whatever the call has.
    fn push_costs(&mut self, costs: &[u64], limits: usize) {
        costs.iter().copied().chain(std::iter::repeat(0)).take(limits).for_each(|cost| self.push(whole(cost)));
    }
}

fn whole(number: u64) -> f64 {
    number.min(MAX_NUMBER) as f64
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
fn nanos(micros: f64) -> u64 {
    (micros as u64).saturating_mul(1_000)
}

/// Reads a reply. `None`: no script replies so.
pub(super) fn read(value: &Value, call: &Call) -> Option<Answer> {
    match value {
        Value::BulkString(packed) => read_reply(packed, call).map(Answer::Reply),
        Value::Array(items) => match &items[..] {
            [Value::Int(1)] => Some(Answer::TooLate),
            [Value::Int(2), Value::BulkString(text)] => Some(Answer::PolicyDiffers(String::from_utf8_lossy(text).into_owned())),
            [Value::Int(3)] => Some(Answer::Damaged),
            _ => None,
        },
        _ => None,
    }
}

fn read_reply(packed: &[u8], call: &Call) -> Option<Reply> {
    let (numbers, rest) = packed.as_chunks();
    let mut numbers = numbers.iter().map(|bytes| f64::from_le_bytes(*bytes));
    let mut next = || numbers.next().filter(|number| !number.is_nan());
    let (now, granted, first_fence, reclaimed) = (nanos(next()?), next()? as u64, next()? as u64, next()? as u64);
    let (limit, until, first_expiry) = (next()? as usize, next()?, next()?);
    let count = call.policy.limits().len();
    let stop = match limit.checked_sub(1) {
        None => None,
        Some(limit) if limit < count => Some(Stop { limit, until: until_of(until, first_expiry) }),
        Some(_) => return None,
    };
    let mut limits = Vec::with_capacity(count);
    for _ in 0..count {
        limits.push(LimitReading { remaining: next()? as u64, available_at: nanos(next()?), reset_at: nanos(next()?) });
    }
    let lost = numbers.map(|index| call.renewals.get(index as usize).copied()).collect::<Option<_>>()?;
    rest.is_empty().then_some(Reply { now, granted, first_fence, stop, limits, lost, reclaimed })
}

fn until_of(until: f64, first_expiry: f64) -> Until {
    match until {
        0.0.. => (until as u64).checked_mul(1_000).map_or(Until::Never, Until::Instant),
        -2.0 => Until::Release { first_expiry: if first_expiry < 0.0 { u64::MAX } else { nanos(first_expiry) } },
        _ => Until::Never,
    }
}

/// The error of an answer that is no reply.
pub(super) fn refusal(answer: Answer, call: &Call, store: &str, state: &str) -> Result<Reply, StoreError> {
    Err(match answer {
        Answer::Reply(reply) => return Ok(reply),
        Answer::TooLate => StoreError::TooLate { store: store.to_owned() },
        Answer::Damaged => StoreError::Damaged { store: store.to_owned(), at: state.to_owned() },
        Answer::PolicyDiffers(stored) => {
            StoreError::PolicyDiffers { limiter: Arc::clone(&call.scope.limiter), stored, given: call.policy.to_string() }
        }
    })
}
