//! Ids of requests, for finding them in the log.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

pub(crate) const HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// Longer ids of clients are replaced.
const LENGTH_MAX: usize = 128;

/// The client's own id if it sent a valid one, or a new one. In the extensions of every request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestId(Arc<str>);

impl RequestId {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let sent = headers.get(HEADER).and_then(|value| value.to_str().ok());
        match sent.filter(|id| is_valid_id(id)) {
            Some(id) => Self(id.into()),
            None => Self::random(),
        }
    }

    fn random() -> Self {
        // A repeated id does no harm; a request that fails for lack of one would.
        let bits = getrandom::u64().unwrap_or_default();
        Self(format!("req-{bits:016x}").into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn header(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.0).ok()
    }
}

/// Visible ASCII only: it appears in logs and terminals.
fn is_valid_id(id: &str) -> bool {
    (1..=LENGTH_MAX).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sane_ids_are_taken_over_and_others_replaced() {
        for (sent, is_taken) in [("abc-123", true), ("", false), ("two words", false), (&"x".repeat(129), false)] {
            let headers = HeaderMap::from_iter([(HEADER, HeaderValue::from_str(sent).unwrap())]);
            assert_eq!(RequestId::of(&headers).as_str() == sent, is_taken, "{sent}");
        }
        assert!(RequestId::of(&HeaderMap::new()).as_str().starts_with("req-"));
    }
}
