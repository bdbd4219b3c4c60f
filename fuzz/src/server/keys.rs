//! Reads any text as the file of keys.

use ruvllm_server::access::{StoredKey, Timestamp};

pub fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(keys) = StoredKey::all_in(text) else { return };
    for key in keys {
        key.is_expired(Timestamp::now());
        let _ = key.tenant();
        let shown = key.created.to_string();
        assert!(shown.len() < 100, "{shown}");
        let written = toml::to_string(&key).expect("what was read can be written");
        let again: StoredKey = toml::from_str(&written).expect("what was written can be read");
        assert_eq!(again, key);
    }
}
