//! Identifies the sender of a request.

use std::collections::HashMap;
use std::fs;
use std::sync::{Arc, RwLock, RwLockReadGuard};
use std::time::SystemTime;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;

use super::caller::{Caller, Identity};
use super::date::Timestamp;
use super::key::KeyHash;
use super::key_file::{KeyFile, KeyFileError, StoredKey};
use super::limits::{Account, Limits};
use super::local_token::LocalToken;
use super::scope::{Scope, Scopes};
use super::usage;
use crate::body_budget::HeldPermit;
use crate::error::ApiError;
use crate::observe::Notes;
use crate::request_id::RequestId;

/// The keys of a running server, always those in the file.
#[derive(Debug)]
pub struct Gate {
    file: KeyFile,
    token: Option<LocalToken>,
    keys: RwLock<Keys>,
    /// Whether requests are kept to learn from, where a key does not say.
    learns: bool,
    /// Shared by all senders without keys.
    common: Arc<Account>,
}

#[derive(Debug, Default)]
struct Keys {
    /// Version of the file that the keys were read from.
    stamp: Option<Stamp>,
    /// Version of a file that could not be read, so that this is logged once and not for every request.
    failed: Option<Option<Stamp>>,
    by_hash: HashMap<KeyHash, Entry>,
    /// Stays set when the last key or the file is removed: removing a key is not meant to open the server to everybody.
    are_required: bool,
}

#[derive(Debug)]
struct Entry {
    key: StoredKey,
    /// Survives changes of the file.
    account: Arc<Account>,
}

/// Identifies a version of the file. The file is replaced, never written in place, so its inode differs even within one
/// tick of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
    number: u64,
}

impl Gate {
    /// The operator's `token` allows everything, whatever keys exist.
    pub fn open(file: KeyFile, token: Option<LocalToken>) -> Result<Self, KeyFileError> {
        let stamp = stamp(&file);
        let mut keys = Keys { stamp, ..Keys::default() };
        keys.replace(file.read()?);
        usage::load(file.path(), keys.accounts());
        Ok(Self { file, token, keys: RwLock::new(keys), learns: false, common: Arc::default() })
    }

    /// Keeps requests to learn from, of local users and of all keys that do not say otherwise.
    pub fn with_learning(self, learns: bool) -> Self {
        Self { learns, ..self }
    }

    /// Whether keys are required.
    pub fn is_closed(&self) -> bool {
        self.current().are_required
    }

    /// Saves today's usage, so that a restart does not reset it.
    pub fn save_usage(&self) {
        let keys = self.current();
        usage::save(self.file.path(), keys.accounts());
    }

    /// `notes` belong to the request.
    pub(super) fn identify(&self, headers: &HeaderMap, notes: Arc<Notes>, now: Timestamp) -> Result<Caller, ApiError> {
        let keys = self.current();
        let sent = sent_key(headers);
        let hash = sent.and_then(KeyHash::of);
        if let (Some(token), Some(hash)) = (&self.token, hash)
            && token.is(hash)
        {
            return Ok(self.unlimited("operator", Identity::Proven, Scopes::new([Scope::Admin]), notes));
        }
        if !keys.are_required {
            let scopes = Scopes::new([Scope::Inference, Scope::Metrics]);
            return Ok(self.unlimited("anonymous", Identity::Local, scopes, notes));
        }
        if sent.is_none() {
            let how = "send one as 'Authorization: Bearer KEY' or 'x-api-key: KEY'";
            return Err(ApiError::unauthenticated(format!("an API key is required; {how}")));
        }
        let Some(Entry { key, account }) = hash.and_then(|hash| keys.by_hash.get(&hash)) else {
            return Err(ApiError::unauthenticated("unknown API key"));
        };
        if key.is_expired(now) {
            return Err(ApiError::unauthenticated(format!("the API key '{}' has expired", key.name)));
        }
        Ok(Caller {
            name: key.name.as_str().into(),
            tenant: key.tenant().into(),
            owner: (!key.tenant.is_empty()).then(|| key.tenant.as_str().into()),
            scopes: key.scopes.clone(),
            identity: Identity::Proven,
            learns: key.learn.unwrap_or(self.learns),
            forwarded_user: None,
            request: RequestId::default(),
            limits: key.limits,
            account: Arc::clone(account),
            notes,
            body: HeldPermit::default(),
        })
    }

