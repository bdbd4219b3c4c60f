//! A smaller model that drafts for the sequences of another. It has a runner and KV memory of its own, in which the texts of
//! these sequences are kept: what it knows of a text is computed once, and found again by the next turn of a chat.

mod draft_cost;

use std::collections::HashMap;

use ruvllm_kv::{KvCache, KvOptions, Namespace, PageTable};
use ruvllm_runner::{Batch, Candidate, Runner, RunnerError, RunnerLimits, TokenId};

use self::draft_cost::DraftCost;
use super::{DraftBudget, Drafter, LOOK_AHEAD_MAX};
use crate::sequence::Sequence;
use crate::{SequenceId, Tenant};

/// Sequences that it drafts for at once. With more of them a step has many rows anyway, beside which no draft token pays.
const SEQUENCES_MAX: usize = 4;
/// Tokens whose logits its confidence is read from: the likeliest one's share among them is close to its share among all.
const CANDIDATES: usize = 8;
/// What reading a text may cost before it drafts anything, in steps of the large model: so much at once, for each token that was
/// generated, and for each that may come. An answer that ends soon loses no more than that.
const READING_FREE: f32 = 4.0;
const READING_SHARE: f32 = 0.02;
const READING_SHARE_AHEAD: f32 = 0.04;
/// How much better it must promise to be than what the text itself suggests.
const ADVANTAGE: f32 = 1.02;

/// How a draft model is used.
#[derive(Clone, Debug)]
pub struct DraftOptions {
    pub kv: KvOptions,
    /// Identifies the model in its prefix cache.
    pub fingerprint: [u8; 32],
    /// What a step of it takes in terms of a step of the large model, until that is measured.
    pub cost: f32,
}

/// A token that the draft model expects.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ModelToken {
    pub token: TokenId,
    /// How sure the draft model was, given the tokens before.
    pub confidence: f32,
    /// The chance that it is right, and all draft tokens before it.
    pub chance: f32,
}

#[derive(Debug)]
pub(crate) struct DraftModel {
    runner: Box<dyn Runner>,
    cache: KvCache,
    fingerprint: [u8; 32],
    vocabulary: usize,
    /// What it knows of each sequence; `None` where there was no memory for it.
    texts: HashMap<SequenceId, Option<DraftedText>>,
    cost: DraftCost,
    batch: Batch,
    candidates: Vec<Candidate>,
}

/// What it knows of a sequence.
#[derive(Debug)]
struct DraftedText {
    namespace: Namespace,
    /// Whether others may begin from it.
    is_kept: bool,
    table: PageTable,
    /// Tokens of the sequence whose keys and values are in the pages.
    computed: usize,
    /// Draft tokens whose keys and values are behind them, right or wrong.
    ahead: Vec<TokenId>,
}

/// A sequence that it is to draft for.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub sequence: &'a Sequence,
    pub drafter: &'a Drafter,
    /// Maximum number of draft tokens.
    pub count_max: usize,
    pub draft: Vec<ModelToken>,
    is_open: bool,
}

impl<'a> Wanted<'a> {
    pub(crate) fn new(sequence: &'a Sequence, drafter: &'a Drafter, count_max: usize) -> Self {
        Self { sequence, drafter, count_max: count_max.min(LOOK_AHEAD_MAX), draft: Vec::new(), is_open: true }
    }

    fn chance(&self) -> f32 {
        self.draft.last().map_or(1.0, |last| last.chance)
    }
}

impl DraftModel {
    /// `vocabulary` is that of the large model; tokens beyond it, or that this one does not have, are not drafted.
    pub(crate) fn new(mut runner: Box<dyn Runner>, options: &DraftOptions, vocabulary: usize) -> Self {
        let RunnerLimits { kv_shape, state_bytes, .. } = *runner.limits();
        let vocabulary = vocabulary.min(runner.limits().vocabulary);
        assert_eq!(state_bytes, 0, "a draft model takes draft tokens back at will, so it has no recurrent layers");
        runner.reserve_pages(options.kv.page_memory_bytes(kv_shape), options.kv.rotation);
        Self {
            cache: KvCache::new(kv_shape, &options.kv),
            runner,
            fingerprint: options.fingerprint,
            vocabulary,
            texts: HashMap::new(),
            cost: DraftCost::new(options.cost),
            batch: Batch::default(),
            candidates: Vec::new(),
        }
    }

