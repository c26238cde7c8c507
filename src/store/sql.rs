//! What the SQL stores have in common: one row for each key, with its [state](KeyState). The [rules](super::Rules) of this crate
//! decide, while the store holds the lock of the row.

#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) mod known;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) mod table;

use super::KeyState;

pub(super) use super::rules::Policies;

/// The version of the tables. A store refuses a later one.
pub(super) const SCHEMA_VERSION: i64 = 1;

/// Microseconds for which an expired row is spared: whoever comes back soon updates it, which is cheaper than to make it anew.
pub(super) const SPARED_MICROS: i64 = 10_000_000;

/// The state in a row whose expiry is in microseconds since 1970.
pub(super) fn read_state(expires: i64, bytes: Vec<u8>) -> KeyState {
    KeyState { bytes, expires_at: u64::try_from(expires).unwrap_or_default().saturating_mul(1_000) }
}

/// The expiry as a row has it: in microseconds since 1970, rounded up.
pub(super) fn expires(state: &KeyState) -> i64 {
    state.expires_at.div_ceil(1_000) as i64 // far below 2^63
}

/// Nanoseconds as whole microseconds.
#[cfg(feature = "sqlite")]
pub(super) fn micros(nanos: u64) -> i64 {
    (nanos / 1_000) as i64 // far below 2^63
}

/// A number of rows, for SQL.
pub(super) fn rows(max: usize) -> i64 {
    i64::try_from(max).unwrap_or(i64::MAX)
}

/// Two digits a byte.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) fn hex_digits(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}
