//! In a process of its own: what is tested happens once in one.

use std::sync::Barrier;

use ruvllm_memory::{Memory, MemoryOptions};

#[test]
fn the_first_memories_of_a_process_may_be_opened_at_once() {
    const AT_ONCE: usize = 32;
    let barrier = Barrier::new(AT_ONCE);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                let folder = tempfile::tempdir().unwrap();
                barrier.wait();
                Memory::open(MemoryOptions::in_folder(folder.path())).unwrap();
            });
        }
    });
}
