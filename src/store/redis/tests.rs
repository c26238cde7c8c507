//! Compares the scripts with the ledger: the same calls at the same instants have the same replies.
//!
//! The scripts read the clock of the test, and their keys do not expire meanwhile.

#[path = "../../../tests/integration/support/ports.rs"]
mod ports;
#[path = "../../../tests/integration/support/redis_server.rs"]
#[allow(dead_code, reason = "tests of faults use the rest")]
mod redis_server;

mod calls;
mod cluster;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use redis::{Connection, ErrorKind, ServerErrorKind};

use super::adoption::Adoption;
use super::names::{self, Names};
use super::script::{PolicyScript, Script};
use super::wire;
use crate::core::gate::limit_state::counterparts;
use crate::core::gate::plan::Plan;
use crate::core::ledger::Ledger;
use crate::error::StoreError;
use crate::exchange::{Asks, Call, DeniedAsk, DeniedUntil, Reply, Scope, Settlement};
use crate::policy::{Limit, Policy};
use crate::rate::Rate;
use crate::strategy::{
    Align, FixedWindow, MaxConcurrency, Moment, Penalty, SlidingWindow, Throttle, TokenBucket,
};

const EPOCH: u64 = 1_790_000_000_000_000; // microseconds

/// A fixed bug, found by the fuzzer of replies: a window of no time was divided by.
#[test]
fn a_stored_policy_that_no_limiter_accepts_is_an_error() {
    let policy = "5/s".parse().unwrap();
    for stored in ["5/0d", "0 concurrent", "5/s burst 0", "", "5/s#"] {
        let adopted = Adoption::from_stored((stored, 1), (&policy, 2));
        assert!(matches!(adopted, Err(StoreError::Policy(_))), "{stored}");
    }
}

/// The script, with the instant as its last key, and with long expiries.
fn with_clock_of_test(script: &str) -> String {
    let clock = "local clock = call('TIME')\nlocal now = clock[1] * 1000000 + clock[2]\n";
    let milliseconds = " / 1000) + 1";
    assert!(
        script.contains(clock) && script.contains(milliseconds),
        "{script}"
    );
    script
        .replace(clock, "local now = tonumber(KEYS[#KEYS])\n")
        .replace(milliseconds, " * 0) + 100000000")
}

/// The script of a policy, with the clock of the test.
fn script_of(policy: &Policy, revision: u64) -> PolicyScript {
    let mut script = PolicyScript::new(policy, revision).unwrap();
    script.script = Script::new(with_clock_of_test(&script.script.text));
    script
}

struct Server {
    connection: Connection,
    names: Names,
    _server: Option<redis_server::RedisServer>,
}

impl Server {
    fn new(prefix: &str) -> Self {
        let (server, url) = redis_server::any_server();
        let connection = redis::Client::open(url).unwrap().get_connection().unwrap();
        Self {
            connection,
            names: Names::new(&format!("{prefix}-{}", std::process::id())),
            _server: server,
        }
    }

    fn answer(
        &mut self,
        script: &PolicyScript,
        call: &Call,
        micros: u64,
    ) -> Result<Result<Reply, StoreError>, redis::RedisError> {
        let keys = wire::keys(call, script, &self.names);
        let mut cmd = self.runs(&script.script, &keys, micros);
        wire::write_arguments(&mut cmd, call, script, &self.names);
        let value = self.run(&script.script, &cmd)?;
        Ok(wire::read(&value, call, "the store", "the state"))
    }

    /// Replaces the policy of a key.
    fn adopt(&mut self, scope: &Scope, former: (&Policy, u64), new: (&Policy, u64), micros: u64) {
        let adoption = Adoption::new(former, new).unwrap();
        let script = Script::new(with_clock_of_test(&adoption.script.text));
        let keys = names::all(self.names.state(scope), adoption.logs);
        let cmd = self.runs(&script, &keys, micros);
        let value = self.run(&script, &cmd);
        let value = value.unwrap_or_else(|error| panic!("{error}\n{}", script.text));
        // A key without usage has no state.
        assert!(
            matches!(value, redis::Value::Int(0 | 1)),
            "{former:?} {new:?}: {value:?}"
        );
    }

