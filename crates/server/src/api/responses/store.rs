//! Stored responses, which can be retrieved or continued.
//!
//! They live in this process only and do not survive a restart. The oldest are dropped when there are too many, or when
//! they need too much memory. No tenant sees those of another.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ruvllm_runtime::Message;

use super::response::ResponseObject;
use crate::api::conversation::Conversation;
use crate::api::sections::Section;

/// Maximum memory for stored responses, for the budget of the server.
pub const STORED_RESPONSES_BYTES_MAX: usize = 64 << 20;

/// Limits of the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreLimits {
    pub responses_max: usize,
    pub bytes_max: usize,
}

impl Default for StoreLimits {
    fn default() -> Self {
        Self { responses_max: 1024, bytes_max: STORED_RESPONSES_BYTES_MAX }
    }
}

/// A response with what is needed to continue it.
#[derive(Debug)]
pub(crate) struct Stored {
    pub object: ResponseObject,
    /// The conversation up to its end without the instructions, which apply to one response only.
    pub messages: Vec<Message>,
    /// Its output, in the order of the object's items.
    sections: Vec<Section>,
    tenant: Arc<str>,
    bytes: usize,
}

#[derive(Debug, Default)]
pub(crate) struct ResponseStore {
    limits: StoreLimits,
    responses: Mutex<StoredResponses>,
}

#[derive(Debug, Default)]
struct StoredResponses {
    /// In order of arrival.
    by_number: BTreeMap<u64, Arc<Stored>>,
    numbers: HashMap<String, u64>,
    /// The response of an output item, and the index of the item.
    items: HashMap<String, (u64, usize)>,
    next_number: u64,
    bytes: usize,
}

impl Stored {
    pub(crate) fn new(
        object: ResponseObject,
        conversation: Conversation,
        sections: &[Section],
        tenant: Arc<str>,
    ) -> Self {
        let json_bytes = serde_json::to_string(&object).map_or(0, |json| json.len());
        // The length of the object's JSON approximates its fields in memory; its output is counted once more as
        // sections.
        let bytes = 3 * json_bytes + conversation.bytes() + size_of::<Self>();
        Self { object, messages: conversation.into_messages(), sections: sections.to_vec(), tenant, bytes }
    }
}

impl ResponseStore {
    /// Returns whether it was stored: one that is too large by itself is not, and evicts nothing.
    pub(crate) fn put(&self, stored: Stored) -> bool {
        if stored.bytes > self.limits.bytes_max {
            return false;
        }
        let mut responses = self.lock();
        let number = responses.next_number;
        responses.next_number += 1;
        responses.bytes += stored.bytes;
        responses.numbers.insert(stored.object.id.clone(), number);
        for (index, item) in stored.object.output.iter().enumerate() {
            responses.items.insert(item.id().to_owned(), (number, index));
        }
        responses.by_number.insert(number, Arc::new(stored));
        while responses.by_number.len() > self.limits.responses_max || responses.bytes > self.limits.bytes_max {
            let Some(oldest) = responses.by_number.keys().next().copied() else { break };
            responses.remove(oldest);
        }
        true
    }

    pub(crate) fn get(&self, tenant: &str, id: &str) -> Option<Arc<Stored>> {
        let responses = self.lock();
        let stored = responses.by_number.get(responses.numbers.get(id)?)?;
        (*stored.tenant == *tenant).then(|| Arc::clone(stored))
    }

    /// Returns whether it existed.
    pub(crate) fn delete(&self, tenant: &str, id: &str) -> bool {
        let mut responses = self.lock();
        let Some(number) = responses.numbers.get(id).copied() else { return false };
        let is_theirs = responses.by_number.get(&number).is_some_and(|stored| *stored.tenant == *tenant);
        if is_theirs {
            responses.remove(number);
        }
        is_theirs
    }

    /// Finds an output item.
    pub(crate) fn item(&self, tenant: &str, id: &str) -> Option<Section> {
        let responses = self.lock();
        let (number, index) = *responses.items.get(id)?;
        let stored = responses.by_number.get(&number).filter(|stored| *stored.tenant == *tenant)?;
        stored.sections.get(index).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, StoredResponses> {
        // No operation under the lock can panic half way.
        self.responses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoredResponses {
    fn remove(&mut self, number: u64) {
        let Some(stored) = self.by_number.remove(&number) else { return };
        self.bytes -= stored.bytes;
        self.numbers.remove(&stored.object.id);
        for item in &stored.object.output {
            self.items.remove(item.id());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::responses::response::OutputItem;
    use crate::api::responses::tools::OfferedTools;

    fn stored(id: &str, tenant: &str, text: &str) -> Stored {
        let section = Section::Text(text.to_owned());
        let output =
            vec![OutputItem::of(&section, &format!("msg_{id}"), "completed", Vec::new(), &OfferedTools::default())];
        let object = ResponseObject { output, id: id.to_owned(), ..ResponseObject::default() };
        let mut conversation = Conversation::default();
        conversation.say("assistant", text);
        Stored::new(object, conversation, &[section], tenant.into())
    }

    fn store(responses_max: usize, bytes_max: usize) -> ResponseStore {
        ResponseStore { limits: StoreLimits { responses_max, bytes_max }, ..ResponseStore::default() }
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let store = store(2, usize::MAX);
        for id in ["a", "b", "c"] {
            store.put(stored(id, "", "x"));
        }
        assert!(store.get("", "a").is_none() && store.item("", "msg_a").is_none());
        assert!(store.get("", "b").is_some() && store.get("", "c").is_some());
        let responses = store.lock();
        assert_eq!((responses.numbers.len(), responses.items.len(), responses.by_number.len()), (2, 2, 2));
    }

    #[test]
    fn the_oldest_go_when_they_take_too_much_memory_and_nothing_stays_behind() {
        let one = stored("a", "", &"x".repeat(1000)).bytes;
        assert!(one > 4000, "the text is there in the object, as a section and in the conversation");
        let store = store(100, 2 * one);
        for id in ["a", "b", "c", "d"] {
            store.put(stored(id, "", &"x".repeat(1000)));
        }
        assert!(store.get("", "b").is_none() && store.get("", "c").is_some());
        assert!(!store.put(stored("e", "", &"x".repeat(10_000))), "it is too large by itself");
        assert!(store.delete("", "c") && store.delete("", "d"));
        let responses = store.lock();
        assert_eq!((responses.bytes, responses.items.len(), responses.numbers.len()), (0, 0, 0));
    }

    #[test]
    fn nobody_sees_or_deletes_those_of_another_tenant() {
        let store = store(10, usize::MAX);
        store.put(stored("a", "acme", "secret"));
        assert!(store.get("", "a").is_none() && store.item("other", "msg_a").is_none());
        assert!(!store.delete("other", "a"));
        assert_eq!(store.item("acme", "msg_a"), Some(Section::Text("secret".to_owned())));
        assert!(store.delete("acme", "a") && !store.delete("acme", "a"));
    }
}
