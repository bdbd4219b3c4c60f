//! Tests that need the inside of the recorder.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::{MemoryOptions, clock};

/// Under load there is always something to write; retention must be applied all the same.
#[test]
fn maintenance_is_done_while_entries_never_stop_coming() {
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
        // Maintenance stores the time.
        let is_maintained = || memory.clock_ms().unwrap().is_some();
        while !is_maintained() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(is_maintained(), "there was no maintenance");
    });
    let batches = memory.witness().verify(&mut |_| {}).unwrap();
    assert!(batches.entries >= 10 * batches.batches, "batches stay large: {batches:?}");
}

impl Memory {
    fn clock_ms(&self) -> Result<Option<i64>> {
        self.write(clock::now)
    }
}
