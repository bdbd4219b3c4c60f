//! Hidden states as embeddings: all texts of a model have much in common, and a few of the numbers vary most whatever the text
//! says. Both would drown what tells texts apart, so each number is put into its own proportion.

use ruvllm_memory::DimensionStats;

use crate::embeddings::unit;
use crate::{Engine, GenerateError, Patience, PrefixUse, Request};

/// Of many kinds, so that what they have in common is what any text has.
const TEXTS: [&str; 24] = [
    "How long do I have to boil an egg?",
    "Write a function that reverses a list.",
    "The train to the coast was late again this morning.",
    "What does this error message mean?",
    "Summarise the contract in three sentences.",
    "My knee hurts when I climb the stairs.",
    "Who won the match on Sunday?",
    "Translate this letter into Spanish.",
    "interest rates",
    "Tell me a story about a fox and a lighthouse.",
    "Why do leaves turn red in autumn?",
    "Fix the grammar of this paragraph.",
    "How do I reset my password?",
    "She has played the cello since she was six.",
    "Compare the two phones and tell me which to buy.",
    "The river froze for the first time in twenty years.",
    "What is the capital of Mongolia?",
    "SELECT name FROM customers WHERE country = 'FR'",
    "Plan a birthday party for ten children.",
    "voting rights of shareholders",
    "Explain gravity as if I were five years old.",
    "Our server returns 502 after the update.",
    "Solve 3x + 7 = 22 and show the steps.",
    "I feel nervous about the interview tomorrow.",
];

/// Takes as long as the model needs to read some hundred tokens.
pub(super) fn measure(engine: &Engine) -> Result<DimensionStats, GenerateError> {
    // They begin alike, with the model's own instructions: that is computed once.
    let request = |text: &&str| Request { prefix_use: PrefixUse::default(), ..Request::to_embed(engine, text) };
    let texts: Vec<Request> = TEXTS.iter().map(request).collect();
    let mut vectors = Vec::with_capacity(TEXTS.len());
    for mut stream in engine.streams(&texts, &Patience::default())? {
        for piece in &mut stream {
            piece?;
        }
        vectors.push(stream.into_response().embeddings.prompt.ok_or(GenerateError::NoEmbedding)?);
    }
    Ok(standard_of(&vectors))
}

fn standard_of(vectors: &[Vec<f32>]) -> DimensionStats {
    let dimensions = vectors.first().map_or(0, Vec::len);
    let mean = |of: &dyn Fn(&Vec<f32>, usize) -> f32, at: usize| {
        vectors.iter().map(|vector| of(vector, at)).sum::<f32>() / vectors.len() as f32
    };
    let centre: Vec<f32> = (0..dimensions).map(|at| mean(&|vector, at| vector[at], at)).collect();
    let mut spread: Vec<f32> =
        (0..dimensions).map(|at| mean(&|vector, at| (vector[at] - centre[at]).powi(2), at).sqrt()).collect();
    // What never varies in these texts may vary a little in others.
    let least = spread.iter().sum::<f32>() / dimensions.max(1) as f32 * LEAST_SPREAD;
    spread.iter_mut().for_each(|spread| *spread += least);
    DimensionStats { centre, spread }
}

/// Added to the spread of each number, as part of the mean spread.
const LEAST_SPREAD: f32 = 0.01;

/// The direction in which an embedding differs from the usual; `None` where it does not, or is of another model.
pub(super) fn standardised(vector: &[f32], standard: &DimensionStats) -> Option<Vec<f32>> {
    let DimensionStats { centre, spread } = standard;
    let is_of_the_model = vector.len() == centre.len() && vector.len() == spread.len();
    let parts = vector.iter().zip(centre).zip(spread);
    let rest: Vec<f32> = parts.map(|((x, centre), spread)| (x - centre) / spread).collect();
    unit(&rest).filter(|_| is_of_the_model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_counts_by_how_much_it_differs_from_the_usual() {
        let standard = standard_of(&[vec![10.0, 1.0, 3.0], vec![30.0, 1.2, 3.0]]);
        assert_eq!(standard.centre, [20.0, 1.1, 3.0]);
        let one = standardised(&[30.0, 1.1, 3.0], &standard).unwrap();
        assert!((one[0] - 1.0).abs() < 1e-6 && one[1].abs() < 1e-6);
        let both = standardised(&[30.0, 1.2, 3.0], &standard).unwrap();
        assert!(both[1] > 0.4, "a small change of a number that varies little: {both:?}");
        assert_eq!(standardised(&standard.centre, &standard), None, "nothing to tell it by");
        assert_eq!(standardised(&[1.0, 2.0], &standard), None, "of another model");
    }
}
