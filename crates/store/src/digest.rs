//! SHA-256 of files and of bytes on their way to disk.

use std::fs::File;
use std::io::{self, Read};

use sha2::{Digest, Sha256};

use crate::progress::{Event, Progress, Throttle};

pub(crate) const CHUNK_BYTES: usize = 128 * 1024;

pub(crate) fn hex(hasher: Sha256) -> String {
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn is_sha256_hex(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Feeds what `file` holds from its current position to its end; `None` when cancelled.
pub(crate) fn hash_file(file: &mut File, bytes: u64, progress: &mut dyn Progress) -> io::Result<Option<Sha256>> {
    progress.report(Event::Verifying { bytes });
    let mut hasher = Sha256::new();
    let mut throttle = Throttle::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut done = 0;
    loop {
        if progress.cancelled() {
            return Ok(None);
        }
        match file.read(&mut chunk) {
            Ok(0) => return Ok(Some(hasher)),
            Ok(count) => {
                hasher.update(&chunk[..count]);
                done += count as u64;
                throttle.bytes(progress, done, bytes);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
