//! The message of an instance to the process that started it: one line.

use std::net::SocketAddr;

pub(crate) fn listening(users: SocketAddr, operators: SocketAddr) -> String {
    format!("listening {users} {operators}")
}

pub(crate) fn failed(why: &str) -> String {
    format!("failed {why}")
}

/// The addresses for users and for operators, or why there are none.
pub(crate) fn read(line: &str) -> Result<(SocketAddr, SocketAddr), String> {
    let (kind, rest) = line.trim_end().split_once(' ').unwrap_or_default();
    let addresses = || {
        let (users, operators) = rest.split_once(' ')?;
        Some((users.parse().ok()?, operators.parse().ok()?))
    };
    match kind {
        "listening" => addresses().ok_or_else(|| format!("it says `{line}`")),
        "failed" => Err(rest.to_owned()),
        _ => Err("it ended too early".to_owned()),
    }
}
