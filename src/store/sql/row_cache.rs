//! The rows that this process has read or written last, and a reading of the server's clock. With them, a call for a key that no
//! other process writes takes one round trip.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::KeyState;
use crate::exchange::Scope;

#[derive(Debug)]
pub(in crate::store) struct RowCache {
    rows: Mutex<Rows>,
    clock: Mutex<Option<ServerClock>>,
    /// The version of the next row that is written.
    version: AtomicU64,
}

/// The rows of the keys for which no call is in progress.
#[derive(Debug, Default)]
struct Rows {
    of: HashMap<Scope, CachedRow>,
    bytes: usize,
}

/// The row of a key, with the version that every write changes.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::store) struct KeyRow {
    pub(in crate::store) version: i64,
    pub(in crate::store) state: KeyState,
}

/// A row as it was last seen.
#[derive(Debug)]
pub(super) struct CachedRow {
    pub(super) row: KeyRow,
    /// Whether another process wrote the row between the last two calls.
    pub(super) is_shared: bool,
    /// Whether the row comes from a message of another process, and was not read from the table.
    pub(super) from_notify: bool,
    /// How many of the next calls lock the row at once, because another process wrote the row between the two round trips of an
    /// earlier call.
    pub(super) locks: u32,
}

/// A reading of the server's clock, in microseconds since 1970.
#[derive(Debug, Clone, Copy)]
struct ServerClock {
    now: i64,
    /// The clock was read between these two instants.
    asked: Instant,
    answered: Instant,
}

impl Default for RowCache {
    fn default() -> Self {
        let version = AtomicU64::new(uuid::Uuid::new_v4().as_u64_pair().1);
        Self {
            rows: Mutex::default(),
            clock: Mutex::default(),
            version,
        }
    }
}

impl RowCache {
    /// A version that no row had before. Otherwise a row that was deleted and inserted again, or that lost its last writes in a
    /// server crash, could be mistaken for the known one.
    pub(super) fn next_version(&self) -> i64 {
        (self.version.fetch_add(1, Ordering::Relaxed) & i64::MAX as u64) as i64
    }

    /// Takes a known row out, for a call.
    pub(super) fn take(&self, scope: &Scope) -> Option<CachedRow> {
        let mut rows = self.rows.lock();
        let known = rows.of.remove(scope)?;
        rows.bytes -= size(scope, &known);
        Some(known)
    }

    pub(super) fn keep(&self, scope: Scope, known: CachedRow) {
        /// The most bytes of all rows, enough for half a million keys with a rate.
        const MAX_BYTES: usize = 1 << 26;
        let mut rows = self.rows.lock();
        if rows.bytes >= MAX_BYTES {
            *rows = Rows::default();
        }
        rows.bytes += size(&scope, &known);
        if let Some((scope, former)) = rows.of.remove_entry(&scope) {
            rows.bytes -= size(&scope, &former);
        }
        rows.of.insert(scope, known);
    }

    /// Notes a row that another process has written, according to its message. The note has an effect only if the row is known
    /// and no call for it is in progress.
    #[cfg(feature = "postgres")]
    pub(in crate::store) fn hear(&self, scope: &Scope, row: KeyRow) {
        let mut rows = self.rows.lock();
        let Rows { of, bytes } = &mut *rows;
        let known = of.get_mut(scope);
        if let Some(known) = known.filter(|known| known.row.version != row.version) {
            *bytes -= size(scope, known);
            *known = CachedRow {
                row,
                is_shared: true,
                from_notify: true,
                locks: 0,
            };
            *bytes += size(scope, known);
        }
    }

    /// Notes a reading of the server's clock: `now`, in microseconds since 1970, in the answer to a query that was sent at
    /// `asked`.
    pub(super) fn note_clock(&self, now: i64, asked: Instant) {
        let mut clock = self.clock.lock();
        if clock.is_none_or(|reading| reading.asked <= asked) {
            *clock = Some(ServerClock {
                now,
                asked,
                answered: Instant::now(),
            });
        }
    }

    /// Forgets the clock, because the next connection may lead to another server.
    pub(in crate::store) fn forget_clock(&self) {
        *self.clock.lock() = None;
    }

    /// The earliest and the latest time that the server's clock can show at `at`, in microseconds since 1970; `None` if the clock
    /// was not read recently.
    pub(super) fn bounds(&self, at: Instant) -> Option<(i64, i64)> {
        let ServerClock {
            now,
            asked,
            answered,
        } = (*self.clock.lock())?;
        bounds(
            now,
            at.checked_duration_since(asked)?,
            at.saturating_duration_since(answered),
        )
    }
}

/// The present bounds of a clock that showed `now` at some time between the query and its answer.
fn bounds(now: i64, since_asked: Duration, since_answered: Duration) -> Option<(i64, i64)> {
    const RECENT: Duration = Duration::from_secs(10);
    /// The clocks of two machines may drift apart by a millisecond in ten seconds.
    const DRIFT: u32 = 10_000;
    if since_asked > RECENT {
        return None;
    }
    let micros = |passed: Duration| passed.as_micros() as i64; // up to ten seconds
    let earliest = now + micros(since_answered - since_answered / DRIFT);
    let latest = now + micros(since_asked + since_asked / DRIFT) + 1;
    Some((earliest, latest))
}

/// The approximate size of a row in memory, in bytes.
fn size(scope: &Scope, known: &CachedRow) -> usize {
    size_of::<(Scope, CachedRow)>() + scope.key.len() + known.row.state.bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_between_its_bounds() {
        let of = |asked, answered| {
            bounds(
                5,
                Duration::from_micros(asked),
                Duration::from_micros(answered),
            )
        };
        assert_eq!(
            of(30, 10),
            Some((14, 5 + 30 + 1)),
            "rounded away from each other"
        );
        // One clock runs faster than the other by up to a millisecond in ten seconds.
        assert_eq!(
            of(10_000_000, 9_000_000),
            Some((5 + 8_999_100, 5 + 10_001_000 + 1))
        );
        assert_eq!(of(10_000_001, 0), None);
    }

    #[test]
    fn what_is_known_is_bounded() {
        let known = RowCache::default();
        let scope = |key: u32| Scope {
            limiter: "limiter".into(),
            key: key.to_le_bytes().as_slice().into(),
        };
        let row = |bytes| KeyRow {
            version: 1,
            state: KeyState {
                expires_at: 0,
                bytes: vec![0; bytes],
            },
        };
        for key in 0..100 {
            known.keep(
                scope(key),
                CachedRow {
                    row: row(1 << 20),
                    is_shared: false,
                    from_notify: false,
                    locks: 0,
                },
            );
        }
        let kept = (0..100)
            .filter(|key| known.take(&scope(*key)).is_some())
            .count();
        assert!((1..=64).contains(&kept), "{kept} MiB");
        assert_eq!(known.rows.lock().bytes, 0);
    }

    #[test]
    fn no_version_comes_twice() {
        let (known, other) = (RowCache::default(), RowCache::default());
        let versions: std::collections::HashSet<_> = (0..1_000)
            .flat_map(|_| [known.next_version(), other.next_version()])
            .collect();
        assert!(versions.len() == 2_000 && versions.iter().all(|version| *version >= 0));
    }
}