    pub(crate) fn sequences_max(&self) -> usize {
        SEQUENCES_MAX
    }

    /// Whether drafting for a sequence promises more tokens in a second than what its text suggests, in a step of `budget`.
    pub(crate) fn is_worth(&mut self, wanted: &Wanted<'_>, budget: DraftBudget) -> bool {
        let (step_cost, rate) = (self.cost.step(), wanted.drafter.model_rate());
        let price = budget.price_with(step_cost);
        if !wanted.drafter.can_afford(price) || wanted.count_max == 0 {
            return false;
        }
        let mut by_model = budget;
        let mut chance = rate;
        for _ in 0..wanted.count_max {
            if !by_model.add_if_worth_with(step_cost, chance) {
                break;
            }
            chance *= rate;
        }
        let by_text = wanted.drafter.outlook(wanted.count_max, budget);
        by_model.rate() > by_text.rate() * ADVANTAGE && self.may_read(wanted.sequence)
    }

    /// Whether reading what it does not know of a sequence's text is worth it. Makes room for the text if need be.
    fn may_read(&mut self, sequence: &Sequence) -> bool {
        if sequence.tokens.len() + 1 >= self.runner.limits().context {
            return false;
        }
        let vocabulary = self.vocabulary;
        let Some(text) = self.text(sequence) else { return false };
        if sequence.tokens[text.computed..].iter().any(|token| *token as usize >= vocabulary) {
            return false;
        }
        let reading = (sequence.tokens.len() - text.computed).saturating_sub(2) as f32 * self.cost.row();
        let (generated, left) = (sequence.generated() as f32, sequence.drafts_max() as f32);
        reading <= READING_FREE + READING_SHARE * generated && reading <= 1.0 + READING_SHARE_AHEAD * left
    }

    /// Finds what is known of a sequence, with the draft tokens that turned out right.
    fn text(&mut self, sequence: &Sequence) -> Option<&mut DraftedText> {
        let tokens = &sequence.tokens;
        if !self.texts.contains_key(&sequence.id) {
            let namespace = self.namespace(&sequence.tenant);
            let is_kept = sequence.prefix_use.enabled;
            let tokens_min = is_kept.then_some(0);
            let begun = self.cache.match_prefix(namespace, tokens, tokens_min, 1, &mut *self.runner);
            let text = begun.ok().map(|start| DraftedText {
                namespace,
                is_kept,
                table: start.table,
                computed: start.tokens,
                ahead: Vec::new(),
            });
            self.texts.insert(sequence.id, text);
        }
        let text = self.texts.get_mut(&sequence.id)?.as_mut()?;
        // The last token is never among them: it is what the next logits are of.
        let known = tokens[text.computed..tokens.len() - 1].iter().zip(&text.ahead).take_while(|(a, b)| a == b);
        text.computed += known.count();
        text.ahead.clear();
        Some(text)
    }

    fn namespace(&self, tenant: &Tenant) -> Namespace {
        Namespace::of(&[&self.fingerprint, b"draft", tenant.name().as_bytes()])
    }

