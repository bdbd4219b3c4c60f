//! K-quants: 256 weights in groups, whose scales (and offsets) are small whole numbers times two half floats.
//!
//! First each group's line is found freely. Then, in turns: every group takes the whole numbers nearby that suit it
//! best under the present half floats, and the half floats are fitted to all groups' choices by least squares.

use half::f16;

use super::line::{Codes, Fit, Line, Offset};
use super::{Block, half};

const GROUPS_MAX: usize = 16;
/// Turns in which the half floats are fitted again. A turn that does not help is the last.
const TURNS: usize = 2;

#[derive(Clone, Copy, Debug)]
pub(super) struct Superblock {
    pub group_len: usize,
    pub codes: Codes,
    /// Least and greatest factor of a group's scale.
    pub sub_scales: (i32, i32),
    /// Greatest factor of a group's offset; 0 if the format has none.
    pub sub_offset_max: i32,
}

/// A group's whole numbers, and how well they do.
#[derive(Clone, Copy, Debug, Default)]
struct Choice {
    scale: i32,
    offset: i32,
    fit: Fit,
}

/// The two half floats (the second is what is subtracted) and all groups' choices under them.
#[derive(Clone, Copy, Debug)]
struct Solution {
    scale: f16,
    offset: f16,
    choices: [Choice; GROUPS_MAX],
    error: f32,
}

impl Superblock {
    pub(super) fn fit(&self, values: &[f32], block: &mut Block) {
        let rule = if self.sub_offset_max > 0 { Offset::NotPositive } else { Offset::None };
        let mut lines = [Line { scale: 0.0, offset: 0.0 }; GROUPS_MAX];
        for (line, group) in lines.iter_mut().zip(values.chunks_exact(self.group_len)) {
            *line = Line::search(group, self.codes, rule);
        }
        let (scale, offset) = self.first_halves(&lines);
        let mut best = self.choose(values, scale, offset, |g| self.nearest(lines[g], scale, offset));
        for _ in 0..TURNS {
            let (scale, offset) = best.refitted();
            let next = self.choose(values, scale, offset, |g| (best.choices[g].scale, best.choices[g].offset));
            if next.error >= best.error {
                break;
            }
            best = next;
        }
        self.write(values, &best, block);
    }

    /// Half floats that let the largest scale and offset be represented.
    fn first_halves(&self, lines: &[Line; GROUPS_MAX]) -> (f16, f16) {
        let extreme = lines.iter().map(|line| line.scale).fold(0f32, |a, b| if b.abs() > a.abs() { b } else { a });
        let (low, high) = self.sub_scales;
        let scale = if low < 0 { extreme / low as f32 } else { extreme / high as f32 };
        let deepest = lines.iter().map(|line| -line.offset).fold(0f32, f32::max);
        (half(scale), half(deepest / self.sub_offset_max.max(1) as f32))
    }

    fn nearest(&self, line: Line, scale: f16, offset: f16) -> (i32, i32) {
        let nearest =
            |wanted: f32, unit: f16| if unit == f16::ZERO { 0 } else { (wanted / unit.to_f32()).round() as i32 };
        (nearest(line.scale, scale), nearest(-line.offset, offset))
    }

    /// For every group the best of the whole numbers around `start(group)`.
    fn choose(&self, values: &[f32], scale: f16, offset: f16, start: impl Fn(usize) -> (i32, i32)) -> Solution {
        let (low, high) = self.sub_scales;
        let mut choices = [Choice::default(); GROUPS_MAX];
        for (g, group) in values.chunks_exact(self.group_len).enumerate() {
            let (sub_scale, sub_offset) = start(g);
            let mut least_error = f32::INFINITY;
            for scale_step in -1..=1 {
                for offset_step in if self.sub_offset_max > 0 { -1..=1 } else { 0..=0 } {
                    let sub_scale = (sub_scale + scale_step).clamp(low, high);
                    let sub_offset = (sub_offset + offset_step).clamp(0, self.sub_offset_max);
                    let fit = line(scale, offset, sub_scale, sub_offset).fit(group, self.codes);
                    if fit.error < least_error {
                        least_error = fit.error;
                        choices[g] = Choice { scale: sub_scale, offset: sub_offset, fit };
                    }
                }
            }
        }
        let error = choices.iter().map(|choice| choice.fit.error).sum();
        Solution { scale, offset, choices, error }
    }

    fn write(&self, values: &[f32], solution: &Solution, block: &mut Block) {
        block.scale = solution.scale;
        block.offset = -solution.offset;
        let groups = values.chunks_exact(self.group_len).zip(block.codes.chunks_exact_mut(self.group_len));
        for (g, (group, codes)) in groups.enumerate() {
            let choice = solution.choices[g];
            block.sub_scales[g] = choice.scale as i8;
            block.sub_offsets[g] = choice.offset as u8;
            line(solution.scale, solution.offset, choice.scale, choice.offset).write_codes(group, self.codes, codes);
        }
    }
}

fn line(scale: f16, offset: f16, sub_scale: i32, sub_offset: i32) -> Line {
    Line { scale: scale.to_f32() * sub_scale as f32, offset: -(offset.to_f32() * sub_offset as f32) }
}

impl Solution {
    /// The best half floats for all groups' whole numbers and codes: least squares in
    /// `weight = scale * (sub_scale * code) - offset * sub_offset`.
    fn refitted(&self) -> (f16, f16) {
        let (mut scales, mut offsets, mut both) = (0f32, 0f32, 0f32);
        let (mut scale_rests, mut offset_rests) = (0f32, 0f32);
        for Choice { scale, offset, fit } in &self.choices {
            let (scale, offset) = (*scale as f32, *offset as f32);
            scales += scale * scale * fit.squared_codes;
            offsets += offset * offset * fit.len;
            both -= scale * offset * fit.codes;
            scale_rests += scale * fit.rests_times_codes;
            offset_rests -= offset * fit.rests;
        }
        let determinant = scales * offsets - both * both;
        let (scale, offset) = if determinant > scales * offsets * 1e-5 {
            (
                (scale_rests * offsets - offset_rests * both) / determinant,
                (offset_rests * scales - scale_rests * both) / determinant,
            )
        } else if scales > 0.0 {
            (scale_rests / scales, 0.0)
        } else {
            (0.0, 0.0)
        };
        (half(self.scale.to_f32() + scale), half((self.offset.to_f32() + offset).max(0.0)))
    }
}
