//! The files of a pack, from a folder or an archive. Bounded before anything is allocated for them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use ruzstd::decoding::StreamingDecoder;
use tar::EntryType;

use super::PackError;

/// What an archive may have, packed and unpacked.
const ARCHIVE_BYTES_MAX: u64 = 16 << 20;
const FILES_MAX: usize = 256;
/// What the decoder keeps to refer back to.
const WINDOW_BYTES_MAX: u64 = 16 << 20;

pub(super) enum Source {
    Folder(PathBuf),
    Archive(BTreeMap<String, Vec<u8>>),
}

impl Source {
    pub fn open(path: &Path) -> Result<Self, PackError> {
        let io = |error| PackError::Io { what: path.display().to_string(), error };
        if fs::metadata(path).map_err(io)?.is_dir() {
            return Ok(Self::Folder(path.to_owned()));
        }
        let file = File::open(path).map_err(io)?;
        if !file.metadata().map_err(io)?.is_file() {
            return Err(PackError::Kind { what: path.display().to_string(), kind: "special file" });
        }
        let mut packed = Vec::new();
        let taken = file.take(ARCHIVE_BYTES_MAX + 1).read_to_end(&mut packed).map_err(io)? as u64;
        if taken > ARCHIVE_BYTES_MAX {
            return Err(PackError::TooLarge { what: path.display().to_string(), max: ARCHIVE_BYTES_MAX });
        }
        Ok(Self::Archive(unpack(&packed)?))
    }

    /// Returns one file, of at most so many bytes. `path` was checked to stay within the pack.
    pub fn read(&self, path: &str, bytes_max: u64) -> Result<Vec<u8>, PackError> {
        let too_large = || PackError::TooLarge { what: path.to_owned(), max: bytes_max };
        match self {
            Self::Folder(folder) => read_within(folder, path, bytes_max),
            Self::Archive(files) => match files.get(path) {
                Some(bytes) if bytes.len() as u64 > bytes_max => Err(too_large()),
                Some(bytes) => Ok(bytes.clone()),
                None => Err(PackError::Missing(path.to_owned())),
            },
        }
    }
}

/// Reads a regular file of a folder that is reached without a link and has no other name.
pub(crate) fn read_within(folder: &Path, path: &str, bytes_max: u64) -> Result<Vec<u8>, PackError> {
    let io = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => PackError::Missing(path.to_owned()),
        _ => PackError::Io { what: path.to_owned(), error },
    };
    let kind = |kind| Err(PackError::Kind { what: path.to_owned(), kind });
    let mut at = folder.to_owned();
    for part in Path::new(path).components() {
        at.push(part);
        if fs::symlink_metadata(&at).map_err(io)?.is_symlink() {
            return kind("symbolic link");
        }
    }
    // Not opened before it is known to be a file: opening a pipe would wait.
    let metadata = fs::symlink_metadata(&at).map_err(io)?;
    if !metadata.is_file() {
        return kind("special file or folder");
    }
    #[cfg(unix)]
    if std::os::unix::fs::MetadataExt::nlink(&metadata) > 1 {
        return kind("hard link");
    }
    let mut bytes = Vec::new();
    let taken = File::open(&at).and_then(|file| file.take(bytes_max + 1).read_to_end(&mut bytes)).map_err(io)?;
    if taken as u64 > bytes_max {
        return Err(PackError::TooLarge { what: path.to_owned(), max: bytes_max });
    }
    Ok(bytes)
}

fn unpack(packed: &[u8]) -> Result<BTreeMap<String, Vec<u8>>, PackError> {
    let archive = |error: &dyn std::fmt::Display| PackError::Archive(error.to_string());
    if window_bytes(packed).is_none_or(|bytes| bytes > WINDOW_BYTES_MAX) {
        return Err(PackError::Archive("it is no .tar.zst, or needs too much memory to unpack".to_owned()));
    }
    let decoder = StreamingDecoder::new(packed).map_err(|error| archive(&error))?;
    // One byte more than allowed, to see that there is more.
    let mut reader = tar::Archive::new(decoder.take(ARCHIVE_BYTES_MAX + 1));
    let (mut files, mut total, mut count) = (BTreeMap::new(), 0, 0);
    // Raw: headers that rename what follows are entries of their own, which are refused.
    for entry in reader.entries().map_err(|error| archive(&error))?.raw(true) {
        let mut entry = entry.map_err(|error| archive(&error))?;
        count += 1;
        if count > FILES_MAX {
            return Err(PackError::TooManyFiles(FILES_MAX));
        }
        let name = entry_name(&entry)?;
        // With its header.
        total += 512 + entry.size();
        if total > ARCHIVE_BYTES_MAX {
            return Err(PackError::TooLarge { what: "what is in the archive".to_owned(), max: ARCHIVE_BYTES_MAX });
        }
        let Some(name) = name else { continue };
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).map_err(|error| archive(&error))?;
        if bytes.len() as u64 != entry.size() {
            return Err(PackError::Archive(format!("{name} ends too early")));
        }
        if files.insert(name.clone(), bytes).is_some() {
            return Err(PackError::Twice(name));
        }
    }
    Ok(files)
}

/// Returns the path of a file; `None` for a folder.
fn entry_name(entry: &tar::Entry<'_, impl Read>) -> Result<Option<String>, PackError> {
    let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
    let kind = |kind| Err(PackError::Kind { what: path.clone(), kind });
    let is_folder = match entry.header().entry_type() {
        EntryType::Regular => false,
        EntryType::Directory => true,
        EntryType::Symlink => return kind("symbolic link"),
        EntryType::Link => return kind("hard link"),
        EntryType::Block | EntryType::Char => return kind("device"),
        EntryType::Fifo => return kind("pipe"),
        _ => return kind("entry of an unknown kind"),
    };
    let mut parts = Vec::new();
    for part in Path::new(&path).components() {
        match part {
            Component::Normal(part) => parts.push(part.to_string_lossy()),
            Component::CurDir => {}
            _ => return Err(PackError::Traversal(path.clone())),
        }
    }
    Ok((!is_folder).then(|| parts.join("/")))
}

/// Returns what the decoder of a frame would reserve, which its header says.
fn window_bytes(packed: &[u8]) -> Option<u64> {
    let (magic, rest) = packed.split_first_chunk::<4>()?;
    let (descriptor, rest) = rest.split_first()?;
    if *magic != [0x28, 0xb5, 0x2f, 0xfd] {
        return None;
    }
    let is_single_segment = descriptor & 0x20 != 0;
    if !is_single_segment {
        let (exponent, eighths) = (rest.first()? >> 3, u64::from(rest.first()? & 7));
        let base = 1u64 << (10 + exponent);
        return Some(base + base / 8 * eighths);
    }
    // The window is the content, whose size follows that of the dictionary's id.
    let id_bytes = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let size_bytes = [1, 2, 4, 8][usize::from(descriptor >> 6)];
    let size = rest.get(id_bytes..id_bytes + size_bytes)?;
    let number = size.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    Some(if size_bytes == 2 { number + 256 } else { number })
}
