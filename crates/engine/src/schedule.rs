//! Which sequences run, and which of their tokens in the next step.

mod fair_shares;
mod step_pacer;

use std::cmp::Reverse;
use std::ops::Range;
use std::time::Duration;

use ruvllm_runner::{PAGE_TOKENS, TokenId};

use self::fair_shares::FairShares;
use self::step_pacer::StepPacer;
use crate::sequence::Sequence;
use crate::speculation::DraftBudget;
use crate::{SequenceId, Tenant};

/// Target duration of a prefill step while several tenants are active: the next request waits for its end.
const SHARED_STEP: Duration = Duration::from_millis(25);
/// How long that target applies after a tenant submitted while another's prompt was being computed.
const SHARED_FOR: Duration = Duration::from_secs(30);

/// Prompts of up to this many tokens are not split for the sake of other tenants.
const SHORT_PROMPT: usize = 64;

/// Fewer fast rows than this are few.
const FAST_ROWS_FEW: usize = 64;

/// The rows of one step that belong to one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    /// Index into the running sequences.
    pub running: usize,
    /// Which of its tokens are computed.
    pub tokens: Range<usize>,
    /// Whether the last of them gives the next token.
    pub samples: bool,
    /// Whether they are fast rows.
    pub is_fast: bool,
    /// Which of the plan's draft tokens are computed behind them.
    pub drafts: Range<usize>,
}

/// The rows of one step. Kept between steps, to avoid allocating.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub slices: Vec<Slice>,
    /// Draft tokens of all sequences.
    pub drafts: Vec<TokenId>,
    /// Whether it has rows of a prompt that did not fit into what those that generate can bear. It is not for other prompts to
    /// make up for that.
    pub exceeds_pace: bool,
}

impl Plan {
    /// How many rows the step has, if none of them is of a prompt.
    pub(crate) fn decode_rows(&self) -> Option<usize> {
        let is_decode = self.prompt_rows() == 0;
        (is_decode && !self.slices.is_empty()).then_some(self.slices.len() + self.drafts.len())
    }

    /// Sequences that generate in the step.
    pub(crate) fn generating(&self) -> usize {
        self.slices.iter().filter(|slice| slice.is_generating()).count()
    }

    /// Rows of prompts.
    pub(crate) fn prompt_rows(&self) -> usize {
        self.slices.iter().filter(|slice| !slice.is_generating()).map(|slice| slice.tokens.len()).sum()
    }
}

impl Slice {
    fn is_generating(&self) -> bool {
        self.samples && self.tokens.len() == 1
    }
}

/// The limits of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepLimits {
    pub now: Duration,
    pub rows_max: usize,
    pub logit_rows_max: usize,
    /// How much longer a step may take because of prompts, for the sequences that generate in it.
    pub slowdown_max: f64,
    /// Of a further row, in units of a step of one row.
    pub row_cost: f32,
    /// Whether something happens at the end of a page, which draft tokens must not reach beyond: where pages are demoted, they
    /// would see them in other formats than they do without drafting; where there are recurrent states, snapshots are taken there.
    pub drafts_stay_in_page: bool,
    /// Maximum draft tokens of a sequence.
    pub drafts_max: usize,
}

impl StepLimits {
    /// Returns how many draft tokens a sequence that generates can have, if there is room for `left` rows.
    pub(crate) fn drafts_of(&self, sequence: &Sequence, left: usize) -> usize {
        let in_page = if self.drafts_stay_in_page { PAGE_TOKENS - 1 - sequence.computed % PAGE_TOKENS } else { left };
        sequence.drafts_max().min(left).min(in_page).min(self.drafts_max)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Schedule {
    running: Vec<Sequence>,
    waiting: Vec<Sequence>,
    shares: FairShares,
    pacer: StepPacer,
    /// Until when prompts of one tenant are computed in small portions, for the sake of others.
    shared_until: Duration,
}

/// What waits in a queue: requests, and the tokens of their prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueLength {
    pub requests: usize,
    pub tokens: usize,
}

impl Schedule {
    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    pub(crate) fn running(&self) -> &[Sequence] {
        &self.running
    }

    pub(crate) fn running_mut(&mut self) -> &mut [Sequence] {
        &mut self.running
    }

