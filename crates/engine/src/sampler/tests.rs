use super::*;

/// Logits whose softmax is these probabilities.
fn logits(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln()).collect()
}

/// Everything off but the seed.
fn plain(seed: u64) -> Sampling {
    Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed, ..Sampling::default() }
}

/// How often each token is drawn in many first draws.
fn frequencies(probabilities: &[f32], change: impl Fn(&mut Sampling)) -> Vec<f64> {
    const DRAWS: u64 = 20_000;
    let mut counts = vec![0f64; probabilities.len()];
    let mut sampling = plain(7);
    change(&mut sampling);
    let mut sampler = Sampler::new(sampling, None, &[]);
    for _ in 0..DRAWS {
        let sampled = sampler.sample(&mut logits(probabilities), None).unwrap();
        counts[sampled.token as usize] += 1.0 / DRAWS as f64;
    }
    counts
}

fn check(probabilities: &[f32], change: impl Fn(&mut Sampling), expected: &[f64]) {
    let got = frequencies(probabilities, change);
    for (got, expected) in got.iter().zip(expected) {
        // Five standard deviations of 20,000 draws.
        let tolerance = 5.0 * (expected * (1.0 - expected) / 20_000.0).sqrt() + 1e-9;
        assert!((got - expected).abs() <= tolerance, "{got} for {expected}");
    }
}

#[test]
fn draws_follow_the_distribution() {
    check(&[0.5, 0.3, 0.15, 0.05], |_| {}, &[0.5, 0.3, 0.15, 0.05]);
}

#[test]
fn temperature_sharpens_and_flattens() {
    // p^(1/T), normalized.
    check(&[0.5, 0.25, 0.25], |s| s.temperature = 0.5, &[2.0 / 3.0, 1.0 / 6.0, 1.0 / 6.0]);
    check(&[0.64, 0.36], |s| s.temperature = 2.0, &[0.8 / 1.4, 0.6 / 1.4]);
}

#[test]
fn top_k_top_p_and_min_p_cut_the_tail() {
    let p = [0.5, 0.3, 0.15, 0.05];
    check(&p, |s| s.top_k = 2, &[0.625, 0.375, 0.0, 0.0]);
    check(&p, |s| s.top_p = 0.79, &[0.625, 0.375, 0.0, 0.0]);
    check(&p, |s| s.top_p = 0.81, &[0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0.0]);
    check(&p, |s| s.min_p = 0.4, &[0.625, 0.375, 0.0, 0.0]);
    check(&p, |s| s.top_p = 1e-6, &[1.0, 0.0, 0.0, 0.0]);
}

#[test]
fn typical_prefers_tokens_of_expected_surprise() {
    // Entropy is 1.14: 0.3 (surprise 1.20) is nearest, then 0.5 (0.69), then 0.15 (1.90).
    check(&[0.5, 0.3, 0.15, 0.05], |s| s.typical_p = 0.2, &[0.0, 1.0, 0.0, 0.0]);
    check(&[0.5, 0.3, 0.15, 0.05], |s| s.typical_p = 0.7, &[0.625, 0.375, 0.0, 0.0]);
}

#[test]
fn bias_bans_and_forces_tokens() {
    check(&[0.5, 0.5], |s| s.logit_bias = [(0, -100.0)].into(), &[0.0, 1.0]);
    let mut sampler = Sampler::new(Sampling { logit_bias: [(2, 100.0)].into(), ..Sampling::greedy() }, None, &[]);
    assert_eq!(sampler.sample(&mut logits(&[0.9, 0.05, 0.05]), None).unwrap().token, 2);
}

#[test]
fn greedy_takes_the_first_of_equals() {
    let mut sampler = Sampler::new(Sampling::greedy(), None, &[]);
    assert_eq!(sampler.sample(&mut [0.0, 2.0, 2.0, 1.0], None).unwrap().token, 1);
}

#[test]
fn equal_seeds_give_equal_tokens() {
    let p = [0.2; 5];
    let draw = |seed| {
        let mut sampler = Sampler::new(plain(seed), None, &[]);
        (0..50).map(|_| sampler.sample(&mut logits(&p), None).unwrap().token).collect::<Vec<_>>()
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

#[test]
fn logprobs_are_those_of_the_model_before_penalties() {
    let sampling = Sampling { top_logprobs: Some(2), logit_bias: [(2, 100.0)].into(), ..Sampling::greedy() };
    let sampled = Sampler::new(sampling, None, &[]).sample(&mut logits(&[0.5, 0.3, 0.2]), None).unwrap();
    let (logprob, top) = sampled.logprobs.unwrap();
    assert_eq!(sampled.token, 2);
    assert!((logprob - 0.2f32.ln()).abs() < 1e-5);
    assert_eq!(top.iter().map(|t| t.token).collect::<Vec<_>>(), [0, 1]);
    assert!((top[1].logprob - 0.3f32.ln()).abs() < 1e-5);
}

#[test]
fn logits_without_a_largest_are_an_error_for_every_way_of_sampling() {
    for sampling in
        [plain(1), Sampling::greedy(), Sampling { typical_p: 0.5, top_logprobs: Some(2), ..Sampling::default() }]
    {
        let check = |logits: &[f32]| Sampler::new(sampling.clone(), None, &[]).sample(&mut logits.to_vec(), None);
        assert_eq!(check(&[0.0, f32::NAN]), Err(NotFinite));
        assert_eq!(check(&[f32::INFINITY, 0.0]), Err(NotFinite));
        assert_eq!(check(&[f32::INFINITY; 3]), Err(NotFinite));
        assert_eq!(check(&[f32::NEG_INFINITY; 3]), Err(NotFinite));
        // A token that is ruled out is nothing special.
        assert_eq!(check(&[0.0, f32::NEG_INFINITY]).unwrap().token, 0);
    }
    let overflow = Sampling { repetition_penalty: 0.01, ..plain(1) };
    assert_eq!(Sampler::new(overflow, None, &[0]).sample(&mut [f32::MAX, 0.0], None), Err(NotFinite));
}
