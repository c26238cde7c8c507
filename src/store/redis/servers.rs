//! The servers of a store: one, or the nodes of a cluster. Each command is sent to the node that has its key.
//!
//! The cluster client of the crate `redis` is not used, because it sends a command again whose connection broke, although the
//! server may have carried it out; without retries it does not follow a key to another node. It also stops all calls while it asks
//! a node for the slots, even if that node does not answer. Here, a command is sent again only after an answer that says that it
//! was not carried out, and a node that does not answer delays only calls of its own keys.

#[cfg(any(test, fuzzing))]
pub(super) mod fuzzed;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use parking_lot::Mutex;
use redis::{Client, Cmd, ConnectionAddr, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::time::{Instant, sleep, timeout_at};

use super::connections::{Connections, Task, Tasks, answer_error, call_error, connect_error};
use crate::error::StoreError;

/// How many slots a cluster has.
const SLOTS: u16 = 16_384;

/// How long a call waits before it asks again a cluster that is just changing.
const PAUSE: Duration = Duration::from_millis(10);

/// The wait of a call without a limit, as for a timeout beyond what an instant can hold.
const LONGEST_WAIT: Duration = Duration::from_secs(86_400 * 365 * 30);

/// The servers of a store.
pub(super) struct Servers {
    /// The name of the store, without any password.
    pub(super) store: String,
    /// The longest time for a call.
    pub(super) timeout: Duration,
    /// The servers whose addresses were given: one, or some nodes of a cluster.
    given: Vec<Arc<Connections>>,
    /// `None` for one server.
    cluster: Option<Cluster>,
    /// How often messages were followed.
    followed: AtomicUsize,
}

/// What is known of a cluster.
struct Cluster {
    slots: Mutex<SlotOwners>,
    learning: Tasks<()>,
}

/// Which nodes have which slots, at the last time a node was asked. It may be out of date.
#[derive(Default)]
struct SlotOwners {
    /// The nodes that have slots.
    nodes: Vec<Arc<Connections>>,
    /// For each slot, the number of its node. Empty before a node was asked.
    owners: Vec<Option<u16>>,
}

impl Servers {
    pub(super) fn one(client: Client, timeout: Duration) -> Self {
        let server = Arc::new(Connections::new(client, timeout));
        Self {
            store: server.store.clone(),
            timeout,
            given: vec![server],
            cluster: None,
            followed: AtomicUsize::new(0),
        }
    }

    /// A cluster, of which these are some nodes: one at least.
    pub(super) fn cluster(clients: Vec<Client>, timeout: Duration) -> Self {
        let given = clients
            .into_iter()
            .map(|client| Arc::new(Connections::new(client, timeout)));
        let given: Vec<_> = given.collect();
        let addresses: Vec<_> = given.iter().map(|node| node.address.as_str()).collect();
        Self {
            store: format!("Redis Cluster at {}", addresses.join(", ")),
            timeout,
            given,
            cluster: Some(Cluster {
                slots: Mutex::default(),
                learning: Tasks::new(),
            }),
            followed: AtomicUsize::new(0),
        }
    }

    /// The deadline of a call that begins now.
    pub(super) fn deadline(&self) -> Instant {
        let now = Instant::now();
        now.checked_add(self.timeout)
            .unwrap_or_else(|| now + LONGEST_WAIT)
    }

    /// Sends a command to the server that has the key of this name, and awaits the answer until the deadline. `script` is the text
    /// of the script that the command runs.
    ///
    /// The command is sent again only if it was not carried out: the server did not know the script or did not have the key, or
    /// the cluster is just changing.
    pub(super) async fn send(
        self: &Arc<Self>,
        cmd: &Cmd,
        at: &str,
        script: Option<&str>,
        by: Instant,
    ) -> Result<Value, StoreError> {
        let mut server = self.server_of(at, by).await?;
        let (mut asks, mut loaded, mut moves) = (false, false, 0);
        loop {
            let answer = match server.send(cmd, asks, by).await {
                Ok(answer) => answer,
                // Nothing was sent. Another node may have taken over.
                Err(error @ StoreError::Unreachable { .. }) if self.cluster.is_some() => {
                    let learnt = self.learn(by).await;
                    match learnt.and(self.server_of(at, by).await) {
                        Ok(now) if !Arc::ptr_eq(&now, &server) && is_in_time(by) => {
                            (server, asks) = (now, false);
                        }
                        _ => return Err(error),
                    }
                    continue;
                }
                Err(error) => {
                    self.begin_learning();
                    return Err(error);
                }
            };
            let error = match answer {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            match (error.kind(), script) {
                (ErrorKind::Server(ServerErrorKind::NoScript), Some(text)) if !loaded => {
                    let mut load = redis::cmd("SCRIPT");
                    load.arg("LOAD").arg(text);
                    self.ask(&server, &load, at, by).await?;
                    loaded = true;
                    continue;
                }
                _ if self.cluster.is_none() => {}
                (ErrorKind::Server(kind @ (ServerErrorKind::Moved | ServerErrorKind::Ask)), _)
                    if is_in_time(by) =>
                {
                    moves += 1;
                    if moves > 2 {
                        sleep(PAUSE).await; // two nodes may name each other for a moment
                    }
                    server = self.redirected(&error, &server)?;
                    (asks, loaded) = (kind == ServerErrorKind::Ask, false);
                    continue;
                }
                (
                    ErrorKind::Server(
                        kind @ (ServerErrorKind::TryAgain | ServerErrorKind::ClusterDown),
                    ),
                    _,
                ) if is_in_time(by) => {
                    if kind == ServerErrorKind::ClusterDown {
                        self.begin_learning();
                    }
                    sleep(PAUSE).await;
                    server = self.server_of(at, by).await?;
                    (asks, loaded) = (false, false);
                    continue;
                }
                _ => {}
            }
            return Err(self.failed(&server, at, error));
        }
    }

    /// Sends a command to this server.
    async fn ask(
        self: &Arc<Self>,
        server: &Arc<Connections>,
        cmd: &Cmd,
        at: &str,
        by: Instant,
    ) -> Result<Value, StoreError> {
        let answer = server.send(cmd, false, by).await;
        let answer = answer.inspect_err(|_| self.begin_learning())?;
        answer.map_err(|error| self.failed(server, at, error))
    }

    fn failed(self: &Arc<Self>, server: &Connections, at: &str, error: RedisError) -> StoreError {
        if error.is_unrecoverable_error() {
            self.begin_learning();
        }
        call_error(&server.store, at, error)
    }

    /// The server that has the key of this name.
    async fn server_of(
        self: &Arc<Self>,
        key: &str,
        by: Instant,
    ) -> Result<Arc<Connections>, StoreError> {
        let Some(cluster) = &self.cluster else {
            return Ok(Arc::clone(&self.given[0]));
        };
        let slot = slot_of(key);
        if let Some(node) = cluster.slots.lock().node_of(slot) {
            return Ok(node);
        }
        self.learn(by).await?;
        let node = cluster.slots.lock().node_of(slot);
        node.ok_or_else(|| {
            StoreError::unreachable(
                &self.store,
                "no node of the cluster has the slot of the key",
            )
        })
    }

    /// The number of the server that has the key of this name, as far as is known. It stays the same when a replica takes over.
    pub(super) fn part_of(&self, name: impl FnOnce() -> String) -> u64 {
        let Some(cluster) = &self.cluster else {
            return 0;
        };
        let slot = slot_of(&name());
        let owner = cluster.slots.lock().number_of(slot);
        owner.unwrap_or_default().into()
    }

    /// The node that this answer of `by` names: `MOVED` for good, or `ASK` for one command.
    fn redirected(
        self: &Arc<Self>,
        error: &RedisError,
        by: &Connections,
    ) -> Result<Arc<Connections>, StoreError> {
        let Some((address, slot)) = error.redirect_node() else {
            return Err(StoreError::refused(&by.store, error.clone()));
        };
        let (host, port) = address.rsplit_once(':').unwrap_or_default();
        let node = self.node(host, port.parse().unwrap_or(0), by)?;
        if let Some(cluster) = &self.cluster
            && error.kind() == ErrorKind::Server(ServerErrorKind::Moved)
        {
            cluster.slots.lock().set(slot..=slot, &node);
            self.begin_learning();
        }
        Ok(node)
    }

    /// The node at this address, which the node `by` has named. It has the options of the first node that was given.
    fn node(
        &self,
        host: &str,
        port: u16,
        by: &Connections,
    ) -> Result<Arc<Connections>, StoreError> {
        let info = self.given[0].client.get_connection_info();
        let host = match host {
            // A node that does not know its own address is at the one at which it was asked.
            "" | "?" => match by.client.get_connection_info().addr() {
                ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
                ConnectionAddr::Unix(_) => "127.0.0.1",
                _ => "",
            },
            host => host,
        };
        let mut known = self.nodes();
        if let Some(at) = known.iter().position(|node| is_at(node, host, port)) {
            return Ok(known.swap_remove(at));
        }
        let mut address = info.addr().clone();
        match &mut address {
            ConnectionAddr::TcpTls {
                host: to, port: at, ..
            } => (*to, *at) = (host.to_owned(), port),
            other => *other = ConnectionAddr::Tcp(host.to_owned(), port),
        }
        let client = Client::open(info.clone().set_addr(address));
        let client = client.map_err(|error| connect_error(&self.store, error))?;
        Ok(Arc::new(Connections::new(client, self.timeout)))
    }

    /// All nodes that are known: those that have slots, then those that were given.
    fn nodes(&self) -> Vec<Arc<Connections>> {
        let mut nodes = self
            .cluster
            .as_ref()
            .map_or_else(Vec::new, |cluster| cluster.slots.lock().nodes.clone());
        for given in &self.given {
            if !nodes.iter().any(|node| node.address == given.address) {
                nodes.push(Arc::clone(given));
            }
        }
        nodes
    }

    /// Asks the nodes in the background which of them has which slots.
    fn begin_learning(self: &Arc<Self>) {
        drop(self.learning());
    }

    /// Asks the nodes which of them has which slots, and awaits the answer until the deadline.
    async fn learn(self: &Arc<Self>, by: Instant) -> Result<(), StoreError> {
        let Some(learning) = self.learning() else {
            return Ok(());
        };
        let learnt = timeout_at(by, learning?).await;
        learnt.unwrap_or_else(|elapsed| Err(StoreError::unreachable(&self.store, elapsed)))
    }

    /// The task of this runtime that asks the nodes. `None` if there is one server, which is never asked.
    fn learning(self: &Arc<Self>) -> Option<Result<Task<()>, StoreError>> {
        let cluster = self.cluster.as_ref()?;
        let task = || {
            cluster
                .learning
                .get(&self.store, || Arc::clone(self).ask_for_slots())
        };
        Some(task().and_then(|running| {
            if running.clone().now_or_never().is_none() {
                return Ok(running);
            }
            cluster.learning.give_up(&running);
            task()
        }))
    }

    /// Asks all nodes at once, and keeps the first answer.
    async fn ask_for_slots(self: Arc<Self>) -> Result<(), StoreError> {
        let (by, mut cmd) = (self.deadline(), redis::cmd("CLUSTER"));
        cmd.arg("SLOTS");
        let asked = self.nodes().into_iter().map(async |node| {
            let answer = node.send(&cmd, false, by).await;
            (answer, node)
        });
        let mut answers: FuturesUnordered<_> = asked.collect();
        let mut failed = None;
        while let Some((answer, node)) = answers.next().await {
            let slots = answer.and_then(|answer| {
                let answer = answer.map_err(|error| connect_error(&node.store, error))?;
                self.read_slots(answer, &node)
            });
            match (slots, &self.cluster) {
                (Ok(slots), Some(cluster)) => {
                    *cluster.slots.lock() = slots;
                    return Ok(());
                }
                (Err(error), _) => failed = Some(error),
                (Ok(_), None) => {}
            }
        }
        Err(failed.unwrap_or_else(|| StoreError::unreachable(&self.store, "no node is known")))
    }

    fn read_slots(&self, answer: Value, by: &Connections) -> Result<SlotOwners, StoreError> {
        let is_wrong = || StoreError::unreachable(&by.store, "it has sent no list of slots");
        let mut ranges: Vec<Vec<Value>> =
            redis::from_redis_value(answer).map_err(|_| is_wrong())?;
        // So a node has the number of the one that it has replaced.
        ranges.sort_by_key(|range| match range.first() {
            Some(Value::Int(first)) => *first,
            _ => 0,
        });
        let mut slots = SlotOwners::default();
        for range in ranges {
            // The first slot, the last one, the master, and its replicas.
            let [
                Value::Int(first),
                Value::Int(last),
                Value::Array(master),
                ..,
            ] = &range[..]
            else {
                return Err(is_wrong());
            };
            let (Ok(first), Ok(last), [host, Value::Int(port), ..]) =
                (u16::try_from(*first), u16::try_from(*last), &master[..])
            else {
                return Err(is_wrong());
            };
            let host: Option<String> = redis::from_redis_value_ref(host).map_err(|_| is_wrong())?;
            let port = u16::try_from(*port).map_err(|_| is_wrong())?;
            let known = slots
                .nodes
                .iter()
                .find(|node| is_at(node, host.as_deref().unwrap_or_default(), port));
            let node = match known {
                Some(node) => Arc::clone(node),
                None => self.node(host.as_deref().unwrap_or_default(), port, by)?,
            };
            slots.set(first..=last.min(SLOTS - 1), &node);
        }
        if slots.nodes.is_empty() {
            return Err(StoreError::unreachable(&by.store, "it is in no cluster"));
        }
        Ok(slots)
    }

    /// The server from which to receive messages: each time another one.
    pub(super) fn next_to_follow(&self) -> Arc<Connections> {
        let (mut nodes, number) = (self.nodes(), self.followed.fetch_add(1, Ordering::Relaxed));
        nodes.swap_remove(number % nodes.len())
    }

    /// Whether the server is the one, or has slots of the cluster as far as is known.
    pub(super) fn has(&self, server: &Arc<Connections>) -> bool {
        self.cluster.as_ref().is_none_or(|cluster| {
            let slots = cluster.slots.lock();
            slots.nodes.is_empty() || slots.nodes.iter().any(|node| Arc::ptr_eq(node, server))
        })
    }

    /// The names of some keys that match the pattern, and where to go on. One server is scanned after another.
    ///
    /// A position is the first slot of the server, its cursor, and its address. The servers with smaller first slots have been
    /// scanned. If a server no longer has its first slot, the server that has taken over is scanned from the beginning.
    pub(super) async fn scan(
        self: &Arc<Self>,
        from: &[u8],
        pattern: &str,
        count: usize,
    ) -> Result<(Vec<Vec<u8>>, Option<Vec<u8>>), StoreError> {
        let (by, from) = (self.deadline(), String::from_utf8_lossy(from));
        let mut words = from.splitn(3, ' ');
        let slot = words.next().and_then(|slot| slot.parse().ok()).unwrap_or(0);
        let (cursor, address) = (
            words.next().unwrap_or("0"),
            words.next().unwrap_or_default(),
        );
        self.learn(by).await?;
        let Some((slot, server)) = self.scanned_from(slot) else {
            return Ok((Vec::new(), None));
        };
        let cursor = if server.address == address {
            cursor
        } else {
            "0"
        };
        let mut cmd = redis::cmd("SCAN");
        cmd.arg(cursor)
            .arg("MATCH")
            .arg(pattern)
            .arg("COUNT")
            .arg(count);
        let answer = self.ask(&server, &cmd, pattern, by).await?;
        let (cursor, names): (String, _) =
            redis::from_redis_value(answer).map_err(|_| answer_error(&server.store))?;
        let next = match &cursor[..] {
            "0" => self
                .scanned_from(slot + 1)
                .map(|(slot, _)| format!("{slot} 0 ")),
            cursor => Some(format!("{slot} {cursor} {}", server.address)),
        };
        Ok((names, next.map(String::into_bytes)))
    }

    /// The first of the servers whose first slot is this one or a later one, with its first slot.
    fn scanned_from(&self, slot: u16) -> Option<(u16, Arc<Connections>)> {
        let Some(cluster) = &self.cluster else {
            return (slot == 0).then(|| (0, Arc::clone(&self.given[0])));
        };
        let slots = cluster.slots.lock();
        let (before, after) = slots.owners.split_at_checked(slot.into())?;
        let mut owners = (slot..).zip(after);
        owners.find_map(|(slot, owner)| {
            let is_first = owner.is_some() && !before.contains(owner);
            is_first
                .then(|| slots.node_of(slot))
                .flatten()
                .map(|node| (slot, node))
        })
    }
}

impl SlotOwners {
    fn number_of(&self, slot: u16) -> Option<u16> {
        *self.owners.get(usize::from(slot))?
    }

    fn node_of(&self, slot: u16) -> Option<Arc<Connections>> {
        let number = self.number_of(slot)?;
        self.nodes.get(usize::from(number)).cloned()
    }

    fn set(&mut self, slots: RangeInclusive<u16>, node: &Arc<Connections>) {
        self.owners.resize(SLOTS.into(), None);
        let known = self.nodes.iter().position(|known| Arc::ptr_eq(known, node));
        let number = known.unwrap_or_else(|| {
            self.nodes.push(Arc::clone(node));
            self.nodes.len() - 1
        });
        let owners = self
            .owners
            .iter_mut()
            .skip((*slots.start()).into())
            .take(slots.len());
        owners.for_each(|owner| *owner = u16::try_from(number).ok());
    }
}

/// Whether there is time for another try.
fn is_in_time(by: Instant) -> bool {
    Instant::now() + PAUSE < by
}

fn is_at(node: &Connections, host: &str, port: u16) -> bool {
    node.address
        .strip_prefix(host)
        .and_then(|rest| rest.strip_prefix(':'))
        == Some(&*port.to_string())
}

/// The slot of a key: the CRC-16 (XMODEM) of the text between the braces, or of the whole name.
pub(super) fn slot_of(name: &str) -> u16 {
    let tag = name
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    let hashed = tag
        .map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty())
        .unwrap_or(name);
    let crc = hashed.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
            (crc << 1) ^ if crc >> 15 == 1 { 0x1021 } else { 0 }
        })
    });
    crc % SLOTS
}

// The clients are left out, because they have the password.
debug_fields! { Servers, |servers| store = servers.store, timeout = servers.timeout }
