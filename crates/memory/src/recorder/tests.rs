//! What only the inside of the recorder can show.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::{MemoryOptions, clock};

/// Under load there is always something to write; what is too old has to go all the same.
#[test]
fn upkeep_comes_round_while_entries_never_stop_coming() {
    let folder = tempfile::tempdir().unwrap();
    let memory = Arc::new(Memory::open(MemoryOptions::in_folder(folder.path())).unwrap());
    let recorder = Recorder::start_with(Arc::clone(&memory), None, Duration::from_millis(100)).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // Never empty, so never idle.
                while recorder.stats().waiting < 500 {
                    recorder.record(Trace::default());
                }
                std::thread::yield_now();
            }
        });
        let deadline = Instant::now() + Duration::from_secs(120);
        // Upkeep leaves the time behind.
        let is_tended = || memory.clock_ms().unwrap().is_some();
        while !is_tended() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(is_tended(), "there was no upkeep");
    });
    let batches = memory.verify_witness(&mut |_| {}).unwrap();
    assert!(batches.entries >= 10 * batches.batches, "batches stay large: {batches:?}");
}

impl Memory {
    fn clock_ms(&self) -> Result<Option<i64>> {
        self.in_transaction(clock::now)
    }
}
