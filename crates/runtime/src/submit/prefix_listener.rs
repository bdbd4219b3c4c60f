//! Tells somebody else how cached prefixes change, without ever waiting for them.

use ruvllm_engine::PrefixEvent;
use tokio::sync::mpsc;

/// Messages that may wait to be taken.
const UNTAKEN_MAX: usize = 1024;

/// The engine's end of a channel. A listener that does not keep up loses what it was not told: then it is told that nothing it
/// knows counts any more, and only of what is stored from then on.
#[derive(Clone, Debug)]
pub struct PrefixListener {
    told: mpsc::Sender<Vec<PrefixEvent>>,
    /// Whether what the listener knows does not count: something could not be told, or it is of an engine before this one.
    has_lost: bool,
}

impl PrefixListener {
    /// Makes a listener and what it hears.
    pub fn new() -> (Self, mpsc::Receiver<Vec<PrefixEvent>>) {
        let (told, heard) = mpsc::channel(UNTAKEN_MAX);
        (Self { told, has_lost: true }, heard)
    }

    pub(crate) fn tell(&mut self, mut events: Vec<PrefixEvent>) {
        if events.is_empty() {
            return;
        }
        if self.has_lost {
            events.insert(0, PrefixEvent::Cleared);
        }
        // Lost, too, where nobody listens any more.
        self.has_lost = self.told.try_send(events).is_err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_that_lags_is_told_that_it_knows_nothing() {
        let (mut listener, mut heard) = PrefixListener::new();
        let removed = PrefixEvent::Removed { pages: Vec::new() };
        for _ in 0..UNTAKEN_MAX + 2 {
            listener.tell(vec![removed.clone()]);
        }
        assert_eq!(heard.try_recv().as_deref(), Ok(&[PrefixEvent::Cleared, removed.clone()][..]), "at first, too");
        for _ in 1..UNTAKEN_MAX {
            assert_eq!(heard.try_recv().as_deref(), Ok(std::slice::from_ref(&removed)));
        }
        assert!(heard.try_recv().is_err());
        listener.tell(vec![removed.clone()]);
        assert_eq!(heard.try_recv().as_deref(), Ok(&[PrefixEvent::Cleared, removed.clone()][..]));
        listener.tell(vec![removed.clone()]);
        assert_eq!(heard.try_recv().as_deref(), Ok(&[removed][..]), "and only once");
    }
}
