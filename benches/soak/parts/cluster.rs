//! Limits in a Redis Cluster, of which a master is killed every five minutes, and its replica takes over. Only limits of keys that it
//! had may be exceeded, and only until the leases and the spans from before the kill have passed.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;
use tollgate::store::RedisStore;

use super::ms;
use super::stores::{LEASE, Load};
use crate::reference::Reference;
use crate::run::Run;
use crate::support::redis_cluster::RedisCluster;
use crate::tally::Tally;

/// The nodes replace each other within seconds, and serve what they have meanwhile.
const OPTIONS: [&str; 4] = [
    "--cluster-node-timeout",
    "1500",
    "--cluster-require-full-coverage",
    "no",
];
/// No server is killed so shortly before the end that another could not take over, and leases expire.
const LAST: Duration = ms(25_000);
const SOON: Duration = ms(60_000);

pub(crate) async fn run(run: Arc<Run>, tally: Arc<Tally>) {
    let mut cluster = spawn_blocking(|| RedisCluster::start(6, &OPTIONS))
        .await
        .expect("the cluster starts");
    let urls = cluster.urls();
    let open = || {
        RedisStore::cluster(urls.iter().map(String::as_str))
            .build()
            .expect("sound URLs")
    };
    let load = Load::begin(&run, &tally, Duration::ZERO, open);
    let every = (run.lasts / 3).min(Duration::from_secs(300));
    let references = load.references();
    let mut nth = 0;
    while run.pause(every).await && run.left() > LAST {
        // Each time another key, so that different masters are killed.
        let (name, key, _) = &references[nth % references.len()];
        nth += 1;
        let (slots, victim) = ([name, key], Kill::of(&cluster, name, key));
        tally.note(format_args!(
            "killed the master of {slots:?}, node {}",
            victim.node
        ));
        let hit: Vec<Arc<Reference>> = references
            .iter()
            .filter(|(name, key, _)| Kill::of(&cluster, name, key).node == victim.node)
            .map(|(_, _, reference)| Arc::clone(reference))
            .collect();
        hit.iter().for_each(|reference| reference.excuse());
        run.killed(tally.name);
        let replaced = spawn_blocking(move || victim.carry_out(cluster));
        cluster = replaced.await.expect("a replica takes over");
        load.is_served_again().await;
        run.pause(LEASE + ms(2_000)).await;
        hit.iter().for_each(|reference| reference.resume());
    }
    load.end(&run).await;
    drop(cluster);
}

/// The master of a slot, which is to be killed.
struct Kill {
    slot: u16,
    node: usize,
}

impl Kill {
    fn of(cluster: &RedisCluster, limiter: &str, key: &str) -> Self {
        let slot = cluster.slot(&format!("tollgate:{{{limiter}:{key}}}"));
        Self {
            slot,
            node: cluster.owner(slot, 0),
        }
    }

    /// Kills the node, waits for its replica to take over, and starts the node again as a replica.
    fn carry_out(self, mut cluster: RedisCluster) -> RedisCluster {
        let Self { slot, node } = self;
        let asked = usize::from(node == 0);
        cluster.nodes[node].kill();
        let start = Instant::now();
        while cluster.owner(slot, asked) == node {
            assert!(start.elapsed() < SOON, "nobody takes over");
            thread::sleep(ms(50));
        }
        cluster.nodes[node].restart();
        while !cluster
            .query::<String>(node, "INFO replication")
            .contains("master_link_status:up")
        {
            assert!(
                start.elapsed() < SOON,
                "the killed node does not become a replica"
            );
            thread::sleep(ms(50));
        }
        cluster
    }
}
