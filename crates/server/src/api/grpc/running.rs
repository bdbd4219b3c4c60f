//! Answers that are under way, so that others can end them by their ids.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// As many as there are streams: a look through all of them takes microseconds.
#[derive(Debug, Default)]
pub(super) struct Running {
    answers: Mutex<Vec<Answer>>,
}

#[derive(Debug)]
struct Answer {
    tenant: Arc<str>,
    id: String,
    end: oneshot::Sender<String>,
}

/// One of the answers, until it is dropped.
#[derive(Debug)]
pub(super) struct Entered {
    running: Arc<Running>,
    ended: oneshot::Receiver<String>,
}

impl Running {
    pub(super) fn enter(self: &Arc<Self>, tenant: &Arc<str>, id: &str) -> Entered {
        let (end, ended) = oneshot::channel();
        self.answers().push(Answer { tenant: Arc::clone(tenant), id: id.to_owned(), end });
        Entered { running: Arc::clone(self), ended }
    }

    /// Ends the answers of a tenant with this id; returns whether there are any.
    pub(super) fn end(&self, tenant: &str, id: &str, reason: &str) -> bool {
        let mut answers = self.answers();
        let ended = answers.extract_if(.., |answer| *answer.tenant == *tenant && answer.id == id);
        // Fails for those that ended by themselves just now.
        ended.filter_map(|answer| answer.end.send(reason.to_owned()).ok()).count() > 0
    }

    fn answers(&self) -> MutexGuard<'_, Vec<Answer>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entered {
    /// Waits until somebody ends it; returns why.
    pub(super) async fn ended(&mut self) -> String {
        match (&mut self.ended).await {
            Ok(reason) => reason,
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.ended.close();
        self.running.answers().retain(|answer| !answer.end.is_closed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_of_the_tenant_with_the_id_end() {
        let running = Arc::new(Running::default());
        let (one, other): (Arc<str>, Arc<str>) = ("one".into(), "other".into());
        let (mut first, second) = (running.enter(&one, "a"), running.enter(&one, "b"));
        let third = running.enter(&other, "a");
        assert!(!running.end("nobody", "a", "") && !running.end("one", "c", ""));
        assert!(running.end("one", "a", "enough"));
        assert_eq!(first.ended.try_recv().unwrap(), "enough");
        assert!(!running.end("one", "a", ""), "it has ended");
        drop((first, second));
        assert!(!running.end("one", "b", ""));
        assert_eq!(running.answers().len(), 1);
        drop(third);
        assert!(running.answers().is_empty());
    }
}
