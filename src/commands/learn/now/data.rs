//! What there is to learn from, divided by conversation.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::path::Path;

use anyhow::{Result, bail};
use ruvllm_learning::{DocumentKey, Needed, Part, Repeats, part_of};
use ruvllm_memory::{ExampleQuery, LearnedScope, Memory, TrajectoryPrompt};
use ruvllm_runtime::{ItemEncoder, ItemError};
use ruvllm_training::Item;
use serde_json::Value;

use super::too_few;
use crate::learning::Divided;

/// More would take days.
const EXAMPLES_MAX: usize = 100_000;

/// An answer to learn, as a line of a trainer's data.
struct Example {
    document: DocumentKey,
    line: Value,
    request: String,
    user: Option<String>,
    is_conversation: bool,
}

/// The preferred answers of a scope, the oldest first.
pub struct Examples {
    all: Vec<Example>,
    scope: LearnedScope,
}

/// The same as a model reads them.
pub struct Lesson {
    pub items: Divided,
    /// Tokens that switch the adapter on, where it applies to answers only.
    pub invocation: Option<Vec<u32>>,
    pub encoder: ItemEncoder,
    pub requests: Vec<String>,
    pub users: Vec<String>,
    /// Why examples were left out, and how many.
    pub left_out: BTreeMap<&'static str, usize>,
    /// Corrected answers that their corrections are learned without.
    pub rejected_left_out: usize,
}

impl Examples {
    /// Reads what explicit feedback says of a scope: corrections, and answers that were found right.
    pub fn read(memory: &Memory, scope: &LearnedScope) -> Result<Self> {
        let query = ExampleQuery {
            tenant: Some(scope.tenant.clone()),
            user: scope.user.clone(),
            model: Some(scope.model.clone()),
            since_ms: None,
        };
        let mut all = Vec::new();
        memory.learning().examples(&query, &mut |example| {
            let preferred = example.preferred().is_some();
            if let Some(line) = example.line().filter(|_| preferred && all.len() < EXAMPLES_MAX) {
                all.push(Example {
                    document: DocumentKey::of(&beginning(&example.trajectory.prompt)),
                    line,
                    is_conversation: matches!(example.trajectory.prompt, TrajectoryPrompt::Messages(_)),
                    request: example.trajectory.request,
                    user: example.trajectory.user,
                });
            }
            Ok(())
        })?;
        Ok(Self { all, scope: scope.clone() })
    }

    /// Says why it is too early to learn again, if fewer than `least` are new since the last version was made, or there is too
    /// little to judge by.
    pub fn too_few_new(&self, memory: &Memory, least: usize) -> Result<Option<String>> {
        let versions = memory.learning().versions(&self.scope)?;
        let known: BTreeSet<&str> =
            versions.last().iter().flat_map(|version| &version.body.requests).map(String::as_str).collect();
        let new = self.all.iter().filter(|example| !known.contains(example.request.as_str())).count();
        if new < least {
            return Ok(Some(format!(
                "{new} answers were corrected or approved since the last version, and {least} are wanted"
            )));
        }
        Ok(self.too_few(self.documents()))
    }

    /// Refuses what is too little to judge by.
    pub fn check_enough(&self) -> Result<()> {
        self.check(self.documents())
    }

    fn check(&self, documents: BTreeSet<DocumentKey>) -> Result<()> {
        self.too_few(documents).map_or(Ok(()), |told| Err(too_few(&self.scope, &told)))
    }

    fn documents(&self) -> BTreeSet<DocumentKey> {
        self.all.iter().map(|example| example.document).collect()
    }

    /// Says how much is needed of what there is too little of.
    fn too_few(&self, documents: BTreeSet<DocumentKey>) -> Option<String> {
        let least = Needed::LEAST;
        let counts = Needed::count(documents.iter().copied());
        if counts.is_enough() {
            return None;
        }
        let Needed { training, validation, held_out } = counts;
        Some(format!(
            "there are {} conversations with a correction or an approved answer: {training} to learn from, {validation} to \
             stop by and {held_out} to judge by; at least {}, {} and {} are needed, which about {} would have",
            documents.len(),
            least.training,
            least.validation,
            least.held_out,
            (least.held_out * 5).max(least.validation * 15),
        ))
    }
}

