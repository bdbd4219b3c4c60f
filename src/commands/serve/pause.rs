//! A process that stands still when it is told to.

use std::fs::File;
use std::process::{Child, Command};

use anyhow::Result;
#[cfg(unix)]
use rustix::process::{Pid, Signal, kill_process};
use ruvllm_runtime::LearnedFiles;

pub struct Pausing<'a> {
    id: u32,
    files: &'a LearnedFiles,
    /// Held while it stands still: so it does not while it reads or writes what others wait for.
    paused: Option<File>,
}

impl<'a> Pausing<'a> {
    pub fn new(child: &Child, files: &'a LearnedFiles) -> Self {
        Self { id: child.id(), files, paused: None }
    }

    /// Has the process not stand still for ever if this one is killed: a group of stopped processes that loses its parent is
    /// ended by the system. Nor is it meant by a Ctrl-C on this one's terminal.
    pub fn prepare(command: &mut Command) {
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        #[cfg(not(unix))]
        let _ = command;
    }

    /// Has it stand still, unless it is at something that must not be left halfway.
    pub fn pause(&mut self) -> Result<()> {
        if self.paused.is_none() {
            self.paused = self.files.try_interrupt()?;
            if self.paused.is_some() {
                self.send(Signal::STOP);
            }
        }
        Ok(())
    }

    pub fn resume(&mut self) {
        if self.paused.is_some() {
            self.send(Signal::CONT);
            self.paused = None;
        }
    }

    /// Asks it to end.
    pub fn interrupt(&self) {
        self.send(Signal::INT);
    }

    /// Sends a signal. The number of a process is its own until it was waited for.
    #[cfg(unix)]
    fn send(&self, signal: Signal) {
        if let Some(id) = Pid::from_raw(self.id.cast_signed()) {
            // One that has ended needs none.
            let _ = kill_process(id, signal);
        }
    }

    /// Elsewhere nothing stands still, and no server learns.
    #[cfg(not(unix))]
    fn send(&self, _: Signal) {
        let _ = self.id;
    }
}

#[cfg(not(unix))]
enum Signal {
    STOP,
    CONT,
    INT,
}
