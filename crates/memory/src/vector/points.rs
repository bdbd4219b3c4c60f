//! The distinct vectors of a segment.

use ruvllm_kernels::KernelSet;
use ruvllm_kernels::ops::ByteRows;

use super::best::Scored;
use super::code::VectorCode;

/// Maximum number of points of a segment: 16 bits, with one value left for `NONE`.
pub(super) const POINTS_MAX: usize = u16::MAX as usize;
/// Stands for no point or no entry.
pub(super) const NONE: u16 = u16::MAX;

/// Vectors by number.
#[derive(Debug)]
pub(super) struct Points {
    dimension: usize,
    rows: ByteRows,
    scales: Vec<f32>,
    /// 0 where the vector is not known.
    fingerprints: Vec<u64>,
}

/// A vector to compare others with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe<'a> {
    /// Padded with zeros to whole cache lines.
    pub row: &'a [i8],
    pub scale: f32,
}

impl Points {
    pub fn new(dimension: usize, points_max: usize) -> Self {
        let rows = ByteRows::new(KernelSet::best(), dimension, points_max.min(POINTS_MAX));
        Self { dimension, rows, scales: Vec::new(), fingerprints: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.scales.len()
    }

    pub fn is_full(&self) -> bool {
        self.len() == self.rows.rows_max()
    }

    pub fn push(&mut self, code: &VectorCode) -> u16 {
        self.rows.push(code.codes());
        self.scales.push(code.scale());
        self.fingerprints.push(code.fingerprint());
        (self.len() - 1) as u16
    }

    /// Adds `count` points whose vectors are not known yet.
    pub fn extend_unknown(&mut self, points: usize) {
        self.rows.extend_to(points);
        self.scales.resize(points, 0.0);
        self.fingerprints.resize(points, 0);
    }

    pub fn is_known(&self, point: u16) -> bool {
        self.fingerprint(point) != 0
    }

    pub fn set(&mut self, point: u16, code: &VectorCode) {
        self.rows.set(usize::from(point), code.codes());
        self.scales[usize::from(point)] = code.scale();
        self.fingerprints[usize::from(point)] = code.fingerprint();
    }

    pub fn fingerprint(&self, point: u16) -> u64 {
        self.fingerprints[usize::from(point)]
    }

    pub fn is(&self, point: u16, code: &VectorCode) -> bool {
        self.rows.row(usize::from(point)).starts_with(code.codes())
    }

    /// Returns the codes of a point's vector, with their padding.
    pub fn row(&self, point: u16) -> &[i8] {
        self.rows.row(usize::from(point))
    }

    pub fn code(&self, point: u16) -> VectorCode {
        VectorCode::from_codes(self.row(point)[..self.dimension].into())
    }

    pub fn probe(&self, point: u16) -> Probe<'_> {
        Probe { row: self.row(point), scale: self.scales[usize::from(point)] }
    }

    /// Computes the cosine similarities with the given points.
    pub fn score(&self, probe: &Probe<'_>, points: &[u32], dots: &mut Vec<i32>) -> impl Iterator<Item = Scored> {
        dots.resize(points.len(), 0);
        self.rows.dots(probe.row, points, dots);
        points
            .iter()
            .zip(dots.iter())
            .map(|(point, dot)| Scored::new(*dot as f32 * (self.scales[*point as usize] * probe.scale), *point))
    }

    pub fn memory_bytes(&self) -> usize {
        self.rows.memory_bytes() + self.scales.capacity() * (size_of::<f32>() + size_of::<u64>())
    }
}