    fn runs(&self, script: &Script, keys: &[String], micros: u64) -> redis::Cmd {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&script.hash)
            .arg(keys.len() + 1)
            .arg(keys)
            .arg(micros);
        cmd
    }

    fn run(&mut self, script: &Script, cmd: &redis::Cmd) -> redis::RedisResult<redis::Value> {
        cmd.query(&mut self.connection)
            .or_else(|error: redis::RedisError| {
                if error.kind() != ErrorKind::Server(ServerErrorKind::NoScript) {
                    return Err(error);
                }
                redis::cmd("SCRIPT")
                    .arg("LOAD")
                    .arg(&script.text)
                    .exec(&mut self.connection)?;
                cmd.query(&mut self.connection)
            })
    }
}

fn call_of(key: u64, policy: &Policy) -> Call {
    Call::new(
        Scope {
            limiter: "oracle".into(),
            key: Arc::from(&key.to_be_bytes()[..]),
        },
        policy.clone(),
        0,
    )
}

/// A xorshift generator: the same numbers in each run. Units and times are scaled up, with random low digits.
struct Random {
    state: u64,
    units: u64,
    time: u64,
}

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn micros(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros((from + self.below(to - from)) * self.time + self.below(self.time))
    }

    fn units(&mut self, from: u64, to: u64) -> u64 {
        (from + self.below(to - from)) * self.units + self.below(self.units)
    }

    fn limit(&mut self) -> Limit {
        let (units, period) = (self.units(1, 10), self.micros(2, 60));
        let any_nanos = period + Duration::from_nanos(self.below(1_000));
        match self.below(11) {
            0 => Throttle::every(any_nanos / 4).burst(units).into(),
            1 | 2 => {
                let bucket = TokenBucket::new(Rate::new(self.units(1, 8), any_nanos), units);
                if self.one_in(2) {
                    bucket.into()
                } else {
                    bucket.initial(self.below(units + 1)).into()
                }
            }
            3 => TokenBucket::new(Rate::new(self.units(1, 8), period), units)
                .refill_each_period()
                .initial(self.units(0, 10))
                .into(),
            4 => FixedWindow::new(units, period)
                .align(Align::FirstGrant)
                .into(),
            5 => FixedWindow::new(units, period)
                .align(Align::WallClock)
                .into(),
            6 => SlidingWindow::log(units, any_nanos).into(),
            7 => SlidingWindow::counter(units, period).into(),
            8 | 9 => self.penalty(units, period).into(),
            _ => MaxConcurrency::new(units).into(),
        }
    }

    fn penalty(&mut self, threshold: u64, period: Duration) -> Penalty {
        let mut penalty = Penalty::new(threshold, Rate::new(self.units(1, 4), period));
        if self.one_in(2) {
            penalty = penalty.half_life(period);
        }
        if self.one_in(2) {
            penalty = penalty.ceiling(self.units(0, 40));
        }
        if self.one_in(3) {
            penalty = penalty.ignore_denied();
        }
        if self.one_in(2) {
            penalty = penalty.ban(self.micros(1, 30));
            if self.one_in(2) {
                penalty = penalty.escalate(self.micros(1, 100));
            }
            if self.one_in(2) {
                penalty = penalty.forgive_after(self.micros(0, 100));
            }
        }
        penalty
    }

    /// A policy whose numbers the scripts support.
    fn policy(&mut self) -> Policy {
        loop {
            let policy: Policy = (0..=self.below(3)).map(|_| self.limit()).collect();
            if PolicyScript::new(&policy, 0).is_ok() {
                return policy;
            }
        }
    }

    fn costs(&mut self, policy: &Policy) -> Box<[u64]> {
        policy
            .limits()
            .iter()
            .map(|_| match self.below(20) {
                0 => self.units(0, 15),
                1..5 => 0,
                _ => self.units(0, 3),
            })
            .collect()
    }
}

