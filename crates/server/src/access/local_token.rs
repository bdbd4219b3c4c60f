//! The token of the operator of this machine's servers: a secret in a file that only its owner can read.
//!
//! A loopback address proves nothing: all other users of the machine have one, and everybody behind a proxy on it.
//! There is one token per home folder, not one per server: a program that can read one could read the next too, all
//! servers of the folder accept it, and programs that have it keep working after a restart.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::key::{KeyHash, NewKey};
use super::key_file::create_private;

const NAME: &str = "local_token";
/// Much longer than any token, so that nothing large is read.
const FILE_BYTES_MAX: u64 = 1024;

#[derive(Debug, thiserror::Error)]
pub enum LocalTokenError {
    #[error("there is no {}; `ruvllm serve` creates it when it starts", .0.display())]
    Missing(PathBuf),
    #[error("cannot {verb} {}: {error}", path.display())]
    Io { verb: &'static str, path: PathBuf, error: io::Error },
    #[error("{} {why}, so others may know this token; delete it, and `ruvllm serve` creates another when it starts", path.display())]
    Exposed { path: PathBuf, why: &'static str },
    #[error("{} holds no token; delete it, and `ruvllm serve` creates another when it starts", .0.display())]
    Damaged(PathBuf),
    #[error("this system provides no random numbers: {0}")]
    Random(#[from] getrandom::Error),
}

/// A token that is sent like a key and allows everything.
pub struct LocalToken {
    text: String,
    hash: KeyHash,
}

// Hidden: it does not belong in logs.
impl std::fmt::Debug for LocalToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LocalToken")
    }
}

impl LocalToken {
    /// Reads the token of a home folder, or creates one. For servers.
    pub fn ensure(home: &Path) -> Result<Self, LocalTokenError> {
        let path = home.join(NAME);
        let io = |verb| move |error| LocalTokenError::Io { verb, path: home.join(NAME), error };
        fs::create_dir_all(home).map_err(io("create the folder of"))?;
        // Of two servers that start together, one creates it.
        let lock = File::options().create(true).truncate(false).write(true).open(path.with_extension("lock"));
        let _lock = lock.and_then(|file| file.lock().map(|()| file)).map_err(io("lock"))?;
        match Self::read(home) {
            Err(LocalTokenError::Missing(_)) => {}
            read => return read,
        }
        let key = NewKey::random()?;
        let draft = path.with_extension("new");
        let write = || {
            let mut file = create_private(&draft)?;
            writeln!(file, "{}", key.text())?;
            file.sync_all()?;
            fs::rename(&draft, &path)
        };
        write().map_err(io("write"))?;
        Ok(Self { text: key.text().to_owned(), hash: key.hash() })
    }

    /// Reads the token of a home folder, unless others could have read or written it.
    pub fn read(home: &Path) -> Result<Self, LocalTokenError> {
        let path = home.join(NAME);
        let io = |error| LocalTokenError::Io { verb: "read", path: path.clone(), error };
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(LocalTokenError::Missing(path)),
            opened => opened.map_err(io)?,
        };
        // Checks the opened file, whatever has its name by now.
        if let Some(why) = exposure(&file.metadata().map_err(io)?) {
            return Err(LocalTokenError::Exposed { path, why });
        }
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(io)?;
        let text = text.trim().to_owned();
        match KeyHash::of(&text) {
            Some(hash) if text.len() == NewKey::LENGTH => Ok(Self { text, hash }),
            _ => Err(LocalTokenError::Damaged(path)),
        }
    }

    /// Returns the text to send: `Authorization: Bearer TEXT`.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether this is the hash of the token. Hashes are compared, so the time of the comparison reveals nothing.
    pub(super) fn is(&self, hash: KeyHash) -> bool {
        self.hash == hash
    }
}

/// Returns why others than the user of this process may know the contents of a file.
#[cfg(unix)]
fn exposure(metadata: &fs::Metadata) -> Option<&'static str> {
    use std::os::unix::fs::MetadataExt;
    if !metadata.is_file() {
        Some("is not a regular file")
    } else if metadata.uid() != rustix::process::geteuid().as_raw() {
        Some("belongs to another user")
    } else if metadata.mode() & 0o077 != 0 {
        Some("can be read or written by others (its mode must be 600)")
    } else {
        None
    }
}

#[cfg(not(unix))]
fn exposure(metadata: &fs::Metadata) -> Option<&'static str> {
    (!metadata.is_file()).then_some("is not a regular file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_servers_of_a_home_have_the_same_token_and_others_cannot_read_it() {
        let home = tempfile::tempdir().unwrap();
        assert!(matches!(LocalToken::read(home.path()), Err(LocalTokenError::Missing(_))));
        let made: Vec<String> = std::thread::scope(|scope| {
            let servers: Vec<_> = (0..8).map(|_| scope.spawn(|| LocalToken::ensure(home.path()).unwrap())).collect();
            servers.into_iter().map(|server| server.join().unwrap().text().to_owned()).collect()
        });
        assert!(made.iter().all(|text| *text == made[0]));
        let read = LocalToken::read(home.path()).unwrap();
        assert_eq!(read.text(), made[0]);
        assert!(read.is(KeyHash::of(&made[0]).unwrap()));
        assert!(!format!("{read:?}").contains(&made[0][4..]));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let path = home.path().join(NAME);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_ne!(LocalToken::ensure(tempfile::tempdir().unwrap().path()).unwrap().text(), made[0]);
    }

    #[cfg(unix)]
    #[test]
    fn a_token_that_others_may_know_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        LocalToken::ensure(home.path()).unwrap();
        let path = home.path().join(NAME);
        for mode in [0o640, 0o604, 0o620, 0o602] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let said = LocalToken::ensure(home.path()).unwrap_err().to_string();
            assert!(said.contains("others may know") && said.contains("delete it"), "{mode:o}: {said}");
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(LocalToken::ensure(home.path()).is_err(), "no file at all");
    }

    #[test]
    fn what_is_no_token_is_not_taken_for_one() {
        let home = tempfile::tempdir().unwrap();
        for text in ["", "ruv_", "ruv_1234", "hello"] {
            let mut file = create_private(&home.path().join(NAME)).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            assert!(matches!(LocalToken::ensure(home.path()), Err(LocalTokenError::Damaged(_))), "{text:?}");
        }
    }
}
