//! Ids of answers, and their creation times.

use std::hash::{BuildHasher, RandomState};
use std::time::SystemTime;

use crate::models::unix_s;

/// Returns a unique id, such as `chatcmpl-5f2c…`.
pub(crate) fn new(prefix: &str) -> String {
    // 128 random bits: ids must differ, but need not be secret.
    let (first, second) = (RandomState::new().hash_one(0u8), RandomState::new().hash_one(1u8));
    format!("{prefix}{first:016x}{second:016x}")
}

pub(crate) fn now_unix_s() -> u64 {
    unix_s(SystemTime::now())
}
