//! A Redis server that a test starts for itself, on a free port of the loopback.

use std::error::Error;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use super::ports::free_port;

/// A server process, which ends when this is dropped.
pub(crate) struct RedisServer {
    child: Child,
    port: u16,
    folder: PathBuf,
    options: Vec<String>,
}

impl RedisServer {
    /// Starts a server with these options and a free port.
    pub(crate) fn start(options: &[&str]) -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("tollgate-redis-{}-{number}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        let port = free_port();
        let options: Vec<_> = options.iter().map(|option| (*option).to_owned()).collect();
        let child = spawn(port, &folder, &options);
        let mut server = Self {
            child,
            port,
            folder,
            options,
        };
        server.await_start();
        server
    }

    /// The URL, without a password.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Whether the server was not killed.
    pub(crate) fn is_running(&self) -> bool {
        std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok()
    }

    /// Kills the server, so that it cannot save anything.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts the server again at the same port, after [`kill`](Self::kill).
    pub(crate) fn restart(&mut self) {
        self.child = spawn(self.port, &self.folder, &self.options);
        self.await_start();
    }

    /// Sends the server a signal, such as `STOP`.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([format!("-{name}"), self.child.id().to_string()])
            .status()
            .unwrap();
        assert!(status.success(), "kill -{name}");
    }

    fn await_start(&mut self) {
        let start = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(
                self.child.try_wait().unwrap().is_none(),
                "redis-server has ended; its options: {:?}",
                self.options
            );
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "redis-server does not listen after 10 s"
            );
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn spawn(port: u16, folder: &PathBuf, options: &[String]) -> Child {
    let mut command = Command::new("redis-server");
    command
        .args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
        ])
        .arg(folder);
    command
        .args(options)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().unwrap_or_else(|error| {
        panic!("these tests need the program redis-server (Debian: apt-get install redis-server), or TOLLGATE_REDIS_URL: {error}")
    })
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The server of `TOLLGATE_REDIS_URL`, or else a server that this starts.
pub(crate) fn any_server() -> (Option<RedisServer>, String) {
    match env::var("TOLLGATE_REDIS_URL") {
        Ok(url) => (None, url),
        Err(_) => {
            let server = RedisServer::start(&[]);
            let url = server.url();
            (Some(server), url)
        }
    }
}

/// The messages of an error and of its sources.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(" | {error} {error:?}");
        source = error.source();
    }
    text
}