#[test]
fn random_policies_have_every_limit() {
    let mut random = Random {
        state: 7,
        units: 1,
        time: 1_000,
    };
    let texts: Vec<_> = (0..300).map(|_| random.policy().to_string()).collect();
    let texts: Vec<_> = texts.iter().map(String::as_str).collect();
    assert_eq!(crate::policy::lacking(&texts), [""; 0]);
}

/// The leases and grants that the holders know.
#[derive(Default)]
struct Known {
    /// Leases, as holder and number.
    leases: VecDeque<(u64, u64)>,
    /// Grants, each with its instant and its costs.
    grants: VecDeque<(u64, Box<[u64]>)>,
    numbers: u64,
}

fn random_call(
    random: &mut Random,
    known: &mut Known,
    key: u64,
    policy: &Policy,
    now: u64,
) -> Call {
    let mut call = call_of(key, policy);
    call.holder = random.below(1 + key % 4);
    call.polls_every = key % 3 * 1_000_000;
    if policy.limits().iter().any(Limit::counts_places) {
        call.ttl = 1 + random.below(80_000 * random.time);
    }
    for _ in 0..random.below(3) {
        let picked = known
            .leases
            .get(random.below(8) as usize)
            .copied()
            .filter(|(holder, _)| *holder == call.holder);
        let number = picked.map_or(1_000_000 + random.below(5), |(_, number)| number);
        let list = if random.one_in(2) && call.ttl > 0 {
            &mut call.renewals
        } else {
            &mut call.returns
        };
        if !list.contains(&number) {
            list.push(number);
        }
    }
    if random.one_in(4)
        && let Some((granted_at, charged)) = known.grants.pop_back()
    {
        let mut actual = random.costs(policy);
        for ((limit, charged), actual) in policy.limits().iter().zip(&charged).zip(&mut actual) {
            // A rate in the store keeps fewer past grants than one in the ledger.
            if matches!(limit, Limit::Throttle(_) | Limit::TokenBucket(_)) && granted_at < now {
                *actual = (*actual).max(*charged);
            }
        }
        call.settlements.push(Settlement {
            granted_at: granted_at * 1_000,
            charged,
            actual,
        });
    }
    if random.one_in(6) {
        call.peek = Some(random.costs(policy));
        return call;
    }
    for _ in 0..random.below(4) {
        let count = 1 + random.below(4);
        call.asks.push(Asks {
            first: known.numbers,
            count,
            costs: random.costs(policy),
            waits: random.one_in(2),
            ahead: random.one_in(8),
        });
        known.numbers += count;
    }
    call
}

/// Notes the grants of a reply.
fn note(known: &mut Known, call: &Call, reply: &Reply, now: u64) {
    let mut left = reply.granted;
    for asks in &call.asks {
        for number in asks.first..asks.first + asks.count.min(left) {
            known.leases.push_front((call.holder, number));
            known.grants.push_back((now, asks.costs.clone()));
        }
        left -= asks.count.min(left);
    }
    known.leases.truncate(30);
}

/// The reply in whole microseconds, as the store gives it.
fn rounded(mut reply: Reply, counts_reclaimed: bool) -> Reply {
    let up = |nanos: u64| nanos.div_ceil(1_000).saturating_mul(1_000);
    let instants = reply
        .limits
        .iter_mut()
        .flat_map(|reading| [&mut reading.available_at, &mut reading.reset_at]);
    instants.for_each(|at| *at = up(*at));
    if let Some(DeniedAsk { until, .. }) = &mut reply.stop {
        match until {
            DeniedUntil::Instant(at) | DeniedUntil::Release { first_expiry: at } => *at = up(*at),
            DeniedUntil::Never => {}
        }
    }
    if reply.granted == 0 {
        reply.first_fence = 0; // of no meaning
    }
    if !counts_reclaimed {
        reply.reclaimed = 0;
    }
    reply
}

