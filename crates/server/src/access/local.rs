//! Identifies programs on the same machine that are not web pages.
//!
//! That allows little: to continue sessions, and a tenant apart from unknown senders. The memory and administration
//! need more (`local_token.rs`), since every user of the machine is local.

use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN};

use crate::listen::Peer;

/// A page in a local browser has a loopback address too. It is recognised by its origin, or by the host name if it made
/// that point to us.
pub(super) fn is_local(request: &Request) -> bool {
    let peer = request.extensions().get::<Peer>();
    let is_here = peer.is_some_and(|peer| peer.0.ip().to_canonical().is_loopback());
    // HTTP/2 has the name in the URI instead.
    let named = request.headers().get(HOST).map(|host| host.to_str().unwrap_or_default());
    let mut names = named.into_iter().chain(request.uri().host());
    is_here && request.headers().get(ORIGIN).is_none() && names.all(is_local_name)
}

fn is_local_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn check(peer: &str, uri: &str, headers: &[(&str, &str)]) -> bool {
        let request = headers.iter().fold(Request::get(uri), |request, (name, value)| request.header(*name, *value));
        let request = request.extension(Peer(peer.parse().unwrap())).body(Body::empty()).unwrap();
        is_local(&request)
    }

    #[test]
    fn programs_on_this_machine_are_told_from_pages_and_others() {
        assert!(check("127.0.0.1:5", "/", &[("host", "localhost:8080")]));
        assert!(check("[::1]:5", "/", &[("host", "[::1]:8080")]));
        assert!(check("[::1]:5", "http://[::1]:8080/", &[]));
        assert!(check("[::ffff:127.0.0.1]:5", "/", &[("host", "127.0.0.1")]));
        assert!(check("127.0.0.1:5", "/", &[]));
        assert!(!check("192.168.1.7:5", "/", &[("host", "localhost:8080")]));
        assert!(!check("127.0.0.1:5", "/", &[("host", "evil.example:8080")]), "a name that was made to point here");
        assert!(!check("127.0.0.1:5", "http://evil.example/", &[]));
        assert!(!check("127.0.0.1:5", "/", &[("host", "localhost:8080"), ("origin", "https://evil.example")]));
        assert!(!is_local(&Request::new(Body::empty())), "nobody knows where it comes from");
    }
}
