//! `ruvllm learn now`: trains a candidate, judges it, and serves it if it has won.

pub mod data;
pub mod measure;
pub mod report;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use ruvllm_memory::LearnedScope;
use ruvllm_training::{Data, TrainOptions};
use serde_json::{Value, json};

use super::case::{Case, CaseFlags, Judged};
use crate::flags::scope::describe;
use crate::learning::{Candidate, GeneralTexts, Scratch, Training};
use crate::output;
use data::Lesson;

/// Train on the feedback that was given, and serve the result if it has won
///
/// The corrections and approved answers of a tenant (or of one end user) are divided by conversation. From about two
/// thirds an adapter is trained, with general text mixed in; answers that were corrected become less likely than their
/// corrections (a score below 0 alone, without a correction, changes nothing). A tenth says when to stop; a quarter is
/// held out, always the same. On that the candidate has to be better than what is served now, than an n-gram memory of
/// the same examples, and than examples in the prompt, each with 95 % confidence, and the loss on general texts may rise
/// by 0.5 % at most. Then requests of that scope are answered with it that name no adapter, by running servers within
/// seconds. Otherwise it is kept with its figures: see `ruvllm learn history`.
///
/// Ctrl-C changes nothing. The same feedback, flags and seed give the same adapter.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ruvllm learn now smollm2\n  ruvllm learn now smollm2 --tenant acme --user ada --json\n  \
                        ruvllm learn rollback smollm2 --tenant acme --user ada"
)]
pub struct Now {
    #[command(flatten)]
    case: CaseFlags,
    /// Rank of the adapter, 1 to 64: how much it can hold
    #[arg(long, value_name = "N", default_value_t = 8)]
    rank: usize,
    /// How often everything is gone through at most
    #[arg(long, value_name = "N", default_value_t = 3)]
    epochs: usize,
    /// The largest learning rate
    #[arg(long, value_name = "X", default_value_t = 1e-3)]
    learning_rate: f32,
    /// A text that is mixed in, so that the model does not unlearn what is like it, instead of the one that comes
    /// with the program
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Share of it in all that is trained on
    #[arg(long, value_name = "SHARE", default_value_t = 0.2)]
    replay_share: f32,
    /// How much it counts that corrections become likelier than the answers that they correct, beside learning them; 0
    /// makes nothing of corrected answers
    #[arg(long, value_name = "X", default_value_t = TrainOptions::default().preference_weight)]
    preference_weight: f32,
    /// Do nothing unless so many answers were corrected or approved since the last version was made, and there are enough
    /// of them in all: for timers
    #[arg(long, value_name = "N")]
    new: Option<usize>,
}

impl Now {
    pub fn execute(self) -> Result<()> {
        let opened = self.case.open(|memory, scope, examples| {
            let Some(least) = self.new else { return Ok(false) };
            let reason = examples.too_few_new(memory, least)?;
            reason.map_or(Ok(false), |reason| self.waits(scope, &reason).map(|()| true))
        })?;
        let Some((case, examples)) = opened else { return Ok(()) };
        examples.check_enough()?;
        let lesson = Lesson::new(examples, &case.model.path, self.case.step_tokens)?;
        report::tell_lesson(&case.scope, &lesson);
        let texts = (self.case.general.as_deref(), self.replay.as_deref());
        let general = GeneralTexts::read(texts, &lesson.encoder, &lesson.items)?;
        report::tell_general(&general);
        // Removed again whatever happens.
        let scratch = Scratch(case.files.scratch()?);
        let candidate = self.train(&case, &lesson, &general, &scratch)?;
        let engine = case.engine()?;
        let judged = case.judge(&engine, (&lesson, &general), (&candidate.folder, candidate.options.beta))?;
        let report = report_of(&case, &candidate, &lesson, &general, &judged);
        let version = case.store(&candidate.folder, &lesson, &judged, report)?;
        match self.case.json {
            true => output::json(&report::to_json(&version)),
            false => report::print(&version, &judged),
        }
    }

    /// Says why nothing is done.
    fn waits(&self, scope: &LearnedScope, reason: &str) -> Result<()> {
        match self.case.json {
            true => output::json(&json!({ "scope": scope, "state": "waiting", "reason": reason })),
            false => output::line(&format!("nothing to do for {}: {reason}", describe(scope))),
        }
    }

    fn train(&self, case: &Case<'_>, lesson: &Lesson, general: &GeneralTexts, scratch: &Scratch) -> Result<Candidate> {
        let options = TrainOptions {
            rank: self.rank,
            alpha: 2.0 * self.rank as f32,
            epochs: self.epochs,
            learning_rate: self.learning_rate,
            step_tokens: self.case.step_tokens,
            seed: self.case.seed,
            replay_share: self.replay_share,
            preference_weight: self.preference_weight,
            ..TrainOptions::default()
        };
        let data = Data {
            training: lesson.items.training.clone(),
            replay: general.replay.clone(),
            validation: lesson.items.validation.clone(),
        };
        let named = (&*case.model.path, &*case.model.name);
        let training = Training::open(named, self.case.step_tokens, self.case.model.engine.threads, &case.stop)?;
        training.run(options, data, (&scratch.0, lesson.invocation.as_deref()))
    }
}

/// Returns everything that is known of how a version came to be.
fn report_of(
    case: &Case<'_>,
    candidate: &Candidate,
    lesson: &Lesson,
    general: &GeneralTexts,
    judged: &Judged,
) -> Value {
    let [training, replay, validation] = candidate.item_counts;
    json!({
        "gate": judged.report,
        "items": {
            "training": training, "validation": validation, "held_out": lesson.items.held_out.len(), "replay": replay,
            "left_out": lesson.left_out,
        },
        "pairs": {
            "training": candidate.pair_counts[0],
            "validation": candidate.pair_counts[1],
            "held_out": report::pair_count(&lesson.items.held_out),
            "left_out": lesson.rejected_left_out,
        },
        "preferences": judged.measured.preferences,
        "activated": lesson.invocation.is_some(),
        "training": {
            "options": candidate.options,
            "losses": candidate.outcome.evaluations,
            "steps": candidate.outcome.steps,
            "tokens": candidate.outcome.tokens,
            "seconds": candidate.seconds,
        },
        "general": {
            "source": general.source, "digest": general.digest, "tokens": general.tokens(),
            "left_out": general.left_out,
        },
        "prompt_examples": judged.measured.prompt_examples,
        "seconds": case.began.elapsed().as_secs_f64(),
    })
}

/// Says what there is too little of.
fn too_few(scope: &LearnedScope, told: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "{told}, of {}: nothing that is learned from so few could show that it is more than chance. Feedback is kept of \
         tenants that opted in (--learn), by POST /v1/feedback, `ruvllm feedback` or /fix in a chat",
        describe(scope)
    )
}
