//! The thread that changes the files of the disk tier, so that no sequence waits for the disk.
//!
//! Jobs are done one by one in the order they were given: room is made before it is filled, and no page appears after it was
//! removed.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::{io, mem};

use super::folder::Folder;
use super::page_file::{self, SavedPage};
use crate::prefix::PageHash;

/// A change of the folder.
#[derive(Clone, Debug)]
pub(super) enum Job {
    Write(PageHash, Arc<SavedPage>),
    Touch(PageHash),
    Remove(PageHash),
}

/// Takes jobs for the thread. Dropping it waits until all of them are done.
#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// There is a job more, or one less.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// The first is being done.
    jobs: VecDeque<Job>,
    /// Of the pages in them.
    bytes: usize,
    /// Why nothing is written any more.
    failure: Option<io::Error>,
    is_closing: bool,
}

impl Writer {
    /// Takes jobs with pages of at most `bytes_max` bytes, and does none before it is started.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { shared: Arc::default(), thread: None, bytes_max }
    }

    /// Starts the thread.
    pub(super) fn start(&mut self, folder: Folder) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        self.thread = Some(thread::Builder::new().name("kv-writer".to_owned()).spawn(move || shared.work(&folder))?);
        Ok(())
    }

    /// Whether a page of so many bytes is taken without waiting. One alone always is, however large.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.shared.lock().has_room(bytes, self.bytes_max)
    }

    /// Takes a job, once there is room for it. After a failure it is forgotten.
    pub(super) fn push(&self, job: Job) {
        let bytes = job.bytes();
        let mut queue = self.shared.wait_until(|queue| queue.has_room(bytes, self.bytes_max));
        if queue.failure.is_none() {
            queue.bytes += bytes;
            queue.jobs.push_back(job);
            self.shared.changed.notify_all();
        }
    }

    /// A page that was handed over and may not be on disk yet.
    pub(super) fn pending(&self, hash: PageHash) -> Option<Arc<SavedPage>> {
        self.shared.lock().jobs.iter().rev().find_map(|job| match job {
            Job::Write(of, page) if *of == hash => Some(Arc::clone(page)),
            _ => None,
        })
    }

    /// Waits until all jobs are done.
    pub(super) fn flush(&self) {
        drop(self.shared.wait_until(|queue| queue.jobs.is_empty()));
    }

    /// Fails if a page could not be written. Neither was any that was handed over after it.
    pub(super) fn check(&self) -> io::Result<()> {
        match &self.shared.lock().failure {
            Some(error) => Err(io::Error::new(error.kind(), error.to_string())),
            None => Ok(()),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.lock().is_closing = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It has told what went wrong; there is nobody left to care.
            drop(thread.join());
        }
    }
}

impl Shared {
    /// The queue is whole between any two statements, so what panicked elsewhere does not matter.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until(&self, condition: impl Fn(&Queue) -> bool) -> MutexGuard<'_, Queue> {
        self.changed.wait_while(self.lock(), |queue| !condition(queue)).unwrap_or_else(PoisonError::into_inner)
    }

    /// Does jobs until there are none left and will be none.
    fn work(&self, folder: &Folder) {
        loop {
            let queue = self.wait_until(|queue| !queue.jobs.is_empty() || queue.is_closing);
            let Some(job) = queue.jobs.front().cloned() else { return };
            // Others hand over the next ones meanwhile.
            drop(queue);
            let outcome = job.perform(folder);
            self.lock().done(outcome);
            self.changed.notify_all();
        }
    }
}

impl Queue {
    fn has_room(&self, bytes: usize, bytes_max: usize) -> bool {
        bytes == 0 || self.bytes == 0 || self.bytes + bytes <= bytes_max
    }

    /// The first job is done, or has failed and takes all others with it.
    fn done(&mut self, outcome: io::Result<()>) {
        let done = self.jobs.pop_front();
        self.bytes -= done.map_or(0, |job| job.bytes());
        if let Err(error) = outcome {
            self.failure = Some(error);
            drop(mem::take(&mut self.jobs));
            self.bytes = 0;
        }
    }
}

impl Job {
    fn bytes(&self) -> usize {
        match self {
            Self::Write(_, page) => page.bytes.len(),
            Self::Touch(_) | Self::Remove(_) => 0,
        }
    }

    fn perform(&self, folder: &Folder) -> io::Result<()> {
        match self {
            Self::Write(hash, page) => folder.write(*hash, &page_file::encode(*hash, page))?,
            Self::Touch(hash) => folder.touch(*hash),
            Self::Remove(hash) => folder.remove(*hash),
        }
        Ok(())
    }
}
