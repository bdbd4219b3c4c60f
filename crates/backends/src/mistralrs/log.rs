//! What mistral.rs writes: passed on to our log, and the end of it kept for messages.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

/// Lines that are kept, and bytes of each.
const LINES_MAX: usize = 12;
const LINE_BYTES_MAX: u64 = 4096;

/// The last lines.
#[derive(Clone, Debug, Default)]
pub(super) struct LastLines(Arc<Mutex<VecDeque<String>>>);

impl LastLines {
    fn push(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.truncate(LINES_MAX - 1);
        lines.push_front(line.to_owned());
    }

    /// Returns the last line that is about an error, or else the last of all.
    pub(super) fn reason(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_error = |line: &&String| line.to_lowercase().contains("error") || line.contains("panicked");
        let found = lines.iter().find(is_error).or(lines.front());
        found.cloned().unwrap_or_else(|| "it wrote nothing".to_owned())
    }
}

/// Reads all that is written, until the writer ends. `ready` is told of the line that contains `awaited`.
pub(super) fn pass_on(output: impl Read, last: &LastLines, awaited: &str, ready: &Sender<()>) {
    let (mut reader, mut bytes) = (BufReader::new(output), Vec::new());
    loop {
        bytes.clear();
        match reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let line = plain(&String::from_utf8_lossy(&bytes));
        if line.is_empty() {
            continue;
        }
        if line.contains(" WARN ") || line.contains(" ERROR ") || line.contains("panicked") {
            tracing::warn!(target: "mistralrs", "{line}");
        } else {
            tracing::debug!(target: "mistralrs", "{line}");
        }
        last.push(&line);
        if line.contains(awaited) {
            // Nobody waits any more if it took too long.
            let _ = ready.send(());
        }
    }
}

/// Returns a line without colours and other control characters.
fn plain(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut characters = line.trim_end().chars();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            // A sequence such as ESC [ 3 2 m ends with its first letter.
            let _ = characters.find(char::is_ascii_alphabetic);
        } else if !character.is_control() {
            plain.push(character);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn lines_are_plain_and_the_reason_is_found_in_them() {
        let written = "\u{1b}[2m2026-11-19T20:00:00Z\u{1b}[0m \u{1b}[32m INFO\u{1b}[0m listening on http://127.0.0.1:7\n\
             Error: cannot load\nlast\n";
        let (last, (ready, is_ready)) = (LastLines::default(), channel());
        pass_on(written.as_bytes(), &last, "listening on http://127.0.0.1:7", &ready);
        assert!(is_ready.try_recv().is_ok() && is_ready.try_recv().is_err());
        assert_eq!(last.reason(), "Error: cannot load");
        let none = LastLines::default();
        pass_on("a\u{7}b".as_bytes(), &none, "c", &ready);
        assert_eq!((&*none.reason(), is_ready.try_recv().is_ok()), ("ab", false));
    }
}
