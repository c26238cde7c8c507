//! What an error of the client means for the call.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::error::StoreError;

/// The connection was not made, so that nothing was sent.
pub(super) fn of_connecting(store: &str, error: RedisError) -> StoreError {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::BusyLoading) => StoreError::unreachable(store, error),
        ErrorKind::Server(_)
        | ErrorKind::Extension
        | ErrorKind::AuthenticationFailed
        | ErrorKind::RESP3NotSupported => StoreError::refused(store, error),
        _ => StoreError::unreachable(store, error),
    }
}

/// A command was sent. `at` is the key that it was for.
pub(super) fn of_call(store: &str, at: &str, error: RedisError) -> StoreError {
    let wrong_type = error.code() == Some("WRONGTYPE")
        || error
            .detail()
            .is_some_and(|detail| detail.contains("WRONGTYPE"));
    match error.kind() {
        _ if wrong_type => StoreError::damaged(store, at),
        // The server says so before it looks at a command.
        ErrorKind::Server(ServerErrorKind::BusyLoading) => StoreError::unreachable(store, error),
        ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed => {
            StoreError::refused(store, error)
        }
        _ => StoreError::unanswered(store, error),
    }
}

/// An answer that no script of a limiter gives: from a proxy, or from another kind of server.
pub(super) fn of_answer(store: &str) -> StoreError {
    StoreError::unanswered(store, "the answer is none of a limiter's script")
}

/// Whether the server does not know a script, and so has not run it.
pub(super) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
