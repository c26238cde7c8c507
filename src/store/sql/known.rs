//! What a process knows of a server before it asks: the rows that it has read or written last, and about what its clock shows. So a
//! key that no other process writes takes one flight a call.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::KeyState;
use crate::exchange::Scope;

#[derive(Debug)]
pub(in crate::store) struct Known {
    rows: Mutex<Rows>,
    clock: Mutex<Option<Reading>>,
    /// Of the next row that is written.
    version: AtomicU64,
}

/// The rows of keys that no call is under way for.
#[derive(Debug, Default)]
struct Rows {
    of: HashMap<Scope, KnownRow>,
    bytes: usize,
}

/// A row as it was last seen.
#[derive(Debug)]
pub(super) struct KnownRow {
    pub(super) version: i64,
    pub(super) row: KeyState,
    /// Whether somebody else has written the row between the last two calls.
    pub(super) is_shared: bool,
    /// Whether somebody else has told of it, and it was not seen in the table.
    pub(super) is_told: bool,
    /// How many calls lock the row at once, because somebody has written it between the two flights of one before them.
    pub(super) locks: u32,
}

/// A reading of the server's clock, in microseconds since 1970.
#[derive(Debug, Clone, Copy)]
struct Reading {
    now: i64,
    /// It was read between these.
    asked: Instant,
    answered: Instant,
}

/// Between what bounds the server's clock is, in microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) earliest: i64,
    pub(super) latest: i64,
}

impl Default for Known {
    fn default() -> Self {
        let version = AtomicU64::new(uuid::Uuid::new_v4().as_u64_pair().1);
        Self { rows: Mutex::default(), clock: Mutex::default(), version }
    }
}

impl Known {
    /// A version that no row had before. One that was deleted and made anew, or has lost its last writes in a crash of the server, must
    /// not be taken for the one that was known.
    pub(super) fn next_version(&self) -> i64 {
        (self.version.fetch_add(1, Ordering::Relaxed) & i64::MAX as u64) as i64
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clock(&self) -> MutexGuard<'_, Option<Reading>> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out what is known of a row, for a call.
    pub(super) fn take(&self, scope: &Scope) -> Option<KnownRow> {
        let mut rows = self.rows();
        let known = rows.of.remove(scope)?;
        rows.bytes -= size(scope, &known);
        Some(known)
    }

    pub(super) fn keep(&self, scope: Scope, known: KnownRow) {
        /// Of all rows. It is as much as half a million keys with a rate take.
        const MAX_BYTES: usize = 1 << 26;
        let mut rows = self.rows();
        if rows.bytes >= MAX_BYTES {
            *rows = Rows::default();
        }
        rows.bytes += size(&scope, &known);
        if let Some((scope, former)) = rows.of.remove_entry(&scope) {
            rows.bytes -= size(&scope, &former);
        }
        rows.of.insert(scope, known);
    }

    /// Somebody else tells what they have written. It matters where the row is known, and no call of it is under way.
    #[cfg(feature = "postgres")]
    pub(in crate::store) fn hear(&self, scope: &Scope, version: i64, row: KeyState) {
        let mut rows = self.rows();
        let Rows { of, bytes } = &mut *rows;
        if let Some(known) = of.get_mut(scope).filter(|known| known.version != version) {
            *bytes -= size(scope, known);
            *known = KnownRow { version, row, is_shared: true, is_told: true, locks: 0 };
            *bytes += size(scope, known);
        }
    }

    /// The server has answered what was asked at `asked`: its clock is `now`, in microseconds since 1970.
    pub(super) fn note_clock(&self, now: i64, asked: Instant) {
        let mut clock = self.clock();
        if clock.is_none_or(|reading| reading.asked <= asked) {
            *clock = Some(Reading { now, asked, answered: Instant::now() });
        }
    }

    /// The next connection may be one to another server.
    pub(in crate::store) fn forget_clock(&self) {
        *self.clock() = None;
    }

    /// Where the server's clock is at `at`; `None` if it was not read lately.
    pub(super) fn bounds(&self, at: Instant) -> Option<Bounds> {
        let Reading { now, asked, answered } = (*self.clock())?;
        bounds(now, at.checked_duration_since(asked)?, at.saturating_duration_since(answered))
    }
}

/// Of a clock that was `now` between these two times ago.
fn bounds(now: i64, since_asked: Duration, since_answered: Duration) -> Option<Bounds> {
    const RECENT: Duration = Duration::from_secs(10);
    /// The clocks of two machines may run apart by a millisecond in ten seconds.
    const DRIFT: u32 = 10_000;
    if since_asked > RECENT {
        return None;
    }
    let micros = |passed: Duration| passed.as_micros() as i64; // up to ten seconds
    let earliest = now + micros(since_answered - since_answered / DRIFT);
    Some(Bounds { earliest, latest: now + micros(since_asked + since_asked / DRIFT) + 1 })
}

/// In memory, about.
fn size(scope: &Scope, known: &KnownRow) -> usize {
    size_of::<(Scope, KnownRow)>() + scope.key.len() + known.row.bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_between_its_bounds() {
        let of = |asked, answered| bounds(5, Duration::from_micros(asked), Duration::from_micros(answered));
        assert_eq!(of(30, 10), Some(Bounds { earliest: 14, latest: 5 + 30 + 1 }), "rounded away from each other");
        // One clock runs faster than the other by up to a millisecond in ten seconds.
        assert_eq!(of(10_000_000, 9_000_000), Some(Bounds { earliest: 5 + 8_999_100, latest: 5 + 10_001_000 + 1 }));
        assert_eq!(of(10_000_001, 0), None);
    }

    #[test]
    fn what_is_known_is_bounded() {
        let known = Known::default();
        let scope = |key: u32| Scope { limiter: "limiter".into(), key: key.to_le_bytes().as_slice().into() };
        let row = |bytes| KeyState { expires_at: 0, bytes: vec![0; bytes] };
        for key in 0..100 {
            known.keep(scope(key), KnownRow { version: 1, row: row(1 << 20), is_shared: false, is_told: false, locks: 0 });
        }
        let kept = (0..100).filter(|key| known.take(&scope(*key)).is_some()).count();
        assert!((1..=64).contains(&kept), "{kept} MiB");
        assert_eq!(known.rows().bytes, 0);
    }

    #[test]
    fn no_version_comes_twice() {
        let (known, other) = (Known::default(), Known::default());
        let versions: std::collections::HashSet<_> =
            (0..1_000).flat_map(|_| [known.next_version(), other.next_version()]).collect();
        assert!(versions.len() == 2_000 && versions.iter().all(|version| *version >= 0));
    }
}
