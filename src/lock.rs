//! A mutex that goes on after a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A mutex without poisoning. No foreign code runs under one, so a panic does not leave half of a change behind.
#[derive(Debug, Default)]
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
