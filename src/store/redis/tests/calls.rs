//! Tests of single calls, and of behaviour that the ledger does not have.

use redis::Value;

use super::*;
use crate::store::redis::script::MAX_LIMITS;

struct Caller {
    server: Server,
    script: PolicyScript,
    policy: Policy,
    now: u64,
}

impl Caller {
    fn new(prefix: &str, policy: &str) -> Self {
        let policy: Policy = policy.parse().unwrap();
        Self {
            server: Server::new(prefix),
            script: script_of(&policy, 0),
            policy,
            now: EPOCH,
        }
    }

    fn answer(&mut self, change: impl FnOnce(&mut Call)) -> Result<Reply, StoreError> {
        let mut call = call_of(0, &self.policy);
        change(&mut call);
        self.server.answer(&self.script, &call, self.now).unwrap()
    }

    fn reply(&mut self, change: impl FnOnce(&mut Call)) -> Reply {
        self.answer(change).unwrap()
    }

    fn ask(&mut self, first: u64, count: u64, costs: &[u64]) -> Reply {
        self.reply(|call| {
            call.ttl = 1_000_000;
            call.asks.push(Asks {
                first,
                count,
                costs: costs.into(),
                waits: true,
                ahead: false,
            });
        })
    }

    fn state(&self) -> String {
        self.server.names.state(&call_of(0, &self.policy).scope)
    }

    fn query<T: redis::FromRedisValue>(&mut self, name: &str, key: &str) -> T {
        redis::cmd(name)
            .arg(key)
            .query(&mut self.server.connection)
            .unwrap()
    }
}

#[test]
fn a_call_is_not_carried_out_at_its_end_or_later() {
    let mut caller = Caller::new("end", "window 1/h from first grant");
    let ask = |call: &mut Call, until| {
        call.valid_until = Some(until);
        call.asks.push(Asks {
            first: 0,
            count: 1,
            costs: [1].into(),
            waits: true,
            ahead: false,
        });
    };
    assert!(matches!(
        caller.answer(|call| ask(call, EPOCH * 1_000)),
        Err(StoreError::TooLate { .. })
    ));
    assert!(matches!(
        caller.answer(|call| ask(call, EPOCH * 1_000 - 999)),
        Err(StoreError::TooLate { .. })
    ));
    assert_eq!(caller.reply(|call| ask(call, EPOCH * 1_000 + 1)).granted, 1);
}

#[test]
fn thousands_of_leases_are_opened_renewed_and_returned_in_a_call() {
    const COUNT: u64 = 5_000;
    let mut caller = Caller::new("many", "20000 concurrent and 20000 concurrent per request");
    for (costs, held) in [([1, 1], COUNT), ([2, 1], 2 * COUNT)] {
        assert_eq!(caller.ask(0, COUNT, &costs).granted, COUNT);
        let reply = caller.reply(|call| {
            call.ttl = 2_000_000;
            call.renewals = (COUNT - 2..COUNT + 3).chain(0..COUNT - 2).collect();
        });
        assert_eq!(reply.lost, [COUNT, COUNT + 1, COUNT + 2]);
        assert_eq!(reply.limits[0].remaining, 20_000 - held);
        let reply = caller.reply(|call| {
            call.ttl = 1;
            call.returns = (0..COUNT + 5).collect();
        });
        assert_eq!(
            (reply.limits[0].remaining, reply.limits[1].remaining),
            (20_000, 20_000)
        );
    }
}

#[test]
fn leases_are_counted_again_when_the_state_alone_was_evicted() {
    let mut caller = Caller::new("evicted", "10 concurrent and 10 concurrent per request");
    assert_eq!(caller.ask(0, 2, &[1, 1]).granted, 2);
    assert_eq!(caller.ask(2, 2, &[3, 0]).granted, 2);
    let before = caller.reply(|call| call.ttl = 1);
    let state = caller.state();
    caller.query::<()>("DEL", &state);
    assert_eq!(caller.reply(|call| call.ttl = 1).limits, before.limits);
    let reply = caller.reply(|call| (call.ttl, call.returns) = (1, vec![2]));
    assert_eq!(
        (reply.limits[0].remaining, reply.limits[1].remaining),
        (5, 8)
    );
    caller.query::<()>("DEL", &format!("{state}:leases"));
    let reply = caller.reply(|call| call.ttl = 1);
    assert_eq!(
        (reply.limits[0].remaining, reply.limits[1].remaining),
        (10, 10),
        "nothing is held without leases"
    );
}

