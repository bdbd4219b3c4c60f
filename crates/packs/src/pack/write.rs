//! Packs as archives.

use std::fs;
use std::io;
use std::path::Path;

use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use sha2::{Digest, Sha256};
use tar::{Builder, Header};

use super::{HASH_PREFIX, Pack, PackError};
use crate::signature::hex;

/// Returns a hash as manifests have it.
pub fn hash_of(bytes: &[u8]) -> String {
    format!("{HASH_PREFIX}{}", hex(&Sha256::digest(bytes)))
}

/// Writes a pack as one file, the same bytes for the same pack.
pub fn write_archive(pack: &Pack, to: &Path) -> Result<(), PackError> {
    let failed = |error| PackError::Io { what: to.display().to_string(), error };
    let archive = archive(pack).map_err(failed)?;
    fs::write(to, compress_to_vec(&archive[..], CompressionLevel::Fastest)).map_err(failed)
}

fn archive(pack: &Pack) -> io::Result<Vec<u8>> {
    let mut builder = Builder::new(Vec::new());
    for (path, bytes) in pack.files() {
        let mut header = Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, path, bytes)?;
    }
    builder.into_inner()
}
