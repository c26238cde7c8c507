//! What HTTP says by the status of an answer, gRPC says in `grpc-status`, in an answer with status 200.
//!
//! The names and formats are those of "gRPC over HTTP2" (`doc/PROTOCOL-HTTP2.md` in the repository of gRPC).

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};

static STATUS: HeaderName = HeaderName::from_static("grpc-status");
static MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// A status code of gRPC that a refusal has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

/// Whether a request is a call of gRPC. gRPC-Web is none: its clients read the status from the body.
pub(super) fn is_call<B>(request: &Request<B>) -> bool {
    const TYPE: &[u8] = b"application/grpc";
    if request.method() != Method::POST {
        return false;
    }
    let Some(content_type) = request.headers().get(CONTENT_TYPE) else { return false };
    let without_parameters = content_type.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let parts = without_parameters.split_at_checked(TYPE.len());
    parts.is_some_and(|(start, rest)| start.eq_ignore_ascii_case(TYPE) && (rest.is_empty() || rest[0] == b'+'))
}

/// An answer without a message, which the specification calls "Trailers-Only": the status stands in the head.
pub(super) fn trailers_only(code: Code, message: &str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(&CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(&STATUS, HeaderValue::from(code as u16));
    if let Ok(message) = HeaderValue::from_str(&percent_encoded(message)) {
        headers.insert(&MESSAGE, message);
    }
    response
}

fn percent_encoded(message: &str) -> String {
    let mut encoded = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// The status of an answer; of one of gRPC whose status stands in the head, the status that means the same in HTTP. That of an answer
/// with messages comes in the trailers, and is not known yet.
#[inline]
pub(super) fn http_status(status: StatusCode, headers: &HeaderMap) -> StatusCode {
    if status != StatusCode::OK || headers.is_empty() {
        return status;
    }
    headers.get(&STATUS).map_or(status, |code| of_code(code.as_bytes()))
}

/// As `google/rpc/code.proto` maps them. A code that is not listed there is read as UNKNOWN.
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
    fn a_message_is_percent_encoded() {
        let message = |text: &str| trailers_only(Code::Internal, text).headers()[&MESSAGE].to_str().unwrap().to_owned();
        assert_eq!(message("a \"b\" ~\\"), "a \"b\" ~\\");
        assert_eq!(message("100 %\n\u{e9}\u{7f}"), "100 %25%0A%C3%A9%7F");
    }
}