    pub(crate) fn waiting(&self) -> &[Sequence] {
        &self.waiting
    }

    /// Returns what waits, of all tenants or of one.
    pub(crate) fn queue_length(&self, of: Option<&Tenant>) -> QueueLength {
        let of_tenant = self.waiting.iter().filter(|sequence| of.is_none_or(|tenant| *tenant == sequence.tenant));
        of_tenant.fold(QueueLength::default(), |sum, sequence| QueueLength {
            requests: sum.requests + 1,
            tokens: sum.tokens + sequence.tokens.len(),
        })
    }

    /// Takes a sequence out of the queue.
    pub(crate) fn remove_waiting(&mut self, index: usize) -> Sequence {
        self.waiting.remove(index)
    }

    /// Takes the sequences out of the queue for which `ends` holds; returns their ids.
    pub(crate) fn end_waiting(&mut self, ends: impl Fn(&Sequence) -> bool) -> Vec<SequenceId> {
        self.waiting.extract_if(.., |sequence| ends(sequence)).map(|sequence| sequence.id).collect()
    }

    /// Lets a sequence run that has pages.
    pub(crate) fn start(&mut self, sequence: Sequence) {
        self.running.push(sequence);
    }

    pub(crate) fn remove_running(&mut self, index: usize) -> Sequence {
        self.running.remove(index)
    }

    /// Puts a sequence back that was taken from those that run.
    pub(crate) fn requeue(&mut self, sequence: Sequence) {
        self.waiting.push(sequence);
    }

    /// Charges the tenant of a running sequence with the rows and tokens of a step.
    pub(crate) fn serve(&mut self, running: usize, rows: usize, tokens: usize) {
        self.shares.serve(&self.running[running].tenant, rows, tokens);
    }

    /// Learns from how long a step took.
    pub(crate) fn observe(&mut self, plan: &Plan, took: Duration) {
        if !plan.exceeds_pace {
            self.pacer.observe(plan.generating(), plan.prompt_rows(), took);
        }
    }

    /// Returns what a row of a prompt takes, once that is known.
    pub(crate) fn row_time(&self) -> Option<Duration> {
        self.pacer.row_time()
    }

    /// Adds a new sequence to those that wait.
    pub(crate) fn enqueue(&mut self, sequence: Sequence) {
        let active = self.running.iter().chain(&self.waiting).map(|other| &other.tenant);
        self.shares.join(&sequence.tenant, active);
        let mut prompts = self.running.iter().filter(|other| !other.is_generating()).chain(&self.waiting);
        if prompts.any(|other| other.tenant != sequence.tenant) {
            self.shared_until = sequence.submitted + SHARED_FOR;
        }
        self.waiting.push(sequence);
    }

    /// Puts those that wait into the order in which they should start.
    pub(crate) fn sort_waiting(&mut self) {
        let Self { waiting, shares, .. } = self;
        waiting.sort_by_key(|sequence| rank(sequence, shares));
    }

    /// The running sequence that is the first to pause for others: it has the lowest priority and came last.
    pub(crate) fn preemption_victim(&self) -> Option<usize> {
        let all = self.running.iter().enumerate();
        all.min_by_key(|(_, sequence)| (sequence.priority, Reverse(sequence.id))).map(|(index, _)| index)
    }

    /// The running sequence that gives its place to the first of those that wait, where that one's tenant has no place: the last
    /// that came of the tenant with the most. What it has computed is cached, so that it goes on where it was.
    pub(crate) fn victim_for_waiting_tenant(&self) -> Option<usize> {
        let first = self.waiting.first()?;
        let places = |tenant: &Tenant| self.running.iter().filter(|running| running.tenant == *tenant).count();
        if places(&first.tenant) > 0 {
            return None;
        }
        let all = self.running.iter().enumerate().filter(|(_, running)| {
            running.prefix_use.enabled && running.priority <= first.priority && places(&running.tenant) > 1
        });
        let last = all.max_by_key(|(_, running)| (places(&running.tenant), Reverse(running.priority), running.id));
        last.map(|(index, _)| index)
    }

