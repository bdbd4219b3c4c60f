//! Who may do what, and how often.

use std::time::Duration;

use crate::support::{Answer, Options, Server, add_key, start, start_in, start_with};
use ruvllm_server::HeaderValue;
use ruvllm_server::access::{KeyFile, Limits, Scope, Timestamp};

fn echo(server: &Server, header: &str) -> Answer {
    server.client().post_with("/v1/echo", &format!("{JSON}{header}"), r#"{"text":"a"}"#)
}

const JSON: &str = "content-type: application/json\r\n";

fn bearer(key: &str) -> String {
    format!("authorization: Bearer {key}\r\n")
}

#[test]
fn without_keys_everybody_may_ask_and_only_the_operator_may_administer() {
    let server = start();
    assert_eq!(echo(&server, "").json()["caller"], "anonymous");
    assert_eq!(echo(&server, &bearer("whatever")).status, 200);
    assert_eq!(server.get("/metrics").status, 200, "Prometheus needs no token");
    let neighbour = server.client().post("/v1/administer", "");
    assert_eq!((neighbour.status, neighbour.code().as_str()), (403, "forbidden"), "every user of a machine is on it");
    assert!(neighbour.body.contains("ruvllm keys token"), "{neighbour:?}");
    assert_eq!(server.client().post_with("/v1/administer", &server.operator(), "").status, 200);
    server.add_key("some", Scope::Inference);
    assert_eq!(server.client().post_with("/v1/administer", &server.operator(), "").status, 200, "also beside keys");
}

#[test]
fn strangers_do_not_share_a_tenant_with_local_users() {
    let server = start();
    let tenant = |headers: &str| echo(&server, headers).json()["tenant"].as_str().unwrap().to_owned();
    assert_eq!(tenant(""), "");
    assert_eq!(tenant(&server.operator()), "");
    let page = tenant("origin: https://evil.example\r\n");
    assert!(!page.is_empty());
    assert_eq!(server.client().get_with("/metrics", "origin: https://evil.example\r\n").status, 200);
}

#[test]
fn with_keys_only_those_who_have_one_may() {
    let server = start();
    let key = server.add_key("laptop", Scope::Inference);
    let answer = echo(&server, "");
    assert_eq!((answer.status, answer.code().as_str()), (401, "invalid_api_key"));
    assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("Authorization: Bearer"));
    assert_eq!(echo(&server, &bearer("ruv_0000")).status, 401);
    assert_eq!(echo(&server, &bearer(&key[..key.len() - 1])).status, 401);
    let allowed = echo(&server, &bearer(&key));
    assert_eq!((allowed.status, allowed.json()["tenant"].as_str()), (200, Some("tenants/laptop")));
    assert_eq!(echo(&server, &format!("x-api-key: {key}\r\n")).status, 200);
    for path in ["/health", "/ready", "/openapi.json"] {
        assert_eq!(server.get(path).status, 200, "{path} needs none");
    }
    let anthropic = server.client().post("/v1/messages", "{}");
    assert_eq!((anthropic.status, anthropic.json()["error"]["type"].as_str()), (401, Some("authentication_error")));
}

#[test]
fn a_key_reaches_what_its_scopes_allow() {
    let server = start();
    let keys = [Scope::Inference, Scope::Metrics, Scope::Admin].map(|scope| server.add_key(scope.name(), scope));
    let statuses = keys.map(|key| {
        let key = bearer(&key);
        let metrics = server.client().get_with("/metrics", &key).status;
        let admin = server.client().post_with("/v1/administer", &key, "").status;
        [echo(&server, &key).status, metrics, admin]
    });
    assert_eq!(statuses, [[200, 403, 403], [403, 200, 403], [200, 200, 200]]);
    assert_eq!(server.client().post("/v1/administer", "").status, 401, "being on this machine is not enough");
}

#[test]
fn a_key_that_is_removed_is_refused_at_once_by_a_running_server() {
    let server = start();
    let key = bearer(&server.add_key("laptop", Scope::Inference));
    let mut client = server.client();
    assert_eq!(client.post_with("/v1/echo", &format!("{JSON}{key}"), r#"{"text":"a"}"#).status, 200);
    KeyFile::in_home(server.home.path()).remove("laptop").unwrap();
    assert_eq!(
        client.post_with("/v1/echo", &format!("{JSON}{key}"), r#"{"text":"a"}"#).status,
        401,
        "on the same connection"
    );
    assert_eq!(echo(&server, "").status, 401, "and nobody else may either");
}

#[test]
fn a_key_that_has_expired_is_refused() {
    let server = start();
    let limits = Limits::default();
    let old = add_key(server.home.path(), "old", Scope::Inference, limits, Some(Timestamp::now()));
    let later = Timestamp::now().after(Duration::from_secs(3600));
    let new = add_key(server.home.path(), "new", Scope::Inference, limits, Some(later));
    let answer = echo(&server, &bearer(&old));
    assert_eq!(answer.status, 401);
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("expired"));
    assert_eq!(echo(&server, &bearer(&new)).status, 200);
}

#[test]
fn requests_beyond_the_limit_are_told_when_to_come_back() {
    let server = start();
    let limits = Limits { requests_per_minute: Some(2), ..Limits::default() };
    let key = bearer(&add_key(server.home.path(), "slow", Scope::Inference, limits, None));
    let other = bearer(&server.add_key("other", Scope::Inference));
    let first = echo(&server, &key);
    assert_eq!(first.header("x-ratelimit-limit-requests"), Some("2"));
    assert_eq!(first.header("x-ratelimit-remaining-requests"), Some("1"));
    assert_eq!(echo(&server, &key).status, 200);
    let answer = echo(&server, &key);
    assert_eq!((answer.status, answer.code().as_str()), (429, "rate_limit_exceeded"));
    assert_eq!(answer.json()["error"]["type"], "requests");
    assert_eq!(answer.header("x-ratelimit-remaining-requests"), Some("0"));
    let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=30).contains(&wait), "{wait}");
    assert_eq!(echo(&server, &other).status, 200, "others are not concerned");
}

