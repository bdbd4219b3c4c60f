//! The files of the disk tier: one for each page, on shelves named by the first two digits of their names.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

use super::page_key::PageName;

const EXTENSION: &str = "page";
const EXTENSION_UNFINISHED: &str = "part";
/// Pages of versions that did not encrypt them.
const EXTENSION_PLAIN: &str = "kv";

#[derive(Clone, Debug)]
pub(super) struct Folder(PathBuf);

/// A page as the folder shows it. The one that was not used for longest is the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FoundPage {
    pub used: SystemTime,
    pub name: PageName,
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

    /// Removes what processes left unfinished when they were killed, and what an earlier version saved without encryption.
    pub(super) fn clean(&self) -> io::Result<()> {
        let mut plain = 0;
        for shelf in fs::read_dir(&self.0)?.flatten().filter(|entry| entry.path().is_dir()) {
            for file in fs::read_dir(shelf.path())?.flatten().map(|file| file.path()) {
                let is_plain = name_in(&file, EXTENSION_PLAIN).is_some();
                if (is_plain || is_unfinished(&file)) && fs::remove_file(&file).is_ok() {
                    plain += u64::from(is_plain);
                }
            }
        }
        if plain > 0 {
            tracing::warn!(folder = %self.0.display(), "{plain} pages were removed that an earlier version saved without encryption");
        }
        Ok(())
    }

    /// All pages.
    pub(super) fn pages(&self) -> io::Result<Vec<FoundPage>> {
        let mut found = Vec::new();
        for shelf in fs::read_dir(&self.0)?.flatten().filter(|entry| entry.path().is_dir()) {
            for file in fs::read_dir(shelf.path())?.flatten() {
                if let (Some(name), Ok(data)) = (name_in(&file.path(), EXTENSION), file.metadata()) {
                    let used = data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                    found.push(FoundPage { used, name, bytes: data.len() });
                }
            }
        }
        Ok(found)
    }

    /// A page, if it is there.
    pub(super) fn find(&self, name: PageName) -> Option<FoundPage> {
        let data = fs::metadata(self.file(name)).ok()?;
        Some(FoundPage { used: data.modified().unwrap_or(SystemTime::UNIX_EPOCH), name, bytes: data.len() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// The file of a page.
    pub(super) fn file(&self, name: PageName) -> PathBuf {
        let name: String = name.0.iter().map(|byte| format!("{byte:02x}")).collect();
        self.0.join(&name[..2]).join(name).with_extension(EXTENSION)
    }

    /// Writes the file of a page, which appears whole or not at all. The folder itself is not made again: where it is gone,
    /// something else may be in its place, such as the disk below a mount.
    pub(super) fn write(&self, name: PageName, bytes: &[u8]) -> io::Result<()> {
        let path = self.file(name);
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
    pub(super) fn touch(&self, name: PageName) {
        if let Ok(file) = fs::File::options().write(true).open(self.file(name)) {
            mark_as_used(&file);
        }
    }

    /// Removes a page; another process may have done so before.
    pub(super) fn remove(&self, name: PageName) {
        drop(fs::remove_file(self.file(name)));
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

fn name_in(path: &Path, extension: &str) -> Option<PageName> {
    let name = path.file_stem()?.to_str().filter(|name| name.len() == 32 && name.is_ascii())?;
    if path.extension()? != extension {
        return None;
    }
    let mut bytes = [0; 16];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&name[i * 2..i * 2 + 2], 16).ok()?;
    }
    Some(PageName(bytes))
}

fn is_unfinished(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == EXTENSION_UNFINISHED)
}
