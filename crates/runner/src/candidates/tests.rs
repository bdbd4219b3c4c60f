use proptest::prelude::*;

use super::*;

/// The plain way: the first largest, or none if there is no largest.
fn argmax(logits: &[f32]) -> Result<u32, NotFinite> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if !largest.is_finite() || logits.iter().any(|logit| logit.is_nan()) {
        return Err(NotFinite);
    }
    let mut best = 0;
    for (i, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = i;
        }
    }
    Ok(best as u32)
}

/// The plain way: all of them, sorted.
fn likeliest(logits: &[f32], count: usize) -> Vec<(u32, u32)> {
    let mut all: Vec<Candidate> = logits.iter().enumerate().map(|(token, logit)| (token as u32, *logit)).collect();
    keep_likeliest(&mut all, count);
    bits(&all)
}

/// Zeros of both signs are equal as numbers and told apart by the order.
fn bits(candidates: &[Candidate]) -> Vec<(u32, u32)> {
    candidates.iter().map(|(token, logit)| (*token, logit.to_bits())).collect()
}

fn check(logits: &[f32], count: usize) -> Result<(), TestCaseError> {
    let mut blocks = CandidateScan::default();
    let first = blocks.scan(logits).map(|largest| blocks.first(logits, largest));
    prop_assert_eq!(&first, &argmax(logits));
    if first.is_ok() {
        let mut candidates = Vec::new();
        blocks.likeliest(logits, count, &mut candidates);
        keep_likeliest(&mut candidates, count);
        prop_assert_eq!(bits(&candidates), likeliest(logits, count));
    }
    Ok(())
}

proptest! {
    #[test]
    fn blocks_find_what_sorting_finds(seed: u64, length in 1usize..3000, levels in 1u32..2000, count in 0usize..80) {
        // Few levels make many equals.
        let mut state = seed;
        let mut level = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % u64::from(levels)) as f32 - 3.0
        };
        let logits: Vec<f32> = (0..length).map(|_| level()).collect();
        check(&logits, count)?;
    }

    #[test]
    fn odd_numbers_are_told_apart_as_before(
        logits in prop::collection::vec(
            prop::sample::select(vec![0.0f32, -0.0, 1.0, -1.0, f32::NEG_INFINITY, f32::MAX, f32::MIN]), 1..300),
        odd in prop::sample::select(vec![0.0f32, f32::NAN, -f32::NAN, f32::INFINITY]),
        at: prop::sample::Index, count in 0usize..10,
    ) {
        check(&logits, count)?;
        let mut logits = logits;
        let at = at.index(logits.len());
        logits[at] = odd;
        check(&logits, count)?;
    }
}
