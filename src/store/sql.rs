//! What the SQL stores have in common: one row for each key, whose bytes are a [`Ledger`]. The rules of this crate decide, while
//! the store holds the lock of the row.

#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) mod known;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) mod table;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::core::ledger::{Damaged, Ledger};
use crate::core::plan::Plan;
use crate::error::StoreError;
use crate::exchange::{Call, Reply};
use crate::policy::Policy;
use crate::strategy::Moment;

/// The version of the tables. A store refuses a later one.
pub(super) const SCHEMA_VERSION: i64 = 1;

/// Microseconds for which an expired row is spared: whoever comes back soon updates it, which is cheaper than to make it anew.
pub(super) const SPARED_MICROS: i64 = 10_000_000;

/// The row of a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// When it can be deleted: microseconds since 1970, rounded up.
    pub(super) expires: i64,
    pub(super) state: Vec<u8>,
}

/// What a call has come to.
#[derive(Debug)]
pub(super) struct Decided {
    pub(super) reply: Reply,
    /// The row afterwards, if it has changed.
    pub(super) row: Option<Row>,
    /// Whether places came back.
    pub(super) released: bool,
}

/// A policy as a store needs it for each call.
#[derive(Debug)]
pub(super) struct Rules {
    plan: Arc<Plan>,
    text: String,
}

/// The policies of recent calls.
#[derive(Debug, Default)]
pub(super) struct Policies(Mutex<HashMap<Policy, Arc<Rules>>>);

impl Policies {
    /// More than a program has.
    const MAX: usize = 1_000;

    pub(super) fn rules(&self, policy: &Policy) -> Result<Arc<Rules>, StoreError> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rules) = known.get(policy) {
            return Ok(Arc::clone(rules));
        }
        if known.len() >= Self::MAX {
            known.clear();
        }
        let plan = Plan::new(policy.clone(), Duration::ZERO).map(Arc::new).map_err(StoreError::Policy)?;
        let rules = Arc::new(Rules { plan, text: policy.to_string() });
        known.insert(policy.clone(), Arc::clone(&rules));
        Ok(rules)
    }
}

impl Rules {
    /// Carries out a call on the row of its key. `now` is in nanoseconds since 1970, read under the lock of the row.
    pub(super) fn decide(&self, store: &str, now: u64, row: Option<&Row>, call: &Call) -> Result<Decided, StoreError> {
        if call.valid_until.is_some_and(|until| until <= now) {
            return Err(StoreError::TooLate { store: store.to_owned() });
        }
        let now = Moment::from_nanos(now).min(Moment::LAST);
        let (mut ledger, replaced) = match row {
            None => (Ledger::new(Arc::clone(&self.plan), now), false),
            Some(row) => self.read(store, now, row, call)?,
        };
        let reply = ledger.call(now, call);
        let counts_denials = self.plan.counts_denials() && call.asks.iter().any(|asks| !asks.waits);
        let brings = call.returns.len() + call.settlements.len() + call.renewals.len();
        let changed = reply.granted + reply.reclaimed > 0 || brings > 0 || counts_denials || replaced;
        let row = changed.then(|| Row {
            expires: i64::try_from(ledger.forgettable_at().nanos().div_ceil(1_000)).unwrap_or(i64::MAX),
            state: ledger.encode(&self.text),
        });
        let released = !call.returns.is_empty() || reply.reclaimed > 0;
        Ok(Decided { reply, row, released })
    }

    /// The ledger, and whether it has gone on with another policy.
    fn read(&self, store: &str, now: Moment, row: &Row, call: &Call) -> Result<(Ledger, bool), StoreError> {
        let (ledger, other) = Ledger::decode(&self.plan, &self.text, now, &row.state)
            .map_err(|Damaged| StoreError::Damaged { store: store.to_owned(), at: format!("{:?}", call.scope) })?;
        match other {
            Some(stored) if !call.replaces_policy && !row.has_expired(now.nanos()) => {
                let limiter = Arc::clone(&call.scope.limiter);
                Err(StoreError::PolicyDiffers { limiter, stored, given: self.text.clone() })
            }
            other => Ok((ledger, other.is_some())),
        }
    }
}

impl Row {
    /// `now` is in nanoseconds since 1970.
    fn has_expired(&self, now: u64) -> bool {
        self.expires <= micros(now)
    }
}

/// Nanoseconds as whole microseconds.
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
