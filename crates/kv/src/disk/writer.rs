//! The thread that changes the files of a disk store, so that no sequence waits for the disk.
//!
//! Jobs are done one by one in the order they were given: room is made before it is filled, and no page appears after it was
//! removed. Where a page cannot be written, as on a full disk, nothing is written for a while, and then it is tried again;
//! files are still removed meanwhile, which may be what the disk needs.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::page_file::{self, SavedPage};
use super::page_key::PageName;
use super::store::Shared;
use crate::prefix::PageHash;

/// Until writing is tried again after it failed, at first and at most.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A change of the folder.
#[derive(Clone, Debug)]
pub(super) enum Job {
    Write(PageHash, PageName, Arc<SavedPage>),
    Touch(PageName),
    Remove(PageName),
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    /// The first is being done.
    jobs: VecDeque<Job>,
    /// Of the pages in them.
    bytes: usize,
    pause: Option<Pause>,
    /// Written since the folder was last looked at for what other processes did.
    pub unscanned_bytes: u64,
    pub is_closing: bool,
}

/// Nothing is written until then.
#[derive(Debug)]
struct Pause {
    until: Instant,
    length: Duration,
}

/// Ends the thread when it is dropped, once all jobs are done.
#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Does jobs on a thread of its own.
    pub(super) fn start(shared: Arc<Shared>) -> io::Result<Self> {
        let working = Arc::clone(&shared);
        let thread = thread::Builder::new().name("kv-writer".to_owned()).spawn(move || work(&working))?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.queue().is_closing = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It has told what went wrong; there is nobody left to care.
            drop(thread.join());
        }
    }
}

/// Does jobs until there are none left and will be none.
fn work(shared: &Shared) {
    loop {
        let queue = shared.wait_until(|queue| !queue.jobs.is_empty() || queue.is_closing);
        let Some(job) = queue.jobs.front().cloned() else { return };
        // Others hand over the next ones meanwhile.
        drop(queue);
        let outcome = job.perform(shared);
        if outcome.is_ok() {
            shared.queue().unscanned_bytes += job.bytes() as u64;
            shared.scan_if_due();
        }
        if let Err(error) = &outcome {
            let folder = shared.folder.path().display();
            tracing::warn!(%folder, "cached texts are not saved to disk for a while, because a page could not be written: {error}");
        }
        let mut queue = shared.queue();
        let (lost, resumed) = queue.done(&outcome);
        // Before anybody sees that the job is done.
        lost.into_iter().for_each(|name| shared.index().forget(name));
        drop(queue);
        if resumed {
            tracing::info!(folder = %shared.folder.path().display(), "cached texts are saved to disk again");
        }
        shared.changed.notify_all();
    }
}

impl Queue {
    /// Whether a page of `bytes` bytes is accepted without blocking. One alone always is, however large.
    pub(super) fn has_room(&self, bytes: usize, bytes_max: usize) -> bool {
        bytes == 0 || self.bytes == 0 || self.bytes + bytes <= bytes_max
    }

    /// Whether pages are taken at all.
    pub(super) fn is_writing(&self) -> bool {
        self.pause.as_ref().is_none_or(|pause| Instant::now() >= pause.until)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub(super) fn push(&mut self, job: Job) {
        self.bytes += job.bytes();
        self.jobs.push_back(job);
    }

    /// A page that was handed over and may not be on disk yet.
    pub(super) fn pending(&self, name: PageName) -> Option<&Arc<SavedPage>> {
        self.jobs.iter().rev().find_map(|job| match job {
            Job::Write(_, of, page) if *of == name => Some(page),
            _ => None,
        })
    }

    /// The files that jobs change.
    pub(super) fn names(&self) -> impl Iterator<Item = PageName> {
        self.jobs.iter().map(Job::name)
    }

    /// The first job is done, or has failed and takes all other writes with it. Returns which pages are lost, and whether
    /// writing works again.
    fn done(&mut self, outcome: &io::Result<()>) -> (Vec<PageName>, bool) {
        let Some(done) = self.jobs.pop_front() else { return (Vec::new(), false) };
        self.bytes -= done.bytes();
        match (outcome, &done) {
            (Ok(()), Job::Write(..)) => (Vec::new(), self.pause.take().is_some()),
            (Ok(()), _) => (Vec::new(), false),
            (Err(_), _) => {
                let length = self.pause.as_ref().map_or(PAUSE_MIN, |pause| PAUSE_MAX.min(pause.length * 2));
                self.pause = Some(Pause { until: Instant::now() + length, length });
                let (writes, others) = self.jobs.drain(..).partition(|job| job.bytes() > 0);
                let writes: VecDeque<Job> = writes;
                (self.jobs, self.bytes) = (others, 0);
                (writes.iter().chain([&done]).map(Job::name).collect(), false)
            }
        }
    }
}

impl Job {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Write(_, _, page) => page.bytes.len(),
            Self::Touch(_) | Self::Remove(_) => 0,
        }
    }

    fn name(&self) -> PageName {
        match self {
            Self::Write(_, name, _) | Self::Touch(name) | Self::Remove(name) => *name,
        }
    }

    fn perform(&self, shared: &Shared) -> io::Result<()> {
        match self {
            Self::Write(hash, name, page) => {
                shared.folder.write(*name, &page_file::encode(&shared.key, *hash, page)?)?;
            }
            Self::Touch(name) => shared.folder.touch(*name),
            Self::Remove(name) => shared.folder.remove(*name),
        }
        Ok(())
    }
}
