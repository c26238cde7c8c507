//! The faults that a claim finds.

use std::fmt::{Debug, Display};
use std::time::Duration;

use thiserror::Error;
use tokio::task::JoinError;
use tokio::time::{sleep, timeout};

use crate::error::StoreError;

/// A claim that does not hold for a store.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{claim}` does not hold: {what}: expected {expected}, got {got}")]
#[non_exhaustive]
pub struct Broken {
    /// The name of the claim.
    pub claim: &'static str,
    /// What was checked.
    pub what: String,
    /// The expected value.
    pub expected: String,
    /// The actual value.
    pub got: String,
}

/// A value that differs from the claim.
pub(super) struct Fault {
    what: String,
    expected: String,
    got: String,
}

pub(super) type Outcome<T = ()> = Result<T, Fault>;

impl Fault {
    pub(super) fn new(what: impl Display, expected: impl Display, got: impl Debug) -> Self {
        Self {
            what: what.to_string(),
            expected: expected.to_string(),
            got: format!("{got:?}"),
        }
    }

    pub(super) fn of(self, claim: &'static str) -> Broken {
        let Self {
            what,
            expected,
            got,
        } = self;
        Broken {
            claim,
            what,
            expected,
            got,
        }
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::new("the answer of the store", "no error", error)
    }
}

impl From<JoinError> for Fault {
    fn from(error: JoinError) -> Self {
        Self::new("a task that calls the store", "no panic", error)
    }
}

/// Checks that the two values are equal.
pub(super) fn same<T: Debug + PartialEq>(what: impl Display, got: T, expected: T) -> Outcome {
    if got == expected {
        Ok(())
    } else {
        Err(Fault::new(what, format!("{expected:?}"), got))
    }
}

/// Checks that the condition holds.
pub(super) fn holds(
    is_so: bool,
    what: impl Display,
    expected: impl Display,
    got: impl Debug,
) -> Outcome {
    if is_so {
        Ok(())
    } else {
        Err(Fault::new(what, expected, got))
    }
}

/// Longer than any claim has to wait for something.
const SOON: Duration = Duration::from_secs(20);

/// Awaits the future, which must end soon.
pub(super) async fn soon<T>(
    what: impl Display,
    awaited: impl Future<Output = Outcome<T>>,
) -> Outcome<T> {
    timeout(SOON, awaited)
        .await
        .unwrap_or_else(|_| Err(Fault::new(what, format!("it within {SOON:?}"), "nothing")))
}

/// Pauses before the next check.
pub(super) async fn pause() {
    sleep(Duration::from_millis(5)).await;
}
