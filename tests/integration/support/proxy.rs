//! A TCP proxy before a server, which stands for the network.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// What the proxy does. Connections have numbers, from 1.
#[derive(Debug, Clone, Copy, Default)]
struct Rules {
    /// The delay of each byte, in each direction.
    delay: Duration,
    /// Whether new connections are closed at once.
    refuses: bool,
    /// Whether bytes are held back, without a notice to their senders.
    holds: bool,
    /// The number of connections so far.
    accepted: u64,
    /// Connections up to this one are closed.
    cut: u64,
    /// Connections up to this one lose all bytes, and stay open.
    dead: u64,
}

/// A proxy, which ends with its test.
pub(crate) struct Proxy {
    rules: Arc<watch::Sender<Rules>>,
    server: Arc<Mutex<String>>,
    accepting: JoinHandle<()>,
}

/// Host and port, with user and path.
fn parts(url: &str) -> (String, String, String) {
    let (scheme, rest) = url.split_once("://").unwrap();
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, server) = authority
        .rsplit_once('@')
        .map_or(("", authority), |(user, server)| (user, server));
    let at = if user.is_empty() { "" } else { "@" };
    (
        server.to_owned(),
        format!("{scheme}://{user}{at}"),
        path.to_owned(),
    )
}

impl Proxy {
    /// Starts a proxy before the server of this URL, in the present runtime. Also returns the URL through the proxy.
    pub(crate) async fn before(url: &str) -> (Self, String) {
        let (server, before, path) = parts(url);
        let server = Arc::new(Mutex::new(server));
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let rules = Arc::new(watch::Sender::new(Rules::default()));
        let accepting = tokio::spawn(accept(socket, Arc::clone(&server), Arc::clone(&rules)));
        (
            Self {
                rules,
                server,
                accepting,
            },
            format!("{before}{address}/{path}"),
        )
    }

    /// New connections go to the server of this URL. Present ones stay.
    pub(crate) fn lead_to(&self, url: &str) {
        *self.server.lock().unwrap() = parts(url).0;
    }

    /// Delays each byte by this time, in each direction.
    pub(crate) fn delay(&self, delay: Duration) {
        self.rules.send_modify(|rules| rules.delay = delay);
    }

    /// Closes all connections.
    pub(crate) fn cut(&self) {
        self.rules.send_modify(|rules| rules.cut = rules.accepted);
    }

    /// Sets whether new connections are closed at once.
    pub(crate) fn refuse(&self, refuses: bool) {
        self.rules.send_modify(|rules| rules.refuses = refuses);
    }

    /// Sets whether all bytes are held back. Neither side is notified, and the bytes arrive afterwards.
    pub(crate) fn hold(&self, holds: bool) {
        self.rules.send_modify(|rules| rules.holds = holds);
    }

    /// From now on, all bytes on the present connections are lost, and neither side is notified. New connections work.
    pub(crate) fn lose_connections(&self) {
        self.rules.send_modify(|rules| rules.dead = rules.accepted);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
        self.accepting.abort();
    }
}

async fn accept(socket: TcpListener, server: Arc<Mutex<String>>, rules: Arc<watch::Sender<Rules>>) {
    while let Ok((client, _)) = socket.accept().await {
        if rules.borrow().refuses {
            continue;
        }
        let mut number = 0;
        rules.send_modify(|rules| {
            rules.accepted += 1;
            number = rules.accepted;
        });
        let server = server.lock().unwrap().clone();
        tokio::spawn(connect(client, server, rules.subscribe(), number));
    }
}

async fn connect(
    client: TcpStream,
    server: String,
    mut rules: watch::Receiver<Rules>,
    number: u64,
) {
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    for stream in [&client, &server] {
        stream.set_nodelay(true).unwrap();
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (there, back) = (rules.clone(), rules.clone());
    tokio::select! {
        () = forward(from_client, to_server, there, number) => {}
        () = forward(from_server, to_client, back, number) => {}
        _ = rules.wait_for(|rules| rules.cut >= number) => {}
    }
}

/// Forwards bytes until the sender closes the connection.
async fn forward(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut rules: watch::Receiver<Rules>,
    number: u64,
) {
    let (sender, mut chunks) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async move {
        let mut buffer = vec![0; 65_536];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            drop(sender.send((Instant::now(), buffer[..count].to_vec())));
        }
    };
    let write = async move {
        while let Some((at, chunk)) = chunks.recv().await {
            let delay = rules.borrow().delay;
            sleep_until(at + delay).await;
            let Ok(dead) = rules
                .wait_for(|rules| !rules.holds)
                .await
                .map(|rules| rules.dead)
            else {
                return;
            };
            if dead < number && to.write_all(&chunk).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(read, write);
}