    /// Identifies a sender without a key.
    fn unlimited(&self, name: &str, identity: Identity, scopes: Scopes, notes: Arc<Notes>) -> Caller {
        Caller {
            name: name.into(),
            tenant: "".into(),
            owner: None,
            scopes,
            identity,
            learns: self.learns,
            forwarded_user: None,
            request: RequestId::default(),
            limits: Limits::default(),
            account: Arc::clone(&self.common),
            notes,
            body: HeldPermit::default(),
        }
    }

    /// Returns the keys that are in the file now. Checking the file's date takes microseconds.
    fn current(&self) -> RwLockReadGuard<'_, Keys> {
        let stamp = stamp(&self.file);
        if self.read().stamp != stamp {
            let mut keys = self.keys.write().unwrap_or_else(|poisoned| poisoned.into_inner());
            match self.file.read() {
                Ok(stored) => {
                    tracing::info!(keys = stored.as_ref().map_or(0, Vec::len), "the key file has changed");
                    keys.replace(stored);
                    // Noted only now: a file that cannot be read yet is tried again by the next request.
                    keys.stamp = stamp;
                    keys.failed = None;
                }
                // Known keys stay valid, and nobody else gets in.
                Err(error) => {
                    if keys.failed != Some(stamp) {
                        tracing::error!(%error, "cannot read the key file; the previous keys stay valid");
                    }
                    keys.failed = Some(stamp);
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
    /// `None` is a file that does not exist. A file without keys is different: all were removed, so nobody may get in.
    fn replace(&mut self, stored: Option<Vec<StoredKey>>) {
        self.are_required |= stored.is_some();
        let mut before = std::mem::take(&mut self.by_hash);
        let entry = |key: StoredKey| {
            let account = before.remove(&key.hash).map_or_else(Arc::default, |entry| entry.account);
            (key.hash, Entry { key, account })
        };
        self.by_hash = stored.into_iter().flatten().map(entry).collect();
    }

    fn accounts(&self) -> impl Iterator<Item = (&KeyHash, &Account)> {
        self.by_hash.iter().map(|(hash, entry)| (hash, &*entry.account))
    }
}

/// Returns `None` without a file.
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

    fn open(home: &Path) -> Result<Gate, KeyFileError> {
        Gate::open(KeyFile::in_home(home), LocalToken::ensure(home).ok())
    }

    fn identify(gate: &Gate, key: &str, now: Timestamp) -> Result<String, String> {
        let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {key}")).unwrap())]);
        let caller = gate.identify(&headers, Arc::default(), now);
        caller.map(|caller| caller.name.to_string()).map_err(|error| error.message)
    }

    #[test]
    fn a_running_server_notices_keys_that_come_and_go() {
        let home = tempfile::tempdir().unwrap();
        let gate = open(home.path()).unwrap();
        let now = Timestamp::now();
        assert!(!gate.is_closed());
        assert_eq!(identify(&gate, "whatever", now), Ok("anonymous".to_owned()));
        let one = add(home.path(), "one", None);
        assert_eq!(identify(&gate, "whatever", now), Err("unknown API key".to_owned()));
        let two = add(home.path(), "two", None);
        assert_eq!(identify(&gate, &one, now), Ok("one".to_owned()));
        assert_eq!(identify(&gate, &two, now), Ok("two".to_owned()));
        KeyFile::in_home(home.path()).remove("one").unwrap();
        assert!(identify(&gate, &one, now).is_err());
        KeyFile::in_home(home.path()).remove("two").unwrap();
        assert!(identify(&gate, &two, now).is_err(), "removing the last key opens the server to nobody");
    }

    #[test]
    fn a_file_of_keys_that_could_not_be_read_is_read_as_soon_as_it_can_be() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("keys.toml");
        let (revoked, kept) = (add(home.path(), "revoked", None), add(home.path(), "kept", None));
        let gate = open(home.path()).unwrap();
        KeyFile::in_home(home.path()).remove("revoked").unwrap();
        // Reading the new file fails at first, and then nothing shows that it changed: a change of its mode does not.
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, "[".repeat(text.len())).unwrap();
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        let now = Timestamp::now();
        assert!(identify(&gate, &revoked, now).is_ok(), "nothing better is known");
        fs::write(&path, &text).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        assert_eq!(identify(&gate, &kept, now), Ok("kept".to_owned()));
        assert!(identify(&gate, &revoked, now).is_err());
    }

