//! The names of the keys of a store. The limiter and the key can be read back from a name.

use std::borrow::Cow;
use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_decode, percent_encode};

use crate::exchange::Scope;

/// The name of the store in messages.
pub(super) const NAME: &str = "Redis";

/// The start of the message that a key was reset. Before the key, a message has the eight bytes of the holder whose turn it is, and of
/// the one whose turn is next, or zeros.
pub(super) const OF_A_RESET: [u8; 16] = [0; 16];

/// Makes and reads names that begin with the prefix of the store.
#[derive(Debug, Clone)]
pub(super) struct Names {
    prefix: String,
}

impl Names {
    pub(super) fn new(prefix: &str) -> Self {
        let prefix = encoded(prefix.as_bytes()).to_string();
        Self { prefix }
    }

    /// The name of the state of a key. The part between the braces determines the node of a cluster that has all keys of a call.
    pub(super) fn state(&self, scope: &Scope) -> String {
        let mut state = self.before_key(&scope.limiter);
        state.extend(encoded(&scope.key));
        state.push('}');
        state
    }

    /// The prefix of the states of all keys of a limiter.
    fn before_key(&self, limiter: &str) -> String {
        let mut before = self.prefix.clone() + ":{";
        before.extend(encoded(limiter.as_bytes()));
        before.push(':');
        before
    }

    /// A pattern that the states of all keys of a limiter match.
    pub(super) fn pattern(&self, limiter: &str) -> String {
        format!("{}*}}", self.before_key(limiter))
    }

    /// The key whose state has this name.
    pub(super) fn key_of(&self, limiter: &str, state: &[u8]) -> Option<Arc<[u8]>> {
        let before = self.before_key(limiter);
        let key = state.strip_prefix(before.as_bytes())?.strip_suffix(b"}")?;
        decoded(key).map(Arc::from)
    }

    /// The name of the channel for released places.
    pub(super) fn channel(&self, limiter: &str) -> String {
        self.before_limiter() + &encoded(limiter.as_bytes()).to_string()
    }

    fn before_limiter(&self) -> String {
        format!("{}:released:", self.prefix)
    }

    /// The limiter whose channel has this name.
    pub(super) fn limiter_of(&self, channel: &str) -> Option<String> {
        let limiter = channel.strip_prefix(&self.before_limiter())?;
        String::from_utf8(decoded(limiter.as_bytes())?.into_owned()).ok()
    }
}

/// The names of all keys of Redis for a key of a limiter: the state, the leases by their expiry, the costs of leases, and the logs.
pub(super) fn all(state: String, logs: usize) -> Vec<String> {
    let mut names = vec![format!("{state}:leases"), format!("{state}:costs")];
    names.extend((0..logs).map(|number| format!("{state}:log{number}")));
    names.insert(0, state);
    names
}

/// The bytes that are encoded: they have a meaning in names or patterns, or are not readable.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'@')
    .remove(b'/')
    .remove(b'+')
    .remove(b'=');

fn encoded(bytes: &[u8]) -> PercentEncode<'_> {
    percent_encode(bytes, ENCODED)
}

/// Decodes a text. `None` if it was not encoded in this way.
fn decoded(text: &[u8]) -> Option<Cow<'_, [u8]>> {
    let decoded = Cow::from(percent_decode(text));
    encoded(&decoded)
        .flat_map(str::bytes)
        .eq(text.iter().copied())
        .then_some(decoded)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(crate::replay::cases(256))]

        #[test]
        fn the_key_is_read_back_from_its_name(limiter: String, key: Vec<u8>) {
            let names = Names::new("to{ll}*gate");
            let scope = Scope { limiter: limiter.as_str().into(), key: key.as_slice().into() };
            let state = names.state(&scope);
            prop_assert_eq!(state.matches(['{', '}', '*']).count(), 2);
            let read = names.key_of(&limiter, state.as_bytes());
            prop_assert_eq!(read.as_deref(), Some(&key[..]));
            prop_assert_eq!(names.limiter_of(&names.channel(&limiter)), Some(limiter));
        }

        #[test]
        fn foreign_names_are_no_keys(name: Vec<u8>) {
            prop_assert_eq!(Names::new("tollgate").key_of("a", &name), None);
        }
    }

    #[test]
    fn limiters_and_keys_do_not_run_together() {
        let names = Names::new("tollgate");
        let state = |limiter: &str, key: &str| {
            names.state(&Scope {
                limiter: limiter.into(),
                key: key.as_bytes().into(),
            })
        };
        assert_eq!(state("a:b", "c"), "tollgate:{a%3Ab:c}");
        assert_eq!(state("a", "b:c"), "tollgate:{a:b%3Ac}");
        assert_eq!(names.key_of("a", b"tollgate:{a:%F}"), None);
    }
}
