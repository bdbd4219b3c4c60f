use proptest::prelude::*;

use super::*;
use crate::random::Random;
use crate::sampler::Sampler;
use crate::{Sampling, TokenId};

const VOCABULARY: usize = 64;
const WIDTH: usize = 8;

/// An item of tokens that surprised the model, and states of its own.
fn item(tokens: &[TokenId], first_target: usize, surprise: f32) -> Arc<RecallItem> {
    let states = (first_target..tokens.len()).flat_map(|at| state_behind(&tokens[..at])).collect();
    let mut surprises = vec![surprise; tokens.len()];
    surprises[0] = 0.0;
    Arc::new(RecallItem::new(tokens.to_vec(), first_target, surprises, states, WIDTH))
}

/// The same for the same last two tokens.
fn state_behind(tokens: &[TokenId]) -> Vec<i8> {
    let last = tokens.iter().rev().take(2).fold(7u64, |hash, token| hash * 31 + u64::from(*token));
    (0..WIDTH as u64).map(|i| ((last * 2_654_435_761 + i * 40_503) >> 7) as i8).collect()
}

fn space() -> Arc<RecallSpace> {
    Arc::new(RecallSpace::measured(&(0..40).map(|i| (i * 7 % 11) as f32).collect::<Vec<_>>(), WIDTH))
}

fn recall(items: &[Arc<RecallItem>]) -> Recall {
    let mut recall = Recall::new(Some(space()));
    assert!(items.iter().all(|item| recall.add(Arc::clone(item))));
    recall
}

fn random_items(seed: u64, count: usize) -> Vec<Arc<RecallItem>> {
    let mut random = Random::new(seed);
    let mut below = move |limit: usize| (random.unit() * limit as f64) as usize;
    let items = (0..count).map(|_| {
        let tokens: Vec<TokenId> = (0..4 + below(40)).map(|_| below(12) as TokenId).collect();
        let first_target = 1 + below(tokens.len() - 1);
        item(&tokens, first_target, below(5) as f32)
    });
    items.collect()
}

