//! Finds out who sends a request.

use std::collections::HashMap;
use std::fs;
use std::sync::{Arc, RwLock, RwLockReadGuard};
use std::time::SystemTime;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;

use super::caller::Caller;
use super::date::Timestamp;
use super::key::KeyHash;
use super::key_file::{KeyFile, KeyFileError, StoredKey};
use super::limits::{Account, Limits};
use super::scope::{Scope, Scopes};
use super::usage;
use crate::error::ApiError;
use crate::observe::Notes;
use crate::request_id::RequestId;

/// The keys of a running server, always those that are in the file.
#[derive(Debug)]
pub struct Gate {
    file: KeyFile,
    keys: RwLock<Keys>,
    /// For everybody, where there are no keys.
    common: Arc<Account>,
}

#[derive(Debug, Default)]
struct Keys {
    stamp: Option<Stamp>,
    by_hash: HashMap<KeyHash, Entry>,
    /// Stays so when the last key is removed: whoever takes a key away does not mean to open the server to all.
    are_required: bool,
}

#[derive(Debug)]
struct Entry {
    key: StoredKey,
    /// Outlives changes of the file.
    account: Arc<Account>,
}

/// Tells one state of the file from another. It is replaced, never written in place, so its number differs even within one
/// tick of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
    number: u64,
}

impl Gate {
    pub fn open(file: KeyFile) -> Result<Self, KeyFileError> {
        let stamp = stamp(&file);
        let stored = file.read()?;
        let mut keys = Keys { stamp, are_required: !stored.is_empty(), ..Keys::default() };
        keys.replace(stored);
        usage::load(file.path(), keys.accounts());
        Ok(Self { file, keys: RwLock::new(keys), common: Arc::default() })
    }

    /// Whether keys are needed.
    pub fn is_closed(&self) -> bool {
        self.current().are_required
    }

    /// Remembers on disk what was used today, so that a restart does not give it anew.
    pub fn save_usage(&self) {
        let keys = self.current();
        usage::save(self.file.path(), keys.accounts());
    }

    /// `notes` are those of the request.
    pub(super) fn identify(&self, headers: &HeaderMap, notes: Arc<Notes>, now: Timestamp) -> Result<Caller, ApiError> {
        let keys = self.current();
        if !keys.are_required {
            return Ok(self.anonymous(notes));
        }
        let Some(sent) = sent_key(headers) else {
            let how = "send one as 'Authorization: Bearer KEY' or 'x-api-key: KEY'";
            return Err(ApiError::unauthenticated(format!("an API key is needed; {how}")));
        };
        let entry = KeyHash::of(sent).and_then(|hash| keys.by_hash.get(&hash));
        let Some(Entry { key, account }) = entry else {
            return Err(ApiError::unauthenticated("this API key is not known"));
        };
        if key.is_expired(now) {
            return Err(ApiError::unauthenticated(format!("the API key '{}' has expired", key.name)));
        }
        Ok(Caller {
            name: key.name.as_str().into(),
            tenant: key.tenant.as_str().into(),
            scopes: key.scopes.clone(),
            is_stranger: false,
            request: RequestId::default(),
            limits: key.limits,
            account: Arc::clone(account),
            notes,
        })
    }

    /// May do everything, unless the guard finds out that they are not from this machine.
    fn anonymous(&self, notes: Arc<Notes>) -> Caller {
        Caller {
            name: "anonymous".into(),
            tenant: "".into(),
            scopes: Scopes::new([Scope::Admin]),
            is_stranger: false,
            request: RequestId::default(),
            limits: Limits::default(),
            account: Arc::clone(&self.common),
            notes,
        }
    }

    /// The keys as they are in the file now. A look at the file's date takes microseconds.
    fn current(&self) -> RwLockReadGuard<'_, Keys> {
        let stamp = stamp(&self.file);
        if self.read().stamp != stamp {
            let mut keys = self.keys.write().unwrap_or_else(|poisoned| poisoned.into_inner());
            keys.stamp = stamp;
            match self.file.read() {
                Ok(stored) => {
                    tracing::info!(keys = stored.len(), "the file of keys has changed");
                    keys.replace(stored);
                }
                // Those that were known stay, and nobody else gets in.
                Err(error) => {
                    tracing::error!(%error, "the file of keys cannot be read; the keys from before still hold")
                }
            }
        }
        self.read()
    }

    fn read(&self) -> RwLockReadGuard<'_, Keys> {
        self.keys.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Keys {
    fn replace(&mut self, stored: Vec<StoredKey>) {
        self.are_required |= !stored.is_empty();
        let mut before = std::mem::take(&mut self.by_hash);
        let entry = |key: StoredKey| {
            let account = before.remove(&key.hash).map_or_else(Arc::default, |entry| entry.account);
            (key.hash, Entry { key, account })
        };
        self.by_hash = stored.into_iter().map(entry).collect();
    }

    fn accounts(&self) -> impl Iterator<Item = (&KeyHash, &Account)> {
        self.by_hash.iter().map(|(hash, entry)| (hash, &*entry.account))
    }
}

