//! Taking tensors out of a file: each is asked for with the shape it must have, and none may be left over.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::File;
use std::ops::Range;

use ruvllm_kernels::{Arena, PackedMatrix, WeightType, dequantize_row};

use crate::error::LoadError;
use crate::formats::gguf::{Gguf, Tensor};
use crate::quantize::quantize_rows;

/// The tensors of a file, and which have been taken.
pub(crate) struct Tensors<'a> {
    gguf: &'a Gguf,
    taken: HashSet<&'a str>,
    bytes: u64,
    progress: &'a mut dyn FnMut(u64),
    arena: Arena,
    /// Of experts, where they are kept elsewhere.
    expert_arena: Option<Arena>,
    /// Blocks that are no part of the model proper.
    drafting: Range<usize>,
}

impl<'a> Tensors<'a> {
    /// `drafting` are the blocks that are no part of the model proper, `expert_file` is where experts are kept, if not in
    /// memory.
    pub(crate) fn new(
        gguf: &'a Gguf,
        drafting: Range<usize>,
        expert_file: Option<File>,
        progress: &'a mut dyn FnMut(u64),
    ) -> Self {
        let expert_arena = expert_file.map(Arena::in_file);
        Self { gguf, taken: HashSet::new(), bytes: 0, progress, arena: Arena::new(), expert_arena, drafting }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    /// Returns how many rows a matrix has, if the file has it.
    pub(crate) fn rows_of(&self, name: &str) -> Option<usize> {
        self.gguf.tensor(name)?.dims.get(1).copied()
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
            self.bytes += tensor.bytes_len() as u64;
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

    /// A matrix of one row, which some files store as a vector.
    pub(crate) fn row_matrix(&mut self, name: &str, cols: usize) -> Result<PackedMatrix, LoadError> {
        let is_vector = self.gguf.tensor(name).is_some_and(|tensor| tensor.dims.len() == 1);
        let tensor = if is_vector { self.take(name, &[cols])? } else { self.take(name, &[cols, 1])? };
        Ok(pack(&mut self.arena, name, &tensor, &[1], cols)?.remove(0))
    }

    /// Matrices that stand below each other in one tensor, with these numbers of rows.
    pub(crate) fn split_matrix(
        &mut self,
        name: &str,
        rows: &[usize],
        cols: usize,
    ) -> Result<Vec<PackedMatrix>, LoadError> {
        let tensor = self.take(name, &[cols, rows.iter().sum()])?;
        pack(&mut self.arena, name, &tensor, rows, cols)
    }

    /// Two matrices whose rows take turns in one tensor, `run` rows at a time.
    pub(crate) fn alternating_matrices(
        &mut self,
        name: &str,
        runs: usize,
        run: usize,
        cols: usize,
    ) -> Result<[PackedMatrix; 2], LoadError> {
        let tensor = self.take(name, &[cols, 2 * runs * run])?;
        let (kind, bytes) = weights(&tensor)?;
        let run_bytes = bytes.len() / (2 * runs);
        let part = |which: usize| -> Vec<u8> {
            bytes.chunks_exact(run_bytes).skip(which).step_by(2).flatten().copied().collect()
        };
        let mut pack = |bytes: Vec<u8>| {
            let packed = PackedMatrix::pack(kind, runs * run, cols, &bytes, &mut self.arena);
            packed.map_err(|source| LoadError::Pack { tensor: name.to_owned(), source })
        };
        let both = [pack(part(0))?, pack(part(1))?];
        tensor.give_back();
        Ok(both)
    }

    /// The kernel of a convolution, `[taps, channels]`; in files the taps of a channel stand together.
    pub(crate) fn conv_kernel(&mut self, name: &str, taps: usize, channels: usize) -> Result<Vec<f32>, LoadError> {
        let by_channel = finite_floats(&self.take(name, &[taps, channels])?, taps * channels)?;
        Ok((0..taps).flat_map(|tap| by_channel.iter().skip(tap).step_by(taps).copied()).collect())
    }

    /// Matrices of experts, which are one tensor.
    pub(crate) fn matrices(
        &mut self,
        name: &str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Vec<PackedMatrix>, LoadError> {
        let tensor = self.take(name, &[cols, rows, count])?;
        pack(self.expert_arena(), name, &tensor, &vec![rows; count], cols)
    }

    /// Pairs of matrices of experts, which are one tensor: those of a pair stand below each other.
    pub(crate) fn matrix_pairs(
        &mut self,
        name: &str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Vec<[PackedMatrix; 2]>, LoadError> {
        let tensor = self.take(name, &[cols, 2 * rows, count])?;
        let mut all = pack(self.expert_arena(), name, &tensor, &vec![rows; 2 * count], cols)?.into_iter();
        Ok(std::iter::from_fn(|| Some([all.next()?, all.next()?])).collect())
    }

    /// Returns where the weights of experts go: with all others, unless they have a file of their own.
    fn expert_arena(&mut self) -> &mut Arena {
        self.expert_arena.as_mut().unwrap_or(&mut self.arena)
    }

    /// Fails if the file holds a tensor that nobody asked for.
    pub(crate) fn finish(self) -> Result<(), LoadError> {
        // Blocks behind the last layer draft tokens, which we do otherwise.
        let is_behind = |name: &str| {
            let number = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map(|(number, _)| number);
            number.and_then(|number| number.parse::<usize>().ok()).is_some_and(|number| self.drafting.contains(&number))
        };
        let is_left = |tensor: &Tensor<'_>| !self.taken.contains(tensor.name) && !is_behind(tensor.name);
        match self.gguf.tensors().find(is_left) {
            Some(tensor) => Err(LoadError::UnknownTensor(tensor.name.to_owned())),
            None => Ok(()),
        }
    }
}

/// Repacks matrices that stand below each other in a tensor.
fn pack(
    arena: &mut Arena,
    name: &str,
    tensor: &Tensor<'_>,
    rows: &[usize],
    cols: usize,
) -> Result<Vec<PackedMatrix>, LoadError> {
    let (kind, bytes) = weights(tensor)?;
    let row_bytes = bytes.len() / rows.iter().sum::<usize>().max(1);
    let mut rest = &bytes[..];
    let mut packed = Vec::with_capacity(rows.len());
    for rows in rows {
        let (bytes, after) = rest.split_at(rows * row_bytes);
        rest = after;
        let matrix = PackedMatrix::pack(kind, *rows, cols, bytes, arena);
        packed.push(matrix.map_err(|source| LoadError::Pack { tensor: name.to_owned(), source })?);
    }
    tensor.give_back();
    Ok(packed)
}

/// Returns the weights of matrices, quantized if they are to be.
fn weights<'a>(tensor: &Tensor<'a>) -> Result<(WeightType, Cow<'a, [u8]>), LoadError> {
    let Some(to) = tensor.packed_as else { return Ok((tensor.kind, tensor.bytes())) };
    match quantize_rows(tensor.kind, to, tensor.dims[0], &tensor.bytes()) {
        Ok(packed) => Ok((to, Cow::Owned(packed))),
        Err(source) => Err(LoadError::Quantize { tensor: tensor.name.to_owned(), source }),
    }
}

fn finite_floats(tensor: &Tensor<'_>, len: usize) -> Result<Vec<f32>, LoadError> {
    let mut floats = vec![0.0; len];
    dequantize_row(tensor.kind, &tensor.bytes(), &mut floats);
    match floats.iter().position(|float| !float.is_finite()) {
        Some(index) => Err(LoadError::NotFinite { tensor: tensor.name.to_owned(), index, got: floats[index] }),
        None => Ok(floats),
    }
}
