//! Taking tensors out of a file: each is asked for with the shape it must have, and none may be left over.

use std::collections::HashSet;

use ruvllm_kernels::{Arena, PackedMatrix, dequantize_row};

use crate::error::LoadError;
use crate::formats::gguf::{Gguf, Tensor};

/// The tensors of a file, and which have been taken.
pub(crate) struct Tensors<'a> {
    gguf: &'a Gguf,
    taken: HashSet<&'a str>,
    bytes: u64,
    progress: &'a mut dyn FnMut(u64),
    arena: Arena,
}

impl<'a> Tensors<'a> {
    pub(crate) fn new(gguf: &'a Gguf, progress: &'a mut dyn FnMut(u64)) -> Self {
        Self { gguf, taken: HashSet::new(), bytes: 0, progress, arena: Arena::new() }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    /// A tensor that must be there; `dims` has the row length first.
    pub(crate) fn take(&mut self, name: &str, dims: &[usize]) -> Result<Tensor<'a>, LoadError> {
        let tensor = self.gguf.tensor(name).ok_or_else(|| LoadError::MissingTensor(name.to_owned()))?;
        if tensor.dims != dims {
            return Err(LoadError::Shape {
                tensor: name.to_owned(),
                expected: dims.to_vec(),
                got: tensor.dims.to_vec(),
            });
        }
        if self.taken.insert(tensor.name) {
            self.bytes += tensor.bytes.len() as u64;
            (self.progress)(self.bytes);
        }
        Ok(tensor)
    }

    /// A vector of floats, such as the weights of a norm.
    pub(crate) fn floats(&mut self, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        let tensor = self.take(name, &[len])?;
        let mut floats = vec![0.0; len];
        dequantize_row(tensor.kind, tensor.bytes, &mut floats);
        Ok(floats)
    }

    /// A matrix repacked for matmul. Its pages of the file are given back: from here on the tiles are read instead.
    pub(crate) fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<PackedMatrix, LoadError> {
        let tensor = self.take(name, &[cols, rows])?;
        let packed = PackedMatrix::pack(tensor.kind, rows, cols, tensor.bytes, &mut self.arena)
            .map_err(|source| LoadError::Pack { tensor: name.to_owned(), source })?;
        // Advice only: where the system does not take it, the pages are dropped later under pressure.
        let _ = self.gguf.file().give_back(tensor.range);
        Ok(packed)
    }

    /// Fails if the file holds a tensor that nobody asked for.
    pub(crate) fn finish(self) -> Result<(), LoadError> {
        match self.gguf.tensors().find(|tensor| !self.taken.contains(tensor.name)) {
            Some(tensor) => Err(LoadError::UnknownTensor(tensor.name.to_owned())),
            None => Ok(()),
        }
    }
}
