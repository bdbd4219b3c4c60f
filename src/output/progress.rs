//! Progress of long work on the terminal; plain lines otherwise.

use std::io::{self, IsTerminal, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use ruvllm_store::{Event, Progress};

use super::{bytes, remark};

/// Files that were not chosen and are named.
const OTHERS_MAX: usize = 6;

/// Returns a flag that Ctrl-C sets. The first asks the running work to stop; a second one ends the program.
pub fn interrupt_flag() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&flag);
    // Fails only if a handler is already set, and there is one per process.
    let _ = ctrlc::set_handler(move || {
        if seen.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    });
    flag
}

/// Sets a flag once standard input ends.
pub fn set_at_end_of_input(flag: &Arc<AtomicBool>) -> io::Result<()> {
    let flag = Arc::clone(flag);
    let wait = move || {
        // What cannot be read any more has ended as well.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        flag.store(true, Ordering::Relaxed);
    };
    std::thread::Builder::new().name("end of input".into()).spawn(wait).map(drop)
}

/// Returns a bar that counts bytes, hidden unless standard error is a terminal.
pub fn byte_bar(total: u64, what: &str) -> ProgressBar {
    let bar = if stderr().is_terminal() { ProgressBar::new(total) } else { ProgressBar::hidden() };
    let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    bar.set_style(ProgressStyle::with_template(template).expect("the template is well-formed"));
    bar.set_message(what.to_owned());
    bar
}

/// Returns a bar that counts pieces of work, hidden unless standard error is a terminal.
pub fn count_bar(total: usize, what: &str) -> ProgressBar {
    let bar = if stderr().is_terminal() { ProgressBar::new(total as u64) } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}");
    bar.set_style(style.expect("the template is well-formed"));
    bar.set_message(what.to_owned());
    bar
}

/// Returns a counter of work with no known end, hidden unless standard error is a terminal.
pub fn counter(what: &str) -> ProgressBar {
    let counter = if stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{spinner} {pos} {msg}").expect("the template is well-formed");
    counter.set_style(style);
    counter.set_message(what.to_owned());
    counter
}

/// Shows the progress of the store.
#[derive(Debug)]
pub struct PullProgress {
    bar: ProgressBar,
    cancelled: Arc<AtomicBool>,
}

impl PullProgress {
    pub fn new(cancelled: Arc<AtomicBool>) -> Self {
        Self { bar: ProgressBar::hidden(), cancelled }
    }

    fn remark(&self, text: &str) {
        self.bar.suspend(|| remark(text));
    }
}

impl Progress for PullProgress {
    fn report(&mut self, event: Event) {
        match event {
            Event::WaitingForOtherProcess { name } => {
                self.remark(&format!("another process is pulling {name}; waiting for it"));
            }
            Event::Chosen { file, bytes, why, others } => self.remark(&chosen(&file, bytes, &why, &others)),
            Event::TrySource { source } => self.remark(&format!("fetching from {source}")),
            Event::SourceFailed { source, why } => {
                self.bar.finish_and_clear();
                self.remark(&format!("{source}: {why}"));
            }
            Event::Retrying { why, wait } => self.remark(&format!("{why}; retrying in {:.0} s", wait.as_secs_f64())),
            Event::Bytes { done_bytes, total_bytes } => {
                if self.bar.length() != Some(total_bytes) || self.bar.is_finished() {
                    self.bar = byte_bar(total_bytes, "fetching");
                }
                self.bar.set_position(done_bytes);
            }
            Event::Verifying { bytes } => {
                self.bar.set_message("checking");
                self.bar.set_length(bytes);
                self.bar.enable_steady_tick(Duration::from_millis(100));
            }
            Event::Done { .. } => self.bar.finish_and_clear(),
            _ => {}
        }
    }

    fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// Says which file was chosen, why, and how to choose another.
fn chosen(file: &str, size: u64, why: &str, others: &[String]) -> String {
    let chosen = format!("chose {file} ({}): {why}", bytes(size));
    match others.len() {
        0 => chosen,
        count => {
            let named = others[..count.min(OTHERS_MAX)].join(", ");
            let more = if count > OTHERS_MAX { format!(" and {} more", count - OTHERS_MAX) } else { String::new() };
            format!("{chosen}. There are also {named}{more}: give hf:OWNER/REPO/FILE for one of them")
        }
    }
}
