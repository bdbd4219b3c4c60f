//! Names of answers, and when they were made.

use std::hash::{BuildHasher, RandomState};
use std::time::SystemTime;

use crate::models::unix_s;

/// A name that no other answer has, such as `chatcmpl-5f2c…`.
pub(crate) fn new(prefix: &str) -> String {
    // Random keys, 128 bits of them: nobody needs to guess these, they must only differ.
    let (first, second) = (RandomState::new().hash_one(0u8), RandomState::new().hash_one(1u8));
    format!("{prefix}{first:016x}{second:016x}")
}

pub(crate) fn now_unix_s() -> u64 {
    unix_s(SystemTime::now())
}
