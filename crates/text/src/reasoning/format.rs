//! The ways in which models mark their reasoning.

use super::ReasoningPhase::{self, Answer, Reasoning};
use crate::tokenizer::Tokenizer;

/// Markers of a family of models.
#[derive(Debug, PartialEq, Eq)]
struct Markers {
    /// What chat templates for it contain.
    in_template: &'static str,
    /// What an answer may begin with, and what follows it. The first one opens the reasoning.
    starts: &'static [(&'static str, ReasoningPhase)],
    closes: &'static str,
    /// What must follow the closing marker, and what follows that. The first one opens the answer.
    continues: &'static [(&'static str, ReasoningPhase)],
    /// Parts of the markers that may be control tokens.
    parts: &'static [&'static str],
}

/// Reasoning between two tags, with the answer behind it.
macro_rules! tags {
    ($opens:literal, $closes:literal) => {
        Markers {
            in_template: $closes,
            starts: &[($opens, Reasoning)],
            closes: $closes,
            continues: &[],
            parts: &[$opens, $closes],
        }
    };
}

/// Harmony, gpt-oss's format: messages with a channel each, of which `analysis` is the reasoning.
const HARMONY: Markers = Markers {
    in_template: "<|channel|>analysis<|message|>",
    starts: &[("<|channel|>analysis<|message|>", Reasoning), ("<|channel|>final<|message|>", Answer)],
    closes: "<|end|>",
    continues: &[
        ("<|start|>assistant<|channel|>final<|message|>", Answer),
        ("<|start|>assistant<|channel|>analysis<|message|>", Reasoning),
    ],
    parts: &["<|start|>", "<|channel|>", "<|message|>", "<|end|>"],
};

static KNOWN: [Markers; 6] = [
    // Qwen3, DeepSeek-R1, SmolLM3, GLM and many others.
    tags!("<think>", "</think>"),
    // Magistral.
    tags!("[THINK]", "[/THINK]"),
    // Seed-OSS.
    tags!("<seed:think>", "</seed:think>"),
    // Command A Reasoning.
    tags!("<|START_THINKING|>", "<|END_THINKING|>"),
    // Apertus and some fine-tunes.
    tags!("<reasoning>", "</reasoning>"),
    HARMONY,
];

/// How a model marks its reasoning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningFormat {
    markers: &'static Markers,
    /// Parts of the markers that are control tokens, which have no text of their own in an answer.
    control_tokens: Vec<(u32, &'static str)>,
}

impl ReasoningFormat {
    /// Returns the format that a chat template was written for; `None` if its model does not reason.
    pub fn of_template(source: &str, tokenizer: &Tokenizer) -> Option<Self> {
        let markers = Self::find(source)?;
        let control =
            |part: &&'static str| tokenizer.token_id(part).filter(|id| tokenizer.is_control(*id)).map(|id| (id, *part));
        Some(Self { markers, control_tokens: markers.parts.iter().filter_map(control).collect() })
    }

    /// Returns whether a chat template was written for a model that reasons.
    pub fn is_in_template(source: &str) -> bool {
        Self::find(source).is_some()
    }

    fn find(source: &str) -> Option<&'static Markers> {
        KNOWN.iter().find(|markers| source.contains(markers.in_template))
    }

    #[cfg(test)]
    pub(super) fn in_plain_text(template: &str) -> Self {
        Self { markers: Self::find(template).expect("known markers"), control_tokens: Vec::new() }
    }

    /// Returns whether a prompt ends with the opening marker, so that the answer begins inside the reasoning.
    pub fn is_open_after(&self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.opens())
    }

    pub fn opens(&self) -> &'static str {
        self.markers.starts[0].0
    }

    pub fn closes(&self) -> &'static str {
        self.markers.closes
    }

    /// Returns the marker that must open the answer behind the closing one; `None` if the answer simply follows.
    pub fn opens_answer(&self) -> Option<&'static str> {
        self.markers.continues.first().map(|(marker, _)| *marker)
    }

    /// Returns the markers that may come in a phase, each with the phase that it begins.
    pub fn markers_in(&self, phase: ReasoningPhase) -> &'static [(&'static str, ReasoningPhase)] {
        match phase {
            ReasoningPhase::Start => self.markers.starts,
            ReasoningPhase::Closed => self.markers.continues,
            Reasoning | Answer => &[],
        }
    }

    /// Returns the text of a control token that is part of a marker.
    pub fn control_text(&self, token: u32) -> Option<&'static str> {
        self.control_tokens.iter().find(|(id, _)| *id == token).map(|(_, text)| *text)
    }
}
