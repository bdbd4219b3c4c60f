//! Random weights, a pool for every kernel set, and reading results back through the public operations.

pub mod page_store;
pub mod pages;
pub mod sequence;

use half::f16;
use ruvllm_kernels::ops::{Activations, Linear, Matrix, matmul};
use ruvllm_kernels::{Arena, KernelSet, PackedMatrix, Pool, WeightType};

/// A small generator (SplitMix64): the same numbers for the same seed everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Uniform in -1..1.
    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.float()).collect()
    }

    /// Rows of random blocks with moderate scales.
    pub fn weights(&mut self, kind: WeightType, rows: usize, cols: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..rows * kind.row_bytes(cols).unwrap()).map(|_| self.next() as u8).collect();
        let halves: &[usize] = match kind {
            WeightType::Q4_0 | WeightType::Q5_0 | WeightType::Q8_0 | WeightType::Iq4Nl | WeightType::Iq4Xs => &[0],
            WeightType::Q4_1 | WeightType::Q5_1 | WeightType::Q4K | WeightType::Q5K => &[0, 2],
            WeightType::Q2K => &[80, 82],
            WeightType::Q3K => &[108],
            WeightType::Q6K => &[208],
            WeightType::F16 => &[0],
            _ => &[],
        };
        for block in bytes.chunks_exact_mut(kind.block_bytes()) {
            for at in halves {
                block[*at..at + 2].copy_from_slice(&f16::from_f32(self.float() * 0.01).to_le_bytes());
            }
            match kind {
                WeightType::Mxfp4 => block[0] = 118 + self.below(8) as u8,
                WeightType::F32 => block.copy_from_slice(&self.float().to_le_bytes()),
                WeightType::Bf16 => block.copy_from_slice(&half::bf16::from_f32(self.float()).to_le_bytes()),
                _ => {}
            }
        }
        bytes
    }
}

/// A pool for every kernel set of this machine, with one and with three threads.
pub fn pools() -> impl Iterator<Item = (KernelSet, Pool)> {
    // An emulator is for what only the other processor has: threads that wait for each other take it minutes.
    let is_emulated = std::env::var_os("RUVLLM_EMULATED").is_some();
    let sets = KernelSet::available().filter(move |set| !is_emulated || *set != KernelSet::Scalar);
    sets.flat_map(move |set| [1, if is_emulated { 2 } else { 3 }].map(|threads| (set, Pool::new(threads, set))))
}

/// `rows` as a matrix.
pub fn matrix(pool: &Pool, rows: &[Vec<f32>]) -> Matrix {
    let mut matrix = Matrix::new(pool, rows.len(), rows[0].len());
    for (t, row) in rows.iter().enumerate() {
        matrix.row_mut(t).copy_from_slice(row);
    }
    matrix
}

/// A matrix of one part.
pub fn linear(kind: WeightType, rows: usize, cols: usize, bytes: &[u8]) -> Linear {
    Linear::new(vec![PackedMatrix::pack(kind, rows, cols, bytes, &mut Arena::new()).unwrap()], None).unwrap()
}

/// The identity for floats, and for numbers rounded to 8 bits where columns are whole groups of 32.
pub fn identities(cols: usize) -> Vec<Linear> {
    let floats: Vec<u8> = (0..cols * cols).flat_map(|i| f32::from(i % (cols + 1) == 0).to_le_bytes()).collect();
    let mut identities = vec![linear(WeightType::F32, cols, cols, &floats)];
    if cols.is_multiple_of(32) {
        let blocks = (0..cols * cols / 32).flat_map(|block| {
            let mut bytes = [0u8; 34];
            bytes[..2].copy_from_slice(&f16::ONE.to_le_bytes());
            for (i, code) in bytes[2..].iter_mut().enumerate() {
                *code = u8::from((block * 32 + i) % (cols + 1) == 0);
            }
            bytes
        });
        identities.push(linear(WeightType::Q8_0, cols, cols, &blocks.collect::<Vec<u8>>()));
    }
    identities
}

/// Room for inputs that can be read back, as floats and rounded.
pub fn readable(pool: &Pool, rows: usize, cols: usize) -> Activations {
    Activations::new(pool, rows, &identities(cols))
}

/// The floats of the first `rows` rows of `readable` inputs. Exact where they are finite: the others of a row are
/// multiplied by zero.
pub fn floats(pool: &mut Pool, activations: &Activations, rows: usize) -> Vec<Vec<f32>> {
    through(pool, activations, rows, &identities(activations.cols())[0])
}

/// What the 8-bit codes of the first `rows` rows stand for: code times scale.
pub fn rounded(pool: &mut Pool, activations: &Activations, rows: usize) -> Vec<Vec<f32>> {
    through(pool, activations, rows, &identities(activations.cols())[1])
}

/// The first rows times a square matrix.
fn through(pool: &mut Pool, input: &Activations, rows: usize, square: &Linear) -> Vec<Vec<f32>> {
    let mut out = Matrix::new(pool, rows, input.cols());
    pool.run(|worker| matmul(worker, square, input, rows, &out));
    (0..rows).map(|t| out.row_mut(t).to_vec()).collect()
}
