//! Tensors that are in no GGUF file, but made of parts of other files when they are read.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ruvllm_kernels::{WeightType, dequantize_row};

use crate::formats::map::FileBytes;

/// Bytes of a block of MXFP4 without its exponent.
const MXFP4_CODES: usize = 16;

/// Bytes of a file.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub file: FileBytes,
    pub range: Range<usize>,
}

impl Part {
    pub fn bytes(&self) -> &[u8] {
        &self.file[self.range.clone()]
    }
}

/// How the bytes of a tensor are made: parts stand one behind the other, and then each step changes them.
#[derive(Clone, Debug)]
pub(crate) struct Assembly {
    pub parts: Vec<Part>,
    pub steps: Vec<Step>,
}

/// Takes chunks of bytes in another order, and perhaps not all of them.
#[derive(Clone)]
pub(crate) struct Gather {
    /// Bytes of a chunk.
    pub chunk: usize,
    /// The order is the same in each group of this many chunks,
    pub group: usize,
    /// of which this many are left.
    pub left: usize,
    /// Which chunk of a group becomes the one of this number.
    pub pick: Arc<dyn Fn(usize) -> usize + Send + Sync>,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Gather(Gather),
    /// Floats of the type become 32-bit ones.
    ToF32 {
        from: WeightType,
        change: fn(f32) -> f32,
    },
    /// Codes of all blocks, two neighbours in a byte, and then the exponents of all become blocks as GGUF has them.
    Mxfp4,
}

impl Assembly {
    /// Makes the bytes. Those of a single part that nothing changes are borrowed.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        let whole = match &self.parts[..] {
            [part] => Cow::Borrowed(part.bytes()),
            parts => Cow::Owned(parts.iter().map(Part::bytes).collect::<Vec<_>>().concat()),
        };
        self.steps.iter().fold(whole, |bytes, step| Cow::Owned(step.apply(&bytes)))
    }

    /// Gives the memory behind the parts back to the system.
    pub fn give_back(&self) {
        for part in &self.parts {
            // Advice only.
            let _ = part.file.give_back(part.range.clone());
        }
    }
}

impl Step {
    fn apply(&self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Gather(gather) => gather.apply(bytes),
            Self::ToF32 { from, change } => {
                let mut floats = vec![0.0; bytes.len() / from.block_bytes() * from.block_len()];
                dequantize_row(*from, bytes, &mut floats);
                floats.into_iter().flat_map(|float| change(float).to_le_bytes()).collect()
            }
            Self::Mxfp4 => {
                let (codes, exponents) = bytes.split_at(bytes.len() / (MXFP4_CODES + 1) * MXFP4_CODES);
                let blocks = codes.chunks_exact(MXFP4_CODES).zip(exponents);
                blocks.flat_map(|(codes, exponent)| mxfp4_block(codes, *exponent)).collect()
            }
        }
    }
}

/// GGUF keeps a block's first sixteen codes in the low halves of its bytes and the others in the high ones.
fn mxfp4_block(codes: &[u8], exponent: u8) -> [u8; MXFP4_CODES + 1] {
    let code = |index: usize| codes[index / 2] >> (4 * (index % 2)) & 15;
    std::array::from_fn(|byte| match byte {
        0 => exponent,
        byte => code(byte - 1) | code(byte - 1 + MXFP4_CODES) << 4,
    })
}

impl Gather {
    fn apply(&self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len() / self.group * self.left);
        for group in bytes.chunks_exact(self.chunk * self.group) {
            for number in 0..self.left {
                let start = (self.pick)(number) * self.chunk;
                out.extend_from_slice(&group[start..start + self.chunk]);
            }
        }
        out
    }
}

impl fmt::Debug for Gather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gather({} of {} chunks of {} bytes)", self.left, self.group, self.chunk)
    }
}
