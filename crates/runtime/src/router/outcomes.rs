//! Reads choices from the log as a learner needs them.

use ruvllm_learning::routing::{Candidate, Features, LoggedChoice, Outcome, RewardRule};
use ruvllm_memory::{ChoiceOutcome, Feedback, Memory, MemoryError};

/// What the log says decided where a request named its model.
pub(super) const NAMED: &str = "request";
/// Kinds of errors that say nothing of a model: whoever asked has left or asked for what cannot be, or there was no room.
const NO_FAULT: [&str; 5] = ["cancelled", "queue_full", "invalid_request", "invalid_session", "invalid_grammar"];

/// A choice to learn from, and whose it was.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutedOutcome {
    pub logged: LoggedChoice,
    pub request: String,
    pub user: Option<String>,
}

/// Returns the newest choices of a tenant with their rewards, the oldest of them first.
pub fn routed_outcomes(
    memory: &Memory,
    tenant: &str,
    rule: RewardRule,
    count: usize,
) -> Result<Vec<RoutedOutcome>, MemoryError> {
    let found = memory.learning().choices(tenant, count)?;
    Ok(found.into_iter().filter_map(|outcome| routed_outcome(outcome, rule)).collect())
}

/// Returns `None` for what says nothing of a model, and for what another version of the program has decided by.
fn routed_outcome(found: ChoiceOutcome, rule: RewardRule) -> Option<RoutedOutcome> {
    let ChoiceOutcome { entry, choice, feedback, is_asked_again } = found;
    let has_failed = match &entry.error {
        Some(error) if NO_FAULT.contains(&error.kind.as_str()) => return None,
        error => error.is_some(),
    };
    let features = Features::parse(&choice.features)?;
    let probabilities = &entry.routing.probabilities;
    let candidate =
        |(model, probability): (&String, &f64)| Candidate { model: model.clone(), probability: *probability };
    let candidates: Vec<Candidate> = probabilities.iter().map(candidate).collect();
    let place = |model: &str| candidates.iter().position(|candidate| candidate.model == model);
    let chosen = place(&entry.model).filter(|place| candidates[*place].probability > 0.0)?;
    let is_named = choice.by == NAMED;
    let default = if is_named { chosen } else { place(&choice.default)? };
    let latency = &entry.latency;
    let valid = entry.quality.as_ref().and_then(|quality| quality.sources.get("valid"));
    let outcome = Outcome {
        feedback: feedback.as_ref().and_then(score),
        has_failed,
        is_invalid: valid.is_some_and(|valid| *valid < 0.5),
        is_cut: entry.finish.as_deref() == Some("length"),
        is_asked_again,
        // As long as the engine took: a client that reads slowly says nothing of a model.
        seconds: (latency.queue_ms + latency.prefill_ms + latency.decode_ms) / 1e3,
    };
    let logged = LoggedChoice { features, candidates, chosen, default, is_named, reward: rule.reward(&outcome) };
    Some(RoutedOutcome { logged, request: entry.request, user: entry.user })
}

/// Returns what feedback says of an answer: one that was corrected, and not scored, was wrong.
fn score(feedback: &Feedback) -> Option<f64> {
    let is_corrected = feedback.correction.is_some() || feedback.withheld.iter().any(|name| name == "correction");
    feedback.score.or(is_corrected.then_some(-1.0))
}

#[cfg(test)]
mod tests {
    use ruvllm_learning::routing::AskedText;
    use ruvllm_memory::{Failure, ModelChoice, Quality, WitnessEntry};

    use super::*;

    fn found(model: &str, by: &str) -> ChoiceOutcome {
        let mut entry = WitnessEntry { model: model.into(), finish: Some("stop".into()), ..WitnessEntry::default() };
        entry.routing.probabilities = [("a".into(), 0.9), ("b".into(), 0.1)].into();
        (entry.latency.queue_ms, entry.latency.decode_ms, entry.latency.total_ms) = (100.0, 400.0, 9e9);
        let features = Features::of(&AskedText::default()).to_text();
        let choice = ModelChoice { by: by.into(), default: "a".into(), features };
        ChoiceOutcome { entry, choice, feedback: None, is_asked_again: false }
    }

    fn reward(change: impl FnOnce(&mut ChoiceOutcome)) -> Option<f64> {
        let mut found = found("b", "bandit/3");
        change(&mut found);
        let rule = RewardRule::new(0.1).unwrap();
        routed_outcome(found, rule).map(|outcome| (1e6 * outcome.logged.reward).round() / 1e6)
    }

    #[test]
    fn what_is_said_and_what_is_measured_become_one_reward() {
        assert_eq!(reward(|_| ()), Some(-0.05));
        let said = |feedback| reward(|found| found.feedback = Some(feedback));
        assert_eq!(said(Feedback { score: Some(1.0), ..Feedback::default() }), Some(0.95));
        assert_eq!(said(Feedback { correction: Some("x".into()), ..Feedback::default() }), Some(-1.0));
        assert_eq!(said(Feedback { withheld: vec!["correction".into()], ..Feedback::default() }), Some(-1.0));
        assert_eq!(said(Feedback { reason: Some("hm".into()), ..Feedback::default() }), Some(-0.05));
        assert_eq!(reward(|found| found.is_asked_again = true), Some(-0.55));
        assert_eq!(reward(|found| found.entry.finish = Some("length".into())), Some(-0.3));
        let invalid = Quality { sources: [("valid".into(), 0.0)].into(), ..Quality::default() };
        assert_eq!(reward(|found| found.entry.quality = Some(invalid)), Some(-1.0));
        let failed = |kind: &str| {
            let error = Failure { kind: kind.into(), ..Failure::default() };
            reward(|found| found.entry.error = Some(error))
        };
        assert_eq!((failed("context_length"), failed("cancelled")), (Some(-1.0), None));
    }

    #[test]
    fn candidates_and_their_probabilities_are_those_of_the_log() {
        let logged = routed_outcome(found("b", "bandit/3"), RewardRule::default()).unwrap().logged;
        assert_eq!((logged.chosen, logged.default, logged.is_named, logged.is_explored()), (1, 0, false, true));
        assert_eq!(logged.candidates[1], Candidate { model: "b".into(), probability: 0.1 });
        let named = routed_outcome(found("b", NAMED), RewardRule::default()).unwrap().logged;
        assert!(named.is_named && !named.is_explored());
        assert!(routed_outcome(found("c", "bandit/3"), RewardRule::default()).is_none(), "it was no candidate");
        let mut other = found("b", "bandit/3");
        other.choice.features = "9.x".into();
        assert!(routed_outcome(other, RewardRule::default()).is_none());
    }
}
