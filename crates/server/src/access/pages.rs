//! Keeps web pages of other origins from changing anything (CSRF).
//!
//! A browser sends some requests of any page to any server without asking it first: those without a body, or with one
//! of a few types. JSON bodies and keys are not among them, so requests with either come from programs, or from pages
//! that `cors.rs` allows. All others must not come from a page of another origin.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::body::is_json;
use crate::error::ApiError;

/// `allowed` holds the origins of `--cors-origin`.
pub(crate) async fn refuse_foreign(
    State(allowed): State<Arc<[HeaderValue]>>,
    request: Request,
    next: Next,
) -> Response {
    let changes_nothing = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if changes_nothing || was_asked_about(request.headers()) || !is_foreign(&request, &allowed) {
        return next.run(request).await;
    }
    let how = "start the server with --cors-origin and the page's origin to allow it";
    ApiError::forbidden(format!("this request comes from a web page of another origin: {how}")).into_response()
}

/// Whether a browser would have asked before sending it.
fn was_asked_about(headers: &HeaderMap) -> bool {
    is_json(headers) || headers.contains_key(AUTHORIZATION) || headers.contains_key("x-api-key")
}

fn is_foreign(request: &Request, allowed: &[HeaderValue]) -> bool {
    let headers = request.headers();
    let Some(origin) = headers.get(ORIGIN) else {
        // Browsers that omit the origin send at least this; `none` is what the user typed or bookmarked.
        let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
        return matches!(site, Some(b"cross-site" | b"same-site"));
    };
    if allowed.iter().any(|allowed| allowed == "*" || allowed == origin) {
        return false;
    }
    // HTTP/2 has the name in the URI instead.
    let host = headers.get(HOST).map(HeaderValue::as_bytes);
    let host = host.or_else(|| request.uri().authority().map(|authority| authority.as_str().as_bytes()));
    let from = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    match (from, host) {
        // The scheme is not compared: a proxy may have terminated TLS.
        (Some(("http" | "https", from)), Some(host)) => !from.as_bytes().eq_ignore_ascii_case(host),
        // Origin of an installed program, such as an extension of a browser or an editor.
        (Some((scheme, _)), _) => matches!(scheme, "http" | "https" | "file"),
        // `null` is a page that hides its origin.
        (None, _) => true,
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn check(headers: &[(&str, &str)]) -> bool {
        let allowed = [HeaderValue::from_static("https://chat.example")];
        let request = headers.iter().fold(Request::post("/"), |request, (name, value)| request.header(*name, *value));
        is_foreign(&request.body(Body::empty()).unwrap(), &allowed)
    }

    #[test]
    fn pages_of_other_origins_are_told_from_our_own_and_from_programs() {
        let host = ("host", "box.example:8080");
        for foreign in ["https://evil.example", "http://box.example:3000", "null", "file://", ""] {
            assert!(check(&[host, ("origin", foreign)]), "{foreign}");
        }
        for own in ["https://chat.example", "http://box.example:8080", "https://BOX.example:8080", "vscode-webview://1"]
        {
            assert!(!check(&[host, ("origin", own)]), "{own}");
        }
        assert!(!check(&[host]), "a program");
        for (site, is_foreign) in [("cross-site", true), ("same-site", true), ("same-origin", false), ("none", false)] {
            assert_eq!(check(&[host, ("sec-fetch-site", site)]), is_foreign, "{site}");
        }
    }
}
