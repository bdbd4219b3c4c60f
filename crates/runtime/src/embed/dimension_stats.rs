//! Per-dimension mean and standard deviation of a model's hidden states, used to standardise them as embeddings.
//!
//! Hidden states of all texts have much in common, and a few dimensions vary most whatever a text says. Both would drown what
//! distinguishes texts.

use ruvllm_memory::DimensionStats;

use super::unit;
use crate::{CancellationToken, Engine, GenerateError, PrefixUse, Request};

/// Texts of many kinds, so that they have nothing in common but what any text has.
pub(crate) const TEXTS: [&str; 24] = [
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

/// Measures a model. Takes as long as it needs to read some hundred tokens.
pub(super) fn measure(engine: &Engine) -> Result<DimensionStats, GenerateError> {
    // They share the template's beginning, which the prefix cache serves.
    let request = |text: &&str| Request { prefix_use: PrefixUse::default(), ..Request::to_embed(engine, text) };
    let texts: Vec<Request> = TEXTS.iter().map(request).collect();
    let mut vectors = Vec::with_capacity(TEXTS.len());
    for mut stream in engine.streams(texts, &CancellationToken::default())? {
        for piece in &mut stream {
            piece?;
        }
        vectors.push(stream.into_response().embeddings.prompt.ok_or(GenerateError::NoEmbedding)?);
    }
    Ok(stats_of(&vectors))
}

fn stats_of(vectors: &[Vec<f32>]) -> DimensionStats {
    let dimensions = vectors.first().map_or(0, Vec::len);
    let mean = |of: &dyn Fn(&Vec<f32>, usize) -> f32, at: usize| {
        vectors.iter().map(|vector| of(vector, at)).sum::<f32>() / vectors.len() as f32
    };
    let centre: Vec<f32> = (0..dimensions).map(|at| mean(&|vector, at| vector[at], at)).collect();
    let mut spread: Vec<f32> =
        (0..dimensions).map(|at| mean(&|vector, at| (vector[at] - centre[at]).powi(2), at).sqrt()).collect();
    // A dimension that does not vary in these texts may vary a little in others.
    let least = spread.iter().sum::<f32>() / dimensions.max(1) as f32 * LEAST_SPREAD;
    spread.iter_mut().for_each(|spread| *spread += least);
    DimensionStats { centre, spread }
}

/// Added to the deviation of each dimension, as a share of the mean deviation.
const LEAST_SPREAD: f32 = 0.01;

/// Returns the direction in which a hidden state differs from the mean; `None` if it does not, or is of another model.
pub(crate) fn standardised(vector: &[f32], stats: &DimensionStats) -> Option<Vec<f32>> {
    let DimensionStats { centre, spread } = stats;
    let is_of_the_model = vector.len() == centre.len() && vector.len() == spread.len();
    let parts = vector.iter().zip(centre).zip(spread);
    let rest: Vec<f32> = parts.map(|((x, centre), spread)| (x - centre) / spread).collect();
    unit(&rest).filter(|_| is_of_the_model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dimension_counts_by_how_much_it_differs_from_its_mean() {
        let stats = stats_of(&[vec![10.0, 1.0, 3.0], vec![30.0, 1.2, 3.0]]);
        assert_eq!(stats.centre, [20.0, 1.1, 3.0]);
        let one = standardised(&[30.0, 1.1, 3.0], &stats).unwrap();
        assert!((one[0] - 1.0).abs() < 1e-6 && one[1].abs() < 1e-6);
        let both = standardised(&[30.0, 1.2, 3.0], &stats).unwrap();
        assert!(both[1] > 0.4, "a small change of a dimension that varies little: {both:?}");
        assert_eq!(standardised(&stats.centre, &stats), None, "nothing to tell it by");
        assert_eq!(standardised(&[1.0, 2.0], &stats), None, "of another model");
    }
}
