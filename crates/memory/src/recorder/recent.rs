//! The requests answered last. Feedback on one of them is accepted before its entry is written, and one that repeats a prompt is
//! recognised.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::learning::KnownRequest;

/// More than the queue holds, so that whatever waits in it is known.
const COUNT_MAX: usize = 12_000;
/// A prompt that comes again after this time is asked anew.
const REGENERATION_MAX: Duration = Duration::from_secs(600);

/// Tenant and id.
type Name = (String, String);

#[derive(Debug, Default)]
pub(super) struct RecentRequests(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    order: VecDeque<Arc<Recent>>,
    by_id: HashMap<Name, Arc<Recent>>,
    by_prompt: HashMap<u64, Arc<Recent>>,
}

#[derive(Debug)]
struct Recent {
    known: KnownRequest,
    prompt: Option<u64>,
    at: Instant,
}

impl Recent {
    /// Returns the ids it is found by. Choices of one response share its id, which stands for the first.
    fn names(&self) -> impl Iterator<Item = Name> {
        let KnownRequest { request, response, tenant, .. } = &self.known;
        let choice = request.rsplit_once('#').map(|(_, choice)| choice);
        let response = response.as_ref().map(|id| match choice {
            Some(choice) => format!("{id}#{choice}"),
            None => id.clone(),
        });
        [Some(request.clone()), response].into_iter().flatten().map(|id| (tenant.clone(), id))
    }
}

impl RecentRequests {
    /// Adds a request. `prompt` is a hash of what was asked, if it was answered.
    pub fn add(&self, known: KnownRequest, prompt: Option<u64>) {
        let recent = Arc::new(Recent { known, prompt, at: Instant::now() });
        let mut state = self.state();
        if state.order.len() == COUNT_MAX {
            state.remove_oldest();
        }
        for name in recent.names() {
            state.by_id.insert(name, Arc::clone(&recent));
        }
        if let Some(prompt) = prompt {
            state.by_prompt.insert(prompt, Arc::clone(&recent));
        }
        state.order.push_back(recent);
    }

    pub fn find(&self, tenant: &str, id: &str) -> Option<KnownRequest> {
        let name = (tenant.to_owned(), id.to_owned());
        self.state().by_id.get(&name).map(|recent| recent.known.clone())
    }

    /// Returns the request that was answered a short time ago to the same prompt.
    pub fn answered(&self, prompt: u64) -> Option<String> {
        let state = self.state();
        let recent = state.by_prompt.get(&prompt)?;
        (recent.at.elapsed() < REGENERATION_MAX).then(|| recent.known.request.clone())
    }

    /// Removes all: something is forgotten that may be among them.
    pub fn clear(&self) {
        *self.state() = State::default();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remove_oldest(&mut self) {
        let Some(oldest) = self.order.pop_front() else { return };
        for name in oldest.names() {
            // Another request may have the same id by now.
            if self.by_id.get(&name).is_some_and(|found| Arc::ptr_eq(found, &oldest)) {
                self.by_id.remove(&name);
            }
        }
        if let Some(prompt) = oldest.prompt
            && self.by_prompt.get(&prompt).is_some_and(|found| Arc::ptr_eq(found, &oldest))
        {
            self.by_prompt.remove(&prompt);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(tenant: &str, request: &str, response: &str) -> KnownRequest {
        KnownRequest {
            request: request.into(),
            response: Some(response.into()),
            tenant: tenant.into(),
            ..KnownRequest::default()
        }
    }

    #[test]
    fn requests_are_known_by_all_their_ids_and_to_their_tenant_only() {
        let recent = RecentRequests::default();
        recent.add(request("acme", "req-1", "chatcmpl-1"), Some(7));
        recent.add(request("acme", "req-1#2", "chatcmpl-1"), None);
        for (id, found) in
            [("req-1", "req-1"), ("chatcmpl-1", "req-1"), ("req-1#2", "req-1#2"), ("chatcmpl-1#2", "req-1#2")]
        {
            assert_eq!(recent.find("acme", id).unwrap().request, found);
            assert_eq!(recent.find("globex", id), None);
        }
        assert_eq!(recent.answered(7).as_deref(), Some("req-1"));
        assert_eq!(recent.answered(8), None);
        recent.clear();
        assert_eq!((recent.find("acme", "req-1"), recent.answered(7)), (None, None));
    }

    #[test]
    fn the_oldest_make_room_and_leave_nothing_behind() {
        let recent = RecentRequests::default();
        for at in 0..COUNT_MAX + 10 {
            recent.add(request("", &format!("req-{at}"), &format!("resp-{at}")), Some(at as u64 % 100));
        }
        let state = recent.state();
        assert_eq!((state.order.len(), state.by_id.len(), state.by_prompt.len()), (COUNT_MAX, 2 * COUNT_MAX, 100));
        drop(state);
        assert!(recent.find("", "req-9").is_none() && recent.find("", "resp-10").is_some());
    }
}
