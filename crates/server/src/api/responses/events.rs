//! `POST /v1/responses`: the response as events.
//!
//! Each event has a type and a number and names its item. Completed items are sent again in full, so that clients need
//! not assemble them.

use serde::Serialize;
use serde_json::{Value, json};

use super::answer::{Answer, is_cut};
use super::response::{OutputItem, OutputPart, ReasoningPart};
use super::tools::CallKind;
use crate::api::generation::{Generation, Part};
use crate::api::sections::{Change, Section, Sections};
use crate::api::sse::{Events, Wire};
use crate::error::ApiError;

#[derive(Debug)]
pub(crate) struct ResponseWire {
    pub answer: Answer,
    pub sections: Sections,
    /// Number of the next event.
    pub sequence_number: u64,
    /// Number of tokens whose log probabilities were sent.
    pub reported: usize,
}

#[derive(Serialize)]
struct Event<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    sequence_number: u64,
    #[serde(flatten)]
    fields: &'a Value,
}

impl ResponseWire {
    pub(crate) fn new(answer: Answer) -> Self {
        Self { answer, sections: Sections::default(), sequence_number: 0, reported: 0 }
    }

    fn send(&mut self, kind: &'static str, fields: &Value, events: &mut Events) {
        events.named(kind, &Event { kind, sequence_number: self.sequence_number, fields });
        self.sequence_number += 1;
    }

    fn send_object(&mut self, kind: &'static str, events: &mut Events) {
        let fields = json!({ "response": self.answer.object });
        self.send(kind, &fields, events);
    }

    fn tell(&mut self, change: Change, is_cut: bool, generation: &Generation, events: &mut Events) {
        match change {
            Change::Opened(index) => self.send_opened(index, events),
            Change::Grew(index, delta) => self.send_more(index, &delta, generation, events),
            Change::Closed(index) => self.send_closed(index, is_cut, generation, events),
        }
    }

    fn send_opened(&mut self, index: usize, events: &mut Events) {
        let section = self.sections.all()[index].opening();
        let id = self.answer.item_id(index, &section).to_owned();
        let item = OutputItem::opening(&section, &id, &self.answer.tools);
        self.send("response.output_item.added", &json!({ "output_index": index, "item": item }), events);
        let part = match section {
            Section::Text(_) => json!(OutputPart::new("", Vec::new())),
            Section::Reasoning(_) => json!(ReasoningPart::ReasoningText { text: String::new() }),
            Section::Call(_) => return,
        };
        let fields = json!({ "item_id": id, "output_index": index, "content_index": 0, "part": part });
        self.send("response.content_part.added", &fields, events);
    }

    fn send_more(&mut self, index: usize, delta: &str, generation: &Generation, events: &mut Events) {
        let id = &self.answer.item_ids[index];
        match &self.sections.all()[index] {
            Section::Call(call) => {
                // Other kinds have no arguments; what the client sees of them is known at the end.
                if let CallKind::Function | CallKind::Namespaced { .. } = self.answer.tools.kind(call) {
                    let fields = json!({ "item_id": id, "output_index": index, "delta": delta });
                    self.send("response.function_call_arguments.delta", &fields, events);
                }
                return;
            }
            Section::Reasoning(_) => {
                let fields = json!({ "item_id": id, "output_index": index, "content_index": 0, "delta": delta });
                return self.send("response.reasoning_text.delta", &fields, events);
            }
            Section::Text(_) => {}
        }
        let logprobs = self.answer.logprobs(self.reported, generation);
        self.reported += logprobs.len();
        let fields = json!({
            "item_id": id, "output_index": index, "content_index": 0, "delta": delta, "logprobs": logprobs
        });
        self.send("response.output_text.delta", &fields, events);
    }

    fn send_closed(&mut self, index: usize, is_cut: bool, generation: &Generation, events: &mut Events) {
        let section = &self.sections.all()[index];
        let item = self.answer.item(index, section, is_cut, generation);
        match &item {
            OutputItem::Message(message) => {
                let place = json!({ "item_id": message.id, "output_index": index, "content_index": 0 });
                for part in &message.content {
                    let OutputPart::OutputText { text, logprobs, .. } = part;
                    let done = with(&place, &json!({ "text": text, "logprobs": logprobs }));
                    self.send("response.output_text.done", &done, events);
                    self.send("response.content_part.done", &with(&place, &json!({ "part": part })), events);
                }
            }
            OutputItem::Reasoning(reasoning) => {
                let place = json!({ "item_id": reasoning.id, "output_index": index, "content_index": 0 });
                for part in &reasoning.content {
                    let ReasoningPart::ReasoningText { text } = part;
                    self.send("response.reasoning_text.done", &with(&place, &json!({ "text": text })), events);
                    self.send("response.content_part.done", &with(&place, &json!({ "part": part })), events);
                }
            }
            OutputItem::CustomToolCall(call) => {
                let place = json!({ "item_id": call.id, "output_index": index });
                let delta = with(&place, &json!({ "delta": call.input }));
                self.send("response.custom_tool_call_input.delta", &delta, events);
                let done = with(&place, &json!({ "input": call.input }));
                self.send("response.custom_tool_call_input.done", &done, events);
            }
            OutputItem::LocalShellCall(_) => {}
            OutputItem::FunctionCall(call) => {
                let fields = json!({
                    "item_id": call.id, "output_index": index, "name": call.name, "arguments": call.arguments
                });
                self.send("response.function_call_arguments.done", &fields, events);
            }
        }
        self.send("response.output_item.done", &json!({ "output_index": index, "item": item }), events);
    }
}

/// Fields that both have.
fn with(first: &Value, second: &Value) -> Value {
    let fields = [first, second].into_iter().filter_map(Value::as_object).flatten();
    fields.map(|(name, value)| (name.clone(), value.clone())).collect()
}

impl Wire for ResponseWire {
    fn begin(&mut self, _: &Generation, events: &mut Events) {
        self.send_object("response.created", events);
        self.send_object("response.in_progress", events);
    }

    fn part(&mut self, part: Part, generation: &Generation, events: &mut Events) {
        let changes = part.piece.map(|piece| self.sections.push(piece)).unwrap_or_default();
        changes.into_iter().for_each(|change| self.tell(change, false, generation, events));
    }

    fn end(&mut self, generation: &Generation, events: &mut Events) {
        let mut changes = self.sections.open_if_none();
        // The token that ended the answer has a log probability too, but no text.
        if !self.answer.logprobs(self.reported, generation).is_empty() {
            changes.push(Change::Grew(self.sections.all().len() - 1, String::new()));
        }
        changes.extend(self.sections.close());
        let is_cut = is_cut(generation);
        changes.into_iter().for_each(|change| self.tell(change, is_cut, generation, events));
        self.answer.complete(&self.sections, generation);
        self.send_object(if is_cut { "response.incomplete" } else { "response.completed" }, events);
    }

    fn fail(&mut self, error: &ApiError, events: &mut Events) {
        self.answer.fail(error, &self.sections);
        self.send_object("response.failed", events);
    }
}
