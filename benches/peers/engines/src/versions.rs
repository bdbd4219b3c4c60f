//! Versions of the peers, from the lock file they were built with.

const LOCK: &str = include_str!("../Cargo.lock");

/// The version of a locked crate, such as `candle-core 0.11.1`.
pub fn locked(name: &str) -> String {
    let entry = format!("name = \"{name}\"\nversion = \"");
    let version = LOCK.split_once(&entry).and_then(|(_, rest)| rest.split('"').next());
    format!("{name} {}", version.unwrap_or("of unknown version"))
}
