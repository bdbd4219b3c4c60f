//! The softmax between the two products of attention, one chunk of tokens after the other.

use std::arch::x86_64::*;
use std::f32::consts::LOG2_E;

use super::{BLOCK_ROWS, SoftmaxBlock};
use crate::kernels::rows::softcap;
use crate::lanes::{Avx512, LANES, Lanes};
use crate::weights::GROUP;

/// Turns scores into weights relative to the highest so far, to which it scales what was found before.
///
/// # Safety
/// There are scores and room for weights of all queries and tokens; AVX-512 with bf16 is there.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn softmax(mut block: SoftmaxBlock<'_>) {
    for (query, seen) in block.visible.iter().enumerate() {
        // SAFETY: the caller's promise; masks leave out what is not seen.
        unsafe {
            match (seen.start, seen.end) {
                (0, end) if end >= block.tokens => one_query::<true>(&mut block, query),
                _ => one_query::<false>(&mut block, query),
            }
        }
    }
}

/// # Safety
/// As `softmax`; the query is there, and sees all tokens if `ALL`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,avx2,fma,f16c")]
unsafe fn one_query<const ALL: bool>(block: &mut SoftmaxBlock<'_>, query: usize) {
    let SoftmaxBlock { scores, visible, tokens, largest, total, sums, weights, .. } = block;
    let (seen, tokens, dim) = (visible[query], *tokens, sums.len() / visible.len());
    // SAFETY: whole vectors within the query's scores, weights and sums.
    unsafe {
        let to = weights.add((query / BLOCK_ROWS * tokens * BLOCK_ROWS) + query % BLOCK_ROWS * GROUP);
        if seen.is_empty() {
            for group in 0..tokens / GROUP {
                _mm512_storeu_si512(to.add(group * GROUP * BLOCK_ROWS).cast(), _mm512_setzero_si512());
            }
            return;
        }
        let row = scores.start.add(query * scores.stride);
        if let Some(cap) = block.softcap {
            softcap::<Avx512>(cap, std::slice::from_raw_parts_mut(row, tokens));
        }
        // Bit `i` is set where the query sees token `at + i`.
        let sees = |at: usize| {
            let below = |end: usize| (1u32 << end.saturating_sub(at).min(LANES)).wrapping_sub(1) as u16;
            below(seen.end) & !below(seen.start)
        };
        let score = |at: usize| {
            let nothing = _mm512_set1_ps(f32::NEG_INFINITY);
            if ALL { Avx512::load(row.add(at)) } else { _mm512_mask_loadu_ps(nothing, sees(at), row.add(at)) }
        };
        let mut most = score(0);
        for at in (LANES..tokens).step_by(LANES) {
            most = _mm512_max_ps(most, score(at));
        }
        let (before, now) = (largest[query], largest[query].max(_mm512_reduce_max_ps(most)));
        if now > before {
            // Nothing was found before the first chunk, and nothing times zero is nothing.
            let kept = (before - now).exp();
            total[query] *= kept;
            for at in (0..dim).step_by(LANES) {
                let at = sums.as_mut_ptr().add(query * dim + at);
                Avx512::store(at, _mm512_mul_ps(Avx512::load(at), _mm512_set1_ps(kept)));
            }
            largest[query] = now;
        }
        let now = _mm512_set1_ps(-now * LOG2_E);
        let mut sum = _mm512_setzero_ps();
        for group in 0..tokens / GROUP {
            let weights = |at: usize| {
                let weights = power_of_two(_mm512_fmadd_ps(score(at), _mm512_set1_ps(LOG2_E), now));
                // What is not seen has to weigh nothing at all.
                if ALL { weights } else { _mm512_maskz_mov_ps(sees(at), weights) }
            };
            let (first, second) = (weights(group * GROUP), weights(group * GROUP + LANES));
            sum = _mm512_add_ps(sum, _mm512_add_ps(first, second));
            let line: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(second, first));
            _mm512_storeu_si512(to.add(group * GROUP * BLOCK_ROWS).cast(), line);
        }
        total[query] += _mm512_reduce_add_ps(sum);
    }
}

/// 2 to the power of `x`, at most 0, within 5e-5 of it: weights are rounded to a hundred times that.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,avx2,fma,f16c")]
fn power_of_two(x: __m512) -> __m512 {
    // What is less weighs as good as nothing.
    let x = _mm512_max_ps(x, _mm512_set1_ps(-120.0));
    let whole = _mm512_roundscale_ps::<_MM_FROUND_TO_NEAREST_INT>(x);
    let rest = _mm512_sub_ps(x, whole);
    let mut p = _mm512_set1_ps(9.618_13e-3);
    for c in [5.550_411e-2, 2.402_265e-1, 6.931_472e-1, 1.0] {
        p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(c));
    }
    _mm512_scalef_ps(p, whole)
}