fn plan(policy: &Policy) -> Arc<Plan> {
    Arc::new(Plan::new(policy.clone(), Duration::ZERO).unwrap())
}

/// Returns the numbers of stopped asks, and of lost and reclaimed leases.
fn assert_replies_as_the_ledger(
    server: &mut Server,
    mut random: Random,
    policies: u64,
) -> [u64; 3] {
    let (mut stopped, mut lost, mut reclaimed) = (0, 0, 0);
    let first = random.units << 32;
    for key in first..first + policies {
        let (policy, mut known) = (random.policy(), Known::default());
        let script = script_of(&policy, 0);
        let mut now = EPOCH + random.below(1_000 * random.time);
        let mut ledger: Option<Ledger> = None;
        let mut history = Vec::new();
        for _ in 0..40 {
            let far = random.one_in(4);
            now += random.below(if far { 50 } else { 6 } * random.time);
            let call = random_call(&mut random, &mut known, key, &policy, now);
            let moment = Moment::from_nanos(now * 1_000);
            let ledger = ledger.get_or_insert_with(|| Ledger::new(plan(&policy), 0, moment));
            let counts_reclaimed = script.holds_places();
            let expected = rounded(ledger.call(moment, &call).0, counts_reclaimed);
            let answer = server
                .answer(&script, &call, now)
                .unwrap_or_else(|error| panic!("{policy}: {error}\n{}", script.script.text));
            let found = answer.unwrap_or_else(|error| panic!("{policy}: {error}"));
            note(&mut known, &call, &found, now);
            let mut found = rounded(found, counts_reclaimed);
            if let (Some(found), Some(expected)) = (&mut found.stop, &expected.stop)
                && matches!(expected.until, DeniedUntil::Instant(_))
                && found.limit < expected.limit
            {
                found.limit = expected.limit; // they stop until the same microsecond: the store names the first of them
            }
            let Call {
                holder,
                returns,
                settlements,
                renewals,
                ttl,
                asks,
                peek,
                ..
            } = &call;
            let brief = format!(
                "{holder} {returns:?} {settlements:?} {renewals:?} {ttl} {asks:?} {peek:?}"
            );
            history.push(format!("{now}: {policy}: {brief}\n   -> {expected:?}"));
            let last = history.len().saturating_sub(12);
            assert_eq!(
                found,
                expected,
                "key {key}, {policy}\n{}",
                history[last..].join("\n")
            );
            stopped += u64::from(found.stop.is_some());
            lost += found.lost.len() as u64;
            reclaimed += found.reclaimed;
        }
    }
    [stopped, lost, reclaimed]
}

#[test]
fn each_script_replies_as_the_ledger_does() {
    let random = Random {
        state: 0x9E37_79B9_7F4A_7C15,
        units: 1,
        time: 1,
    };
    let counts = assert_replies_as_the_ledger(&mut Server::new("oracle"), random, 1_000);
    assert!(
        counts[0] > 10_000 && counts[1] > 500 && counts[2] > 500,
        "stopped, lost, reclaimed: {counts:?}"
    );
}

