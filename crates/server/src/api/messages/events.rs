//! `POST /v1/messages`: the response as events.

use serde_json::json;

use super::response::{AnswerBlock, MessageObject, MessageUsage, stop_reason};
use crate::api::generation::{Generation, Part};
use crate::api::sections::{Change, Section, Sections};
use crate::api::signature::Signature;
use crate::api::sse::{Events, Wire};
use crate::error::ApiError;
use crate::request_id::RequestId;

#[derive(Debug)]
pub(crate) struct MessageWire {
    /// The start of the message. It is sent with the first token: only then is it known how much of the prompt was
    /// cached.
    pub opening: Option<MessageObject>,
    pub sections: Sections,
    pub stop_sequences: Vec<String>,
    pub request_id: RequestId,
}

impl MessageWire {
    fn tell(&self, change: &Change, events: &mut Events) {
        match change {
            Change::Opened(index) => {
                let content_block = AnswerBlock::opening(&self.sections.all()[*index]);
                let event = json!({ "type": "content_block_start", "index": index, "content_block": content_block });
                events.named("content_block_start", &event);
                if *index == 0 {
                    events.named("ping", &json!({ "type": "ping" }));
                }
            }
            Change::Grew(index, more) => {
                let delta = match self.sections.all()[*index] {
                    Section::Reasoning(_) => json!({ "type": "thinking_delta", "thinking": more }),
                    Section::Text(_) => json!({ "type": "text_delta", "text": more }),
                    Section::Call(_) => json!({ "type": "input_json_delta", "partial_json": more }),
                };
                let event = json!({ "type": "content_block_delta", "index": index, "delta": delta });
                events.named("content_block_delta", &event);
            }
            Change::Closed(index) => {
                if let Section::Reasoning(text) = &self.sections.all()[*index] {
                    let signature = Signature::of(text).to_string();
                    let delta = json!({ "type": "signature_delta", "signature": signature });
                    let event = json!({ "type": "content_block_delta", "index": index, "delta": delta });
                    events.named("content_block_delta", &event);
                }
                events.named("content_block_stop", &json!({ "type": "content_block_stop", "index": index }));
            }
        }
    }
}

impl Wire for MessageWire {
    fn begin(&mut self, _: &Generation, _: &mut Events) {}

    fn part(&mut self, part: Part, generation: &Generation, events: &mut Events) {
        if let Some(mut message) = self.opening.take() {
            message.usage = generation.usage().into();
            events.named("message_start", &json!({ "type": "message_start", "message": message }));
        }
        let changes = part.piece.map(|piece| self.sections.push(piece)).unwrap_or_default();
        changes.iter().for_each(|change| self.tell(change, events));
    }

    fn end(&mut self, generation: &Generation, events: &mut Events) {
        self.sections.close().iter().for_each(|change| self.tell(change, events));
        let (stop_reason, stop_sequence) = stop_reason(generation.response(0), &self.stop_sequences);
        let usage = MessageUsage::from(generation.usage());
        let delta = json!({ "stop_reason": stop_reason, "stop_sequence": stop_sequence });
        events.named("message_delta", &json!({ "type": "message_delta", "delta": delta, "usage": usage }));
        events.named("message_stop", &json!({ "type": "message_stop" }));
    }

    fn fail(&mut self, error: &ApiError, events: &mut Events) {
        events.named("error", &error.to_anthropic(self.request_id.as_str()));
    }
}
