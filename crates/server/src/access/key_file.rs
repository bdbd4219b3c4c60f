//! The key file, `keys.toml`. It holds hashes, never keys; still, only its owner may read it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ruvllm_store::{StoreError, require_private};
use serde::{Deserialize, Serialize};

use super::date::Timestamp;
use super::key::{KeyHash, NewKey};
use super::limits::Limits;
use super::scope::Scopes;

const NAME: &str = "keys.toml";
const NAME_LENGTH_MAX: usize = 64;
const TENANT_LENGTH_MAX: usize = 256;

/// A key as stored.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct StoredKey {
    pub name: String,
    pub hash: KeyHash,
    pub scopes: Scopes,
    /// A path, such as `acme/search`; if empty, the key is its own tenant.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    #[serde(flatten)]
    pub limits: Limits,
    pub created: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// Whether its requests are kept to learn from; `None` is what the server does by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learn: Option<bool>,
}

impl StoredKey {
    /// Returns a key without limits that does not expire.
    pub fn new(name: &str, key: &NewKey, scopes: Scopes) -> Self {
        Self {
            name: name.to_owned(),
            hash: key.hash(),
            scopes,
            tenant: String::new(),
            limits: Limits::default(),
            created: Timestamp::now(),
            expires: None,
            learn: None,
        }
    }

    /// Parses the text of a key file.
    #[doc(hidden)]
    pub fn all_in(text: &str) -> Result<Vec<Self>, String> {
        toml::from_str::<Contents>(text).map(|contents| contents.keys).map_err(|error| error.to_string())
    }

    /// Returns the tenant of the key.
    pub fn tenant(&self) -> &str {
        if self.tenant.is_empty() { &self.name } else { &self.tenant }
    }

    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| now >= expires)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error("cannot {verb} {}: {error}", path.display())]
    Io { verb: &'static str, path: PathBuf, error: io::Error },
    #[error(transparent)]
    Exposed(#[from] StoreError),
    #[error("{} is damaged: {why}", path.display())]
    Damaged { path: PathBuf, why: String },
    #[error("there is already a key named '{0}'; remove it with `ruvllm keys rm {0}`, or choose another name")]
    Taken(String),
    #[error(
        "'{other}' already belongs to the tenant '{name}'; to share it, give --tenant {name}, or choose another name"
    )]
    NotAlone { name: String, other: String },
    #[error("there is no key named '{name}'{}", hint.as_ref().map(|hint| format!("; did you mean '{hint}'?")).unwrap_or_default())]
    Unknown { name: String, hint: Option<String> },
    #[error("'{0}' is not a valid name: use 1 to 64 letters, digits, '-', '_' or '.'")]
    WrongName(String),
    #[error("'{0}' is not a valid tenant: use a path such as acme/search, of letters, digits, '-', '_', '.' and '/'")]
    WrongTenant(String),
}

#[derive(Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    #[serde(default, rename = "key")]
    keys: Vec<StoredKey>,
}

/// Path of the key file.
#[derive(Clone, Debug)]
pub struct KeyFile {
    path: PathBuf,
}

impl KeyFile {
    /// Returns the key file of a home folder; it need not exist.
    pub fn in_home(home: &Path) -> Self {
        Self { path: home.join(NAME) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns all keys; `None` without a file, when no keys are required.
    pub fn read(&self) -> Result<Option<Vec<StoredKey>>, KeyFileError> {
        // It controls access to the server, so only this user may write it.
        require_private(&self.path)?;
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.io("read")(error)),
        };
        let damaged = |why| KeyFileError::Damaged { path: self.path.clone(), why };
        StoredKey::all_in(&text).map(Some).map_err(damaged)
    }

    pub fn add(&self, key: StoredKey) -> Result<(), KeyFileError> {
        check_name(&key.name)?;
        check_tenant(&key.tenant)?;
        let _lock = self.lock()?;
        let mut keys = self.read()?.unwrap_or_default();
        if keys.iter().any(|other| other.name == key.name) {
            return Err(KeyFileError::Taken(key.name));
        }
        if key.tenant.is_empty()
            && let Some(other) = keys.iter().find(|other| other.tenant() == key.name)
        {
            return Err(KeyFileError::NotAlone { name: key.name, other: other.name.clone() });
        }
        keys.push(key);
        self.write(keys)
    }

    /// Returns how many keys are left.
    pub fn remove(&self, name: &str) -> Result<usize, KeyFileError> {
        let _lock = self.lock()?;
        let mut keys = self.read()?.unwrap_or_default();
        keys.remove(position(&keys, name)?);
        let left = keys.len();
        self.write(keys).map(|()| left)
    }

    /// Says whether requests with a key are kept to learn from; `None` leaves it to the server.
    pub fn set_learning(&self, name: &str, learn: Option<bool>) -> Result<(), KeyFileError> {
        let _lock = self.lock()?;
        let mut keys = self.read()?.unwrap_or_default();
        let position = position(&keys, name)?;
        keys[position].learn = learn;
        self.write(keys)
    }