#[test]
fn a_clock_that_steps_back_stands_still() {
    let mut caller = Caller::new("clock", "1/s burst 3 and 1 concurrent");
    let first = caller.ask(0, 1, &[2, 1]);
    caller.now -= 3_600_000_000;
    let second = caller.ask(1, 1, &[1, 0]);
    assert_eq!((second.now, second.granted), (first.now, 1));
    assert!(second.first_fence > first.first_fence);
    assert_eq!(caller.ask(2, 1, &[1, 0]).granted, 0);
}

/// A bug that is fixed: its list kept the expired units, which were then subtracted a second time.
#[test]
fn a_log_with_expired_units_is_taken_over_by_a_later_policy() {
    let mut caller = Caller::new("log", "sliding log 9/1s");
    assert_eq!(caller.ask(0, 1, &[4]).granted, 1);
    caller.now += 700_000;
    assert_eq!(caller.ask(1, 1, &[2]).granted, 1);
    caller.now += 400_000; // the first four have expired
    let (former, policy) = (caller.policy.clone(), "sliding log 8/1s".parse().unwrap());
    let scope = call_of(0, &former).scope;
    caller
        .server
        .adopt(&scope, (&former, 0), (&policy, 1), caller.now);
    (caller.script, caller.policy) = (script_of(&policy, 1), policy);
    assert_eq!(caller.ask(2, 1, &[6]).granted, 1);
    caller.now += 650_000; // the two have expired, and the six have not
    assert_eq!(caller.ask(3, 1, &[3]).granted, 0);
    assert_eq!(caller.ask(4, 1, &[2]).granted, 1);
}

#[test]
fn fences_rise_also_when_nothing_is_left_of_a_key() {
    let mut caller = Caller::new("fences", "1000 concurrent");
    let first = caller.ask(0, 1_000, &[1]);
    caller.now += 10;
    caller.reply(|call| (call.ttl, call.returns) = (1, (0..1_000).collect()));
    assert!(caller.ask(1_000, 1, &[1]).first_fence >= first.first_fence + 1_000);
    caller.now += 10_000;
    caller.reply(|call| (call.ttl, call.returns) = (1, vec![1_000]));
    let state = caller.state();
    assert_eq!(caller.query::<u64>("EXISTS", &state), 0);
}

