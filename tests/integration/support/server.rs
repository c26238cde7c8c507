//! A database server that a test starts for itself and may kill. The server keeps all changes that it has acknowledged, as in production.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use super::ports::free_port;

/// A server process, which ends when this is dropped.
pub(crate) struct Server {
    name: &'static str,
    folder: PathBuf,
    port: u16,
    child: Child,
}

impl Server {
    /// Starts a server: `redis`, `postgres` or `mariadb`.
    pub(crate) fn start(name: &'static str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let folder = format!("tollgate-{name}-{}-server{number}", process::id());
        let folder = env::temp_dir().join(folder);
        fs::create_dir_all(&folder).unwrap();
        let port = free_port();
        let child = spawn(name, &folder, port);
        let server = Self {
            name,
            folder,
            port,
            child,
        };
        server.await_start();
        server
    }

    pub(crate) fn url(&self) -> String {
        let port = self.port;
        match self.name {
            "redis" => format!("redis://127.0.0.1:{port}/"),
            "postgres" => format!("postgres://tollgate@127.0.0.1:{port}/postgres"),
            _ => format!("mysql://root@127.0.0.1:{port}/tollgate"),
        }
    }

    /// Kills the server, so that it cannot save anything.
    pub(crate) fn kill(&mut self) {
        self.signal("KILL");
        self.child.wait().unwrap();
    }

    /// Starts the server again at the same port, after [`kill`](Self::kill).
    pub(crate) fn restart(&mut self) {
        let start = Instant::now();
        loop {
            self.child = spawn(self.name, &self.folder, self.port);
            thread::sleep(Duration::from_millis(300));
            // All processes of a killed PostgreSQL must have ended.
            if self.child.try_wait().unwrap().is_none() {
                break;
            }
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "{} does not start again",
                self.name
            );
        }
        self.await_start();
    }

    /// Sends a signal, such as `STOP`, to the processes of the server.
    pub(crate) fn signal(&self, signal: &str) {
        let parent = self.child.id().to_string();
        let listed = Command::new("ps")
            .args(["-o", "pid=", "--ppid", &parent])
            .output()
            .unwrap();
        let children = String::from_utf8(listed.stdout).unwrap();
        // PostgreSQL has a process for each connection.
        let pids = std::iter::once(parent.as_str()).chain(children.split_whitespace());
        let mut command = Command::new("kill");
        command
            .arg(format!("-{signal}"))
            .args(pids)
            .stderr(Stdio::null());
        command.status().unwrap();
    }

    fn await_start(&self) {
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{} does not listen after a minute",
                self.name
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn spawn(name: &str, folder: &Path, port: u16) -> Child {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/servers");
    let mut command = Command::new(script);
    command
        .arg("run")
        .arg(name)
        .arg(folder)
        .arg(port.to_string())
        .env("DURABLE", "1");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
        .spawn()
        .unwrap_or_else(|error| panic!("{script}: {error}"))
}

impl Drop for Server {
    fn drop(&mut self) {
        self.signal("CONT");
        self.signal("KILL");
        let _ = self.child.wait();
        for _ in 0..50 {
            // Other processes of the server may still write.
            if fs::remove_dir_all(&self.folder).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}
