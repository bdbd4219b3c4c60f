//! Decides whether the weights of experts are kept in memory or in a file, of which the system keeps in memory what is used.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{io, process};

use super::build::padded;
use super::draft::DraftFile;
use super::fit::CONTEXT_USEFUL;
use super::model_file::ModelFile;
use super::{BuildError, EngineBuilder};

/// Where the weights of experts are kept. On disk means in a file in the given folder, which is gone when the engine is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ExpertPlace {
    #[default]
    Memory,
    Disk(PathBuf),
    /// On disk if the model does not fit into memory otherwise.
    DiskIfNeeded(PathBuf),
}

/// Bytes of a model's weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WeightBytes {
    pub memory: usize,
    /// Experts that come from disk when a token needs them.
    pub disk: usize,
}

impl WeightBytes {
    pub(super) fn in_memory(bytes: usize) -> Self {
        Self { memory: bytes, disk: 0 }
    }

    /// Counts the experts of one token as memory: with less, every token would wait for all of its experts.
    pub(super) fn with_experts_on_disk(all: usize, experts: usize, file: &ModelFile) -> Self {
        let (active, count) = file.active_experts().unwrap_or((1, 1));
        Self { memory: all.saturating_sub(experts).saturating_add(experts / count * active), disk: experts }
    }
}

impl EngineBuilder {
    /// Decides how much of the weights is in memory, and how much on disk.
    pub(super) fn weights(&self, file: &ModelFile, memory_bytes: Option<u64>) -> Result<WeightBytes, BuildError> {
        let draft = self.draft_model.as_deref().map(|path| DraftFile::open(path, file.context())).transpose()?;
        let draft_bytes = draft.map_or(0, |draft| draft.memory_bytes());
        let all = file.loaded_bytes().saturating_add(draft_bytes);
        let experts = padded(file.expert_bytes());
        let in_memory = WeightBytes::in_memory(all);
        let is_on_disk = match &self.experts {
            ExpertPlace::Memory => false,
            ExpertPlace::Disk(_) => true,
            ExpertPlace::DiskIfNeeded(_) => {
                let context = self.context.unwrap_or(file.context().min(CONTEXT_USEFUL));
                let needed = self.memory_for(file, context, in_memory).min_bytes();
                memory_bytes.is_some_and(|available| needed as u64 > available)
            }
        };
        if is_on_disk && experts > 0 {
            return Ok(WeightBytes::with_experts_on_disk(all, experts, file));
        }
        Ok(in_memory)
    }

    /// Creates the file for experts that are not kept in memory.
    pub(super) fn expert_file(&self, weights: WeightBytes) -> Result<Option<File>, BuildError> {
        let folder = match &self.experts {
            ExpertPlace::Disk(folder) | ExpertPlace::DiskIfNeeded(folder) if weights.disk > 0 => folder,
            _ => return Ok(None),
        };
        let file = create(folder).map_err(|source| BuildError::ExpertFile { folder: folder.clone(), source })?;
        tracing::warn!(
            "{:.1} GiB of experts are on disk, in {}: tokens wait for those that are not in memory",
            weights.disk as f64 / f64::from(1 << 30),
            folder.display()
        );
        Ok(Some(file))
    }
}

/// Creates a file that nobody else can open, and that is gone when it is closed.
fn create(folder: &Path) -> io::Result<File> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    fs::create_dir_all(folder)?;
    let path = folder.join(format!("experts-{}-{}", process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)));
    let mut options = File::options();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    // Left behind by a process that was killed between the next two lines, and had the same number.
    let _ = fs::remove_file(&path);
    let file = options.open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}
