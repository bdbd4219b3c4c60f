//! Writing GGUF, version 3: a [`Header`] says what the file will hold, a [`Writer`] takes the tensors' bytes in that
//! order, as they come. The file appears under its name when it is complete, or not at all.

#[cfg(test)]
mod draft;
mod encode;
mod header;
mod partial_file;

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

#[cfg(test)]
pub(crate) use draft::Draft;
#[cfg(test)]
pub(crate) use encode::{array, string};
pub use header::{Header, Layout};

use super::error::TensorFault;
use partial_file::PartialFile;

/// Why a GGUF file could not be written.
#[derive(Debug, Error)]
pub enum WriteError {
    #[error("{what} {name:?} has {length} bytes; it must have 1 to {max}")]
    NameLength { what: &'static str, name: String, length: u64, max: u64 },
    #[error("there are two tensors {name:?}")]
    DuplicateTensor { name: String },
    #[error("tensor {name:?} has {count} dimensions; there must be 1 to {max}")]
    DimensionCount { name: String, count: usize, max: usize },
    #[error("tensor {name:?}: {fault}")]
    Tensor { name: String, fault: TensorFault },
    #[error("general.alignment is {0}; it must be a power of two between 8 and 1048576")]
    Alignment(String),
    #[error("the file would be larger than can be addressed")]
    TooLarge,
    #[error("no space is left for {}: the file takes {file_bytes} bytes", path.display())]
    DiskFull { path: PathBuf, file_bytes: u64 },
    #[error("cannot {action} {}: {error}", path.display())]
    Io { action: &'static str, path: PathBuf, error: io::Error },
}

/// A file in the making. Dropped before [`finish`](Self::finish), it leaves nothing behind.
#[derive(Debug)]
pub struct Writer {
    file: PartialFile,
    layout: Layout,
    /// The tensor that the next bytes belong to, and how many of its bytes are written.
    tensor: usize,
    written_bytes: u64,
}

impl Writer {
    /// Begins the file that will be at `path`.
    pub fn create(path: &Path, header: &Header) -> Result<Self, WriteError> {
        let layout = header.layout()?;
        let mut file = PartialFile::create(path, layout.file_bytes())?;
        file.write(layout.head())?;
        Ok(Self { file, layout, tensor: 0, written_bytes: 0 })
    }

    /// Appends to the present tensor; when it is complete, what follows belongs to the next. Panics if the bytes are
    /// more than the tensor lacks.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        let size = self.layout.tensor_bytes(self.tensor);
        self.written_bytes += bytes.len() as u64;
        assert!(self.written_bytes <= size, "tensor {} holds {size} bytes, not {}", self.tensor, self.written_bytes);
        self.file.write(bytes)?;
        if self.written_bytes == size {
            self.file.write(&vec![0; self.layout.padding_after(self.tensor)])?;
            (self.tensor, self.written_bytes) = (self.tensor + 1, 0);
        }
        Ok(())
    }

    /// Makes the file durable and gives it its name; a file that has the name already is replaced. Panics if a tensor
    /// is not complete.
    pub fn finish(self) -> Result<(), WriteError> {
        assert_eq!(self.tensor, self.layout.tensor_count(), "all tensors are written");
        self.file.finish()
    }
}
