//! GET with ranges over HTTP, following redirects ourselves so that the token stays with the host it is for.

use std::fmt::Write;

use ureq::http::{HeaderMap, Response, Uri, header};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body, Proxy};

use crate::config::HubConfig;
use crate::error::SourceError;

const REDIRECTS_MAX: usize = 10;

/// Asks for the bytes from `first` to `last`, or to the end, if the file is still the one with this tag.
#[derive(Debug)]
pub(super) struct Span<'a> {
    pub(super) first: u64,
    pub(super) last: Option<u64>,
    pub(super) etag: Option<&'a str>,
}

/// The last answer of a redirect chain, and what the hub itself said about the file on the way.
#[derive(Debug)]
pub(super) struct Answer {
    /// Where the redirects ended.
    pub(super) at: Uri,
    pub(super) response: Response<Body>,
    /// The hub knows the SHA-256 and size of large files, and says so before it redirects to where they lie.
    pub(super) linked_sha256: Option<String>,
    pub(super) linked_bytes: Option<u64>,
}

impl Answer {
    pub(super) fn serves_ranges(&self) -> bool {
        self.response.status().as_u16() == 206 || text(self.response.headers(), "accept-ranges") == Some("bytes")
    }
}

/// Why there is no answer: something final, or a connection that may work next time.
#[derive(Debug)]
pub(super) enum NoAnswer {
    Final(SourceError),
    Lost { why: String },
}

#[derive(Debug)]
pub(super) struct Client {
    agent: Agent,
    endpoint: Uri,
    token: Option<String>,
}

impl Client {
    pub(super) fn new(hub: &HubConfig) -> Result<Client, SourceError> {
        let endpoint = parse(&hub.endpoint)?;
        // Without certificates of its own (a slim container) the machine falls back on the built-in roots.
        let native = rustls_native_certs::load_native_certs().certs;
        let roots = match native.is_empty() {
            true => RootCerts::WebPki,
            false => RootCerts::from(native.iter().map(|der| Certificate::from_der(der).to_owned())),
        };
        let config = Agent::config_builder()
            .timeout_resolve(Some(hub.connect_timeout))
            .timeout_connect(Some(hub.connect_timeout))
            .timeout_recv_response(Some(hub.read_timeout))
            .timeout_per_read(Some(hub.read_timeout))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("ruvllm/", env!("CARGO_PKG_VERSION")))
            // A compressed answer could be neither resumed nor compared with the stated size.
            .accept_encoding("identity")
            .proxy(match is_loopback(&endpoint) {
                true => None,
                false => Proxy::try_from_env(),
            })
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .build();
        Ok(Client { agent: Agent::new_with_config(config), endpoint, token: hub.token.clone() })
    }

    pub(super) fn get(&self, url: &str, span: Option<&Span>) -> Result<Answer, NoAnswer> {
        let mut at = parse(url).map_err(NoAnswer::Final)?;
        let (mut linked_sha256, mut linked_bytes) = (None, None);
        for _ in 0..=REDIRECTS_MAX {
            let response = self.request(&at, span)?;
            if same_origin(&at, &self.endpoint) {
                linked_sha256 = linked_sha256.or_else(|| linked_sha256_of(response.headers()));
                linked_bytes = linked_bytes.or_else(|| number(response.headers(), "x-linked-size"));
            }
            if !response.status().is_redirection() {
                return Ok(Answer { at, response, linked_sha256, linked_bytes });
            }
            at = redirect_target(&at, text(response.headers(), "location")).map_err(NoAnswer::Final)?;
        }
        Err(NoAnswer::Final(SourceError::BadAddress {
            url: url.to_owned(),
            why: format!("it redirects more than {REDIRECTS_MAX} times"),
        }))
    }

    /// One request, redirects not followed.
    pub(super) fn request(&self, at: &Uri, span: Option<&Span>) -> Result<Response<Body>, NoAnswer> {
        let mut request = self.agent.get(at.clone());
        if let Some(token) = self.token.as_ref().filter(|_| same_origin(at, &self.endpoint)) {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some(span) = span {
            let last = span.last.map(|last| last.to_string()).unwrap_or_default();
            request = request.header(header::RANGE, format!("bytes={}-{last}", span.first));
            // Weak tags are not allowed in this header; the caller compares the tag of the answer instead.
            if let Some(etag) = span.etag.filter(|etag| !etag.starts_with("W/")) {
                request = request.header(header::IF_RANGE, etag);
            }
        }
        request.call().map_err(|error| NoAnswer::Lost { why: format!("{}: {error}", at.host().unwrap_or_default()) })
    }
}