/// `None` where there is no file.
fn stamp(file: &KeyFile) -> Option<Stamp> {
    let metadata = fs::metadata(file.path()).ok()?;
    #[cfg(unix)]
    let number = std::os::unix::fs::MetadataExt::ino(&metadata);
    #[cfg(not(unix))]
    let number = 0;
    Some(Stamp { modified: metadata.modified().ok(), bytes: metadata.len(), number })
}

/// OpenAI's header, or Anthropic's.
fn sent_key(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    bearer.or_else(|| headers.get("x-api-key")?.to_str().ok().map(str::trim))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use axum::http::HeaderValue;

    use super::*;
    use crate::access::NewKey;

    fn add(home: &Path, name: &str, expires: Option<Timestamp>) -> String {
        let new = NewKey::random().unwrap();
        let stored = StoredKey { expires, ..StoredKey::new(name, &new, Scopes::new([Scope::Inference])) };
        KeyFile::in_home(home).add(stored).unwrap();
        new.text().to_owned()
    }

    fn identify(gate: &Gate, key: &str, now: Timestamp) -> Result<String, String> {
        let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {key}")).unwrap())]);
        let caller = gate.identify(&headers, Arc::default(), now);
        caller.map(|caller| caller.name.to_string()).map_err(|error| error.message)
    }

    #[test]
    fn a_running_server_notices_keys_that_come_and_go() {
        let home = tempfile::tempdir().unwrap();
        let gate = Gate::open(KeyFile::in_home(home.path())).unwrap();
        let now = Timestamp::now();
        assert!(!gate.is_closed());
        assert_eq!(identify(&gate, "whatever", now), Ok("anonymous".to_owned()));
        let one = add(home.path(), "one", None);
        assert_eq!(identify(&gate, "whatever", now), Err("this API key is not known".to_owned()));
        let two = add(home.path(), "two", None);
        assert_eq!(identify(&gate, &one, now), Ok("one".to_owned()));
        assert_eq!(identify(&gate, &two, now), Ok("two".to_owned()));
        KeyFile::in_home(home.path()).remove("one").unwrap();
        assert!(identify(&gate, &one, now).is_err());
        KeyFile::in_home(home.path()).remove("two").unwrap();
        assert!(identify(&gate, &two, now).is_err(), "removing the last key opens the server to nobody");
    }

    #[test]
    fn a_damaged_file_changes_nothing() {
        let home = tempfile::tempdir().unwrap();
        let key = add(home.path(), "one", None);
        let gate = Gate::open(KeyFile::in_home(home.path())).unwrap();
        fs::write(home.path().join("keys.toml"), "[[[").unwrap();
        assert_eq!(identify(&gate, &key, Timestamp::now()), Ok("one".to_owned()));
        assert!(identify(&gate, "ruv_0", Timestamp::now()).is_err());
        assert!(Gate::open(KeyFile::in_home(home.path())).is_err(), "a server does not start with it");
    }

    #[test]
    fn keys_expire() {
        let home = tempfile::tempdir().unwrap();
        let now = Timestamp::now();
        let key = add(home.path(), "brief", Some(now.after(Duration::from_secs(60))));
        let gate = Gate::open(KeyFile::in_home(home.path())).unwrap();
        assert!(identify(&gate, &key, now).is_ok());
        let said = identify(&gate, &key, now.after(Duration::from_secs(60))).unwrap_err();
        assert!(said.contains("'brief' has expired"), "{said}");
    }

    #[test]
    fn what_was_used_survives_a_change_of_the_file_and_a_restart() {
        let home = tempfile::tempdir().unwrap();
        let new = NewKey::random().unwrap();
        let limits = Limits { tokens_per_day: Some(100), ..Limits::default() };
        let stored = StoredKey { limits, ..StoredKey::new("one", &new, Scopes::new([Scope::Inference])) };
        KeyFile::in_home(home.path()).add(stored).unwrap();
        let headers =
            HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(&format!("bearer {}", new.text())).unwrap())]);
        let caller = |gate: &Gate| gate.identify(&headers, Arc::default(), Timestamp::now()).unwrap();
        let gate = Gate::open(KeyFile::in_home(home.path())).unwrap();
        caller(&gate).charge(100);
        add(home.path(), "two", None);
        let now = crate::access::Moment::now();
        assert!(caller(&gate).admit(now).is_err(), "the file has changed");
        gate.save_usage();
        let gate = Gate::open(KeyFile::in_home(home.path())).unwrap();
        assert!(caller(&gate).admit(now).is_err(), "the server has restarted");
    }
}