    /// Replaces the file atomically: a server may read it at any time.
    fn write(&self, keys: Vec<StoredKey>) -> Result<(), KeyFileError> {
        let text = toml::to_string(&Contents { keys })
            .map_err(|error| KeyFileError::Damaged { path: self.path.clone(), why: error.to_string() })?;
        let draft = self.path.with_extension("toml.new");
        let write = || {
            let mut file = create_private(&draft)?;
            file.write_all(b"# Written by `ruvllm keys`. Hashes of keys; the keys themselves are stored nowhere.\n\n")?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&draft, &self.path)
        };
        write().map_err(self.io("write"))
    }

    /// One process at a time changes the file.
    fn lock(&self) -> Result<File, KeyFileError> {
        let open = || {
            if let Some(folder) = self.path.parent() {
                fs::create_dir_all(folder)?;
            }
            let path = self.path.with_extension("toml.lock");
            let file = File::options().create(true).truncate(false).write(true).open(path)?;
            file.lock()?;
            Ok(file)
        };
        open().map_err(self.io("lock"))
    }

    fn io(&self, verb: &'static str) -> impl Fn(io::Error) -> KeyFileError {
        let path = self.path.clone();
        move |error| KeyFileError::Io { verb, path: path.clone(), error }
    }
}

fn position(keys: &[StoredKey], name: &str) -> Result<usize, KeyFileError> {
    keys.iter().position(|key| key.name == name).ok_or_else(|| {
        let names: Vec<&str> = keys.iter().map(|key| key.name.as_str()).collect();
        let hint = ruvllm_store::closest(name, &names).map(str::to_owned);
        KeyFileError::Unknown { name: name.to_owned(), hint }
    })
}

fn check_name(name: &str) -> Result<(), KeyFileError> {
    let is_sound = (1..=NAME_LENGTH_MAX).contains(&name.len()) && name.chars().all(is_plain);
    if is_sound { Ok(()) } else { Err(KeyFileError::WrongName(name.to_owned())) }
}

fn check_tenant(tenant: &str) -> Result<(), KeyFileError> {
    let parts_are_sound = tenant.split('/').all(|part| !part.is_empty() && part.chars().all(is_plain));
    let is_sound = tenant.is_empty() || (tenant.len() <= TENANT_LENGTH_MAX && parts_are_sound);
    if is_sound { Ok(()) } else { Err(KeyFileError::WrongTenant(tenant.to_owned())) }
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

/// Created so that only its owner can ever read it.
pub(super) fn create_private(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = File::options();
    options.create_new(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::access::Scope;

    fn key(name: &str) -> StoredKey {
        StoredKey::new(name, &NewKey::random().unwrap(), Scopes::new([Scope::Inference]))
    }

    #[test]
    fn keys_are_read_as_they_were_written_and_only_by_their_owner() {
        let home = tempfile::tempdir().unwrap();
        let file = KeyFile::in_home(&home.path().join("new"));
        assert_eq!(file.read().unwrap(), None);
        let limits = Limits { requests_per_minute: Some(60), tokens_per_day: Some(1_000_000), ..Limits::default() };
        let expires = Some(Timestamp::now().after(Duration::from_secs(3600)));
        let written =
            StoredKey { tenant: "acme/search".to_owned(), limits, expires, learn: Some(false), ..key("laptop") };
        file.add(written.clone()).unwrap();
        file.add(key("phone")).unwrap();
        assert_eq!(file.read().unwrap().unwrap()[0], written);
        file.remove("phone").unwrap();
        assert_eq!(file.read().unwrap(), Some(vec![written]));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(file.path()).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn a_key_without_a_tenant_is_one_of_its_own() {
        let home = tempfile::tempdir().unwrap();
        let file = KeyFile::in_home(home.path());
        file.add(key("alone")).unwrap();
        file.add(StoredKey { tenant: "acme".to_owned(), ..key("first") }).unwrap();
        let said = file.add(key("acme")).unwrap_err().to_string();
        assert!(said.contains("'first'") && said.contains("--tenant acme"), "{said}");
        file.add(StoredKey { tenant: "acme".to_owned(), ..key("acme") }).unwrap();
        let tenants: Vec<String> = file.read().unwrap().unwrap().iter().map(|key| key.tenant().to_owned()).collect();
        assert_eq!(tenants, ["alone", "acme", "acme"]);
    }

    #[test]
    fn mistakes_are_told_with_what_would_be_right() {
        let home = tempfile::tempdir().unwrap();
        let file = KeyFile::in_home(home.path());
        file.add(key("laptop")).unwrap();
        let said = |result: Result<(), KeyFileError>| result.unwrap_err().to_string();
        assert!(said(file.add(key("laptop"))).contains("ruvllm keys rm laptop"));
        assert!(said(file.remove("laptob").map(drop)).contains("did you mean 'laptop'?"));
        assert!(said(file.add(key("a b"))).contains("letters, digits"));
        let tenant = StoredKey { tenant: "acme//search".to_owned(), ..key("x") };
        assert!(said(file.add(tenant)).contains("acme/search"));
        fs::write(file.path(), "[[key]]\nname = 3\n").unwrap();
        let said = file.read().unwrap_err().to_string();
        assert!(said.contains("keys.toml is damaged") && said.contains("line 2"), "{said}");
    }
}
