//! An identity that is the value of a header, or a bearer token.

use http::Request;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};

use super::{Identity, NoIdentity};

/// The value of a header, or a bearer token, as a key. It is unknown if the header is missing, comes in several lines, is empty, longer
/// than [`max_len`](Self::max_len), or not printable ASCII.
///
/// The value is not verified: see [`Identity`]. A store that processes share gets it as it is, so hash a secret in a closure instead.
///
/// ```
/// use http::{HeaderName, Request};
/// use tollgate::http::{HeaderKey, Identity};
///
/// let key = HeaderKey::new(HeaderName::from_static("x-api-key"));
/// let request = Request::builder().header("X-Api-Key", "k-17").body(())?;
/// assert_eq!(key.identify(&request)?, "k-17");
///
/// let request = Request::builder().header("Authorization", "Bearer t-18").body(())?;
/// assert_eq!(HeaderKey::bearer().identify(&request)?, "t-18");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderKey {
    name: HeaderName,
    is_bearer: bool,
    max_len: usize,
}

impl HeaderKey {
    /// The value of this header. See the [type's example](Self).
    #[must_use]
    pub const fn new(name: HeaderName) -> Self {
        Self {
            name,
            is_bearer: false,
            max_len: 256,
        }
    }

    /// The token of `Authorization: Bearer …` (RFC 6750, section 2.1). Where clients renew their tokens, take what stays the same:
    /// with each token a client would have a new budget.
    #[must_use]
    pub const fn bearer() -> Self {
        Self {
            name: AUTHORIZATION,
            is_bearer: true,
            max_len: 256,
        }
    }

    /// The longest key in bytes, by default 256; with 0 no key is known. It bounds the memory that a limiter takes for its keys. Signed
    /// tokens (JWT) are often longer: a closure that verifies one takes its subject as the key.
    ///
    /// ```
    /// use http::Request;
    /// use tollgate::http::{HeaderKey, Identity};
    ///
    /// let request = Request::builder().header("Authorization", "Bearer 12345").body(())?;
    /// assert!(HeaderKey::bearer().max_len(4).identify(&request).is_err());
    /// # Ok::<(), http::Error>(())
    /// ```
    #[must_use]
    pub fn max_len(self, bytes: usize) -> Self {
        Self {
            max_len: bytes,
            ..self
        }
    }

    fn value_of<'a>(&self, line: &'a HeaderValue) -> Option<&'a str> {
        let line = line.to_str().ok()?.trim_ascii();
        let value = if self.is_bearer {
            let (scheme, token) = line.split_once(' ')?;
            Some(token.trim_ascii_start()).filter(|_| scheme.eq_ignore_ascii_case("bearer"))?
        } else {
            line
        };
        (1..=self.max_len).contains(&value.len()).then_some(value)
    }
}

impl<B> Identity<B> for HeaderKey {
    type Key = String;

    fn identify(&self, request: &Request<B>) -> Result<String, NoIdentity> {
        let mut lines = request.headers().get_all(&self.name).iter();
        let line = lines
            .next()
            .ok_or_else(|| NoIdentity::NoHeader(self.name.clone()))?;
        let value = if lines.next().is_none() {
            self.value_of(line)
        } else {
            None
        };
        value
            .map(str::to_owned)
            .ok_or_else(|| NoIdentity::UnusableHeader(self.name.clone()))
    }
}
