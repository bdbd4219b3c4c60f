//! Takes exactly one named member out of a zip archive. Nothing else of the archive is looked at, let alone run.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use zip::CompressionMethod;
use zip::read::ZipArchive;
use zip::result::ZipError;

use super::FetchError;
use crate::digest::CHUNK_BYTES;
use crate::error::{SourceError, StoreError};
use crate::partial::Partial;
use crate::progress::{Event, Progress};

/// Appends `member` to `partial`, which may become `total` bytes long. `named` is what an error calls the archive.
pub(super) fn append_member(
    archive: &Path,
    named: &str,
    member: &str,
    total: u64,
    partial: &mut Partial,
    progress: &mut dyn Progress,
) -> Result<(), FetchError> {
    let unusable = |error: ZipError| match error {
        ZipError::FileNotFound => bad(named, &format!("it holds no {member}")),
        error => bad(named, &error.to_string()),
    };
    let file = File::open(archive).map_err(StoreError::io("open", archive))?;
    let mut zip = ZipArchive::new(BufReader::new(file)).map_err(unusable)?;
    let mut content = zip.by_name(member).map_err(unusable)?;
    if !matches!(content.compression(), CompressionMethod::Stored | CompressionMethod::Deflated) {
        return Err(bad(named, "its compression is not supported").into());
    }
    let room = total - partial.length();
    let too_large = |bytes: u64| {
        let why = format!("{member} has {bytes} bytes or more where at most {room} belong");
        FetchError::from(bad(named, &why))
    };
    if content.size() > room {
        return Err(too_large(content.size()));
    }
    progress.report(Event::Verifying { bytes: content.size() });
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        if progress.cancelled() {
            return Err(StoreError::Cancelled.into());
        }
        match content.read(&mut chunk) {
            Ok(0) => return Ok(()),
            // The stated size is the archive's own claim, so what really comes out is bounded as well.
            Ok(count) if partial.length() + count as u64 > total => return Err(too_large(room)),
            Ok(count) => partial.append(&chunk[..count], total)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(bad(named, &error.to_string()).into()),
        }
    }
}

pub(super) fn bad(package: &str, why: &str) -> SourceError {
    SourceError::BadWheel { package: package.to_owned(), why: why.to_owned() }
}
