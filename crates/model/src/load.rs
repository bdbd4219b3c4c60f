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
        finite_floats(&self.take(name, &[len])?, len)
    }

    /// Vectors of one length that are one tensor, if the file has it.
    pub(crate) fn optional_float_rows(
        &mut self,
        name: &str,
        count: usize,
        len: usize,
    ) -> Result<Option<Vec<Vec<f32>>>, LoadError> {
        if !self.has(name) {
            return Ok(None);
        }
        let tensor = self.take(name, &[len, count])?;
        let floats = finite_floats(&tensor, count * len)?;
        Ok(Some(floats.chunks_exact(len).map(<[f32]>::to_vec).collect()))
    }

    /// Such a vector if the file has it.
    pub(crate) fn optional_floats(&mut self, name: &str, len: usize) -> Result<Option<Vec<f32>>, LoadError> {
        if self.has(name) { self.floats(name, len).map(Some) } else { Ok(None) }
    }

    /// A matrix repacked for matmul. Its pages of the file are given back: from here on the tiles are read instead.
    pub(crate) fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<PackedMatrix, LoadError> {
        Ok(self.split_matrix(name, &[rows], cols)?.remove(0))
    }

    /// Matrices that stand below each other in one tensor, with these numbers of rows.
    pub(crate) fn split_matrix(
        &mut self,
        name: &str,
        rows: &[usize],
        cols: usize,
    ) -> Result<Vec<PackedMatrix>, LoadError> {
        let tensor = self.take(name, &[cols, rows.iter().sum()])?;
        self.pack(name, &tensor, rows, cols)
    }

    /// Matrices of one shape that are one tensor.
    pub(crate) fn matrices(
        &mut self,
        name: &str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Vec<PackedMatrix>, LoadError> {
        let tensor = self.take(name, &[cols, rows, count])?;
        self.pack(name, &tensor, &vec![rows; count], cols)
    }

    fn pack(
        &mut self,
        name: &str,
        tensor: &Tensor<'_>,
        rows: &[usize],
        cols: usize,
    ) -> Result<Vec<PackedMatrix>, LoadError> {
        let row_bytes = tensor.bytes.len() / rows.iter().sum::<usize>().max(1);
        let mut rest = tensor.bytes;
        let mut packed = Vec::with_capacity(rows.len());
        for rows in rows {
            let (bytes, after) = rest.split_at(rows * row_bytes);
            rest = after;
            let matrix = PackedMatrix::pack(tensor.kind, *rows, cols, bytes, &mut self.arena);
            packed.push(matrix.map_err(|source| LoadError::Pack { tensor: name.to_owned(), source })?);
        }
        // Advice only: where the system does not take it, the pages are dropped later under pressure.
        let _ = self.gguf.file().give_back(tensor.range.clone());
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

fn finite_floats(tensor: &Tensor<'_>, len: usize) -> Result<Vec<f32>, LoadError> {
    let mut floats = vec![0.0; len];
    dequantize_row(tensor.kind, tensor.bytes, &mut floats);
    match floats.iter().position(|float| !float.is_finite()) {
        Some(index) => Err(LoadError::NotFinite { tensor: tensor.name.to_owned(), index, got: floats[index] }),
        None => Ok(floats),
    }
}
