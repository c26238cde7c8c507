//! The penalty in front of everything: a counter for each address, which every attempt raises and time lowers. Each instance counts
//! for itself, in memory, so that it costs next to nothing.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use axum::http::StatusCode;
use common::Human;
use tollgate::{ConfigError, KeyedLimiter, Penalty, Rate};

/// 2,000 attempts at once, and 500 a second in the long run: the largest plan allows 333. A client above that is locked out for a
/// second, and each further time for twice as long, until it behaves.
const PENALTY: Penalty = Penalty::new(2_000, Rate::new(50, Duration::from_millis(100)))
    .ban(Duration::from_secs(1))
    .escalate(Duration::from_secs(60));

pub(crate) fn limiter() -> Result<KeyedLimiter<IpAddr>, ConfigError> {
    KeyedLimiter::new(PENALTY)
}

/// What an answer costs in addition to the attempt: five wrong tokens in a row cost as much as 2,000 requests.
pub(crate) fn charge(status: StatusCode) -> u64 {
    match status {
        StatusCode::UNAUTHORIZED => 400, // guesses tokens
        StatusCode::NOT_FOUND => 50,     // looks for holes
        _ => 0,
    }
}

/// The live table: all counters above zero, the highest first.
pub(crate) fn table(penalties: &KeyedLimiter<IpAddr>) -> String {
    let mut rows: Vec<_> = penalties
        .snapshots()
        .filter(|(_, numbers)| numbers.used > 0)
        .collect();
    rows.sort_unstable_by_key(|(client, numbers)| (Reverse(numbers.used), *client));
    let mut table = format!("{:<39}  counter  threshold  locked out\n", "client");
    for (client, numbers) in rows {
        let out = numbers
            .retry_after
            .map_or("-".to_owned(), |rest| format!("{} more", Human(rest)));
        // Padded as a text, because the format of addresses ignores a width.
        let _ = writeln!(
            table,
            "{:<39}  {:>7}  {:>9}  {out}",
            client.to_string(),
            numbers.used,
            numbers.limit
        );
    }
    table
}

/// Whether a client is locked out, by the table.
pub(crate) fn locks_out(table: &str, client: IpAddr) -> bool {
    let client = client.to_string();
    table
        .lines()
        .any(|row| row.split_whitespace().next() == Some(&client) && row.ends_with("more"))
}