fn parse(url: &str) -> Result<Uri, SourceError> {
    let bad = |why: String| SourceError::BadAddress { url: url.to_owned(), why };
    let uri: Uri = url.parse().map_err(|error| bad(format!("{error}")))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http" | "https"), Some(_)) => Ok(uri),
        _ => Err(bad("it must begin with http:// or https:// and a host".to_owned())),
    }
}

fn redirect_target(from: &Uri, location: Option<&str>) -> Result<Uri, SourceError> {
    let bad = |why: &str| SourceError::BadAddress { url: from.to_string(), why: why.to_owned() };
    let location = location.ok_or_else(|| bad("it redirects without saying where to"))?;
    let absolute = match location.strip_prefix('/') {
        Some(path) if !path.starts_with('/') => format!(
            "{}://{}{location}",
            from.scheme_str().unwrap_or("https"),
            from.authority().map_or("", |authority| authority.as_str())
        ),
        _ => location.to_owned(),
    };
    let target = parse(&absolute)?;
    if from.scheme_str() == Some("https") && target.scheme_str() != Some("https") {
        return Err(bad("it redirects to an address without encryption"));
    }
    Ok(target)
}

fn same_origin(a: &Uri, b: &Uri) -> bool {
    let port = |uri: &Uri| uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
    a.scheme_str() == b.scheme_str() && a.host() == b.host() && port(a) == port(b)
}

fn is_loopback(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

fn linked_sha256_of(headers: &HeaderMap) -> Option<String> {
    let etag = text(headers, "x-linked-etag")?.trim_matches('"');
    crate::digest::is_sha256_hex(etag).then(|| etag.to_owned())
}

pub(super) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

pub(super) fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    text(headers, name)?.trim().parse().ok()
}

/// First byte and whole size from `bytes 100-199/200`.
pub(super) fn content_range(headers: &HeaderMap) -> Option<(u64, u64)> {
    let (range, total) = text(headers, "content-range")?.strip_prefix("bytes ")?.split_once('/')?;
    let (first, _last) = range.split_once('-')?;
    Some((first.trim().parse().ok()?, total.trim().parse().ok()?))
}

/// Everything but unreserved characters and `/` is escaped.
pub(super) fn escape_path(path: &str) -> String {
    path.bytes().fold(String::new(), |mut escaped, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => escaped.push(byte as char),
            _ => {
                let _ = write!(escaped, "%{byte:02X}");
            }
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_may_be_relative_but_never_lose_encryption() {
        let from = parse("https://hub.example/a/b").unwrap();
        let to = |location| redirect_target(&from, Some(location)).map(|uri| uri.to_string());
        assert_eq!(to("/c?d=1").unwrap(), "https://hub.example/c?d=1");
        assert_eq!(to("https://cdn.example/x").unwrap(), "https://cdn.example/x");
        for refused in ["http://cdn.example/x", "file:///etc/passwd", "//cdn/x", "", "x"] {
            assert!(to(refused).is_err(), "{refused:?}");
        }
        assert!(redirect_target(&from, None).is_err());
    }

    #[test]
    fn origins_differ_by_scheme_host_and_port() {
        let same = |a, b| same_origin(&parse(a).unwrap(), &parse(b).unwrap());
        assert!(same("https://hub/x", "https://hub:443/y"));
        assert!(!same("https://hub", "http://hub"));
        assert!(!same("https://hub", "https://hub.evil"));
        assert!(!same("http://hub:1", "http://hub:2"));
    }

    #[test]
    fn path_escapes_keep_slashes_only() {
        assert_eq!(escape_path("a/b c?#%ä"), "a/b%20c%3F%23%25%C3%A4");
    }
}
