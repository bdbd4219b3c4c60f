//! Hidden states of tokens: what is behind the last layer, kept in 8 bits beside the keys and values. Where these are
//! cached, so are the states, and a mean over tokens is the same whether they were computed now or before.
//!
//! One state for each token rather than sums over pages: what is asked about begins and ends anywhere.

/// Elements with a scale of their own: some channels of a state are many times larger than the rest.
const BLOCK: usize = 64;
const SCALE_BYTES: usize = size_of::<f32>();

/// Returns the bytes of a state with `width` elements. The format must not change unless the cache's namespace does: states outlive the
/// process with their pages.
pub(crate) fn sidecar_bytes(width: usize) -> usize {
    width + width.div_ceil(BLOCK) * SCALE_BYTES
}

/// Keeps a state.
pub(crate) fn write(state: &[f32], note: &mut [u8]) {
    for (block, bytes) in state.chunks(BLOCK).zip(note.chunks_mut(SCALE_BYTES + BLOCK)) {
        // Floats without a sign are in the order of their bits, which are compared several at a time.
        let largest = f32::from_bits(block.iter().map(|x| x.abs().to_bits()).max().unwrap_or(0));
        let (scale, inverse) = if largest > 0.0 { (largest / 127.0, 127.0 / largest) } else { (0.0, 0.0) };
        let (scale_bytes, codes) = bytes.split_at_mut(SCALE_BYTES);
        scale_bytes.copy_from_slice(&scale.to_le_bytes());
        for (code, x) in codes.iter_mut().zip(block) {
            *code = round(x * inverse) as u8;
        }
    }
}

/// The nearest integer, in the lowest bits of a float so large that it has no others: `f32::round` is a function call on
/// the oldest processors that we are built for.
fn round(x: f32) -> i32 {
    const SHIFT: f32 = (3 << 22) as f32;
    (x + SHIFT).to_bits() as i32 - SHIFT.to_bits() as i32
}

/// The mean of the states in some notes. Those that nobody wrote do not count: pages may come from a disk to which they were
/// saved without. `None` if there are no others.
pub(crate) fn mean<'n>(width: usize, notes: impl Iterator<Item = &'n [u8]>) -> Option<Vec<f32>> {
    let mut sum = vec![0f32; width];
    let mut count = 0;
    for note in notes.filter(|note| note.iter().any(|byte| *byte != 0)) {
        count += 1;
        for (block, bytes) in sum.chunks_mut(BLOCK).zip(note.chunks(SCALE_BYTES + BLOCK)) {
            let Some((scale, codes)) = bytes.split_first_chunk() else { continue };
            let scale = f32::from_le_bytes(*scale);
            block.iter_mut().zip(codes).for_each(|(sum, code)| *sum += scale * f32::from(*code as i8));
        }
    }
    sum.iter_mut().for_each(|sum| *sum /= count as f32);
    (count > 0).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(state: &[f32]) -> Vec<u8> {
        let mut note = vec![0; sidecar_bytes(state.len())];
        write(state, &mut note);
        note
    }

    #[test]
    fn a_state_is_kept_to_within_half_a_step_of_its_block() {
        let state: Vec<f32> =
            (0..160).map(|i| ((i * 37 % 80) as f32 - 40.0) * if i < 64 { 100.0 } else { 0.1 }).collect();
        let kept = mean(160, [&noted(&state)[..]].into_iter()).unwrap();
        for (block, kept) in state.chunks(BLOCK).zip(kept.chunks(BLOCK)) {
            let largest = block.iter().fold(0f32, |largest, x| largest.max(x.abs()));
            for (x, kept) in block.iter().zip(kept) {
                assert!((x - kept).abs() <= largest / 127.0 * 0.501, "{kept} for {x}");
            }
        }
    }

    #[test]
    fn a_mean_is_over_the_states_that_are_known() {
        let (a, b, unknown) = (noted(&[1.0; 40]), noted(&[3.0; 40]), vec![0; sidecar_bytes(40)]);
        let mean_of = |notes: &[&Vec<u8>]| mean(40, notes.iter().map(|note| &note[..]));
        assert_eq!(mean_of(&[&a, &unknown, &b]), Some(vec![2.0; 40]));
        assert_eq!(mean_of(&[&unknown]), None);
    }
}
