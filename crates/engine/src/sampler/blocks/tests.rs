use std::hint::black_box;
use std::time::Instant;

use proptest::prelude::*;

use super::*;
use crate::random::Random;
use crate::sampler::keep_likeliest;

/// The plain way: the first largest, or none if there is no largest.
fn argmax(logits: &[f32]) -> Result<u32, NotANumber> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if !largest.is_finite() || logits.iter().any(|logit| logit.is_nan()) {
        return Err(NotANumber);
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
    let mut blocks = Blocks::default();
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
        let mut random = Random::new(seed);
        let level = |random: &mut Random| (random.unit() * f64::from(levels)) as f32 - 3.0;
        let logits: Vec<f32> = (0..length).map(|_| level(&mut random)).collect();
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

/// `cargo test --release -p ruvllm-engine -- --ignored --nocapture blocks` prints how long the passes take.
#[test]
#[ignore = "a measurement"]
fn time_of_a_vocabulary() {
    let mut random = Random::new(1);
    let logits: Vec<f32> = (0..49_152).map(|_| (random.unit() * 20.0 - 10.0) as f32).collect();
    let (mut blocks, mut candidates) = (Blocks::default(), Vec::new());
    let mut least = [f64::MAX; 4];
    for _ in 0..300 {
        let mut time = |slot: usize, work: &mut dyn FnMut()| {
            let started = Instant::now();
            work();
            least[slot] = least[slot].min(started.elapsed().as_secs_f64() * 1e6);
        };
        time(0, &mut || {
            let largest = blocks.scan(black_box(&logits)).unwrap();
            black_box(blocks.first(&logits, largest));
        });
        time(1, &mut || {
            black_box(argmax(black_box(&logits)).unwrap());
        });
        time(2, &mut || {
            blocks.scan(black_box(&logits)).unwrap();
            blocks.likeliest(&logits, 40, &mut candidates);
            keep_likeliest(black_box(&mut candidates), 40);
        });
        time(3, &mut || {
            black_box(likeliest(black_box(&logits), 40));
        });
    }
    let [greedy, greedy_before, top, top_before] = least;
    println!("largest {greedy:.1} µs (plain {greedy_before:.1}), top 40 {top:.1} µs (plain {top_before:.1})");
}
