//! Ports for servers that cannot choose one themselves.

use std::net::TcpListener;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A free port from 10,000 to 19,999: below those that the system gives to clients, one of which could take the port before the
/// server does, and below those of `scripts/servers`. Different calls return different ports, and processes begin at different ones.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let own = process::id().wrapping_mul(97);
    loop {
        let number = own.wrapping_add(NEXT.fetch_add(1, Relaxed));
        let port = 10_000 + (number % 10_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
