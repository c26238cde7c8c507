//! The common parts of the SQL stores: one row for each key, with its [state](KeyState). The [rules](super::Rules) of this crate
//! decide, on a row that no other call changes meanwhile.

#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) mod row_cache;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) mod table;

use super::{KeyPage, KeyState};
use crate::error::StoreError;

/// The version of the tables. A store refuses a later one.
pub(super) const SCHEMA_VERSION: i64 = 1;

/// How long an expired row is kept, in microseconds. A later call for the key then updates the row, which is cheaper than
/// inserting it again.
pub(super) const SPARED_MICROS: i64 = 10_000_000;

/// Whether the tables are missing and must be created. `found` is their version.
pub(super) fn must_create(
    store: &str,
    found: Option<i64>,
    creates_tables: bool,
) -> Result<bool, StoreError> {
    match found {
        None if creates_tables => Ok(true),
        None => Err(StoreError::refused(
            store,
            "it has no tables; run the statements of the store's schema()",
        )),
        Some(found) if found > SCHEMA_VERSION => Err(StoreError::NewerSchema {
            store: store.to_owned(),
            found,
            known: SCHEMA_VERSION,
        }),
        Some(_) => Ok(false),
    }
}

/// The state in a row whose expiry is in microseconds since 1970.
pub(super) fn read_state(expires: i64, bytes: Vec<u8>) -> KeyState {
    KeyState {
        bytes,
        expires_at: u64::try_from(expires)
            .unwrap_or_default()
            .saturating_mul(1_000),
    }
}

/// The expiry as stored in a row: in microseconds since 1970, rounded up.
pub(super) fn expires(state: &KeyState) -> i64 {
    state.expires_at.div_ceil(1_000) as i64 // far below 2^63
}

/// A number of rows, for SQL.
pub(super) fn rows(max: usize) -> i64 {
    i64::try_from(max).unwrap_or(i64::MAX)
}

/// The page of these rows, each with its place in the order and its key. At most `max` rows were selected. If there are `max`
/// rows, another page begins after the last one.
pub(super) fn page(found: Vec<(Vec<u8>, Vec<u8>)>, max: usize) -> KeyPage {
    let last = found.last().filter(|_| found.len() == max);
    KeyPage {
        next: last.map(|(place, _)| place.clone()),
        keys: found.into_iter().map(|(_, key)| key.into()).collect(),
    }
}

/// The bytes in hexadecimal, two digits for each.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) fn hex_digits(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}
