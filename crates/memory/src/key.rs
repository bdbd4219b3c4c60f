//! The memory key and its sources.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use zeroize::{Zeroize, Zeroizing};

use crate::error::{MemoryError, Result};

const BYTES: usize = 32;

/// 256 random bits. Never displayed, and wiped when dropped.
#[derive(Clone)]
pub struct Key([u8; BYTES]);

impl Key {
    pub fn random() -> Result<Self> {
        let mut key = Self([0; BYTES]);
        getrandom::fill(&mut key.0).map_err(|error| MemoryError::damaged(format!("no random numbers: {error}")))?;
        Ok(key)
    }

    /// Parses 64 hexadecimal digits; white space around them is ignored. `source_name` is for the error.
    pub fn from_hex(text: &str, source_name: &str) -> Result<Self> {
        let malformed = || MemoryError::KeyMalformed { source_name: source_name.to_owned() };
        let text = text.trim().as_bytes();
        if text.len() != 2 * BYTES {
            return Err(malformed());
        }
        let mut key = Self([0; BYTES]);
        for (byte, digits) in key.0.iter_mut().zip(text.chunks_exact(2)) {
            let digit = |at: usize| char::from(digits[at]).to_digit(16).ok_or_else(malformed);
            *byte = (digit(0)? * 16 + digit(1)?) as u8;
        }
        Ok(key)
    }

    /// Derives a key for another purpose, from which this one cannot be computed.
    pub fn derive(&self, purpose: &str) -> [u8; BYTES] {
        blake3::derive_key(purpose, &self.0)
    }

    pub(crate) fn hex(&self) -> Zeroizing<String> {
        Zeroizing::new(self.0.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Where a key comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A file that only its user can read, created together with the memory.
    File(PathBuf),
    /// An environment variable.
    Environment(String),
    /// The output of a command, such as one that reads the system's keyring: `secret-tool lookup service ruvllm`.
    Command(String),
}

impl KeySource {
    /// Returns the key of something that can be recreated, such as a cache. A missing key file is created.
    pub fn key(&self) -> Result<Key> {
        self.key_of(Path::new(""))
    }

    /// Returns the key of the memory at `path`. A new memory may get a new key; an existing one never does.
    pub(crate) fn key_of(&self, path: &Path) -> Result<Key> {
        match self {
            Self::File(key) => key_in_file(key, path),
            Self::Environment(name) => {
                let value = std::env::var(name).map(Zeroizing::new);
                Key::from_hex(&value.unwrap_or_default(), &format!("the variable {name}"))
            }
            Self::Command(command) => printed_by(command),
        }
    }

    /// Writes the next key beside the current one, where keys are in a file. Until it is promoted both exist: which of them
    /// opens the memory depends on how far the rekey came.
    pub(crate) fn stage(&self, key: &Key) -> Result<()> {
        self.staged_path().map_or(Ok(()), |path| write_key(&path, key))
    }

    /// Returns the key that an interrupted rekey has left.
    pub(crate) fn staged(&self) -> Result<Option<Key>> {
        match self.staged_path() {
            Some(path) if path.exists() => {
                let text = fs::read_to_string(&path).map(Zeroizing::new).map_err(MemoryError::io(&path))?;
                Key::from_hex(&text, &path.display().to_string()).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Makes the staged key the current one.
    pub(crate) fn promote(&self) -> Result<()> {
        match (self, self.staged_path()) {
            (Self::File(path), Some(staged)) => fs::rename(&staged, path).map_err(MemoryError::io(path)),
            _ => Ok(()),
        }
    }

    fn staged_path(&self) -> Option<PathBuf> {
        match self {
            Self::File(path) => Some(path.with_extension("next")),
            Self::Environment(_) | Self::Command(_) => None,
        }
    }
}

fn key_in_file(key: &Path, memory: &Path) -> Result<Key> {
    match fs::read_to_string(key).map(Zeroizing::new) {
        Ok(text) => Key::from_hex(&text, &key.display().to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let is_new = fs::metadata(memory).map_or(true, |metadata| metadata.len() == 0);
            if !is_new {
                return Err(MemoryError::KeyMissing { path: memory.to_owned(), key: key.to_owned() });
            }
            let new = Key::random()?;
            write_key(key, &new)?;
            Ok(new)
        }
        Err(error) => Err(MemoryError::io(key)(error)),
    }
}

/// Writes a key file, durably and all at once.
fn write_key(path: &Path, key: &Key) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(MemoryError::io(folder))?;
    let beside = path.with_extension("new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let write = || {
        let mut file = options.open(&beside)?;
        writeln!(file, "{}", key.hex().as_str())?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        File::open(folder)?.sync_all()
    };
    write().map_err(MemoryError::io(path))
}

fn printed_by(command: &str) -> Result<Key> {
    let (shell, flag) = if cfg!(windows) { ("cmd", "/C") } else { ("sh", "-c") };
    let output = Command::new(shell).args([flag, command]).output();
    let output = output.map_err(|error| MemoryError::KeyCommand(error.to_string()))?;
    if !output.status.success() {
        let printed = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(MemoryError::KeyCommand(format!("{command:?} ended with {}: {printed}", output.status)));
    }
    let printed = Zeroizing::new(output.stdout);
    let text = std::str::from_utf8(&printed).unwrap_or_default();
    Key::from_hex(text, &format!("what {command:?} printed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_64_digits_and_nothing_else() {
        let digits = "00ff".repeat(16);
        assert_eq!(*Key::from_hex(&format!(" {digits}\n"), "test").unwrap().hex(), digits);
        for wrong in ["", "00ff", &"0g".repeat(32), &"00".repeat(33)] {
            assert!(matches!(Key::from_hex(wrong, "test"), Err(MemoryError::KeyMalformed { .. })), "{wrong}");
        }
    }

    #[test]
    fn a_key_file_is_made_once_and_only_for_a_new_memory() {
        let folder = tempfile::tempdir().unwrap();
        let (memory, key) = (folder.path().join("memory.db"), folder.path().join("memory.key"));
        let source = KeySource::File(key.clone());
        let first = source.key_of(&memory).unwrap();
        assert_eq!(first.hex(), source.key_of(&memory).unwrap().hex());
        fs::write(&memory, "something").unwrap();
        fs::remove_file(&key).unwrap();
        assert!(matches!(source.key_of(&memory), Err(MemoryError::KeyMissing { .. })));
        assert!(!key.exists());
    }

    #[test]
    fn a_key_may_be_printed_by_a_command() {
        let digits = "12".repeat(32);
        let printed = KeySource::Command(format!("echo {digits}")).key_of(Path::new("m")).unwrap();
        assert_eq!(*printed.hex(), digits);
        let failed = KeySource::Command("echo nothing there >&2; exit 3".into()).key_of(Path::new("m"));
        assert!(failed.unwrap_err().to_string().contains("nothing there"));
    }
}
