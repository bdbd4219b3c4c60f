//! Errors as gRPC tells them: a code, and a message whose other characters are percent-encoded.

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;

use super::CONTENT;
use crate::error::{ApiError, ErrorKind};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// Clients limit their headers to 8 KiB.
const MESSAGE_BYTES_MAX: usize = 1024;

/// The codes of gRPC that errors have here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    Ok = 0,
    Cancelled = 1,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

impl Code {
    fn of(error: &ApiError) -> Self {
        match (error.kind, error.code.as_deref()) {
            (_, Some("unknown_url" | "method_not_supported" | "unsupported_encoding")) => Self::Unimplemented,
            (_, Some("cancelled")) => Self::Cancelled,
            (ErrorKind::InvalidRequest, _) => Self::InvalidArgument,
            (ErrorKind::Authentication, _) => Self::Unauthenticated,
            (ErrorKind::Permission, _) => Self::PermissionDenied,
            (ErrorKind::NotFound, _) => Self::NotFound,
            (ErrorKind::TooLarge | ErrorKind::RequestRate | ErrorKind::TokenRate | ErrorKind::Quota, _) => {
                Self::ResourceExhausted
            }
            (ErrorKind::Timeout, _) => Self::DeadlineExceeded,
            (ErrorKind::Overloaded, _) => Self::Unavailable,
            (ErrorKind::Internal, _) => Self::Internal,
        }
    }
}

/// Returns the trailers of a call that went well.
pub(crate) fn ok() -> HeaderMap {
    HeaderMap::from_iter([(STATUS, HeaderValue::from(Code::Ok as u16))])
}

/// Returns the trailers of a call that failed.
pub(crate) fn trailers(error: &ApiError) -> HeaderMap {
    let message = match &error.param {
        Some(param) if !error.message.contains(param.as_str()) => format!("{param}: {}", error.message),
        _ => error.message.clone(),
    };
    let status = (STATUS, HeaderValue::from(Code::of(error) as u16));
    let message = HeaderValue::from_str(&encoded(&message)).ok().map(|message| (MESSAGE, message));
    std::iter::once(status).chain(message).collect()
}

/// Makes the response to a call that failed before it had an answer: gRPC's clients read no other status.
pub(crate) fn shape(error: &ApiError, response: &mut Response) {
    *response.status_mut() = StatusCode::OK;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(CONTENT));
    response.headers_mut().extend(trailers(error));
    *response.body_mut() = Body::empty();
}

fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if out.len() >= MESSAGE_BYTES_MAX {
            break;
        }
        match byte {
            b' '..=b'$' | b'&'..=b'~' => out.push(byte.into()),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_kind_and_their_field() {
        let status = |error: &ApiError| trailers(error)[STATUS].to_str().unwrap().to_owned();
        assert_eq!(ok()[STATUS], "0");
        assert_eq!(status(&ApiError::no_such_path("/a.B/C")), "12");
        assert_eq!(status(&ApiError::not_found("no such model")), "5");
        assert_eq!(status(&ApiError::unauthenticated("no key")), "16");
        assert_eq!(status(&ApiError::too_much(ErrorKind::Quota, "too much")), "8");
        assert_eq!(status(&ApiError::unavailable("later", None)), "14");
        let named = trailers(&ApiError::invalid_param("top_p", "100 % is\ntoo much: ≥ 1"));
        assert_eq!(
            (&named[STATUS], named[MESSAGE].to_str().unwrap()),
            (&HeaderValue::from(3), "top_p: 100 %25 is%0Atoo much: %E2%89%A5 1")
        );
        let long = trailers(&ApiError::invalid("é".repeat(10_000)));
        assert!(long[MESSAGE].len() < MESSAGE_BYTES_MAX + 8);
    }
}