    #[test]
    fn removing_the_last_key_does_not_open_the_server_at_its_next_start() {
        let home = tempfile::tempdir().unwrap();
        add(home.path(), "only", None);
        assert_eq!(KeyFile::in_home(home.path()).remove("only").unwrap(), 0);
        let gate = open(home.path()).unwrap();
        assert!(gate.is_closed());
        assert!(identify(&gate, "whatever", Timestamp::now()).is_err());
        fs::remove_file(home.path().join("keys.toml")).unwrap();
        assert!(gate.is_closed(), "a running server stays as it is");
        assert!(!open(home.path()).unwrap().is_closed(), "without the file no keys are needed");
    }

    #[test]
    fn the_local_token_allows_everything_with_and_without_keys() {
        let home = tempfile::tempdir().unwrap();
        let gate = open(home.path()).unwrap();
        let token = LocalToken::read(home.path()).unwrap().text().to_owned();
        let operator = |gate: &Gate| identify(gate, &token, Timestamp::now());
        assert_eq!(operator(&gate), Ok("operator".to_owned()));
        add(home.path(), "one", None);
        assert_eq!(operator(&gate), Ok("operator".to_owned()));
        assert!(identify(&gate, &token[..token.len() - 1], Timestamp::now()).is_err());
    }

    #[test]
    fn a_damaged_file_changes_nothing() {
        let home = tempfile::tempdir().unwrap();
        let key = add(home.path(), "one", None);
        let gate = open(home.path()).unwrap();
        fs::write(home.path().join("keys.toml"), "[[[").unwrap();
        assert_eq!(identify(&gate, &key, Timestamp::now()), Ok("one".to_owned()));
        assert!(identify(&gate, "ruv_0", Timestamp::now()).is_err());
        assert!(open(home.path()).is_err(), "a server does not start with it");
    }

    #[cfg(unix)]
    #[test]
    fn keys_that_others_could_have_written_are_not_taken_while_it_runs_either() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let key = add(home.path(), "one", None);
        let gate = open(home.path()).unwrap();
        let added = add(home.path(), "smuggled", None);
        fs::set_permissions(home.path().join("keys.toml"), fs::Permissions::from_mode(0o666)).unwrap();
        assert!(identify(&gate, &added, Timestamp::now()).is_err());
        assert_eq!(identify(&gate, &key, Timestamp::now()), Ok("one".to_owned()), "those from before still hold");
    }

    #[test]
    fn a_key_has_the_last_word_on_what_is_learned_from_it() {
        let home = tempfile::tempdir().unwrap();
        let gate = |learns| open(home.path()).unwrap().with_learning(learns);
        let learns = |gate: &Gate, key: &str| {
            let bearer = HeaderValue::from_str(&format!("Bearer {key}")).unwrap();
            let headers = HeaderMap::from_iter([(AUTHORIZATION, bearer)]);
            gate.identify(&headers, Arc::default(), Timestamp::now()).unwrap().learns
        };
        assert!(!learns(&gate(false), "") && learns(&gate(true), ""), "without keys the server's word counts");
        let mut stranger = gate(true).identify(&HeaderMap::new(), Arc::default(), Timestamp::now()).unwrap();
        stranger.drop_local_rights();
        assert!(!stranger.learns, "nothing is learned from strangers");
        let key = add(home.path(), "one", None);
        for (said, by_default, expected) in
            [(None, false, false), (None, true, true), (Some(true), false, true), (Some(false), true, false)]
        {
            KeyFile::in_home(home.path()).set_learning("one", said).unwrap();
            assert_eq!(learns(&gate(by_default), &key), expected, "{said:?} {by_default}");
        }
    }

    #[test]
    fn keys_expire() {
        let home = tempfile::tempdir().unwrap();
        let now = Timestamp::now();
        let key = add(home.path(), "brief", Some(now.after(Duration::from_secs(60))));
        let gate = open(home.path()).unwrap();
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
        let gate = open(home.path()).unwrap();
        caller(&gate).charge(100);
        add(home.path(), "two", None);
        let now = crate::access::Moment::now();
        assert!(caller(&gate).admit(now).is_err(), "the file has changed");
        gate.save_usage();
        let gate = open(home.path()).unwrap();
        assert!(caller(&gate).admit(now).is_err(), "the server has restarted");
    }
}
