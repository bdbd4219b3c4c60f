use super::*;
use crate::random::Random;

const ROW_COST: f32 = 0.1;

fn draft(drafter: &mut Drafter, tokens: &[u32], count_max: usize) -> Vec<u32> {
    let mut draft = Vec::new();
    drafter.draft(tokens, &[], count_max, &mut DraftBudget::new(1, ROW_COST), &mut draft);
    draft
}

/// Generates `text` after `prompt` with verification as the engine does it; gives steps, drafted and accepted tokens.
fn replay(prompt: &[u32], text: &[u32]) -> (usize, usize, usize) {
    let mut drafter = Drafter::new(prompt);
    let all = [prompt, text].concat();
    let mut length = prompt.len();
    let (mut steps, mut drafted, mut accepted) = (0, 0, 0);
    while length < all.len() {
        let draft = draft(&mut drafter, &all[..length], all.len() - length - 1);
        let right = draft.iter().zip(&all[length..]).take_while(|(a, b)| a == b).count();
        length += right + 1;
        drafter.verified(DraftSource::Text, &[], (draft.len(), right), &all[..length], right + 1);
        steps += 1;
        drafted += draft.len();
        accepted += right;
    }
    assert_eq!(steps + accepted, text.len());
    (steps, drafted, accepted)
}

fn random_tokens(seed: u64, count: usize, vocabulary: u32) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..count).map(|_| (random.unit() * f64::from(vocabulary)) as u32).collect()
}

#[test]
fn a_draft_is_what_followed_before_and_goes_round_in_circles() {
    let tokens = [5, 6, 7, 8, 9, 10, 11, 12, 5, 6, 7, 8];
    assert_eq!(draft(&mut Drafter::new(&tokens), &tokens, 3), [9, 10, 11]);
    let circle = [1, 2, 3, 1, 2, 3, 1, 2];
    assert_eq!(draft(&mut Drafter::new(&circle), &circle, 6), [3, 1, 2, 3, 1, 2]);
    assert!(draft(&mut Drafter::new(&[1, 2, 3]), &[1, 2, 3], 8).is_empty());
    assert!(draft(&mut Drafter::new(&tokens), &tokens, 0).is_empty());
}

#[test]
fn a_draft_ends_with_an_end_token() {
    let tokens = [5, 6, 7, 8, 9, 2, 11, 12, 5, 6, 7, 8];
    let mut draft = vec![77];
    Drafter::new(&tokens).draft(&tokens, &[2], 16, &mut DraftBudget::new(1, ROW_COST), &mut draft);
    assert_eq!(draft, [77, 9, 2]);
}

#[test]
fn a_copy_takes_long_drafts() {
    let prompt = random_tokens(1, 300, 40_000);
    let (steps, drafted, accepted) = replay(&prompt, &prompt);
    assert!(steps < 300 / 8 && drafted - accepted < 20, "{steps} steps, {accepted} of {drafted}");
}

#[test]
fn random_text_wastes_no_more_than_the_allowance() {
    // Few different tokens: there is always a match, and it is nearly always wrong.
    for (seed, vocabulary) in [(1, 20), (2, 100), (3, 1_000), (4, 40_000)] {
        for length in [50, 200, 2_000] {
            let (steps, drafted, accepted) =
                replay(&random_tokens(seed, 500, vocabulary), &random_tokens(seed + 9, length, vocabulary));
            let lost = drafted as f32 * ROW_COST - accepted as f32;
            let bound = ALLOWANCE_FIRST + ALLOWANCE_SHARE * length as f32;
            assert!(lost <= bound, "{lost} over {steps} steps, of {bound}");
        }
    }
}

#[test]
fn a_copy_after_random_text_is_found_again() {
    let (prompt, noise) = (random_tokens(1, 200, 50), random_tokens(2, 1_000, 50));
    let alone = replay(&prompt, &noise);
    let followed = replay(&prompt, &[&noise[..], &prompt].concat());
    let steps = followed.0 - alone.0;
    assert!(steps < 60, "{steps} steps for a copy of 200 tokens");
}
