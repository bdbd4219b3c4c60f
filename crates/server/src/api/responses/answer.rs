//! A response while it is generated, and where it goes in the end.

use std::sync::Arc;

use ruvllm_runtime::FinishReason;

use super::input::add_section;
use super::response::{IncompleteDetails, OutputItem, ResponseFailure, ResponseObject};
use super::store::{ResponseStore, Stored};
use super::tools::OfferedTools;
use crate::api::conversation::Conversation;
use crate::api::generation::Generation;
use crate::api::ids;
use crate::api::logprobs::TokenLogprobs;
use crate::api::sections::{Section, Sections};
use crate::error::ApiError;

#[derive(Debug)]
pub(crate) struct Answer {
    pub object: ResponseObject,
    /// What the client calls the tools.
    pub tools: OfferedTools,
    pub wants_logprobs: bool,
    /// The conversation before it.
    pub conversation: Conversation,
    /// Where it will be stored, if it is.
    pub store: Option<Arc<ResponseStore>>,
    pub tenant: Arc<str>,
    /// Ids of the output items.
    pub item_ids: Vec<String>,
}

impl Answer {
    /// Returns the id of a section's item, the same each time.
    pub(crate) fn item_id(&mut self, index: usize, section: &Section) -> &str {
        if self.item_ids.len() == index {
            let prefix = match section {
                Section::Reasoning(_) => "rs_",
                Section::Text(_) => "msg_",
                Section::Call(_) => "fc_",
            };
            self.item_ids.push(ids::new(prefix));
        }
        &self.item_ids[index]
    }

    /// Returns the item of a section. `is_cut` is whether the answer was cut off in it.
    pub(crate) fn item(
        &mut self,
        index: usize,
        section: &Section,
        is_cut: bool,
        generation: &Generation,
    ) -> OutputItem {
        let status = if is_cut && !section.is_whole() { "incomplete" } else { "completed" };
        let logprobs = self.logprobs(0, generation);
        let id = self.item_id(index, section).to_owned();
        OutputItem::of(section, &id, status, logprobs, &self.tools)
    }

    /// Returns the log probabilities of all tokens from `first` on, if requested. There are no tool calls then, so all
    /// belong to one text.
    pub(crate) fn logprobs(&self, first: usize, generation: &Generation) -> Vec<TokenLogprobs> {
        if !self.wants_logprobs {
            return Vec::new();
        }
        TokenLogprobs::of(generation.response(0), first, generation.tokenizer())
    }

    /// Everything has been generated.
    pub(crate) fn complete(&mut self, sections: &Sections, generation: &Generation) {
        let is_cut = is_cut(generation);
        self.object.output = self.items(sections, is_cut, generation);
        self.object.usage = Some(generation.usage().into());
        self.object.status = if is_cut { "incomplete" } else { "completed" };
        self.object.incomplete_details = is_cut.then_some(IncompleteDetails { reason: "max_output_tokens" });
        if let Some(store) = self.store.take() {
            let mut conversation = std::mem::take(&mut self.conversation);
            sections.all().iter().for_each(|section| add_section(section, &mut conversation));
            let tenant = Arc::clone(&self.tenant);
            self.object.store = store.put(Stored::new(self.object.clone(), conversation, sections.all(), tenant));
        }
    }

    /// Ends the response. A failed one is not stored: it could not be continued sensibly.
    pub(crate) fn fail(&mut self, error: &ApiError, sections: &Sections) {
        for (index, section) in sections.all().iter().enumerate() {
            let is_last = index + 1 == sections.all().len();
            let status = if is_last && !section.is_whole() { "incomplete" } else { "completed" };
            let id = self.item_id(index, section).to_owned();
            let item = OutputItem::of(section, &id, status, Vec::new(), &self.tools);
            self.object.output.push(item);
        }
        self.object.status = "failed";
        self.object.error = Some(ResponseFailure { code: "server_error", message: error.message.clone() });
    }

    fn items(&mut self, sections: &Sections, is_cut: bool, generation: &Generation) -> Vec<OutputItem> {
        let count = sections.all().len();
        let numbered = sections.all().iter().enumerate();
        numbered.map(|(index, section)| self.item(index, section, is_cut && index + 1 == count, generation)).collect()
    }
}

/// Whether the token limit cut it off.
pub(crate) fn is_cut(generation: &Generation) -> bool {
    generation.response(0).finish_reason == Some(FinishReason::Length)
}