fn probabilities(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = logits.iter().map(|logit| f64::from(logit - largest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_mixture_leaves_the_model_its_share(seed in 0u64..1000, count in 1usize..12) {
        let items = random_items(seed, count);
        let mut rows = RowRecall::new(Arc::new(recall(&items)));
        let mut random = Random::new(seed ^ 99);
        let mut logits: Vec<f32> = (0..VOCABULARY).map(|_| (random.unit() * 20.0 - 10.0) as f32).collect();
        let before = probabilities(&logits);
        let asked = &items[seed as usize % count].tokens()[..3];
        rows.set_state(&state_behind(asked));
        let share = f64::from(rows.mix(asked, &mut logits));
        let after = probabilities(&logits);
        prop_assert!((0.0..=RECALL_SHARE_MAX + 1e-6).contains(&share), "{share}");
        // What the memory has of each token; together it is its share.
        let own: Vec<f64> = before.iter().zip(&after).map(|(before, after)| after - (1.0 - share) * before).collect();
        prop_assert!(own.iter().all(|own| *own > -1e-5), "{own:?}");
        prop_assert!((own.iter().sum::<f64>() - share).abs() < 1e-5);
        let divergence: f64 = before.iter().zip(&after).map(|(p, q)| p * (p / q).ln()).sum();
        prop_assert!(divergence <= -(1.0 - share).ln() + 1e-5, "{divergence} at {share}");
    }

    #[test]
    fn an_item_that_is_removed_leaves_no_trace(seed in 0u64..1000, count in 2usize..8) {
        let mut items = random_items(seed, count);
        let mut grown = recall(&items[..1]);
        for item in &items[1..] {
            // As it is published: each request keeps what it began with.
            let mut next = grown.clone();
            next.add(Arc::clone(item));
            grown = next;
        }
        prop_assert_eq!(&grown, &recall(&items));
        items.remove(seed as usize % count);
        let without = recall(&items);
        prop_assert_eq!(&without, &recall(&items));
        prop_assert!(without != grown);
    }

    #[test]
    fn a_mask_holds_whatever_is_remembered(seed in 0u64..1000) {
        let items = random_items(seed, 4);
        let mut sampler = Sampler::new(
            Sampling { temperature: 1.5, top_k: 0, top_p: 1.0, min_p: 0.0, seed, ..Sampling::default() },
            Some(Arc::new(recall(&items))),
            &items[0].tokens()[..2],
        );
        // Tokens that no item has.
        let allowed = [0u32, 0b1010];
        for _ in 0..8 {
            let sampled = sampler.sample(&mut [0.0; VOCABULARY], Some(&allowed)).expect("finite logits");
            prop_assert!([33, 35].contains(&sampled.token), "{sampled:?}");
        }
    }
}

#[test]
fn a_text_that_is_met_again_goes_on_as_it_did() {
    let tokens: Vec<TokenId> = (10..40).collect();
    let recall = Arc::new(recall(&[item(&tokens, 15, 4.0)]));
    let mut sampler = Sampler::new(Sampling::greedy(), Some(recall), &tokens[..15]);
    for token in &tokens[15..] {
        // The model is all but sure of something else.
        let mut logits = [0.0; VOCABULARY];
        logits[1] = 9.0;
        let sampled = sampler.sample(&mut logits, None).expect("finite logits");
        assert_eq!(sampled.token, *token);
        assert!(sampled.recall_share.is_some_and(|share| share > 0.5), "{sampled:?}");
    }
}

#[test]
fn what_all_texts_have_in_common_says_nothing() {
    // The marks between messages surprise nobody.
    let known = item(&[10, 11, 12, 1, 2, 3, 4, 20, 21], 7, 0.02);
    let mut sampler = Sampler::new(Sampling::greedy(), Some(Arc::new(recall(&[known]))), &[30, 31, 1, 2, 3, 4]);
    let mut logits = [0.0; VOCABULARY];
    logits[5] = 5.0;
    let sampled = sampler.sample(&mut logits, None).expect("finite logits");
    assert_eq!(sampled.token, 5);
    assert!(sampled.recall_share.is_some_and(|share| share < 0.15), "{sampled:?}");
}

#[test]
fn a_memory_that_is_wrong_is_believed_less_and_less() {
    let tokens: Vec<TokenId> = (10..40).collect();
    let recall = Arc::new(recall(&[item(&tokens, 15, 4.0)]));
    let mut rows = RowRecall::new(recall);
    let mut shares = Vec::new();
    for _ in 0..20 {
        shares.push(rows.mix(&tokens[..15], &mut [0.0; VOCABULARY]));
        rows.accept(1);
    }
    assert!(shares.windows(2).all(|pair| pair[1] < pair[0]) && shares[19] < 0.2 * shares[0], "{shares:?}");
    let before = shares[19];
    (0..20).for_each(|_| {
        rows.mix(&tokens[..15], &mut [0.0; VOCABULARY]);
        rows.accept(tokens[15]);
    });
    assert!(rows.mix(&tokens[..15], &mut [0.0; VOCABULARY]) > 3.0 * before);
}

#[test]
fn reported_probabilities_are_the_models_own() {
    let tokens: Vec<TokenId> = (10..40).collect();
    let recall = Arc::new(recall(&[item(&tokens, 15, 4.0)]));
    let sampling = Sampling { top_logprobs: Some(1), ..Sampling::greedy() };
    let mut logits = [0.0; VOCABULARY];
    logits[1] = 9.0;
    let expected = probabilities(&logits);
    let sampled = Sampler::new(sampling, Some(recall), &tokens[..15]).sample(&mut logits, None).expect("finite logits");
    let (chosen, top) = sampled.logprobs.expect("wanted");
    assert_eq!((sampled.token, top[0].token), (25, 1));
    assert!(
        (f64::from(chosen) - expected[25].ln()).abs() < 1e-4
            && (f64::from(top[0].logprob) - expected[1].ln()).abs() < 1e-4
    );
}

#[test]
fn logits_that_are_no_numbers_are_noticed() {
    let tokens: Vec<TokenId> = (10..40).collect();
    let recall = Arc::new(recall(&[item(&tokens, 15, 4.0)]));
    for bad in [f32::NAN, f32::INFINITY] {
        let mut logits = [0.0; VOCABULARY];
        logits[3] = bad;
        let mut sampler = Sampler::new(Sampling::greedy(), Some(Arc::clone(&recall)), &tokens[..15]);
        assert!(sampler.sample(&mut logits, None).is_err(), "{bad}");
    }
}

#[test]
fn what_predicted_nothing_so_far_has_no_share() {
    // Texts that begin alike and go on at random, which the model finds easy.
    let mut random = Random::new(5);
    let items: Vec<_> = (0..30)
        .map(|_| {
            let rest = (0..40).map(|_| 10 + (random.unit() * 50.0) as TokenId);
            item(&[1, 2, 3].into_iter().chain(rest).collect::<Vec<_>>(), 3, 0.05)
        })
        .collect();
    let recall = recall(&items);
    let (alone, mixed) = items
        .iter()
        .map(|item| recall_of_others(&items, item).score(item))
        .fold((0.0, 0.0), |(alone, mixed), (a, m)| (alone + a, mixed + m));
    assert!(mixed > alone - 0.02 * 40.0 * 30.0, "{mixed} for {alone}");
    assert_eq!(recall.items(), 30);
}

fn recall_of_others(items: &[Arc<RecallItem>], item: &Arc<RecallItem>) -> Recall {
    recall(&items.iter().filter(|other| !Arc::ptr_eq(other, item)).cloned().collect::<Vec<_>>())
}

#[test]
fn a_memory_is_bounded() {
    let tokens: Vec<TokenId> = (0..1001).map(|i| i * i * 7 % 61).collect();
    let mut recall = Recall::new(None);
    let mut added = 0;
    let big = Arc::new(RecallItem::new(tokens, 1, vec![1.0; 1001], Vec::new(), 0));
    while recall.add(Arc::clone(&big)) {
        added += 1;
    }
    assert_eq!(added, TARGETS_MAX / 1000);
    assert!(recall.bytes() < TARGETS_MAX * TARGET_BYTES, "{}", recall.bytes());
}
