//! Any message of the channel on which processes tell each other their turns.

use super::*;

/// A message that is read is written, and then read as the same.
pub(in crate::store) fn message(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Some((scope, turns, written)) = read_message(text) else {
        return;
    };
    let of_turns = turns.as_ref().map(|(turns, next)| (&turns[..], *next));
    if let Some(text) = super::message(&scope, of_turns, written.as_ref()) {
        let (scope_read, turns_read, written_read) = read_message(&text).unwrap();
        assert_eq!((scope_read, turns_read), (scope, turns), "{text}");
        assert!(written_read.is_none() || written_read == written, "{text}"); // a long row is left out
    }
}
