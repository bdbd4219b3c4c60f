//! A file that is already on this machine, copied into the store.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::{FetchError, Fetched, Order};
use crate::digest::CHUNK_BYTES;
use crate::disk;
use crate::error::{SourceError, StoreError};
use crate::partial::Partial;
use crate::progress::{Progress, Throttle};

/// Copied rather than linked: a link would change with the original, behind the manifest's back.
pub(super) fn fetch(path: &Path, order: &Order, progress: &mut dyn Progress) -> Result<Fetched, FetchError> {
    let unreadable = |source: io::Error| SourceError::Local { path: path.to_owned(), source };
    let mut input = File::open(path).map_err(unreadable)?;
    let total = input.metadata().map_err(unreadable)?.len();
    let mut partial = Partial::open(&order.folder, &path.to_string_lossy())?;
    partial.restart()?;
    disk::require_space(&order.folder, total)?;
    let mut throttle = Throttle::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        if progress.cancelled() {
            return Err(StoreError::Cancelled.into());
        }
        match input.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => partial.append(&chunk[..count], total)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(unreadable(error).into()),
        }
        throttle.bytes(progress, partial.length(), total);
    }
    partial.finish(order)
}
