//! How a runner that chooses tokens by itself is to choose them.

/// Parameters for the tokens of one sequence, with the meanings that they have in OpenAI's API and its relatives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenChoice {
    /// 0 is greedy.
    pub temperature: f32,
    /// Only the `k` likeliest tokens; 0 is all.
    pub top_k: usize,
    pub top_p: f32,
    pub min_p: f32,
    pub repetition_penalty: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
}
