//! The softmax between the two products of attention, one chunk of tokens after the other.

use std::arch::x86_64::*;

use super::{BLOCK_ROWS, SoftmaxBlock};
use crate::kernels::rows::softcap;
use crate::lanes::{Avx512, LANES, Lanes};
use crate::weights::GROUP;

/// Turns scores into weights relative to the highest so far, to which it scales what was found before.
///
/// # Safety
/// There are scores and room for weights of all queries and tokens; AVX-512 is there.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn softmax(block: SoftmaxBlock<'_>) {
    let SoftmaxBlock { scores, visible, tokens, largest, total, sums, weights, .. } = block;
    let dim = sums.len() / visible.len();
    for (q, seen) in visible.iter().enumerate() {
        // SAFETY: whole vectors within the query's scores, weights and sums.
        unsafe {
            let to = weights.add((q / BLOCK_ROWS * tokens * BLOCK_ROWS) + q % BLOCK_ROWS * GROUP);
            if seen.is_empty() {
                for group in 0..tokens / GROUP {
                    _mm512_storeu_si512(to.add(group * GROUP * BLOCK_ROWS).cast(), _mm512_setzero_si512());
                }
                continue;
            }
            let row = scores.start.add(q * scores.stride);
            if let Some(cap) = block.softcap {
                softcap::<Avx512>(cap, std::slice::from_raw_parts_mut(row, tokens));
            }
            let score = |at: usize| {
                // Bit `i` is set where the query sees token `at + i`.
                let below = |end: usize| (1u32 << end.saturating_sub(at).min(LANES)).wrapping_sub(1) as u16;
                _mm512_mask_loadu_ps(
                    _mm512_set1_ps(f32::NEG_INFINITY),
                    below(seen.end) & !below(seen.start),
                    row.add(at),
                )
            };
            let mut most = score(0);
            for at in (LANES..tokens).step_by(LANES) {
                most = _mm512_max_ps(most, score(at));
            }
            let (before, now) = (largest[q], largest[q].max(_mm512_reduce_max_ps(most)));
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
            let now = _mm512_set1_ps(now);
            let mut sum = _mm512_setzero_ps();
            for group in 0..tokens / GROUP {
                let halves = [0, LANES].map(|half| {
                    // Below -87 an exponential is as good as zero, but not zero, which it has to be where nothing is seen.
                    let relative = _mm512_sub_ps(score(group * GROUP + half), now);
                    let is_seen = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(relative, _mm512_set1_ps(-87.0));
                    _mm512_maskz_mov_ps(is_seen, Avx512::exp(relative))
                });
                sum = _mm512_add_ps(sum, _mm512_add_ps(halves[0], halves[1]));
                for (half, weights) in halves.into_iter().enumerate() {
                    let rounded = _mm512_add_epi32(_mm512_castps_si512(weights), _mm512_set1_epi32(0x8000));
                    let shorts = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded));
                    _mm256_storeu_si256(to.add(group * GROUP * BLOCK_ROWS + half * LANES).cast(), shorts);
                }
            }
            total[q] += _mm512_reduce_add_ps(sum);
        }
    }
}