#[test]
fn tokens_are_charged_after_the_answer() {
    let server = start();
    let limits = Limits { tokens_per_minute: Some(1000), tokens_per_day: Some(1_000_000), ..Limits::default() };
    let key = bearer(&add_key(server.home.path(), "heavy", Scope::Inference, limits, None));
    let mut client = server.client();
    let heavy = client.post_with("/v1/echo", &format!("{JSON}{key}"), r#"{"text":"a","tokens":5000}"#);
    assert_eq!(heavy.status, 200);
    assert_eq!(heavy.header("x-ratelimit-limit-tokens"), Some("1000"));
    let answer = client.post_with("/v1/echo", &format!("{JSON}{key}"), r#"{"text":"a"}"#);
    assert_eq!((answer.status, answer.json()["error"]["type"].as_str()), (429, Some("tokens")));
    let limits = Limits { tokens_per_day: Some(10), ..Limits::default() };
    let key = bearer(&add_key(server.home.path(), "daily", Scope::Inference, limits, None));
    assert_eq!(client.post_with("/v1/echo", &format!("{JSON}{key}"), r#"{"text":"a","tokens":10}"#).status, 200);
    let answer = client.post_with("/v1/echo", &format!("{JSON}{key}"), r#"{"text":"a"}"#);
    assert_eq!((answer.status, answer.code().as_str()), (429, "insufficient_quota"));
}

#[test]
fn a_server_that_starts_with_keys_needs_them_from_the_first_request() {
    let home = tempfile::tempdir().unwrap();
    let key = add_key(home.path(), "early", Scope::Inference, Limits::default(), None);
    let server = start_in(home, Options::default());
    assert_eq!(echo(&server, "").status, 401);
    assert_eq!(echo(&server, &bearer(&key)).status, 200);
}

#[test]
fn web_pages_cannot_send_what_browsers_do_not_ask_about() {
    let server = start();
    let body = r#"{"text":"a"}"#;
    let page = "origin: https://evil.example\r\nsec-fetch-site: cross-site\r\n";
    // What `fetch` sends of a blob without a type in the mode no-cors, and what a form sends.
    for (kind, status) in [("", 403), ("content-type: text/plain\r\n", 403)] {
        let answer = server.client().post_with("/v1/echo", &format!("{page}{kind}"), body);
        assert_eq!(answer.status, status, "{kind}: {answer:?}");
        assert!(answer.body.contains("--cors-origin"), "{answer:?}");
    }
    let old_browser = server.client().post_with("/v1/echo", "", body);
    assert_eq!((old_browser.status, old_browser.code().as_str()), (415, "unsupported_content_type"));
    assert!(old_browser.body.contains("Content-Type: application/json"), "{old_browser:?}");
    // Endpoints that take no body have no type to be asked for.
    let mut client = server.client();
    for method in ["POST /v1/administer", "DELETE /v1/echo"] {
        client.send(format!("{method} HTTP/1.1\r\nhost: localhost\r\n{page}content-length: 0\r\n\r\n")).unwrap();
        let answer = client.answer();
        assert!(answer.status == 403 && answer.body.contains("another origin"), "{answer:?}");
    }
    let key = server.operator();
    assert_eq!(
        server.client().post_with("/v1/administer", &format!("{page}{key}"), "").status,
        200,
        "no page knows it"
    );
}

#[test]
fn pages_of_other_origins_may_call_only_if_they_are_named() {
    let preflight = |server: &Server, origin: &str| {
        let mut client = server.client();
        let headers = "access-control-request-method: POST\r\naccess-control-request-headers: authorization\r\n";
        client.send(format!("OPTIONS /v1/echo HTTP/1.1\r\nhost: x\r\norigin: {origin}\r\n{headers}\r\n")).unwrap();
        client.answer().header("access-control-allow-origin").map(str::to_owned)
    };
    assert_eq!(preflight(&start(), "https://chat.example"), None);
    let cors_origins = vec![HeaderValue::from_static("https://chat.example")];
    let server = start_with(Options { cors_origins, ..Options::default() });
    server.add_key("some", Scope::Inference);
    let allowed = preflight(&server, "https://chat.example");
    assert_eq!(allowed.as_deref(), Some("https://chat.example"), "browsers send no key with this");
    assert_eq!(preflight(&server, "https://evil.example"), None);
    let refused = echo(&server, "origin: https://chat.example\r\n");
    assert_eq!(refused.status, 401);
    assert_eq!(refused.header("access-control-allow-origin"), Some("https://chat.example"), "errors can be read too");
}
