//! The messages about released places, between processes that share a database.

use super::super::sql::row_cache::KeyRow;
use super::super::sql::{expires, hex_digits, read_state};
use crate::exchange::Scope;

/// The longest message that PostgreSQL accepts.
const MAX_MESSAGE: usize = 7_999;

/// The message about a release of this key: the limiter and the key in hexadecimal digits, and the row that was written, unless it is
/// long. `None` if limiter and key are too long.
pub(super) fn message(scope: &Scope, written: Option<&KeyRow>) -> Option<String> {
    /// A longer row is as fast to read as to send.
    const MOST_BYTES: usize = 1_000;
    let limiter = hex_digits(scope.limiter.as_bytes());
    let mut message = format!("{limiter}/{}", hex_digits(&scope.key));
    if let Some(KeyRow { version, state }) = written
        && state.bytes.len() <= MOST_BYTES
        && message.len() < MAX_MESSAGE / 2
    {
        let (expires, state) = (expires(state), hex_digits(&state.bytes));
        message += &format!("/{version}/{expires}/{state}");
    }
    (message.len() <= MAX_MESSAGE).then_some(message)
}

/// The key and the written row of a message. Any client of the database may have sent it.
pub(super) fn read_message(message: &str) -> Option<(Scope, Option<KeyRow>)> {
    let mut parts = message.split('/');
    let limiter = String::from_utf8(unhex(parts.next()?)?).ok()?;
    let key = unhex(parts.next()?)?;
    let mut written = || {
        let (version, expires) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let state = read_state(expires, unhex(parts.next()?)?);
        Some(KeyRow { version, state })
    };
    let written = written();
    let scope = Scope {
        limiter: limiter.into(),
        key: key.into(),
    };
    Some((scope, written))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text
        .chars()
        .map(|digit| digit.to_digit(16))
        .collect::<Option<Vec<_>>>()?;
    digits
        .chunks(2)
        .map(|pair| Some((16 * pair[0] + pair.get(1)?) as u8))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::KeyState;

    #[test]
    fn a_message_is_read_as_it_was_meant() {
        let scope = |key: &[u8]| Scope {
            limiter: "api/ü".into(),
            key: key.into(),
        };
        let row = |length| KeyRow {
            version: 8,
            state: KeyState {
                bytes: vec![7; length],
                expires_at: 5_000,
            },
        };
        let said =
            |scope: &Scope, written: Option<&KeyRow>| read_message(&message(scope, written)?);
        let of = |scope: Scope, written| Some((scope, written));
        assert_eq!(said(&scope(b"/"), None), of(scope(b"/"), None));
        assert_eq!(
            said(&scope(b""), Some(&row(1_000))),
            of(scope(b""), Some(row(1_000)))
        );
        assert_eq!(said(&scope(b"a"), Some(&row(1_001))), of(scope(b"a"), None));
        assert_eq!(
            said(&scope(&[1; 3_000]), Some(&row(1))),
            of(scope(&[1; 3_000]), None)
        );
        assert_eq!(said(&scope(&[1; 4_000]), None), None);
        for other in ["", "61", "61/6", "x/61", "61/zz"] {
            assert!(
                read_message(other).is_none_or(|(_, written)| written.is_none()),
                "{other}"
            );
        }
    }
}
