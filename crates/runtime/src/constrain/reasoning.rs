//! Lets a model reason before its answer: for a limited number of tokens, and without the grammar of the answer.

use std::sync::Arc;

use ruvllm_engine::{Constraint, ConstraintError, TokenId};
use ruvllm_text::{ReasoningFormat, ReasoningPhase, SpecialTokens, Tokenizer};

use super::GrammarConstraint;

/// Follows an answer from its reasoning to its end.
#[derive(Debug)]
pub(crate) struct ReasoningConstraint {
    tokenizer: Arc<Tokenizer>,
    format: ReasoningFormat,
    /// What holds behind the reasoning.
    answer: Option<GrammarConstraint>,
    /// Maximum number of tokens of the reasoning.
    budget: Option<usize>,
    /// Tokens of the opening marker. Where a grammar holds, only one of a single token can be told from the answer.
    opens: Vec<TokenId>,
    /// Tokens of the closing marker, and of the one that opens the answer.
    closes: Vec<TokenId>,
    /// How many of them are the closing marker's own.
    closing_len: usize,
    state: State,
    /// The state before each accepted token, and whether the grammar accepted the token too.
    history: Vec<(State, bool)>,
}

#[derive(Clone, Debug)]
struct State {
    phase: Phase,
    /// The end of the text so far, in which markers are looked for.
    tail: Vec<u8>,
    /// Tokens of the reasoning.
    reasoned: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Start,
    /// The answer has a grammar and a marker of its own, so there must be reasoning: this many tokens of the opening marker
    /// were forced.
    Opening(usize),
    Reasoning,
    /// The budget is used up, or a grammar follows: this many tokens of the markers behind the reasoning have come.
    Closing(usize),
    Answer,
}

impl ReasoningConstraint {
    /// Starts before the answer. `is_open` is whether the prompt ends inside the reasoning.
    pub(crate) fn new(
        tokenizer: Arc<Tokenizer>,
        format: ReasoningFormat,
        is_open: bool,
        budget: Option<usize>,
        answer: Option<GrammarConstraint>,
    ) -> Self {
        let marker = |text: &str| tokenizer.encode(text, SpecialTokens::Parse);
        let (opens, mut closes) = (marker(format.opens()), marker(format.closes()));
        let closing_len = closes.len();
        closes.extend(format.opens_answer().map(marker).unwrap_or_default());
        let phase = match (is_open, format.opens_answer()) {
            (true, _) => Phase::Reasoning,
            (false, Some(_)) if answer.is_some() => Phase::Opening(0),
            (false, _) => Phase::Start,
        };
        let state = State { phase, tail: Vec::new(), reasoned: 0 };
        Self { tokenizer, format, answer, budget, opens, closes, closing_len, state, history: Vec::new() }
    }

    /// Returns the state after a token, without the grammar's part in it.
    fn after(&self, state: &State, token: TokenId) -> State {
        let mut next = state.clone();
        match state.phase {
            Phase::Start => {
                self.append(&mut next.tail, token);
                let text = next.tail.trim_ascii_start();
                let mut markers = self.format.markers_in(ReasoningPhase::Start).iter();
                if text.starts_with(self.format.opens().as_bytes()) {
                    next.phase = Phase::Reasoning;
                } else if self.answer.is_some() || !markers.any(|(marker, _)| marker.as_bytes().starts_with(text)) {
                    next.phase = Phase::Answer;
                }
            }
            Phase::Opening(forced) if forced + 1 < self.opens.len() => next.phase = Phase::Opening(forced + 1),
            Phase::Opening(_) => next.phase = Phase::Reasoning,
            Phase::Reasoning if self.is_spent(state) => next.phase = self.closing(1),
            Phase::Reasoning => {
                next.reasoned += 1;
                self.append(&mut next.tail, token);
                let closes = self.format.closes().as_bytes();
                if next.tail.windows(closes.len()).any(|text| text == closes) {
                    next.phase = if self.answer.is_some() { self.closing(self.closing_len) } else { Phase::Answer };
                }
                let kept = next.tail.len().saturating_sub(closes.len());
                next.tail.drain(..kept);
            }
            Phase::Closing(forced) => next.phase = self.closing(forced + 1),
            Phase::Answer => {}
        }
        if next.phase == Phase::Answer {
            next.tail = Vec::new();
        }
        next
    }

    fn append(&self, tail: &mut Vec<u8>, token: TokenId) {
        match self.format.control_text(token) {
            Some(text) => tail.extend_from_slice(text.as_bytes()),
            None => tail.extend_from_slice(self.tokenizer.token_bytes(token)),
        }
    }

