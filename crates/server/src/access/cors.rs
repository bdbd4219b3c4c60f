//! Which web pages of other origins may call the API: none, unless they are named.

use axum::http::{HeaderName, HeaderValue, Method};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// Returns `None` if no origin is allowed. `*` allows all.
pub(crate) fn layer(origins: &[HeaderValue]) -> Option<CorsLayer> {
    let origin = match origins {
        [] => return None,
        origins if origins.iter().any(|origin| origin == "*") => AllowOrigin::any(),
        origins => AllowOrigin::list(origins.iter().cloned()),
    };
    let exposed = [
        "x-request-id",
        "retry-after",
        "x-ratelimit-limit-requests",
        "x-ratelimit-remaining-requests",
        "x-ratelimit-reset-requests",
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
    ];
    let layer = CorsLayer::new()
        .allow_origin(origin)
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        // Clients send many headers of their own; none is a secret of the browser, since credentials are not allowed.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(exposed.map(HeaderName::from_static));
    Some(layer)
}
