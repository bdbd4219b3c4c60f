//! What the reader allocates is bounded by the file's size, whatever the file says.
//!
//! A test binary of its own with a single test, because it counts the allocations of the whole process.

use std::alloc::System;
use std::fs;
use std::path::PathBuf;

use ruvllm_model::formats::gguf::Gguf;
use ruvllm_model::formats::map::FileBytes;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// A small entry takes less than 20 bytes in the file, but some 100 when decoded and indexed.
const ALLOCATED_PER_FILE_BYTE_MAX: usize = 8;
/// Error messages, and the first growth of each list.
const ALLOCATED_ALWAYS_MAX: usize = 2048;

#[track_caller]
fn check_parse_is_frugal(bytes: &[u8]) {
    let file = FileBytes::from(bytes.to_vec());
    let region = Region::new(ALLOCATOR);
    let parsed = Gguf::parse(file);
    let stats = region.change();
    let allocated = stats.bytes_allocated;
    let allowed = bytes.len() * ALLOCATED_PER_FILE_BYTE_MAX + ALLOCATED_ALWAYS_MAX;
    assert!(allocated <= allowed, "{allocated} bytes allocated for a file of {} bytes: {parsed:?}", bytes.len());
}

#[test]
fn no_claim_of_a_file_makes_the_reader_allocate_much() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/gguf");
    for name in ["sample", "aligned", "tokens", "every_type"] {
        let sound = fs::read(folder.join(format!("{name}.gguf"))).unwrap();
        check_parse_is_frugal(&sound);
        // Every count, length, dimension and offset is somewhere in here.
        for position in 0..sound.len() - 8 {
            for claim in [1 << 16, 1 << 20, 1 << 31, 1 << 40, 1 << 60, u64::MAX] {
                let mut lying = sound.clone();
                lying[position..position + 8].copy_from_slice(&u64::to_le_bytes(claim));
                check_parse_is_frugal(&lying);
            }
        }
    }
    assert!(Gguf::parse(as_many_entries_as_allowed()).is_ok());
    check_parse_is_frugal(&as_many_entries_as_allowed());
    check_parse_is_frugal(&as_many_tensors_as_allowed());
}

fn header(tensor_count: u64, entry_count: u64) -> Vec<u8> {
    [&b"GGUF\x03\0\0\0"[..], &tensor_count.to_le_bytes(), &entry_count.to_le_bytes()].concat()
}

/// A sound file of small entries, which cost the reader most for their size.
fn as_many_entries_as_allowed() -> Vec<u8> {
    let count = 1 << 16;
    let mut file = header(0, count);
    for index in 0..count {
        let key = [12, 8, 4, 0].map(|shift| b'a' + (index >> shift & 15) as u8);
        file.extend(4u64.to_le_bytes());
        file.extend(key);
        file.extend(0u32.to_le_bytes()); // a u8
        file.push(1);
    }
    file
}

fn as_many_tensors_as_allowed() -> Vec<u8> {
    let count = 1 << 16;
    let one_element_of_f32 = [&1u64.to_le_bytes()[..], b"t", &[1, 0, 0, 0], &1u64.to_le_bytes(), &[0; 12]].concat();
    [header(count, 0), one_element_of_f32.repeat(count as usize)].concat()
}
