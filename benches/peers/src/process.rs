//! A measured process: started, given work, watched, ended.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use peers_protocol::{Answer, Order, Ready, Start, Timing, Work};

use crate::candidates::Candidate;

/// Lines of standard error that are kept to explain a death.
const LAST_LINES: usize = 12;
/// How long the threads of an engine may go on spinning after it has answered.
const SPIN_MAX: Duration = Duration::from_secs(2);

/// Why there is no sample.
#[derive(Debug)]
pub enum Failure {
    /// The engine said so and goes on.
    Work(String),
    /// The process is gone.
    Process(String),
}

pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
    complaints: Arc<Mutex<Complaints>>,
    timeout: Duration,
    pub ready: Ready,
}

/// Standard error of a process.
#[derive(Debug, Default)]
struct Complaints {
    last: VecDeque<String>,
    /// Where llama.cpp says that it put its weights.
    buffers: Vec<String>,
}

impl Process {
    /// Starts a process and waits until its model is loaded.
    pub fn start(candidate: &Candidate, start: &Start, timeout: Duration) -> Result<Self, String> {
        let argument = serde_json::to_string(start).map_err(|error| error.to_string())?;
        let mut child = Command::new(&candidate.program)
            .args([&candidate.engine, &argument])
            // candle's threads; the other engines are told theirs in the argument.
            .env("RAYON_NUM_THREADS", start.threads.to_string())
            // Of a failure, the last lines are shown: the reason, not where it came from.
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{} cannot be started: {error}", candidate.program.display()))?;
        let (to, answers) = channel();
        if let Some(out) = child.stdout.take() {
            thread::spawn(move || BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| to.send(line)));
        }
        let complaints = Arc::new(Mutex::new(Complaints::default()));
        if let Some(error) = child.stderr.take() {
            let complaints = Arc::clone(&complaints);
            thread::spawn(move || {
                BufReader::new(error).lines().map_while(Result::ok).for_each(|line| note(&complaints, line))
            });
        }
        let ready = Ready { load_s: 0.0, version: String::new(), system_info: String::new() };
        let input = child.stdin.take();
        let mut process = Self { child, input, answers, complaints, timeout, ready };
        match process.receive() {
            Ok(Answer::Ready(ready)) => process.ready = ready,
            Ok(other) => return Err(format!("said {other:?} before it was ready")),
            Err(why) => return Err(why),
        }
        process.rest();
        Ok(process)
    }

    pub fn run(&mut self, work: Work) -> Result<Timing, Failure> {
        let answer = match self.ask(&Order::Time(work))? {
            Answer::Timing(timing) => Ok(timing),
            other => Err(unexpected(other)),
        };
        self.rest();
        answer
    }

    pub fn logits_after(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Failure> {
        match self.ask(&Order::LogitsAfter(tokens.to_vec()))? {
            Answer::Logits(logits) => Ok(logits),
            other => Err(unexpected(other)),
        }
    }

    fn ask(&mut self, order: &Order) -> Result<Answer, Failure> {
        let line = serde_json::to_string(order).map_err(|error| Failure::Process(error.to_string()))?;
        if let Some(input) = &mut self.input {
            // A process that is gone shows when its answer is waited for.
            let _ = writeln!(input, "{line}");
        }
        self.receive().map_err(Failure::Process)
    }

    fn receive(&mut self) -> Result<Answer, String> {
        match self.answers.recv_timeout(self.timeout) {
            Ok(line) => serde_json::from_str(&line).map_err(|_| format!("wrote a line that is no answer: {line}")),
            Err(RecvTimeoutError::Timeout) => Err(format!("did not answer within {} s", self.timeout.as_secs())),
            Err(RecvTimeoutError::Disconnected) => Err(self.obituary()),
        }
    }

    fn obituary(&mut self) -> String {
        let status = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        // Its last words may still be on their way through the pipe.
        thread::sleep(Duration::from_millis(100));
        let complaints =
            self.complaints.lock().map(|kept| Vec::from(kept.last.clone()).join("\n  ")).unwrap_or_default();
        format!("ended with {status}; its last words:\n  {complaints}")
    }

    /// Waits until the process uses no processor time: engines spin for a while in the hope of more work, and the next
    /// one shall have the machine to itself.
    fn rest(&self) {
        let began = Instant::now();
        let mut used = self.processor_ticks();
        while began.elapsed() < SPIN_MAX {
            thread::sleep(Duration::from_millis(30));
            let now = self.processor_ticks();
            if now == used {
                return;
            }
            used = now;
        }
    }

    /// User and system time of all its threads, in the kernel's ticks.
    fn processor_ticks(&self) -> Option<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        // Fields are counted from behind the name, which may hold anything but ends with the last parenthesis.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
    }

    /// The most memory that the process has held so far.
    pub fn peak_bytes(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
    }

    /// Where the engine says that it put its weights.
    pub fn buffers(&self) -> Vec<String> {
        self.complaints.lock().map(|kept| kept.buffers.clone()).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The end of its input ends it; a process that does not see that any more is ended from outside.
        drop(self.input.take());
        let began = Instant::now();
        while began.elapsed() < SPIN_MAX {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn unexpected(answer: Answer) -> Failure {
    match answer {
        Answer::Failed(why) => Failure::Work(why),
        Answer::Ready(_) => Failure::Process("said twice that it is ready".to_owned()),
        Answer::Timing(_) | Answer::Logits(_) => Failure::Process("answered another order".to_owned()),
    }
}

fn note(complaints: &Mutex<Complaints>, line: String) {
    let Ok(mut kept) = complaints.lock() else { return };
    if line.contains("model buffer size") {
        let text = line.split_once("load_tensors:").map_or(line.as_str(), |(_, text)| text);
        kept.buffers.push(text.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    if kept.last.len() == LAST_LINES {
        kept.last.pop_front();
    }
    kept.last.push_back(line);
}
