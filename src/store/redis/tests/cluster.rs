//! Tests the names and the scripts on a Redis Cluster: all keys of a call are in one slot, and the node of the slot carries out
//! the call.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use redis::{Connection, RedisResult, Value};

use super::super::names::{self, Names};
use super::super::script::{MAX_LIMITS, PolicyScript};
use super::super::servers::slot_of as own_slot_of;
use super::super::wire;
use super::call_of;
use crate::exchange::{Asks, Call, Reply, Scope};
use crate::store::{RedisStore, Store, StoreError};

fn urls() -> Vec<String> {
    let variable = "TOLLGATE_REDIS_CLUSTER_URLS";
    let urls = std::env::var(variable).ok().filter(|urls| !urls.is_empty());
    let urls = urls.unwrap_or_else(|| {
        panic!(
            "set {variable} to the URLs of a cluster's nodes, or run the tests by scripts/servers"
        )
    });
    urls.split(',').map(str::to_owned).collect()
}

fn nodes() -> Vec<Connection> {
    urls()
        .iter()
        .map(|url| {
            redis::Client::open(url.as_str())
                .unwrap()
                .get_connection()
                .unwrap()
        })
        .collect()
}

fn slot_of(node: &mut Connection, key: &str) -> u16 {
    redis::cmd("CLUSTER")
        .arg("KEYSLOT")
        .arg(key)
        .query(node)
        .unwrap()
}

/// The answer of the node that owns the keys. Every other node answers `MOVED`.
fn answer_of_owner(
    nodes: &mut [Connection],
    script: &PolicyScript,
    call: &Call,
    names: &Names,
) -> Reply {
    let keys = wire::keys(call, script, names);
    let mut cmd = redis::cmd("EVAL");
    cmd.arg(&script.script.text).arg(keys.len()).arg(&keys);
    wire::write_arguments(&mut cmd, call, script, names);
    let answers: Vec<RedisResult<Value>> = nodes.iter_mut().map(|node| cmd.query(node)).collect();
    let mut owned = None;
    for answer in answers {
        match answer {
            Ok(value) => assert!(owned.replace(value).is_none(), "two nodes own {keys:?}"),
            Err(error) => assert_eq!(error.code(), Some("MOVED"), "{error}, of {keys:?}"),
        }
    }
    let answer = owned.expect("one node owns them");
    wire::read(&answer, call, "the store", "the state").unwrap()
}

/// Calls that access all keys of the scope.
fn calls(scope: &Scope, policy: &crate::policy::Policy) -> [Call; 3] {
    let blank = || Call {
        scope: scope.clone(),
        ttl: 60_000_000_000,
        ..call_of(0, policy)
    };
    let costs: Box<[u64]> = policy
        .limits()
        .iter()
        .map(|limit| limit.capacity().min(2))
        .collect();
    [
        Call {
            asks: vec![Asks {
                first: 1,
                count: 1,
                costs: costs.clone(),
                waits: true,
                ahead: false,
            }],
            ..blank()
        },
        Call {
            renewals: vec![1],
            peek: Some(costs),
            ..blank()
        },
        Call {
            returns: vec![1],
            ..blank()
        },
    ]
}

#[test]
fn all_keys_of_a_call_are_in_one_slot_whatever_the_names() {
    let node = std::cell::RefCell::new(nodes().remove(0));
    let given = (
        any::<String>(),
        "[{}:%a]{0,6}",
        prop::collection::vec(prop_oneof![any::<u8>(), Just(b'{'), Just(b'}')], 0..20),
    );
    let one_slot = |(limiter, prefix, key): (String, String, Vec<u8>)| {
        let state = Names::new(&prefix).state(&Scope {
            limiter: limiter.into(),
            key: key.into(),
        });
        let keys = names::all(state.clone(), MAX_LIMITS);
        let slots: BTreeSet<u16> = keys
            .iter()
            .map(|key| slot_of(&mut node.borrow_mut(), key))
            .collect();
        prop_assert_eq!(slots, BTreeSet::from([own_slot_of(&state)]), "{}", state);
        Ok(())
    };
    let config = ProptestConfig {
        source_file: Some(file!()),
        ..crate::replay::cases(256)
    };
    TestRunner::new(config).run(&given, one_slot).unwrap();
}

