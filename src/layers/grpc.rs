//! The status of a gRPC call: the HTTP status of a response is 200, and the outcome is in `grpc-status`.
//!
//! The names and formats are those of "gRPC over HTTP2" (`doc/PROTOCOL-HTTP2.md` in the repository of gRPC).

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// The ASCII characters that are percent-encoded in a message. Characters outside ASCII are always encoded.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

static STATUS: HeaderName = HeaderName::from_static("grpc-status");
static MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

// The status codes that a refusal has.
pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
pub(super) const FAILED_PRECONDITION: i32 = 9;
pub(super) const INTERNAL: i32 = 13;
pub(super) const UNAVAILABLE: i32 = 14;
pub(super) const UNAUTHENTICATED: i32 = 16;

/// Whether a request or a response is gRPC: `application/grpc`, `application/grpc+proto` and the like. gRPC-Web is excluded: its
/// clients read the status from the body.
pub(super) fn is_message(headers: &HeaderMap) -> bool {
    const TYPE: &[u8] = b"application/grpc";
    let Some(content_type) = headers.get(CONTENT_TYPE) else {
        return false;
    };
    let without_parameters = content_type
        .as_bytes()
        .split(|byte| *byte == b';')
        .next()
        .unwrap_or_default()
        .trim_ascii();
    let parts = without_parameters.split_at_checked(TYPE.len());
    parts.is_some_and(|(start, rest)| {
        start.eq_ignore_ascii_case(TYPE) && (rest.is_empty() || rest[0] == b'+')
    })
}

/// A response without a message, which the specification calls "Trailers-Only": the status is in the head.
pub(super) fn trailers_only(code: i32, message: &str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(&CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(&STATUS, HeaderValue::from(code));
    if let Ok(message) = HeaderValue::from_str(&utf8_percent_encode(message, ENCODED).to_string()) {
        headers.insert(&MESSAGE, message);
    }
    response
}

/// The status of a response. For a gRPC response with its status in the head, this is the equivalent HTTP status. A response with
/// messages has its status in the trailers, which have not arrived yet.
#[inline]
pub(super) fn http_status(status: StatusCode, headers: &HeaderMap) -> StatusCode {
    if status != StatusCode::OK || headers.is_empty() {
        return status;
    }
    match headers.get(&STATUS) {
        Some(code) if is_message(headers) => of_code(code.as_bytes()),
        _ => status,
    }
}

/// Maps a code as `google/rpc/code.proto` does. A code that is not listed there is read as UNKNOWN.
fn of_code(code: &[u8]) -> StatusCode {
    match code {
        b"0" => StatusCode::OK,
        b"1" => StatusCode::from_u16(499).expect("it has three digits"),
        b"3" | b"9" | b"11" => StatusCode::BAD_REQUEST,
        b"4" => StatusCode::GATEWAY_TIMEOUT,
        b"5" => StatusCode::NOT_FOUND,
        b"6" | b"10" => StatusCode::CONFLICT,
        b"7" => StatusCode::FORBIDDEN,
        b"8" => StatusCode::TOO_MANY_REQUESTS,
        b"12" => StatusCode::NOT_IMPLEMENTED,
        b"14" => StatusCode::SERVICE_UNAVAILABLE,
        b"16" => StatusCode::UNAUTHORIZED,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_of_grpc_has_a_status_of_grpc() {
        let status_of = |content_type: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.insert(&STATUS, HeaderValue::from_static("8"));
            headers.extend(content_type.map(|of| (CONTENT_TYPE, HeaderValue::from_static(of))));
            http_status(StatusCode::OK, &headers).as_u16()
        };
        assert_eq!(
            [
                Some("application/grpc"),
                Some("Application/gRPC+proto; a=b")
            ]
            .map(status_of),
            [429; 2]
        );
        assert_eq!(
            [None, Some("application/json"), Some("application/grpc-web")].map(status_of),
            [200; 3]
        );
    }

    #[test]
    fn a_message_is_percent_encoded() {
        let message = |text: &str| {
            trailers_only(INTERNAL, text).headers()[&MESSAGE]
                .to_str()
                .unwrap()
                .to_owned()
        };
        assert_eq!(message("a \"b\" ~\\"), "a \"b\" ~\\");
        assert_eq!(message("100 %\n\u{e9}\u{7f}"), "100 %25%0A%C3%A9%7F");
    }
}