    fn closing(&self, forced: usize) -> Phase {
        if forced < self.closes.len() { Phase::Closing(forced) } else { Phase::Answer }
    }

    fn is_spent(&self, state: &State) -> bool {
        self.budget.is_some_and(|budget| state.reasoned >= budget)
    }

    /// Returns the tokens of markers that must come now; none if the model is free.
    fn forced_markers(&self) -> &[TokenId] {
        match self.state.phase {
            Phase::Opening(forced) => &self.opens[forced..],
            Phase::Reasoning if self.is_spent(&self.state) => &self.closes,
            Phase::Closing(forced) => &self.closes[forced..],
            _ => &[],
        }
    }

    fn allow_all(&self, allowed: &mut Vec<u32>) {
        let size = self.tokenizer.vocab_size();
        allowed.clear();
        allowed.resize(size.div_ceil(32), u32::MAX);
        if let (Some(last), used @ 1..) = (allowed.last_mut(), size % 32) {
            *last = (1 << used) - 1;
        }
    }
}

fn bit(allowed: &mut [u32], token: TokenId) -> (&mut u32, u32) {
    (&mut allowed[token as usize / 32], 1 << (token % 32))
}

impl Constraint for ReasoningConstraint {
    fn allow(&mut self, allowed: &mut Vec<u32>) -> Result<(), ConstraintError> {
        if let Some(&token) = self.forced_markers().first() {
            self.allow_all(allowed);
            allowed.fill(0);
            let (word, bit) = bit(allowed, token);
            *word |= bit;
            return Ok(());
        }
        match (self.state.phase, &mut self.answer) {
            (Phase::Answer, Some(answer)) => answer.allow(allowed)?,
            (Phase::Start, Some(answer)) => {
                answer.allow(allowed)?;
                if let [token] = self.opens[..] {
                    let (word, bit) = bit(allowed, token);
                    *word |= bit;
                }
            }
            (Phase::Opening(_) | Phase::Reasoning | Phase::Closing(_), _) => {
                self.allow_all(allowed);
                // The answer is still to come.
                for &token in self.tokenizer.end_of_generation() {
                    let (word, bit) = bit(allowed, token);
                    *word &= !bit;
                }
            }
            (_, None) => self.allow_all(allowed),
        }
        Ok(())
    }

    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        let next = self.after(&self.state, token);
        // A token that begins the answer is the grammar's; one that ends the reasoning is not.
        let is_of_answer = matches!(self.state.phase, Phase::Start | Phase::Answer) && next.phase == Phase::Answer;
        let answer = self.answer.as_mut().filter(|_| is_of_answer);
        let is_accepted = answer.is_some();
        answer.map_or(Ok(()), |answer| answer.accept(token))?;
        self.history.push((std::mem::replace(&mut self.state, next), is_accepted));
        Ok(())
    }

    fn rollback(&mut self, tokens: usize) -> Result<(), ConstraintError> {
        let kept = self.history.len().checked_sub(tokens);
        let kept = kept.ok_or_else(|| ConstraintError(format!("{tokens} tokens cannot be taken back")))?;
        let of_answer = self.history[kept..].iter().filter(|(_, is_accepted)| *is_accepted).count();
        if let Some(answer) = self.answer.as_mut().filter(|_| of_answer > 0) {
            answer.rollback(of_answer)?;
        }
        if let Some((state, _)) = self.history.drain(kept..).next() {
            self.state = state;
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.state.phase == Phase::Answer && self.answer.as_ref().is_some_and(Constraint::is_complete)
    }

    fn count_allowed(&mut self, draft: &[TokenId]) -> usize {
        if self.state.phase == Phase::Answer {
            return self.answer.as_mut().map_or(draft.len(), |answer| answer.count_allowed(draft));
        }
        if self.state.phase == Phase::Start && self.answer.is_some() {
            return 0;
        }
        // As far as the model is free; what comes behind is drafted again.
        let mut state = self.state.clone();
        let is_free = |token: &&TokenId| {
            let ends = self.tokenizer.is_end_of_generation(**token);
            let is_free = matches!(state.phase, Phase::Start | Phase::Reasoning) && !self.is_spent(&state) && !ends;
            state = self.after(&state, **token);
            is_free
        };
        draft.iter().take_while(is_free).count()
    }

    fn forced(&mut self) -> Vec<TokenId> {
        match &mut self.answer {
            Some(answer) if self.state.phase == Phase::Answer => answer.forced(),
            _ => self.forced_markers().to_vec(),
        }
    }
}
