//! Writes a call as the arguments of its script, and reads the script's reply. Calls count nanoseconds, and the server counts
//! microseconds: instants and durations are rounded so that no request is admitted early.

use redis::{Cmd, Value};

use super::connections::answer_error;
use super::names::{self, Names};
use super::script::{PolicyScript, read_named};
use crate::error::StoreError;
use crate::exchange::{Asks, Call, DeniedAsk, DeniedUntil, LimitReading, Reply};

/// Larger numbers are not exact in a script. No limit is that large, so such a cost is never granted.
const MAX_NUMBER: u64 = (1 << 52) + 1;

/// The names of the keys of a call. The first is the name of the state.
pub(super) fn keys(call: &Call, script: &PolicyScript, names: &Names) -> Vec<String> {
    let state = names.state(&call.scope);
    if !concerns_leases(call, script) && script.logs == 0 {
        return vec![state];
    }
    names::all(state, script.logs)
}

fn concerns_leases(call: &Call, script: &PolicyScript) -> bool {
    script.holds_places() || !call.returns.is_empty() || !call.renewals.is_empty()
}

/// Adds the arguments after the keys. Numbers are packed, because a script unpacks them faster than it reads an argument for each
/// number.
pub(super) fn write_arguments(cmd: &mut Cmd, call: &Call, script: &PolicyScript, names: &Names) {
    let peek = call.peek.as_deref();
    let runs = call.asks.len() + usize::from(peek.is_some());
    let limits = script.places.len();
    let valid_until = call
        .valid_until
        .map_or(f64::INFINITY, |instant| micros_up(instant) as f64);
    let head = [
        valid_until,
        (u8::from(call.keeps_policy) + 2 * u8::from(call.waits_no_more)).into(),
        runs as f64,
        call.settlements.len() as f64,
    ];
    let mut numbers = vec![whole(micros_up(call.polls_every))];
    for asks in &call.asks {
        let kind = match (asks.waits, asks.ahead) {
            (false, _) => 0.0,
            (true, false) => 1.0,
            (true, true) => 3.0,
        };
        numbers.extend([whole(asks.count), kind]);
        numbers.extend(whole_costs(&asks.costs, limits));
    }
    if let Some(costs) = peek {
        numbers.extend([0.0, 2.0]);
        numbers.extend(whole_costs(costs, limits));
    }
    for settlement in &call.settlements {
        numbers.push((settlement.granted_at / 1_000) as f64);
        numbers.extend(whole_costs(&settlement.charged, limits));
        numbers.extend(whole_costs(&settlement.actual, limits));
    }
    let concerns_leases = concerns_leases(call, script);
    if concerns_leases {
        numbers.extend([
            whole(micros_up(call.ttl)),
            call.returns.len() as f64,
            call.renewals.len() as f64,
        ]);
    }
    let bytes = |numbers: &[f64]| {
        numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    cmd.arg(
        [
            &bytes(&head)[..],
            &call.holder.to_be_bytes(),
            &bytes(&numbers),
        ]
        .concat(),
    );
    if !concerns_leases {
        return;
    }
    cmd.arg(names.channel(&call.scope.limiter))
        .arg(&call.scope.key[..]);
    let opened = call
        .asks
        .iter()
        .flat_map(|asks| asks.first..asks.first.saturating_add(most_leases(asks, script)));
    for number in call
        .returns
        .iter()
        .chain(&call.renewals)
        .copied()
        .chain(opened)
    {
        cmd.arg(&id(call.holder, number)[..]);
    }
}

/// Exactly as many costs as the script reads, whatever the number in the call.
fn whole_costs(costs: &[u64], limits: usize) -> impl Iterator<Item = f64> {
    let costs = costs.iter().copied().chain(std::iter::repeat(0));
    costs.take(limits).map(whole)
}

fn whole(number: u64) -> f64 {
    number.min(MAX_NUMBER) as f64
}

/// How many of these asks can get a lease: none if they take no place.
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

/// The instant in nanoseconds, or the last instant if it is beyond that.
fn nanos(micros: f64) -> u64 {
    (micros as u64).saturating_mul(1_000)
}

/// Reads the answer of a script. `state` is the name of the key's state.
pub(super) fn read(
    answer: &Value,
    call: &Call,
    store: &str,
    state: &str,
) -> Result<Reply, StoreError> {
    match answer {
        Value::BulkString(packed) => read_reply(packed, call).ok_or_else(|| answer_error(store)),
        Value::Array(items) => Err(match &items[..] {
            [Value::Int(1)] => StoreError::too_late(store),
            [Value::Int(2), Value::BulkString(stored)] => {
                let stored = String::from_utf8_lossy(stored);
                let (text, revision) = read_named(&stored);
                StoreError::policy_differs(call, text.to_owned(), revision)
            }
            [Value::Int(3)] => StoreError::damaged(store, state),
            _ => answer_error(store),
        }),
        _ => Err(answer_error(store)),
    }
}

fn read_reply(packed: &[u8], call: &Call) -> Option<Reply> {
    let (numbers, rest) = packed.as_chunks();
    let mut numbers = numbers.iter().map(|bytes| f64::from_le_bytes(*bytes));
    let mut next = || numbers.next().filter(|number| !number.is_nan());
    let (now, granted, first_fence, reclaimed) = (
        nanos(next()?),
        next()? as u64,
        next()? as u64,
        next()? as u64,
    );
    let (limit, until, first_expiry) = (next()? as usize, next()?, next()?);
    let count = call.policy.limits().len();
    let stop = match limit.checked_sub(1) {
        None => None,
        Some(limit) if limit < count => Some(DeniedAsk {
            limit,
            until: until_of(until, first_expiry),
        }),
        Some(_) => return None,
    };
    let mut limits = Vec::with_capacity(count);
    for _ in 0..count {
        limits.push(LimitReading {
            remaining: next()? as u64,
            available_at: nanos(next()?),
            reset_at: nanos(next()?),
        });
    }
    let lost = numbers
        .map(|index| call.renewals.get(index as usize).copied())
        .collect::<Option<_>>()?;
    rest.is_empty().then_some(Reply {
        now,
        granted,
        first_fence,
        stop,
        limits,
        lost,
        reclaimed,
    })
}

fn until_of(until: f64, first_expiry: f64) -> DeniedUntil {
    match until {
        0.0.. => (until as u64)
            .checked_mul(1_000)
            .map_or(DeniedUntil::Never, DeniedUntil::Instant),
        -2.0 => DeniedUntil::Release {
            first_expiry: if first_expiry < 0.0 {
                u64::MAX
            } else {
                nanos(first_expiry)
            },
        },
        _ => DeniedUntil::Never,
    }
}