impl Lesson {
    /// Encodes examples for a model. An adapter applies to answers only, so that prompts stay the model's, if all of
    /// them are conversations in a chat format.
    pub fn new(examples: Examples, model: &Path, tokens_max: usize) -> Result<Self> {
        let is_activated = examples.all.iter().all(|example| example.is_conversation);
        let lesson = Self::encode(&examples, model, tokens_max, is_activated)?;
        // A chat format in which nothing begins an answer cannot switch anything on.
        let lesson = match lesson.invocation.as_ref().is_some_and(Vec::is_empty) {
            true => Self::encode(&examples, model, tokens_max, false)?,
            false => lesson,
        };
        let all = [&lesson.items.training, &lesson.items.validation, &lesson.items.held_out].into_iter().flatten();
        let encoded: BTreeSet<usize> = all.map(|item| item.document).collect();
        let mut left = examples.documents();
        left.retain(|document| encoded.contains(&(document.number() as usize)));
        examples.check(left)?;
        Ok(lesson)
    }

    fn encode(examples: &Examples, model: &Path, tokens_max: usize, is_activated: bool) -> Result<Self> {
        let mut lesson = Self {
            items: Divided::default(),
            invocation: None,
            encoder: ItemEncoder::open(model, tokens_max, is_activated)?,
            requests: Vec::new(),
            users: Vec::new(),
            left_out: BTreeMap::new(),
            rejected_left_out: 0,
        };
        let mut repeats = Repeats::default();
        for example in &examples.all {
            // Of a conversation only the last answer was preferred by somebody.
            let item = match lesson.encode_example(example).map(|mut items| items.pop()) {
                Ok(Some(item)) => item,
                Ok(None) => bail!("the answer to {} has no tokens", example.request),
                Err(error) => {
                    *lesson.left_out.entry(reason(&error)).or_default() += 1;
                    continue;
                }
            };
            if !repeats.take(example.document.number(), item.answer()) {
                *lesson.left_out.entry("repeating what answers in other conversations say").or_default() += 1;
                continue;
            }
            lesson.requests.push(example.request.clone());
            lesson.users.extend(example.user.clone());
            match part_of(example.document) {
                Part::Training => lesson.items.training.push(item),
                Part::Validation => lesson.items.validation.push(item),
                Part::HeldOut => lesson.items.held_out.push(item),
            }
        }
        lesson.users.sort();
        lesson.users.dedup();
        lesson.invocation = is_activated.then(|| lesson.encoder.invocation().to_vec());
        Ok(lesson)
    }

    /// Encodes an example: without the answer that was corrected, if only that is in the way.
    fn encode_example(&mut self, example: &Example) -> Result<Vec<Item>, ItemError> {
        let document = example.document.number() as usize;
        let encoded = self.encoder.encode(&example.line.to_string(), document);
        let mut line = example.line.clone();
        match line.as_object_mut().and_then(|fields| fields.remove("rejected")) {
            Some(_) if encoded.is_err() => {
                let encoded = self.encoder.encode(&line.to_string(), document)?;
                self.rejected_left_out += 1;
                Ok(encoded)
            }
            _ => encoded,
        }
    }

    /// Returns short digests of the items that are learned from.
    pub fn digests(&self) -> Vec<String> {
        let all: BTreeSet<String> = self.items.training.iter().map(digest).collect();
        all.into_iter().collect()
    }
}

/// Returns a short digest of an item and of what is rejected for it.
pub fn digest(item: &Item) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("ruvllm learning items 1");
    for item in iter::once(item).chain(item.rejected.as_deref()) {
        item.tokens.iter().zip(&item.targets).for_each(|(token, is_target)| {
            hasher.update(&token.to_le_bytes());
            hasher.update(&[u8::from(*is_target)]);
        });
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

/// Returns how a conversation begins: all that continue it begin so, too.
fn beginning(prompt: &TrajectoryPrompt) -> String {
    match prompt {
        TrajectoryPrompt::Text(text) => text.clone(),
        TrajectoryPrompt::Messages(messages) => {
            let asked = messages.iter().find(|message| message["role"] == "user").or(messages.first());
            asked.map_or_else(String::new, |message| match &message["content"] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            })
        }
    }
}

fn reason(error: &ItemError) -> &'static str {
    match error {
        ItemError::TooLong { .. } => "longer than --step-tokens",
        ItemError::Encode { .. } => "not possible in the model's chat format",
        _ => "without a text answer",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_turns_of_a_conversation_are_one_document() {
        let message = |role: &str, content: &str| json!({ "role": role, "content": content });
        let first = vec![message("system", "Be brief."), message("user", "Hello")];
        let later = [first.clone(), vec![message("assistant", "Hi"), message("user", "And now?")]].concat();
        let of = |messages: Vec<Value>| DocumentKey::of(&beginning(&TrajectoryPrompt::Messages(messages)));
        assert_eq!(of(first), of(later));
        assert_ne!(of(vec![message("user", "Hello")]), of(vec![message("user", "Bye")]));
    }
}
