//! The OpenAPI document at `/openapi.json`. Routes add their own part; this is the rest.

use serde::Serialize;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{Components, Info, License, OpenApi, OpenApiBuilder, SecurityRequirement};
use utoipa::{PartialSchema, ToSchema};

/// An error in OpenAI's format.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    error: ErrorDetails,
}

#[derive(Debug, Serialize, ToSchema)]
struct ErrorDetails {
    message: String,
    #[serde(rename = "type")]
    kind: String,
    /// Path of the invalid field, such as `messages[0].content`.
    param: Option<String>,
    /// A code for programs, such as `unknown_parameter`.
    code: Option<String>,
}

/// Returns what applies to all routes.
pub(crate) fn base() -> OpenApi {
    let mut info = Info::new("RuvLLM", env!("CARGO_PKG_VERSION"));
    info.description =
        Some("An LLM server with the APIs of OpenAI and Anthropic, and some endpoints of its own.".to_owned());
    info.license = Some(License::new("MIT"));
    let mut components = Components::new();
    components.add_security_scheme("bearer", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    let header = SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("x-api-key")));
    components.add_security_scheme("x-api-key", header);
    components.schemas.insert(ErrorBody::name().into_owned(), ErrorBody::schema());
    components.schemas.insert(ErrorDetails::name().into_owned(), ErrorDetails::schema());
    let none: [&str; 0] = [];
    // Either header is accepted, and none is needed without keys.
    let either = ["bearer", "x-api-key"].map(|name| SecurityRequirement::new(name, none));
    let security = either.into_iter().chain([SecurityRequirement::default()]);
    OpenApiBuilder::new().info(info).components(Some(components)).security(Some(security)).build()
}
