//! Tells how learning goes on, and what came of it.

use anyhow::Result;
use ruvllm_learning::Verdict;
use ruvllm_memory::{LearnedScope, LearnedVersion};
use ruvllm_training::Item;
use serde_json::{Value, json};

use super::data::Lesson;
use crate::commands::learn::case::Judged;
use crate::flags::scope::describe;
use crate::learning::{GeneralTexts, HeldOutPairs};
use crate::output;

pub fn tell_lesson(scope: &LearnedScope, lesson: &Lesson) {
    let [training, validation, held_out] =
        [&lesson.items.training, &lesson.items.validation, &lesson.items.held_out].map(|items| items.len());
    let applies = if lesson.invocation.is_some() { "answers only" } else { "prompts and answers" };
    output::remark(&format!(
        "{}: {training} examples to learn from, {validation} to stop by, {held_out} held out; the adapter applies to \
         {applies}",
        describe(scope)
    ));
    let pairs =
        [&lesson.items.training, &lesson.items.validation, &lesson.items.held_out].map(|items| pair_count(items));
    if pairs.iter().any(|count| *count > 0) {
        let [training, validation, held_out] = pairs;
        output::remark(&format!("{training}, {validation} and {held_out} of them correct an answer that is known"));
    }
    if lesson.rejected_left_out > 0 {
        let count = lesson.rejected_left_out;
        output::remark(&format!(
            "{count} corrected answers are left out: no room for both in --step-tokens, or no text"
        ));
    }
    for (reason, count) in &lesson.left_out {
        output::remark(&format!("{count} examples are left out: {reason}"));
    }
}

/// Returns how many items have a rejected answer.
pub fn pair_count(items: &[Item]) -> usize {
    items.iter().filter(|item| item.rejected.is_some()).count()
}

pub fn tell_general(general: &GeneralTexts) {
    let replayed: usize = general.replay.iter().map(Item::target_count).sum();
    let left_out = match general.left_out {
        0 => String::new(),
        count => format!("; {count} windows that share text with the examples are left out"),
    };
    output::remark(&format!(
        "general texts: {} tokens to judge by ({}), {replayed} to mix in{left_out}",
        general.tokens(),
        general.source
    ));
}

/// Prints what a candidate was compared with, and the verdict.
pub fn print(version: &LearnedVersion, judged: &Judged) -> Result<()> {
    let Judged { report, measured, .. } = judged;
    let percent = |share: f64| format!("{:+.2} %", 100.0 * share);
    let heading = ["AGAINST", "LOSS", "CANDIDATE", "CHANGE", "95 % INTERVAL", "HAS TO BE BEATEN"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(report.comparisons.iter().map(|one| {
        vec![
            one.against.clone(),
            format!("{:.4}", one.loss),
            format!("{:.4}", report.loss),
            percent(one.interval.change),
            format!("{} to {}", percent(one.interval.low), percent(one.interval.high)),
            if one.is_required { "yes" } else { "no" }.to_owned(),
        ]
    }));
    let general = &report.general;
    rows.push(vec![
        "general texts".to_owned(),
        format!("{:.4}", general.base),
        format!("{:.4}", general.candidate),
        percent(general.rise),
        String::new(),
        format!("at most {}", percent(general.rise_max)),
    ]);
    output::table(&rows)?;
    let (number, model) = (version.version, &version.scope.model);
    output::remark(&format!("{} items of {} documents were held out", report.items, report.documents));
    if let Some(HeldOutPairs { base, candidate }) = &measured.preferences {
        let [before, now] = [base, candidate].map(|one| format!("{:.0} % (lead {:+.3})", 100.0 * one.share, one.lead));
        let pairs = base.pairs;
        output::remark(&format!(
            "corrections likelier than what they correct, per token: {before} of {pairs} before, {now} now"
        ));
    }
    match report.verdict {
        Verdict::Promoted => output::line(&format!(
            "version {number} is promoted: {} is answered with it (`ruvllm learn rollback {model}` takes it back)",
            describe(&version.scope)
        )),
        Verdict::Refused => {
            report.reasons.iter().for_each(|reason| output::remark(&format!("refused: {reason}")));
            output::line(&format!("version {number} is refused and kept with its figures; nothing has changed"))
        }
    }
}

pub fn to_json(version: &LearnedVersion) -> Value {
    json!({
        "version": version.version,
        "state": version.state,
        "scope": version.scope,
        "adapter": version.body.adapter,
        "bytes": version.body.bytes,
        "model_digest": version.body.model_digest,
        "parent": version.body.parent,
        "report": version.body.report,
    })
}