/// After a settlement, the limit must admit no more than if the actual cost had been charged from the start.
#[test]
fn a_refund_of_a_rate_never_admits_too_much() {
    for (prefix, policy) in [
        ("refund", "7/1ms burst 50"),
        ("refund-steps", "7/1ms burst 50 refilled each period"),
    ] {
        let mut caller = Caller::new(prefix, policy);
        let mut random = Random {
            state: 77,
            units: 1,
            time: 1,
        };
        let mut charges: Vec<(u64, u64)> = Vec::new(); // when, and what it has cost
        let mut refunded = 0;
        for number in 0..3_000 {
            let idle = random.one_in(4); // so that the bucket gets full
            caller.now += random.below(if idle { 8_000 } else { 300 });
            let now = caller.now;
            let cost = 1 + random.below(12);
            if random.one_in(2)
                && let Some((granted_at, charged)) = charges
                    .len()
                    .checked_sub(1 + random.below(4) as usize)
                    .map(|at| &mut charges[at])
            {
                let actual = random.below(*charged + 1);
                let settlement = Settlement {
                    granted_at: *granted_at * 1_000,
                    charged: [*charged].into(),
                    actual: [actual].into(),
                };
                caller.reply(|call| call.settlements.push(settlement));
                (refunded, *charged) = (refunded + *charged - actual, actual);
            }
            let reply = caller.ask(number, 1, &[cost]);
            if reply.granted == 1 {
                charges.push((now, cost));
            }
            // Refilled amounts are in thousandths of a unit.
            let refills = |from: u64, to: u64| match prefix {
                "refund" => 7 * (to - from),
                _ => 7_000 * (to / 1_000 - from / 1_000),
            };
            let (mut taken, mut last) = (0_u64, 0);
            for (at, cost) in &charges {
                (taken, last) = (taken.saturating_sub(refills(last, *at)) + 1_000 * cost, *at);
                assert!(taken <= 50_000, "{policy}");
            }
            let room = (50_000 - taken.saturating_sub(refills(last, now))) / 1_000;
            assert!(reply.limits[0].remaining <= room, "{policy}");
        }
        assert!(refunded > 1_000, "{refunded}");
        // A settlement at the instant of the grant refunds the whole difference.
        caller.now += 1_000_000;
        caller.ask(9_000, 1, &[50]);
        let settlement = Settlement {
            granted_at: caller.now * 1_000,
            charged: [50].into(),
            actual: [1].into(),
        };
        assert_eq!(
            caller
                .reply(|call| call.settlements.push(settlement))
                .limits[0]
                .remaining,
            49
        );
    }
}

#[test]
fn a_policy_of_as_many_limits_as_it_may_have_is_one_script() {
    for limit in [
        "penalty 9 half-life 1s ban 1s",
        "sliding log 9/s",
        "9 concurrent",
        "sliding counter 9/s",
        "9/s refilled each period",
    ] {
        let mut caller = Caller::new("wide", &vec![limit; MAX_LIMITS].join(" and "));
        caller.server.names = Names::new(&format!("wide-{}-{limit}", std::process::id()));
        let reply = caller.ask(0, 12, &[1; MAX_LIMITS]);
        assert_eq!(
            (reply.granted, reply.stop.map(|stop| stop.limit)),
            (9, Some(0)),
            "{limit}"
        );
    }
}

#[test]
fn numbers_that_are_none_are_damaged() {
    for offset in 0..7 {
        let mut caller = Caller::new("nan", "window 5/h and 2 concurrent");
        caller.ask(0, 1, &[1, 1]);
        let state = caller.state();
        let head = caller.policy.to_string().len() + 2;
        let mut cmd = redis::cmd("SETRANGE");
        cmd.arg(&state)
            .arg(head + 8 * offset)
            .arg(&[0xFF_u8; 8][..])
            .exec(&mut caller.server.connection)
            .unwrap();
        assert!(
            matches!(
                caller.answer(|call| call.ttl = 1),
                Err(StoreError::Damaged { .. })
            ),
            "{offset}"
        );
        caller.query::<()>("DEL", &state);
    }
}

#[test]
fn no_answer_panics() {
    let policy: Policy = "1 concurrent and 1/s".parse().unwrap();
    let call = call_of(0, &policy);
    let is_strange = |answer: &Value| {
        let read = wire::read(answer, &call, "the store", "the state");
        matches!(read, Err(StoreError::Unanswered { .. }))
    };
    let mut random = Random {
        state: 5,
        units: 1,
        time: 1,
    };
    let mut read = 0;
    for _ in 0..200_000 {
        let item = |random: &mut Random| match random.below(12) {
            0 => Value::Nil,
            1 => Value::BulkString(vec![0xFF; random.below(3) as usize]),
            2 => Value::Int(i64::MIN),
            3 => Value::Int(i64::MAX),
            4 => Value::Array(vec![Value::Int(0)]),
            _ => Value::Int(random.below(4) as i64 - 1),
        };
        let length = random.below(15);
        let answer = Value::Array((0..length).map(|_| item(&mut random)).collect());
        read += u64::from(!is_strange(&answer));
    }
    assert!(read > 0);
    assert!(is_strange(&Value::Nil));
}
