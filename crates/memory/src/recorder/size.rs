//! An estimate of the memory that a waiting trace takes.

use serde_json::Value as Json;

use super::Trace;
use crate::sessions::Turn;

/// About the size of the structures, with the headers of their strings and lists.
const ENTRY_BYTES: usize = 1024;
const VALUE_BYTES: usize = 64;

pub(super) fn bytes_of(trace: &Trace) -> usize {
    let Trace { witness, to_embed, turn } = trace;
    let entry = &witness.entry;
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let strings = [&entry.request, &entry.tenant, &entry.model, &entry.backend, &entry.routing.model].map(String::len);
    let texts = entry.texts.as_ref().map_or(0, |texts| texts.prompt.len() + texts.answer.len());
    let error = entry.error.as_ref().map_or(0, |error| error.kind.len() + error.message.len());
    let documents: usize = entry.documents.iter().map(String::len).sum();
    let embedded: usize = to_embed.iter().flatten().map(String::len).sum();
    let vectors = vector(&witness.prompt_embedding) + vector(&witness.answer_embedding);
    let said = strings.iter().sum::<usize>() + text(&entry.session) + text(&entry.adapter) + documents;
    // Turns are kept twice: here and in the write buffer.
    let turn = turn.as_ref().map_or(0, |turn| 2 * bytes_of_turn(turn));
    ENTRY_BYTES + said + texts + error + embedded + vectors + turn
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
