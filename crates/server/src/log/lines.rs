//! Lines on their way to standard error, which nobody may be reading: a pipe that is full must not keep requests waiting.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{mem, thread};

use tracing_subscriber::fmt::MakeWriter;

/// What waits at most; lines that find no room are lost, and counted.
const WAITING_BYTES_MAX: usize = 256 << 10;
/// How long the end of the log waits for a reader.
const END: Duration = Duration::from_secs(1);

static LOST: AtomicU64 = AtomicU64::new(0);

/// Returns how many lines were lost since the process began.
pub(crate) fn lost_lines() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Where lines are put, for a thread that writes them.
#[derive(Clone, Debug)]
pub(super) struct Lines(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Lines lost since the last one that was written.
    lost: u64,
    is_ending: bool,
    has_ended: bool,
}

/// Writes what is left when it is dropped.
#[derive(Debug)]
pub(super) struct LinesGuard(Lines);

impl Lines {
    /// Starts the thread that writes to `target`.
    pub fn start(target: impl Write + Send + 'static) -> io::Result<(Self, LinesGuard)> {
        let lines = Self(Arc::default());
        let writing = lines.clone();
        thread::Builder::new().name("log".into()).spawn(move || writing.write_to(target))?;
        Ok((lines.clone(), LinesGuard(lines)))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, line: &[u8]) {
        let mut queue = self.queue();
        if queue.bytes + line.len() > WAITING_BYTES_MAX {
            queue.lost += 1;
            LOST.fetch_add(1, Ordering::Relaxed);
            return;
        }
        queue.bytes += line.len();
        queue.lines.push_back(line.to_vec());
        self.0.changed.notify_all();
    }

    fn write_to(&self, mut target: impl Write) {
        let mut queue = self.queue();
        loop {
            let is_idle = |queue: &mut Queue| queue.lines.is_empty() && queue.lost == 0 && !queue.is_ending;
            queue = self.0.changed.wait_while(queue, is_idle).unwrap_or_else(PoisonError::into_inner);
            let (lines, lost) = (mem::take(&mut queue.lines), mem::take(&mut queue.lost));
            if lines.is_empty() && lost == 0 {
                queue.has_ended = true;
                self.0.changed.notify_all();
                return;
            }
            drop(queue);
            // There is nowhere to say that standard error cannot be written.
            for line in lines {
                let _ = target.write_all(&line);
                self.queue().bytes -= line.len();
            }
            if lost > 0 {
                let _ =
                    writeln!(target, "{lost} lines of the log were lost here: they came faster than they were read");
            }
            queue = self.queue();
        }
    }
}

impl Drop for LinesGuard {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.is_ending = true;
        self.0.0.changed.notify_all();
        // Nobody may ever read.
        let ended = self.0.0.changed.wait_timeout_while(queue, END, |queue| !queue.has_ended);
        drop(ended);
    }
}

/// Takes one line.
pub(super) struct Line<'a>(&'a Lines);

impl Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        Line(self)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A pipe whose reader takes one piece for each permit.
    struct Slow {
        permits: Receiver<()>,
        written: Sender<Vec<u8>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.permits.recv();
            let _ = self.written.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_nobody_reads_are_lost_and_the_log_says_so() {
        let ((permit, permits), (written, read)) = (channel(), channel());
        let (lines, guard) = Lines::start(Slow { permits, written }).expect("a thread");
        let before = lost_lines();
        let put = || lines.make_writer().write_all(&[b'x'; 1000]).expect("it never fails");
        put();
        // What is taken from now on waits for a reader.
        while !lines.queue().lines.is_empty() {
            thread::yield_now();
        }
        (1..500).for_each(|_| put());
        let lost = lost_lines() - before;
        assert!((200..=500 - 262).contains(&lost), "{lost}: 262 lines wait");
        // From here on somebody reads.
        drop(permit);
        drop(guard);
        let all: Vec<u8> = read.try_iter().flatten().collect();
        let text = String::from_utf8(all).expect("text");
        assert!(text.contains(&format!("{lost} lines of the log were lost here")), "{}", &text[text.len() - 200..]);
        assert_eq!(text.matches('x').count(), 1000 * (500 - lost as usize));
    }
}
