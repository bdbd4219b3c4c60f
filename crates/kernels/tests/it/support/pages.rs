//! What the bytes of a page stand for, read from the description of the formats and from nothing else.

use half::f16;
use ruvllm_runner::{KeyFormat, KvHeads, KvShape, PageFormat, ValueFormat};

const TOKENS: usize = 16;

/// The numbers of a cell: `[token][dimension]`.
pub type Numbers = Vec<Vec<f64>>;

/// Keys and values of one head of one layer, and the step with which each number was rounded (none for half floats).
pub struct CellNumbers {
    pub keys: Numbers,
    pub values: Numbers,
    pub key_steps: Numbers,
    pub value_steps: Numbers,
}

/// Bytes of lines and of scales that the keys and the values of a cell take.
fn sizes(format: PageFormat, dim: usize) -> [(usize, usize); 2] {
    let groups = dim.div_ceil(32);
    let keys = match format.keys {
        KeyFormat::F16 => (dim * 32, 0),
        KeyFormat::Q8 => (dim * 16, groups * 32),
        KeyFormat::Q6 => (dim * 12, 2 * dim + 4),
        KeyFormat::Q4 => (dim * 8, 2 * dim + 4),
    };
    let values = match format.values {
        ValueFormat::F16 => (dim * 32, 0),
        ValueFormat::Q8 => (dim * 16, dim.div_ceil(64) * 32),
        ValueFormat::Q4 => (dim * 8, dim.div_ceil(64) * 34),
    };
    [keys, values]
}

pub fn read(bytes: &[u8], format: PageFormat, shape: KvShape, layer: usize, head: usize) -> CellNumbers {
    let KvHeads { count, dim } = shape.heads;
    let [(key_lines, key_scales), (value_lines, value_scales)] = sizes(format, dim);
    let (cells, cell) = (shape.layers * count, layer * count + head);
    let lines = &bytes[cell * (key_lines + value_lines)..][..key_lines + value_lines];
    let scales = &bytes[cells * (key_lines + value_lines) + cell * (key_scales + value_scales)..];
    let (key_lines, value_lines) = lines.split_at(key_lines);
    let (key_scales, value_scales) = scales.split_at(key_scales);
    let table = |number: &dyn Fn(usize, usize) -> f64| -> Numbers {
        (0..TOKENS).map(|t| (0..dim).map(|d| number(t, d)).collect()).collect()
    };
    CellNumbers {
        keys: table(&|t, d| key(format.keys, key_lines, key_scales, dim, t, d).0),
        key_steps: table(&|t, d| key(format.keys, key_lines, key_scales, dim, t, d).1),
        values: table(&|t, d| value(format.values, value_lines, value_scales, dim, t, d).0),
        value_steps: table(&|t, d| value(format.values, value_lines, value_scales, dim, t, d).1),
    }
}

fn half_at(bytes: &[u8], index: usize) -> f64 {
    f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f64()
}

fn key(format: KeyFormat, lines: &[u8], scales: &[u8], dim: usize, t: usize, d: usize) -> (f64, f64) {
    // Within its group of 32 (or of 16, the last): the quad of dimensions and how many there are.
    let (g, quad, quads) = (d / 32, d % 32 / 4, (dim - d / 32 * 32).min(32) / 4);
    let part = |start: usize, shared: usize, bits: usize| {
        let line = start + quad % (quads / shared) * 64;
        u32::from(lines[line + t * 4 + d % 4]) >> (quad / (quads / shared) * bits) & ((1 << bits) - 1)
    };
    let channel = |code: u32, zero: u32| {
        let scale = f64::from(scales[d]) * half_at(&scales[2 * dim..], 0);
        let offset = f64::from(scales[dim + d] as i8) * half_at(&scales[2 * dim..], 1);
        (offset + scale * (f64::from(code) - f64::from(zero)), scale)
    };
    match format {
        KeyFormat::F16 => (half_at(lines, d * TOKENS + t), 0.0),
        KeyFormat::Q8 => {
            let scale = half_at(scales, g * TOKENS + t);
            ((f64::from(lines[d / 4 * 64 + t * 4 + d % 4]) - 128.0) * scale, scale)
        }
        KeyFormat::Q6 => channel(part(g * 256, 2, 4) | part(dim * 8 + g * 128, 4, 2) << 4, 32),
        KeyFormat::Q4 => channel(part(g * 256, 2, 4), 8),
    }
}

fn value(format: ValueFormat, lines: &[u8], scales: &[u8], dim: usize, t: usize, d: usize) -> (f64, f64) {
    match format {
        ValueFormat::F16 => (half_at(lines, t * dim + d), 0.0),
        ValueFormat::Q8 => {
            let scale = half_at(scales, d / 64 * TOKENS + t);
            let code = lines[d / 16 * 256 + t / 2 * 32 + d % 16 * 2 + t % 2] as i8;
            (f64::from(code) * scale, scale)
        }
        ValueFormat::Q4 => {
            let group = &scales[d / 64 * 34..][..34];
            let scale = f64::from(group[t]) * half_at(&group[32..], 0);
            let at = d / 16 * 128 + t / 8 * 64 + d % 16 * 4 + t % 2 * 2;
            let word = u16::from_le_bytes([lines[at], lines[at + 1]]);
            let code = word >> (t % 8 / 2 * 4) & 15;
            (scale * (f64::from(code) - f64::from(group[16 + t]) / 16.0), scale)
        }
    }
}
