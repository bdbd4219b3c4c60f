//! A checked model file as candle reads one: a table of contents, and a reader of the bytes behind it.
//!
//! Candle sees the tensors that it asks for and nothing else, each in a place of its own, whatever they are stored as.

use std::borrow::Cow;
use std::io::{self, Read, Seek, SeekFrom};

use candle_core::Shape;
use candle_core::quantized::gguf_file::{Content, TensorInfo, Value, VersionedMagic};
use ruvllm_model::formats::gguf::Tensor;

use super::tensors::Found;

/// Returns the table of contents.
pub(super) fn content(metadata: Vec<(String, Value)>, tensors: &[Found<'_>]) -> Content {
    let mut offset = 0;
    let mut info = |found: &Found<'_>| {
        let shape = Shape::from(found.dims.iter().rev().copied().collect::<Vec<_>>());
        let info = TensorInfo { ggml_dtype: found.kind, shape, offset };
        offset += found.bytes() as u64;
        (found.name.clone(), info)
    };
    Content {
        magic: VersionedMagic::GgufV3,
        metadata: metadata.into_iter().collect(),
        tensor_infos: tensors.iter().map(&mut info).collect(),
        tensor_data_offset: 0,
    }
}

/// Reads tensors one after the other, in the order of the table of contents.
pub(super) struct TensorReader<'a> {
    parts: Vec<Tensor<'a>>,
    /// Where each part ends.
    ends: Vec<u64>,
    position: u64,
    /// The part that was read last: what is made of a file is made once.
    open: Option<(usize, Cow<'a, [u8]>)>,
    /// Bytes of whole parts that were read.
    done: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl<'a> TensorReader<'a> {
    pub(super) fn new(tensors: Vec<Found<'a>>, progress: &'a mut dyn FnMut(u64)) -> Self {
        let parts: Vec<Tensor<'a>> = tensors.into_iter().flat_map(|found| found.parts).collect();
        let ends = parts.iter().scan(0, |end, part| {
            *end += part.bytes_len() as u64;
            Some(*end)
        });
        Self { ends: ends.collect(), parts, position: 0, open: None, done: 0, progress }
    }

    /// Returns the bytes of a part.
    fn part(&mut self, index: usize) -> &[u8] {
        if self.open.as_ref().is_none_or(|(open, _)| *open != index) {
            if let Some((before, _)) = self.open.take() {
                // Candle has its copy.
                self.parts[before].give_back();
            }
            self.done += self.parts[index].bytes_len() as u64;
            (self.progress)(self.done.min(self.ends.last().copied().unwrap_or(0)));
        }
        let parts = &self.parts;
        &self.open.get_or_insert_with(|| (index, parts[index].bytes())).1
    }
}

impl Read for TensorReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let index = self.ends.partition_point(|end| *end <= self.position);
        let Some(end) = self.ends.get(index).copied() else { return Ok(0) };
        let position = self.position;
        let part = self.part(index);
        let rest = &part[part.len() - (end - position) as usize..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for TensorReader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let end = self.ends.last().copied().unwrap_or(0);
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(back) => end.checked_add_signed(back),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
