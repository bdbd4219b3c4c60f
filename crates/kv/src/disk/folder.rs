//! The files of the disk tier: one for each page, named by its hash, on shelves named by the first two digits.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

use crate::prefix::PageHash;

const EXTENSION: &str = "kv";
const EXTENSION_UNFINISHED: &str = "part";

#[derive(Clone, Debug)]
pub(super) struct Folder(PathBuf);

/// A page as the folder shows it. The one that was not used for longest is the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FoundPage {
    pub used: SystemTime,
    pub hash: PageHash,
    pub bytes: u64,
}

impl Folder {
    /// Opens the folder, which is made if it is not there. Fails if it cannot be written to: the first page would be too
    /// late to tell.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        if path.is_file() {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, "it is a file, not a folder"));
        }
        fs::create_dir_all(path)?;
        let probe = path.join(std::process::id().to_string()).with_extension(EXTENSION_UNFINISHED);
        fs::write(&probe, [])
            .map_err(|error| io::Error::new(error.kind(), format!("nothing can be written to it: {error}")))?;
        drop(fs::remove_file(&probe));
        Ok(Self(path.to_owned()))
    }

    /// All pages. What a process left unfinished when it was killed is removed.
    pub(super) fn pages(&self) -> io::Result<Vec<FoundPage>> {
        let mut found = Vec::new();
        for shelf in fs::read_dir(&self.0)?.flatten().filter(|entry| entry.path().is_dir()) {
            for file in fs::read_dir(shelf.path())?.flatten() {
                match (hash_of(&file.path()), file.metadata()) {
                    (Some(hash), Ok(data)) => {
                        let used = data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                        found.push(FoundPage { used, hash, bytes: data.len() });
                    }
                    _ if is_unfinished(&file.path()) => drop(fs::remove_file(file.path())),
                    _ => {}
                }
            }
        }
        Ok(found)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// The file of a page.
    pub(super) fn file(&self, hash: PageHash) -> PathBuf {
        let name: String = hash.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        self.0.join(&name[..2]).join(name).with_extension(EXTENSION)
    }

    /// Writes the file of a page, which appears whole or not at all. The folder itself is not made again: where it is gone,
    /// something else may be in its place, such as the disk below a mount.
    pub(super) fn write(&self, hash: PageHash, bytes: &[u8]) -> io::Result<()> {
        let path = self.file(hash);
        make_folder(path.parent().expect("files are on shelves"))?;
        let unfinished = path.with_extension(format!("{}.{EXTENSION_UNFINISHED}", std::process::id()));
        let write = || {
            let mut file = fs::File::create(&unfinished)?;
            file.write_all(bytes)?;
            mark_as_used(&file);
            fs::rename(&unfinished, &path)
        };
        let outcome = write().or_else(|error| match error.kind() {
            // A process that has just opened the folder took it for what a killed one left behind.
            io::ErrorKind::NotFound => write(),
            _ => Err(error),
        });
        outcome.inspect_err(|_| {
            // A full disk must not stay full of half a page.
            drop(fs::remove_file(&unfinished));
        })
    }

    /// Marks a page as used: the order outlives the process.
    pub(super) fn touch(&self, hash: PageHash) {
        if let Ok(file) = fs::File::options().write(true).open(self.file(hash)) {
            mark_as_used(&file);
        }
    }

    /// Removes a page; another process may have done so before.
    pub(super) fn remove(&self, hash: PageHash) {
        drop(fs::remove_file(self.file(hash)));
    }
}

/// The file system's own times of change may be the same for all files of some milliseconds. Only the order of removal
/// depends on it, so failures do not matter.
fn mark_as_used(file: &fs::File) {
    drop(file.set_modified(SystemTime::now()));
}

/// For this user alone: keys and values tell much of the texts that they were computed from.
fn make_folder(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn hash_of(path: &Path) -> Option<PageHash> {
    let name = path.file_stem()?.to_str().filter(|name| name.len() == 32 && name.is_ascii())?;
    if path.extension()? != EXTENSION {
        return None;
    }
    let mut bytes = [0; 16];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&name[i * 2..i * 2 + 2], 16).ok()?;
    }
    Some(PageHash::from_bytes(bytes))
}

fn is_unfinished(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == EXTENSION_UNFINISHED)
}
