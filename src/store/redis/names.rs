//! The names of the keys of a store, from which limiter and key can be read back.

use std::sync::Arc;

use crate::exchange::Scope;

/// Of the store, in messages.
pub(super) const NAME: &str = "Redis";

/// The names that begin alike: with the prefix of the store.
#[derive(Debug, Clone)]
pub(super) struct Names {
    prefix: String,
}

impl Names {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: encoded(prefix.as_bytes()) }
    }

    /// Of the state of a key. What stands between the braces tells the nodes of a cluster where all keys of a call are.
    pub(super) fn state(&self, scope: &Scope) -> String {
        let mut name = String::with_capacity(self.prefix.len() + 4 + 3 * (scope.limiter.len() + scope.key.len()));
        name += &self.prefix;
        name += ":{";
        push_encoded(&mut name, scope.limiter.as_bytes());
        name += ":";
        push_encoded(&mut name, &scope.key);
        name += "}";
        name
    }

    /// Of the channel that tells of released places.
    pub(super) fn channel(&self, limiter: &str) -> String {
        format!("{}:released:{}", self.prefix, encoded(limiter.as_bytes()))
    }

    /// A pattern that the states of all keys of a limiter match.
    pub(super) fn pattern(&self, limiter: &str) -> String {
        format!("{}:{{{}:*}}", self.prefix, encoded(limiter.as_bytes()))
    }

    /// The key whose state has this name.
    pub(super) fn key_of(&self, limiter: &str, state: &[u8]) -> Option<Arc<[u8]>> {
        let before = format!("{}:{{{}:", self.prefix, encoded(limiter.as_bytes()));
        decoded(state.strip_prefix(before.as_bytes())?.strip_suffix(b"}")?).map(Arc::from)
    }
}

/// Of the leases, by their expiry.
pub(super) fn leases(state: &str) -> String {
    format!("{state}:leases")
}

/// Of the costs of leases.
pub(super) fn costs(state: &str) -> String {
    format!("{state}:costs")
}

/// Of the log of this number, from 0.
pub(super) fn log(state: &str, number: usize) -> String {
    format!("{state}:log{number}")
}

/// A name in which percent signs stand for all bytes that have a meaning in names or patterns, or cannot be read.
fn encoded(bytes: &[u8]) -> String {
    let mut encoded = String::with_capacity(bytes.len());
    push_encoded(&mut encoded, bytes);
    encoded
}

fn push_encoded(to: &mut String, bytes: &[u8]) {
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-_.@/+=".contains(byte) {
            to.push(char::from(*byte));
        } else {
            let digit = |value: u8| char::from(b"0123456789ABCDEF"[usize::from(value)]);
            to.extend(['%', digit(byte >> 4), digit(byte & 15)]);
        }
    }
}

fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            decoded.push(*first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        decoded.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = after;
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_key_is_read_back_from_its_name(limiter: String, key: Vec<u8>) {
            let names = Names::new("to{ll}*gate");
            let scope = Scope { limiter: limiter.as_str().into(), key: key.as_slice().into() };
            let state = names.state(&scope);
            prop_assert_eq!(state.matches(['{', '}', '*']).count(), 2);
            let read = names.key_of(&limiter, state.as_bytes());
            prop_assert_eq!(read.as_deref(), Some(&key[..]));
        }

        #[test]
        fn foreign_names_are_no_keys(name: Vec<u8>) {
            prop_assert_eq!(Names::new("tollgate").key_of("a", &name), None);
        }
    }

    #[test]
    fn limiters_and_keys_do_not_run_together() {
        let names = Names::new("tollgate");
        let state = |limiter: &str, key: &str| names.state(&Scope { limiter: limiter.into(), key: key.as_bytes().into() });
        assert_eq!(state("a:b", "c"), "tollgate:{a%3Ab:c}");
        assert_eq!(state("a", "b:c"), "tollgate:{a:b%3Ac}");
        assert_eq!(names.key_of("a", b"tollgate:{a:%F}"), None);
    }
}
