//! Formats times for people.

use ruvllm_memory::now_ms;
use ruvllm_text::strftime;

/// Returns a time such as `2026-11-16 04:21:07`, UTC.
pub fn moment(at_ms: i64) -> String {
    strftime::format("%Y-%m-%d %H:%M:%S", at_ms.div_euclid(1000))
}

/// Returns an age such as `3 min ago`.
pub fn ago(at_ms: i64) -> String {
    let seconds = (now_ms() - at_ms).max(0) / 1000;
    match seconds {
        0..60 => "just now".to_owned(),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..86_400 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}
