//! Today's usage of keys, on disk beside them: a restart does not reset it.
//!
//! It is saved periodically and at the end, so a crash may lose the last few seconds.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::key::KeyHash;
use super::key_file::create_private;
use super::limits::{Account, Today};

#[derive(Default, PartialEq, Deserialize, Serialize)]
struct Usage {
    /// By hash of the key: the number of the day since 1970, and tokens.
    keys: BTreeMap<String, (u64, u64)>,
}

fn path(keys: &Path) -> PathBuf {
    keys.with_file_name("key_usage.json")
}

fn read(path: &Path) -> Option<Usage> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

pub(super) fn load<'a>(keys: &Path, accounts: impl Iterator<Item = (&'a KeyHash, &'a Account)>) {
    let path = path(keys);
    if !path.exists() {
        return;
    }
    let Some(usage) = read(&path) else {
        tracing::warn!(path = %path.display(), "cannot be read: today's usage of keys is lost");
        return;
    };
    for (hash, account) in accounts {
        if let Some((day, tokens)) = usage.keys.get(&hash.to_hex()) {
            account.set_today(Today { day: *day, tokens: *tokens });
        }
    }
}

pub(super) fn save<'a>(keys: &Path, accounts: impl Iterator<Item = (&'a KeyHash, &'a Account)>) {
    let used = accounts.map(|(hash, account)| (hash.to_hex(), account.today())).filter(|(_, today)| today.tokens > 0);
    let usage = Usage { keys: used.map(|(hash, today)| (hash, (today.day, today.tokens))).collect() };
    let path = path(keys);
    if usage.keys.is_empty() || read(&path).as_ref() == Some(&usage) {
        return;
    }
    let draft = path.with_extension("json.new");
    let write = || {
        let mut file = create_private(&draft)?;
        file.write_all(serde_json::to_string(&usage)?.as_bytes())?;
        fs::rename(&draft, &path)
    };
    if let Err(error) = write() {
        tracing::warn!(path = %path.display(), %error, "cannot save today's usage of keys");
    }
}