    /// Drafts for sequences that it is worth for, as many tokens as are worth it in a step of `budget`. Returns what each of
    /// them would have given elsewhere.
    pub(crate) fn draft(&mut self, wanted: &mut [Wanted<'_>], mut budget: DraftBudget) -> Result<f32, RunnerError> {
        let mut price = 0f32;
        for round in 0..LOOK_AHEAD_MAX {
            // A step of it is shared by those that it drafts for.
            let open = wanted.iter().filter(|one| one.is_open).count().max(1);
            let cost = self.cost.step() / open as f32;
            for one in wanted.iter_mut().filter(|one| one.is_open) {
                let expected = one.chance() * one.drafter.model_rate();
                one.is_open = round < one.count_max && expected > budget.price_with(cost);
            }
            if !wanted.iter().any(|one| one.is_open) {
                break;
            }
            price = price.max(budget.price_with(cost));
            self.run(wanted)?;
            for (row, one) in wanted.iter_mut().filter(|one| one.is_open).enumerate() {
                let found = self.likeliest(row);
                let Some((token, confidence)) = found.filter(|(token, _)| (*token as usize) < self.vocabulary) else {
                    one.is_open = false;
                    continue;
                };
                let chance = one.chance() * one.drafter.model_chance(confidence);
                // The step is paid for; what counts is what the row gives.
                one.is_open = budget.add_if_worth_with(0.0, chance) && !one.sequence.end_tokens.contains(&token);
                budget.spend(cost);
                one.draft.push(ModelToken { token, confidence, chance });
            }
        }
        Ok(price)
    }

    /// Computes the next logits of those that are open: behind their text at first, then behind the last draft token.
    fn run(&mut self, wanted: &mut [Wanted<'_>]) -> Result<(), RunnerError> {
        let rows_max = self.runner.limits().rows_max;
        for one in wanted.iter_mut().filter(|one| one.is_open) {
            let tokens = &one.sequence.tokens;
            let total = tokens.len() + one.draft.len();
            let Some(Some(text)) = self.texts.get_mut(&one.sequence.id) else {
                one.is_open = false;
                continue;
            };
            let extended = self.cache.extend(text.namespace, &mut text.table, total, &mut *self.runner);
            one.is_open = extended.is_ok() && total <= self.runner.limits().context;
            // All but what fits beside the others.
            let rows_max = rows_max / SEQUENCES_MAX;
            while one.is_open && tokens.len() - text.computed > rows_max {
                let part = text.computed..text.computed + rows_max;
                self.batch.clear();
                let pages = self.cache.locations(&text.table);
                self.batch.push(part.start, tokens[part.clone()].iter().copied(), 0, pages, None);
                self.runner.submit(&self.batch)?;
                self.runner.wait()?;
                self.cost.observe(part.len(), self.runner.take_run_time());
                text.computed = part.end;
            }
        }
        self.batch.clear();
        for one in wanted.iter().filter(|one| one.is_open) {
            let Some(Some(text)) = self.texts.get_mut(&one.sequence.id) else { continue };
            let tokens = &one.sequence.tokens;
            let pages = self.cache.locations(&text.table);
            match one.draft.last() {
                None => self.batch.push(text.computed, tokens[text.computed..].iter().copied(), 1, pages, None),
                Some(last) => self.batch.push(tokens.len() + one.draft.len() - 1, [last.token], 1, pages, None),
            }
        }
        if self.batch.rows() == 0 {
            return Ok(());
        }
        self.runner.submit(&self.batch)?;
        self.runner.wait()?;
        self.cost.observe(self.batch.rows(), self.runner.take_run_time());
        for one in wanted.iter().filter(|one| one.is_open) {
            let Some(Some(text)) = self.texts.get_mut(&one.sequence.id) else { continue };
            text.ahead.extend(one.draft.last().map(|last| last.token));
            text.computed = one.sequence.tokens.len();
            if text.is_kept {
                let tokens = &one.sequence.tokens;
                self.cache.insert_prefix(text.namespace, tokens, &mut text.table, &mut *self.runner);
            }
        }
        Ok(())
    }

    /// Returns the likeliest token of a row, and its share among the likeliest.
    fn likeliest(&mut self, row: usize) -> Option<(TokenId, f32)> {
        self.runner.candidates(row, CANDIDATES, &mut self.candidates).ok()?;
        let (token, largest) = *self.candidates.first()?;
        let total: f32 = self.candidates.iter().map(|(_, logit)| (logit - largest).exp()).sum();
        Some((token, 1.0 / total))
    }

    /// A sequence has ended, or waits without pages: what is known of it stays for others.
    pub(crate) fn release(&mut self, sequence: &Sequence) {
        let Some(Some(text)) = self.texts.remove(&sequence.id) else { return };
        let namespace = text.is_kept.then(|| text.namespace.into());
        self.cache.release(namespace, &sequence.tokens[..text.computed], text.table, &mut *self.runner);
    }

    /// Evicts a few cached pages if memory is getting short.
    pub(crate) fn maintain(&mut self) {
        self.cache.maintain(&mut *self.runner);
    }

    /// How long a step of the large model with one row takes, without this one's.
    pub(crate) fn set_large_step(&mut self, seconds: f64) {
        self.cost.set_large_step(seconds);
    }

    /// Returns how long it has run since this was last asked.
    pub(crate) fn take_time(&mut self) -> std::time::Duration {
        self.cost.take_time()
    }

    /// Checks its books.
    #[cfg(test)]
    pub(crate) fn audit(&self) -> Result<(), String> {
        self.cache.audit(self.texts.values().flatten().map(|text| &text.table))
    }

    /// Whose texts it keeps.
    #[cfg(test)]
    pub(crate) fn knows(&self) -> impl Iterator<Item = SequenceId> + '_ {
        self.texts.keys().copied()
    }
}
