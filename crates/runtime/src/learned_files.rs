//! Adapters that were learned, as files: each in a folder that is named by the digest of its contents.
//!
//! They lie apart from the adapters of the store, which everybody may name: what was learned from a tenant is that
//! tenant's alone.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ruvllm_engine::AdapterId;
use ruvllm_model::adapters::{AdapterError, AdapterFile};

/// What is this young may belong to a version that is about to be stored.
const YOUNG: Duration = Duration::from_secs(3600);

/// Held while something is done that must not stand still halfway.
const UNINTERRUPTED: &str = ".uninterrupted";

/// The folder of learned adapters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnedFiles {
    folder: PathBuf,
}

/// Why a learned adapter cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum LearnedFileError {
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    #[error("{} has other contents than its name says: it is damaged, or somebody has changed it", path.display())]
    Changed { path: PathBuf },
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

impl LearnedFiles {
    pub fn in_folder(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Returns where the adapter of this digest lies, if it is here.
    pub fn find(&self, digest: &str) -> Option<PathBuf> {
        let path = self.folder.join(digest);
        (id_of(digest).is_some() && path.is_dir()).then_some(path)
    }

    /// Holds off whoever may have this process stand still, as long as the result lives: others wait for the memory
    /// while it is read or written.
    pub fn uninterrupted(&self) -> Result<File, LearnedFileError> {
        let file = self.lock_file()?;
        file.lock().map_err(failed("lock", &self.folder.join(UNINTERRUPTED)))?;
        Ok(file)
    }

    /// Returns what holds off others that call [`LearnedFiles::uninterrupted`], if none of them goes on now.
    pub fn try_interrupt(&self) -> Result<Option<File>, LearnedFileError> {
        let file = self.lock_file()?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => Err(failed("lock", &self.folder.join(UNINTERRUPTED))(source)),
        }
    }

    fn lock_file(&self) -> Result<File, LearnedFileError> {
        create_private(&self.folder).map_err(failed("create", &self.folder))?;
        let path = self.folder.join(UNINTERRUPTED);
        let opened = File::options().create(true).truncate(false).write(true).open(&path);
        opened.map_err(failed("create", &path))
    }

    /// Returns a path for a new adapter. What an earlier process left there is removed.
    pub fn scratch(&self) -> Result<PathBuf, LearnedFileError> {
        create_private(&self.folder).map_err(failed("create", &self.folder))?;
        let path = self.folder.join(format!(".new-{}", std::process::id()));
        remove(&path)?;
        Ok(path)
    }

    /// Gives what was written to a scratch path its name. Returns its digest and whether it was not here before.
    pub fn install(&self, scratch: &Path) -> Result<(String, bool), LearnedFileError> {
        let digest = digest_of(AdapterFile::open(scratch)?.id);
        let path = self.folder.join(&digest);
        if path.exists() {
            remove(scratch)?;
            return Ok((digest, false));
        }
        fs::rename(scratch, &path).map_err(failed("create", &path))?;
        Ok((digest, true))
    }

    /// Copies those of the `wanted` adapters that are here and not there. Returns how many.
    pub fn copy_to(&self, to: &Self, wanted: &BTreeSet<String>) -> Result<usize, LearnedFileError> {
        let missing = wanted.iter().filter(|digest| to.find(digest).is_none());
        let mut copied = 0;
        for (digest, from) in missing.filter_map(|digest| Some((digest, self.find(digest)?))) {
            let scratch = to.scratch()?;
            copy_files(&from, &scratch).map_err(failed("copy", &from))?;
            let (found, is_new) = to.install(&scratch)?;
            if found != *digest {
                if is_new {
                    to.remove(&found)?;
                }
                return Err(LearnedFileError::Changed { path: from });
            }
            copied += 1;
        }
        Ok(copied)
    }

    /// Removes an adapter.
    pub fn remove(&self, digest: &str) -> Result<(), LearnedFileError> {
        self.find(digest).map_or(Ok(()), |path| remove(&path))
    }

    /// Removes all adapters but those that are `wanted`, and those that may still come to be. Returns how many.
    pub fn sweep(&self, wanted: &BTreeSet<String>, may_be_young: bool) -> Result<usize, LearnedFileError> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(source) => return Err(failed("read", &self.folder)(source)),
        };
        let mut removed = 0;
        for entry in entries.filter_map(Result::ok) {
            let is_unwanted =
                entry.file_name().to_str().is_some_and(|name| id_of(name).is_some() && !wanted.contains(name));
            let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
            if is_unwanted && (!may_be_young || age().is_some_and(|age| age > YOUNG)) {
                remove(&entry.path())?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

/// Returns the id of an adapter from its digest in hexadecimal digits.
pub fn id_of(digest: &str) -> Option<AdapterId> {
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    if digest.len() != 64 || !digest.as_bytes().iter().all(is_digit) {
        return None;
    }
    let mut id = [0; 32];
    for (byte, digits) in id.iter_mut().zip(digest.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(AdapterId(id))
}

/// Returns the digest by which an adapter is named.
pub fn digest_of(id: AdapterId) -> String {
    id.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Creates a folder that only its owner can read: what was learned from texts can give them away.
fn create_private(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    create_private(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

fn remove(path: &Path) -> Result<(), LearnedFileError> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(source)),
        _ => Ok(()),
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LearnedFileError {
    let path = path.to_owned();
    move |source| LearnedFileError::Io { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wanted_or_young_is_kept() {
        let home = tempfile::tempdir().unwrap();
        let files = LearnedFiles::in_folder(home.path().join("learned"));
        assert_eq!(files.sweep(&BTreeSet::new(), false).unwrap(), 0);
        let scratch = files.scratch().unwrap();
        fs::create_dir(&scratch).unwrap();
        let [one, other] = ["a", "b"].map(|digit| digit.repeat(64));
        for digest in [&one, &other] {
            fs::create_dir(home.path().join("learned").join(digest)).unwrap();
        }
        let wanted = BTreeSet::from([one.clone()]);
        assert_eq!(files.sweep(&wanted, true).unwrap(), 0, "young");
        assert_eq!(files.sweep(&wanted, false).unwrap(), 1);
        assert!(files.find(&one).is_some() && files.find(&other).is_none() && scratch.exists());
        files.remove(&one).unwrap();
        assert!(files.find(&one).is_none() && files.find("../learned").is_none());
        assert!(!files.scratch().unwrap().exists(), "what was left there is gone");
    }

    #[test]
    fn digests_are_ids() {
        let id = AdapterId(std::array::from_fn(|index| index as u8 * 7));
        assert_eq!(id_of(&digest_of(id)), Some(id));
        for wrong in ["", "ab", &"g".repeat(64), &"A".repeat(64), &"ä".repeat(32)] {
            assert_eq!(id_of(wrong), None, "{wrong}");
        }
    }
}