    /// Plans a step: one row for each sequence that is generating, so that none stalls; what is left for prompts, as far
    /// as those that generate can bear it; what is left then for draft tokens, as far as they are worth it beside the others.
    pub(crate) fn plan(&mut self, limits: StepLimits, plan: &mut Plan) {
        plan.slices.clear();
        plan.drafts.clear();
        plan.exceeds_pace = false;
        let mut left = limits.rows_max;
        let all = || self.running.iter().enumerate();
        let mut push = |index: usize, sequence: &Sequence, count: usize| {
            let tokens = sequence.computed..sequence.computed + count;
            let samples = tokens.end == sequence.tokens.len();
            plan.slices.push(Slice { running: index, tokens, samples, is_fast: sequence.is_fast(), drafts: 0..0 });
        };
        for (index, sequence) in all().filter(|(_, sequence)| sequence.is_generating()).take(left) {
            push(index, sequence, 1);
            left -= 1;
        }
        let is_shared = left < limits.rows_max;
        let mut prompts: Vec<_> =
            all().filter(|(_, sequence)| !sequence.is_generating() && !sequence.is_loading()).collect();
        prompts.sort_by_key(|(_, sequence)| rank(sequence, &self.shares));
        let tenants_share = limits.now < self.shared_until;
        let in_shared_step = self.pacer.rows_within(SHARED_STEP);
        let mut bearable = if is_shared {
            self.pacer.prompt_rows(limits.slowdown_max)
        } else if tenants_share {
            in_shared_step
        } else {
            left
        };
        // Who has had least and asks for little has it at once, also where those that generate have been delayed a lot: by others.
        if let Some((_, first)) = prompts.first()
            && tenants_share
            && first.pending() <= in_shared_step.max(SHORT_PROMPT)
            && all().all(|(_, other)| other.tenant != first.tenant || !other.is_generating())
        {
            plan.exceeds_pace = is_shared && first.pending() > bearable;
            bearable = bearable.max(first.pending());
        }
        let mut for_prompts = bearable.min(left);
        let mut is_limited = prompts.iter().map(|(_, sequence)| sequence.pending()).sum::<usize>() > for_prompts;
        let mut answered: Option<&Tenant> = None;
        for (index, sequence) in prompts {
            let count = portion(sequence, for_prompts);
            // A step that gives a tenant its first token is not made longer by the prompts of others.
            if count == 0 || tenants_share && answered.is_some_and(|tenant| *tenant != sequence.tenant) {
                is_limited = true;
                break;
            }
            if count == sequence.pending() {
                answered = Some(&sequence.tenant);
            }
            push(index, sequence, count);
            for_prompts -= count;
            left -= count;
        }
        // Runners take exact rows first.
        plan.slices.sort_by_key(|slice| slice.is_fast);
        if !is_limited {
            self.add_drafts(limits, left, plan);
        }
    }

    fn add_drafts(&mut self, limits: StepLimits, mut left: usize, plan: &mut Plan) {
        let mut draft_budget = DraftBudget::new(limits.rows_max - left, limits.row_cost);
        let sampling = plan.slices.iter().filter(|slice| slice.samples).count();
        left = left.min(limits.logit_rows_max.saturating_sub(sampling));
        for slice in plan.slices.iter_mut().filter(|slice| slice.is_generating() && !slice.is_fast) {
            let sequence = &mut self.running[slice.running];
            let count_max = limits.drafts_of(sequence, left);
            let first = plan.drafts.len();
            sequence.draft(count_max, &mut draft_budget, &mut plan.drafts);
            slice.drafts = first..plan.drafts.len();
            left -= slice.drafts.len();
        }
    }
}

/// Returns how many rows of a prompt are computed, if there is room for `rows`. A few fast rows cost as much as many, so none are
/// left over.
fn portion(sequence: &Sequence, rows: usize) -> usize {
    let all = sequence.rows_max();
    let left = all.saturating_sub(rows);
    if sequence.is_fast() && (1..FAST_ROWS_FEW).contains(&left) { rows.min(all.div_ceil(2)) } else { all.min(rows) }
}

/// Priority first, then the tenant that was served least, then who came first.
fn rank(sequence: &Sequence, shares: &FairShares) -> impl Ord + use<> {
    (Reverse(sequence.priority), shares.served(&sequence.tenant), sequence.id)
}

#[cfg(test)]
mod tests;
