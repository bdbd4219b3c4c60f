//! The softmax between the two products of attention, one chunk of tokens after the other.

use std::arch::x86_64::*;
use std::f32::consts::{LN_2, LOG2_E};
use std::ops::Range;

use super::{BLOCK_ROWS, SoftmaxBlock};
use crate::kernels::attention::Visible;
use crate::kernels::rows::softcap;
use crate::lanes::{Avx512, LANES, Lanes};
use crate::weights::GROUP;

/// Turns scores into weights relative to the highest so far, to which it scales what was found before.
///
/// # Safety
/// There are scores and room for weights of all queries and tokens, and no query sees more tokens; AVX-512 is there.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn softmax(block: SoftmaxBlock<'_>) {
    let SoftmaxBlock { scores, visible, tokens, largest, total, sums, weights, .. } = block;
    let dim = sums.len() / visible.len();
    for (q, seen) in visible.iter().enumerate() {
        // SAFETY: whole vectors within the query's scores, weights and sums.
        unsafe {
            let to = weights.add((q / BLOCK_ROWS * tokens * BLOCK_ROWS) + q % BLOCK_ROWS * GROUP);
            // Groups of which the query sees anything; what it does not see adds nothing, and is not looked at.
            let groups = if seen.is_empty() { 0..0 } else { seen.start / GROUP..seen.end.div_ceil(GROUP) };
            for group in (0..groups.start).chain(groups.end..tokens / GROUP) {
                _mm512_storeu_si512(to.add(group * GROUP * BLOCK_ROWS).cast(), _mm512_setzero_si512());
            }
            if seen.is_empty() {
                continue;
            }
            let row = scores.start.add(q * scores.stride);
            if let Some(cap) = block.softcap {
                softcap::<Avx512>(cap, std::slice::from_raw_parts_mut(row, tokens));
            }
            let is_whole = seen.start.is_multiple_of(GROUP) && seen.end.is_multiple_of(GROUP);
            let row = Row { scores: row, seen: *seen, groups, to };
            let most = if is_whole { row.largest::<true>() } else { row.largest::<false>() };
            let (before, now) = (largest[q], largest[q].max(most));
            if now > before {
                // Nothing was found before the first chunk, and nothing times zero is nothing.
                let kept = (before - now).exp();
                total[q] *= kept;
                for at in (0..dim).step_by(LANES) {
                    let at = sums.as_mut_ptr().add(q * dim + at);
                    Avx512::store(at, _mm512_mul_ps(Avx512::load(at), _mm512_set1_ps(kept)));
                }
                largest[q] = now;
            }
            total[q] += if is_whole { row.put_weights::<true>(now) } else { row.put_weights::<false>(now) };
        }
    }
}

/// The scores of one query.
struct Row {
    scores: *const f32,
    seen: Visible,
    groups: Range<usize>,
    to: *mut u16,
}

// Of a row that is `WHOLE`, all of its groups are seen wholly.
impl Row {
    /// Returns 16 scores, minus infinity for what is not seen.
    ///
    /// # Safety
    /// They are there; AVX-512 is there.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn scores<const WHOLE: bool>(&self, at: usize) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            if WHOLE {
                return _mm512_loadu_ps(self.scores.add(at));
            }
            // Bit `i` is set where the query sees token `at + i`.
            let below = |end: usize| (1u32 << end.saturating_sub(at).min(LANES)).wrapping_sub(1) as u16;
            let is_seen = below(self.seen.end) & !below(self.seen.start);
            _mm512_mask_loadu_ps(_mm512_set1_ps(f32::NEG_INFINITY), is_seen, self.scores.add(at))
        }
    }

    /// # Safety
    /// The scores are there; AVX-512 is there.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn largest<const WHOLE: bool>(&self) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            let mut most = _mm512_set1_ps(f32::NEG_INFINITY);
            for at in (self.groups.start * GROUP..self.groups.end * GROUP).step_by(LANES) {
                most = _mm512_max_ps(most, self.scores::<WHOLE>(at));
            }
            _mm512_reduce_max_ps(most)
        }
    }

    /// Writes the weights of scores relative to `largest`, and returns their sum.
    ///
    /// # Safety
    /// There are scores and room for weights; AVX-512 is there.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn put_weights<const WHOLE: bool>(&self, largest: f32) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            let largest = _mm512_set1_ps(-largest * LOG2_E);
            let upper_halves = _mm512_loadu_si512(UPPER_HALVES.as_ptr().cast());
            let half = _mm512_set1_epi32(0x8000);
            let mut sum = _mm512_setzero_ps();
            for group in self.groups.clone() {
                let weights = [0, LANES].map(|at| {
                    let score = self.scores::<WHOLE>(group * GROUP + at);
                    power_of_two(_mm512_fmadd_ps(score, _mm512_set1_ps(LOG2_E), largest))
                });
                sum = _mm512_add_ps(sum, _mm512_add_ps(weights[0], weights[1]));
                let [first, second] = weights.map(|weight| _mm512_add_epi32(_mm512_castps_si512(weight), half));
                let line = _mm512_permutex2var_epi16(first, upper_halves, second);
                _mm512_storeu_si512(self.to.add(group * GROUP * BLOCK_ROWS).cast(), line);
            }
            _mm512_reduce_add_ps(sum)
        }
    }
}

/// Where the upper halves of two vectors of floats are: what bf16 keeps of them.
const UPPER_HALVES: [u16; GROUP] = {
    let mut places = [0; GROUP];
    let mut i = 0;
    while i < GROUP {
        places[i] = 2 * i as u16 + 1;
        i += 1;
    }
    places
};

/// Returns powers of two, zero where they would not be normal numbers. As exact as weights in bf16 need: the error is a
/// fiftieth of what rounding adds.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn power_of_two(x: __m512) -> __m512 {
    let is_normal = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, _mm512_set1_ps(-126.0));
    let whole = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
    let rest = _mm512_sub_ps(x, whole);
    // The series of `exp(rest * ln 2)`.
    let mut power = _mm512_set1_ps(LN_2 * LN_2 * LN_2 * LN_2 / 24.0);
    for coefficient in [LN_2 * LN_2 * LN_2 / 6.0, LN_2 * LN_2 / 2.0, LN_2, 1.0] {
        power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(coefficient));
    }
    _mm512_maskz_scalef_ps(is_normal, power, whole)
}
