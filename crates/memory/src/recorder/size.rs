//! An estimate of the memory that something waiting takes.

use serde_json::Value as Json;

use super::{Queued, Trace};
use crate::learning::{Trajectory, TrajectoryPrompt};
use crate::sessions::Turn;
use crate::witness::Annotation;

/// About the size of the structures, with the headers of their strings and lists.
const ENTRY_BYTES: usize = 1024;
const VALUE_BYTES: usize = 64;

pub(super) fn bytes_of(queued: &Queued) -> usize {
    match queued {
        Queued::Trace(trace) => bytes_of_trace(trace),
        Queued::Annotation(annotation) => bytes_of_annotation(annotation),
    }
}

fn bytes_of_annotation(annotation: &Annotation) -> usize {
    let texts = annotation
        .feedback()
        .map_or(0, |feedback| [&feedback.correction, &feedback.reason].into_iter().flatten().map(String::len).sum());
    ENTRY_BYTES + texts
}

fn bytes_of_trace(trace: &Trace) -> usize {
    let Trace { witness, to_embed, turn, trajectory, .. } = trace;
    let entry = &witness.entry;
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let strings = [&entry.request, &entry.tenant, &entry.model, &entry.backend, &entry.routing.model].map(String::len);
    let texts = entry.texts.as_ref().map_or(0, |texts| texts.prompt.len() + texts.answer.len());
    let error = entry.error.as_ref().map_or(0, |error| error.kind.len() + error.message.len());
    let choice = entry.routing.choice.as_ref().map_or(0, |choice| choice.features.len() + choice.default.len());
    let candidates: usize = entry.routing.probabilities.keys().map(|name| VALUE_BYTES + name.len()).sum();
    let documents: usize = entry.documents.iter().map(String::len).sum();
    let embedded: usize = to_embed.iter().flatten().map(String::len).sum();
    let vectors = vector(&witness.prompt_embedding) + vector(&witness.answer_embedding);
    let said =
        strings.iter().sum::<usize>() + text(&entry.session) + text(&entry.adapter) + text(&entry.user) + documents;
    // Turns are kept twice: here and in the write buffer.
    let turn = turn.as_ref().map_or(0, |turn| 2 * bytes_of_turn(turn));
    let trajectory = trajectory.as_ref().map_or(0, bytes_of_trajectory);
    ENTRY_BYTES + said + choice + candidates + texts + error + embedded + vectors + turn + trajectory
}

fn bytes_of_trajectory(trajectory: &Trajectory) -> usize {
    let prompt = match &trajectory.prompt {
        TrajectoryPrompt::Messages(messages) => messages.iter().map(bytes_of_json).sum(),
        TrajectoryPrompt::Text(text) => text.len(),
    };
    let tokens = 4 * (trajectory.prompt_tokens.len() + trajectory.answer_tokens.len());
    ENTRY_BYTES + prompt + bytes_of_json(&trajectory.answer) + bytes_of_json(&trajectory.sampling) + tokens
}

fn bytes_of_turn(turn: &Turn) -> usize {
    let Turn { session, tenant, model, messages, embedding, .. } = turn;
    let messages: usize = messages.iter().map(bytes_of_json).sum();
    VALUE_BYTES + session.len() + tenant.len() + model.len() + messages + vector(embedding)
}

fn vector(vector: &Option<Vec<f32>>) -> usize {
    vector.as_ref().map_or(0, |vector| 4 * vector.len())
}

fn bytes_of_json(value: &Json) -> usize {
    VALUE_BYTES
        + match value {
            Json::String(text) => text.len(),
            Json::Array(values) => values.iter().map(bytes_of_json).sum(),
            Json::Object(fields) => {
                fields.iter().map(|(name, value)| VALUE_BYTES + name.len() + bytes_of_json(value)).sum()
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => 0,
        }
}
