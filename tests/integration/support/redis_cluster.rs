//! A Redis Cluster that a test starts for itself and may break.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use redis::{Connection, FromRedisValue, Value};

use super::ports::free_port;
use super::redis_server::RedisServer;

/// The nodes of a cluster, which end when this is dropped: three masters, then a replica of each if there are six.
pub(crate) struct RedisCluster {
    pub(crate) nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts a cluster of three or six nodes with these options.
    pub(crate) fn start(count: usize, options: &[&str]) -> Self {
        let nodes: Vec<_> = (0..count).map(|_| start_node(options)).collect();
        let password = options.iter().position(|option| *option == "--requirepass");
        let mut create = Command::new("redis-cli");
        if let Some(at) = password {
            create.args(["--no-auth-warning", "-a", options[at + 1]]);
        }
        create
            .args(["--cluster", "create"])
            .args(nodes.iter().map(address));
        create.args([
            "--cluster-replicas",
            &(count / 3 - 1).to_string(),
            "--cluster-yes",
        ]);
        let output = create.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let cluster = Self { nodes };
        if password.is_none() {
            cluster.is_whole_soon();
        }
        cluster
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    pub(crate) fn connection(&self, node: usize) -> Connection {
        let client = redis::Client::open(self.nodes[node].url()).unwrap();
        let connection = client.get_connection().unwrap();
        let limit = Some(Duration::from_secs(30)); // a node that stands still never answers
        connection.set_read_timeout(limit).unwrap();
        connection
    }

    /// The answer of a node to a command, whose words are separated by spaces.
    pub(crate) fn query<T: FromRedisValue>(&self, node: usize, command: &str) -> T {
        let mut words = command.split(' ');
        let mut cmd = redis::cmd(words.next().unwrap());
        words.for_each(|word| _ = cmd.arg(word));
        cmd.query(&mut self.connection(node)).unwrap()
    }

    pub(crate) fn id(&self, node: usize) -> String {
        self.query(node, "CLUSTER MYID")
    }

    /// The node that has this slot, in the view of the node `asked`.
    pub(crate) fn owner(&self, slot: u16, asked: usize) -> usize {
        let ranges: Vec<Vec<Value>> = self.query(asked, "CLUSTER SLOTS");
        for range in ranges {
            let [first, last] =
                [0, 1].map(|at| redis::from_redis_value(range[at].clone()).unwrap());
            if (first..=last).contains(&slot) {
                let (host, port): (String, u16) = match &range[2] {
                    Value::Array(node) => {
                        redis::from_redis_value(Value::Array(node[..2].to_vec())).unwrap()
                    }
                    other => panic!("{other:?}"),
                };
                let url = format!("redis://{host}:{port}/");
                return self.urls().iter().position(|known| *known == url).unwrap();
            }
        }
        panic!("no node has {slot}")
    }

    pub(crate) fn slot(&self, key: &str) -> u16 {
        let asked = (0..self.nodes.len()).find(|node| self.nodes[*node].is_running());
        self.query(asked.unwrap(), &format!("CLUSTER KEYSLOT {key}"))
    }

    /// Moves this many slots to another node with their keys, as an operator does.
    pub(crate) fn reshard(&self, slots: u16, from: usize, to: usize) {
        let mut command = Command::new("redis-cli");
        command.args([
            "--cluster",
            "reshard",
            &address(&self.nodes[0]),
            "--cluster-yes",
        ]);
        command.args([
            "--cluster-from",
            &self.id(from),
            "--cluster-to",
            &self.id(to),
        ]);
        let output = command
            .args(["--cluster-slots", &slots.to_string()])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// Waits until all nodes agree on the slots, and all replicas have caught up.
    fn is_whole_soon(&self) {
        let start = Instant::now();
        let is_whole = |node| {
            let info: String = self.query(node, "CLUSTER INFO");
            let replication: String = self.query(node, "INFO replication");
            info.contains("cluster_state:ok")
                && info.contains("cluster_slots_ok:16384")
                && (node < 3 || replication.contains("master_link_status:up"))
                && (node >= 3
                    || self.nodes.len() == 3
                    || replication.contains("connected_slaves:1"))
        };
        while !(0..self.nodes.len()).all(is_whole) {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "the cluster is not whole"
            );
            thread::sleep(Duration::from_millis(50));
        }
        if self.nodes.len() > 3 {
            (0..3).for_each(|master| self.reaches_its_replica(master));
        }
    }

    /// Waits until the replica of a master has a key that is written now. A replica whose link is up may get nothing for up to a
    /// second: until the master has its first acknowledgement.
    fn reaches_its_replica(&self, master: usize) {
        let key = (0..)
            .map(|number| format!("reaches-{number}"))
            .find(|key| self.owner(self.slot(key), master) == master)
            .unwrap();
        // WAIT is about the writes of its own connection.
        let mut connection = self.connection(master);
        let mut ask = |words: &[&str]| -> usize {
            redis::cmd(words[0])
                .arg(&words[1..])
                .query(&mut connection)
                .unwrap()
        };
        ask(&["INCR", &key]);
        let have_it = ask(&["WAIT", "1", "20000"]);
        assert_eq!(have_it, 1, "the replica of node {master} is behind");
        ask(&["DEL", &key]);
    }
}

fn address(node: &RedisServer) -> String {
    node.url()
        .trim_start_matches("redis://")
        .trim_end_matches('/')
        .to_owned()
}

/// A node needs a second port, for the other nodes.
fn start_node(options: &[&str]) -> RedisServer {
    let bus = free_port().to_string();
    RedisServer::start(
        &[
            &["--cluster-enabled", "yes", "--cluster-port", &bus],
            options,
        ]
        .concat(),
    )
}
