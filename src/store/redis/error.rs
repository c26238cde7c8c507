//! What an error of the client means for the call.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::error::{Cause, StoreError};

/// The connection was not made, so that nothing was sent.
pub(super) fn of_connecting(store: &str, error: RedisError) -> StoreError {
    let refuses = match error.kind() {
        ErrorKind::Server(ServerErrorKind::BusyLoading) => false,
        ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed | ErrorKind::RESP3NotSupported => true,
        _ => false,
    };
    let (store, source) = (store.to_owned(), Cause::new(error));
    if refuses { StoreError::Refused { store, source } } else { StoreError::Unreachable { store, source } }
}

/// A command was sent. `at` is the key that it was for.
pub(super) fn of_call(store: &str, at: &str, error: RedisError) -> StoreError {
    let store = store.to_owned();
    let wrong_type = error.code() == Some("WRONGTYPE") || error.detail().is_some_and(|detail| detail.contains("WRONGTYPE"));
    match error.kind() {
        _ if wrong_type => StoreError::Damaged { store, at: at.to_owned() },
        // It says so before it looks at a command.
        ErrorKind::Server(ServerErrorKind::BusyLoading) => StoreError::Unreachable { store, source: Cause::new(error) },
        ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed => {
            StoreError::Refused { store, source: Cause::new(error) }
        }
        _ => StoreError::Unanswered { store, after: None, source: Some(Cause::new(error)) },
    }
}

/// Whether the server does not know a script, and so has not run it.
pub(super) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