#[test]
fn each_script_runs_where_its_keys_are() {
    let mut nodes = nodes();
    let names = Names::new(&format!("cluster-{}", std::process::id()));
    let policies = [
        "10/s burst 5 and 1/s refilled each period",
        "window 10/min and window 10/min from first grant",
        "sliding log 10/min and sliding counter 10/min and sliding log 7/h",
        "penalty 5 falling 1/s ban 1m up to 1h",
        "3 concurrent ttl 1m and 4 concurrent per request",
        "3 concurrent ttl 1m and sliding log 10/min and 100/s and penalty 5 half-life 1s",
    ];
    let keys: [&[u8]; 8] = [
        b"",
        b"{",
        b"}",
        b"{}",
        b"}{a}",
        b"{a}{b}",
        b"a:b\r\n%",
        &[0xff, b'{', 0, b'}'],
    ];
    for (policy, key) in policies
        .iter()
        .flat_map(|policy| keys.map(|key| (policy, key)))
    {
        let policy = policy.parse().unwrap();
        let script = PolicyScript::new(&policy, 0).unwrap();
        let scope = Scope {
            limiter: format!("{{{policy}}}").into(),
            key: Arc::from(key),
        };
        for call in calls(&scope, &policy) {
            let reply = answer_of_owner(&mut nodes, &script, &call, &names);
            assert_eq!(
                reply.granted,
                call.asks.iter().map(|asks| asks.count).sum::<u64>(),
                "{policy}"
            );
            assert_eq!(
                reply.lost.is_empty(),
                script.holds_places() || call.renewals.is_empty(),
                "{policy}"
            );
        }
    }
}

/// The node that owns the key publishes a turn, and every node delivers it.
#[test]
fn a_turn_is_heard_at_every_node() {
    let (mut nodes, names) = (
        nodes(),
        Names::new(&format!("cluster-release-{}", std::process::id())),
    );
    let policy = "2 concurrent ttl 1m".parse().unwrap();
    let script = PolicyScript::new(&policy, 0).unwrap();
    let mut connections: Vec<_> = urls()
        .iter()
        .map(|url| {
            let connection = redis::Client::open(url.as_str())
                .unwrap()
                .get_connection()
                .unwrap();
            connection
                .set_read_timeout(Some(std::time::Duration::from_secs(30)))
                .unwrap();
            connection
        })
        .collect();
    let mut listeners: Vec<_> = connections
        .iter_mut()
        .map(|connection| {
            let mut listener = connection.as_pubsub();
            listener.subscribe(names.channel("api")).unwrap();
            listener
        })
        .collect();
    for key in [b"a", b"b", b"c"] {
        let scope = Scope {
            limiter: "api".into(),
            key: key.as_slice().into(),
        };
        let [mut asks, _, returns] = calls(&scope, &policy);
        answer_of_owner(&mut nodes, &script, &asks, &names);
        asks.holder = 7;
        answer_of_owner(&mut nodes, &script, &asks, &names);
        answer_of_owner(&mut nodes, &script, &returns, &names);
        let expected = [&7_u64.to_be_bytes()[..], &[0; 8], key].concat();
        // Each node delivers it at a time of its own, so the next one is published when all have delivered this one.
        for listener in &mut listeners {
            assert_eq!(
                listener.get_message().unwrap().get_payload_bytes(),
                expected
            );
        }
    }
}

/// A store at one server does not follow a key to another node, and returns an error.
#[tokio::test]
async fn a_store_at_one_node_is_refused_the_keys_of_others() {
    let policy = "1/h".parse().unwrap();
    let store = RedisStore::builder(urls().remove(0))
        .prefix(format!("cluster-one-{}", std::process::id()))
        .build()
        .unwrap();
    let (mut granted, mut refused) = (0, 0);
    for key in 0..64 {
        let call = Call {
            asks: vec![Asks {
                first: 1,
                count: 1,
                costs: [1].into(),
                waits: true,
                ahead: false,
            }],
            ..call_of(key, &policy)
        };
        match store.call(call).await {
            Ok(reply) => granted += reply.granted,
            Err(StoreError::Refused { .. }) => refused += 1,
            Err(error) => panic!("{error:?}"),
        }
    }
    assert!(
        granted > 0 && refused > 0 && granted + refused == 64,
        "{granted} granted, {refused} refused"
    );
}