/// A limit of time starts with the units that were used of its counterpart. Leases hold the places that the ledger says.
#[test]
fn a_later_policy_takes_over_usage_and_leases() {
    let mut server = Server::new("adoption");
    let mut random = Random {
        state: 0x9E37_79B9_7F4A_7C15,
        units: 1,
        time: 1_000,
    };
    let (mut carried, mut held) = (0, 0);
    for key in 0..1_500 {
        let (former, mut known) = (random.policy(), Known::default());
        let script = script_of(&former, 0);
        let mut now = EPOCH + random.below(1_000_000);
        let mut ledger = Ledger::new(plan(&former), 0, Moment::from_nanos(now * 1_000));
        for _ in 0..8 {
            now += random.below(4_000);
            let call = random_call(&mut random, &mut known, key, &former, now);
            ledger.call(Moment::from_nanos(now * 1_000), &call);
            let found = server.answer(&script, &call, now).unwrap().unwrap();
            note(&mut known, &call, &found, now);
        }
        let before = server.answer(&script, &call_of(key, &former), now);
        let policy = random.policy();
        let call = Call {
            revision: 1,
            ..call_of(key, &policy)
        };
        server.adopt(&call.scope, (&former, 0), (&policy, 1), now);
        let moment = Moment::from_nanos(now * 1_000);
        ledger.agree(&plan(&policy), 1, moment);
        let expected = ledger.call(moment, &call).0.limits;
        let found = server.answer(&script_of(&policy, 1), &call, now);
        let (before, found) = (
            before.unwrap().unwrap().limits,
            found.unwrap().unwrap().limits,
        );
        let of = counterparts(former.limits(), policy.limits());
        for (index, limit) in policy.limits().iter().enumerate() {
            let left = found[index].remaining;
            let about = format!("{limit} of `{policy}` after `{former}`: {before:?} {found:?}");
            if limit.counts_places() {
                assert_eq!(left, expected[index].remaining, "{about}");
                held += limit.capacity() - left;
            } else if let Some(of) = of[index] {
                let used = former.limits()[of].capacity() - before[of].remaining;
                let at_most = limit.capacity().saturating_sub(used);
                // More than the capacity may have been used of the former limit.
                let is_known = before[of].remaining > 0;
                assert!(left == at_most || left < at_most && !is_known, "{about}");
                carried += used;
            }
        }
    }
    assert!(
        carried > 1_000 && held > 50,
        "{carried} units, {held} places"
    );
}

#[test]
fn large_numbers_are_exact() {
    let mut server = Server::new("large");
    for (units, time) in [
        (2, 1_000), // so that turns pass
        (1, 40_000_000),
        (100_000, 1_000),
        (20_000_000, 30_000_000_000),
    ] {
        let random = Random {
            state: units ^ time,
            units,
            time,
        };
        let counts = assert_replies_as_the_ledger(&mut server, random, 100);
        assert!(counts[0] > 500, "stopped, lost, reclaimed: {counts:?}");
    }
}

#[test]
fn more_replicas_wait_than_there_are_tickets() {
    let mut server = Server::new("crowd");
    let mut random = Random {
        state: 0x9E37_79B9_7F4A_7C15,
        units: 1,
        time: 1,
    };
    for (key, policy) in [
        "1000/s burst 3",
        "3 concurrent",
        "window 20/20ms",
        "2 concurrent and 500/s",
    ]
    .iter()
    .enumerate()
    {
        let policy = policy.parse().unwrap();
        let script = script_of(&policy, 0);
        let mut now = EPOCH;
        let mut ledger = Ledger::new(plan(&policy), 0, Moment::from_nanos(now * 1_000));
        let mut denied = 0;
        for number in 0..600 {
            now += random.below(if number < 200 { 50 } else { 5_000 });
            let mut call = call_of(1_000 + key as u64, &policy);
            call.holder = 1 + random.below(90);
            call.ttl = 10_000_000;
            let costs = vec![1 + random.below(2); policy.limits().len()];
            call.asks
                .push(Asks::new(number * 10, 1 + random.below(3), costs));
            let (expected, _) = ledger.call(Moment::from_nanos(now * 1_000), &call);
            let found = server.answer(&script, &call, now).unwrap().unwrap();
            denied += u64::from(found.stop.is_some());
            assert_eq!(
                rounded(found, false),
                rounded(expected, false),
                "call {number} under {policy}"
            );
        }
        assert!(denied > 100, "{policy}: {denied}");
    }
}
