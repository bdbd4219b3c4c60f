//! What the tokens of an answer may be, step by step.
//!
//! The engine knows nothing of grammars: it asks a [`Constraint`] which tokens may come next and commits the one that was chosen. Answering
//! takes time, so it is done on a thread of its own while the model computes the logits that the answer is needed for.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use ruvllm_runner::TokenId;

/// Follows one sequence and knows which tokens may come next.
///
/// A trait, as what decides (grammars of text) lies above this crate.
pub trait Constraint: Debug + Send {
    /// Writes the set of tokens that may come next: bit `t % 32` of word `t / 32` stands for token `t`. The end tokens of the
    /// sequence are among them where the answer may end.
    fn allow(&mut self, allowed: &mut Vec<u32>) -> Result<(), ConstraintError>;

    /// A token has come that was allowed, and that does not end the sequence.
    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError>;

    /// Forgets the last accepted tokens.
    fn rollback(&mut self, tokens: usize) -> Result<(), ConstraintError>;

    /// Whether nothing can follow: the answer is complete without an end token.
    fn is_complete(&self) -> bool;

    /// How many of the first tokens of a draft are allowed, one after the other.
    fn count_allowed(&mut self, draft: &[u32]) -> usize;

    /// Tokens that most probably come next because nothing else could be written; often none.
    fn forced(&mut self) -> Vec<TokenId>;
}

/// An answer cannot be kept to what it should look like.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConstraintError(pub String);

/// The tokens that are allowed at the rows of a slice: behind the last token, and behind each draft.
pub(crate) type Masks = Vec<Vec<u32>>;

/// Takes away what is not allowed. Tokens beyond the set are not.
pub(crate) fn apply(allowed: &[u32], logits: &mut [f32]) {
    let (words, beyond) = logits.split_at_mut((allowed.len() * 32).min(logits.len()));
    beyond.fill(f32::NEG_INFINITY);
    for (word, logits) in allowed.iter().zip(words.chunks_mut(32)) {
        match *word {
            u32::MAX => {}
            0 => logits.fill(f32::NEG_INFINITY),
            word => logits
                .iter_mut()
                .enumerate()
                .filter(|(bit, _)| word >> bit & 1 == 0)
                .for_each(|(_, logit)| *logit = f32::NEG_INFINITY),
        }
    }
}

/// A constraint that is asked for the masks of a slice.
#[derive(Debug)]
struct MaskRequest {
    slice: usize,
    constraint: Box<dyn Constraint>,
    drafts: Vec<TokenId>,
}

/// The masks of a slice, with the constraint as it was before.
#[derive(Debug)]
pub(crate) struct MaskResult {
    pub slice: usize,
    /// Gone if it has panicked.
    pub constraint: Option<Box<dyn Constraint>>,
    pub masks: Result<Masks, ConstraintError>,
}

/// The thread that asks constraints. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct MaskThread {
    questions: Sender<MaskRequest>,
    answers: Receiver<MaskResult>,
    asked: usize,
}

impl MaskThread {
    pub(crate) fn start() -> std::io::Result<Self> {
        let (questions, to_answer) = channel::<MaskRequest>();
        let (answered, answers) = channel();
        thread::Builder::new().name("ruvllm-masks".into()).spawn(move || {
            for question in to_answer {
                if answered.send(answer(question)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { questions, answers, asked: 0 })
    }

    /// Asks for the masks of a slice with these draft tokens.
    pub(crate) fn ask(&mut self, slice: usize, constraint: Box<dyn Constraint>, drafts: &[TokenId]) {
        let question = MaskRequest { slice, constraint, drafts: drafts.to_vec() };
        // The thread lives as long as the channel.
        self.asked += usize::from(self.questions.send(question).is_ok());
    }

    /// All answers to what was asked.
    pub(crate) fn answers(&mut self) -> impl Iterator<Item = MaskResult> {
        let asked = std::mem::take(&mut self.asked);
        (0..asked).map_while(|_| self.answers.recv().ok())
    }
}

/// Asks one constraint. If it panics, its sequence fails alone.
fn answer(question: MaskRequest) -> MaskResult {
    let MaskRequest { slice, mut constraint, drafts } = question;
    let result = catch_unwind(AssertUnwindSafe(move || {
        let masks = masks(&mut *constraint, &drafts);
        (constraint, masks)
    }));
    match result {
        Ok((constraint, masks)) => MaskResult { slice, constraint: Some(constraint), masks },
        Err(_) => {
            let masks = Err(ConstraintError("following the grammar failed".to_owned()));
            MaskResult { slice, constraint: None, masks }
        }
    }
}

fn masks(constraint: &mut dyn Constraint, drafts: &[u32]) -> Result<Masks, ConstraintError> {
    let mut masks = Masks::new();
    let mut accepted = 0;
    loop {
        let mut allowed = Vec::new();
        constraint.allow(&mut allowed)?;
        masks.push(allowed);
        let Some(draft) = drafts.get(accepted) else { break };
        constraint.accept(*draft)?;
        accepted += 1;
        if constraint.is_complete() {
            // If this draft is right, the sequence ends with it.
            break;
        }
    }
    constraint.rollback(accepted)?;
    Ok(masks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_allowed_tokens_keep_their_logits() {
        let mut logits = [1.0f32; 70];
        apply(&[u32::MAX, 1 << 3], &mut logits);
        let kept: Vec<usize> = (0..70).filter(|token| logits[*token] == 1.0).collect();
        assert_eq!(kept, (0..32).chain([35]).collect::<Vec<_>>());
        assert!(logits.iter().all(|logit| *logit == 1.0 || *logit == f32::NEG_INFINITY));
        apply(&[], &mut logits);
        assert!(logits.iter().all(|logit| *logit == f32::NEG_INFINITY));
    }
}
