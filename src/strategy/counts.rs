//! What a limit counts.

use std::fmt;

/// What a limit counts. Limits that count different things can be combined in one [`Policy`](crate::Policy).
///
/// # Examples
///
/// ```
/// use tollgate::{Limiter, MaxConcurrency, Rate, TokenBucket, TryAcquireError};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let model = Limiter::new((
///     MaxConcurrency::new(8).per_request(),
///     TokenBucket::new(Rate::per_minute(500), 500).per_request(),
///     TokenBucket::new(Rate::per_minute(100_000), 100_000).counting("tokens"),
/// ))?;
/// let permit = model.request().cost_of("tokens", 90_000).acquire().await?; // an estimate
///
/// let denied = model.request().cost_of("tokens", 20_000).try_acquire();
/// let Err(TryAcquireError::Denied(decision)) = denied else { panic!("more than there are") };
/// assert_eq!(decision.denied_by().unwrap().to_string(), "100000 tokens/min");
/// assert_eq!(decision.remaining(), 10_000);
///
/// assert!(permit.settle_costs([("tokens", 30_000)])); // what it really took
/// let _permit = model.request().cost_of("tokens", 70_000).try_acquire()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Counts {
    /// The [cost](crate::PermitRequest::cost) of a request, which is 1 unless it says otherwise.
    #[default]
    Cost,
    /// Requests: each is 1, whatever it costs.
    Requests,
    /// A unit with a name. Each request has to [say](crate::PermitRequest::cost_of) how many it takes; it may be none.
    Unit(Unit),
}

/// The name of what a limit counts: 1 to 31 ASCII letters, digits, `_` and `-`, a letter first. Upper and lower case are the same.
/// See [`Counts`] for an example.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Unit {
    /// In lower case.
    bytes: [u8; Self::MAX_LEN],
    is_valid: bool,
}

impl Unit {
    const MAX_LEN: usize = 31;

    /// Accepts any text, so that an error can show it. No limiter is built with a limit that counts an invalid unit.
    pub(crate) const fn new(name: &str) -> Self {
        let name = name.as_bytes();
        let mut unit = Self {
            bytes: [0; Self::MAX_LEN],
            is_valid: !name.is_empty()
                && name.len() <= Self::MAX_LEN
                && name[0].is_ascii_alphabetic(),
        };
        let mut at = 0;
        while at < name.len() && at < Self::MAX_LEN {
            if !matches!(name[at], b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-') {
                unit.is_valid = false;
            }
            unit.bytes[at] = name[at].to_ascii_lowercase();
            at += 1;
        }
        unit
    }

    pub(crate) const fn is_valid(&self) -> bool {
        self.is_valid
    }

    /// The name, in lower case.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let used = self.bytes.split(|byte| *byte == 0).next();
        let valid = used.and_then(|used| used.utf8_chunks().next());
        valid.map_or("", |chunk| chunk.valid())
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// The methods of a limit that say what it counts.
macro_rules! counts {
    ($limit:ident) => {
        impl $limit {
            setters! { const:
                /// Counts requests: each is 1, whatever it [costs](crate::PermitRequest::cost). See [`Counts`] for an example.
                pub per_request() => counts = Counts::Requests;

                /// Counts a unit with this name: 1 to 31 ASCII letters, digits, `_` and `-`, a letter first (checked when a limiter is
                /// built). Each request has to [say how many](crate::PermitRequest::cost_of) it takes; otherwise it is an error. See
                /// [`Counts`] for an example.
                pub counting(unit: &str) => counts = Counts::Unit($crate::strategy::Unit::new(unit));
            }
        }

        getters!($limit {
            /// What the limit counts. See [`Counts`].
            pub get_counts: counts -> Counts,
        });
    };
}

pub(super) use counts;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_has_a_plain_name_and_no_case() {
        assert_eq!(Unit::new("Tokens"), Unit::new("tokens"));
        assert_eq!(format!("{:?}", Unit::new("Tokens")), "\"tokens\"");
        for name in [
            "tokens",
            "cache_read_input_tokens",
            "t-1",
            "abcdefghijklmnopqrstuvwxyz-12345",
        ] {
            assert_eq!(Unit::new(name).is_valid(), name.len() <= 31, "{name}");
        }
        for name in [
            "",
            "1st",
            "-a",
            "two words",
            "tökens",
            "tokens/min",
            &"é".repeat(40),
            "a\0b",
        ] {
            assert!(!Unit::new(name).is_valid(), "{name:?}");
            assert!(name.starts_with(Unit::new(name).as_str()), "{name:?}");
        }
    }
}
