//! Keeps a process of mistral.rs running for a model: one that has ended is started again, a few times.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::process::Process;

/// Starts within this time: a program that ends again and again is not started for every request.
const STARTS_MAX: usize = 4;
const STARTS_WITHIN: Duration = Duration::from_secs(600);
/// Attempts of a start whose port another program was faster to take.
const PORTS_MAX: usize = 3;

#[derive(Debug)]
pub(super) struct Supervisor {
    program: PathBuf,
    arguments: Vec<OsString>,
    process: Option<Process>,
    starts: VecDeque<Instant>,
}

impl Supervisor {
    /// Starts the program and waits until it takes requests.
    pub(super) fn start(program: PathBuf, arguments: Vec<OsString>) -> Result<Self, String> {
        let mut supervisor = Self { program, arguments, process: None, starts: VecDeque::new() };
        supervisor.running()?;
        Ok(supervisor)
    }

    /// Returns where it takes requests. Starts it again if it has ended.
    pub(super) fn running(&mut self) -> Result<String, String> {
        if let Some(process) = &self.process
            && !process.has_ended()
        {
            return Ok(process.url());
        }
        self.process = None;
        while self.starts.front().is_some_and(|start| start.elapsed() > STARTS_WITHIN) {
            self.starts.pop_front();
        }
        if self.starts.len() >= STARTS_MAX {
            let minutes = STARTS_WITHIN.as_secs() / 60;
            return Err(format!(
                "mistral.rs was started {STARTS_MAX} times within {minutes} minutes; it is again when they have passed"
            ));
        }
        self.starts.push_back(Instant::now());
        let process = self.start_process().map_err(|reason| {
            let program = self.program.display();
            format!("mistral.rs ({program}) does not run: {reason}")
        })?;
        tracing::info!(program = %self.program.display(), url = process.url(), "mistral.rs is ready");
        Ok(self.process.insert(process).url())
    }

    fn start_process(&self) -> Result<Process, String> {
        let mut ports = 1;
        loop {
            match Process::start(&self.program, &self.arguments) {
                Err(reason) if ports < PORTS_MAX && reason.contains("ddress already in use") => ports += 1,
                outcome => return outcome,
            }
        }
    }

    /// Ends the process. The next request starts it again.
    pub(super) fn stop(&mut self) {
        self.process = None;
    }

    /// Tells why an answer is not there: that the process has ended, if it has.
    pub(super) fn explain(&mut self, reason: String) -> String {
        match &mut self.process {
            Some(process) if process.is_ending() => {
                let how = process.how_it_ended();
                tracing::error!("mistral.rs: {how}");
                self.process = None;
                format!("mistral.rs failed: {how}; it is started again for the next request")
            }
            Some(_) => format!("mistral.rs failed: {reason}"),
            None => "mistral.rs has ended; it is started again for the next request".to_owned(),
        }
    }
}
