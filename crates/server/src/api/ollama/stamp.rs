//! Times as Ollama writes them: RFC 3339 with nanoseconds, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

use ruvllm_text::strftime;

pub(super) fn now() -> String {
    of(SystemTime::now())
}

pub(super) fn of(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let second = strftime::format("%Y-%m-%dT%H:%M:%S", i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
    format!("{second}.{:09}Z", since.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn nanoseconds_have_nine_digits() {
        assert_eq!(of(UNIX_EPOCH + Duration::new(1_709_251_199, 42)), "2024-02-29T23:59:59.000000042Z");
        assert_eq!(of(UNIX_EPOCH), "1970-01-01T00:00:00.000000000Z");
    }
}
