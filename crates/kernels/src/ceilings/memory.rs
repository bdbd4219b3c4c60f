//! How fast memory is read: an array far larger than any cache, in huge pages where the system gives them, with the widest
//! loads.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::hint::black_box;
use std::slice;

use super::{ATTEMPTS, together};

/// Larger than the last-level caches that we know of (a few hundred megabytes).
const BYTES: usize = 1 << 30;
const HUGE_PAGE: usize = 2 << 20;

pub(super) fn read_bytes_s(threads: usize) -> f64 {
    read_bytes_s_of(threads, BYTES)
}

pub(super) fn read_bytes_s_of(threads: usize, bytes: usize) -> f64 {
    let array = Array::filled(bytes);
    let words = array.words();
    let share = words.len() / threads;
    let read = |index: usize| {
        let own = &words[index * share..(index + 1) * share];
        black_box(sum(own));
        size_of_val(own) as u64
    };
    (0..ATTEMPTS).map(|_| together(threads, read)).fold(0.0, f64::max)
}

/// Bytes at the beginning of a huge page.
struct Array {
    start: *mut u64,
    layout: Layout,
}

impl Array {
    fn filled(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, HUGE_PAGE).expect("a size that fits the address space");
        // SAFETY: the layout has a non-zero size.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        ask_for_huge_pages(start, bytes);
        // SAFETY: `bytes` bytes from `start` on are ours. Written, so that they are memory of their own and not the
        // system's one page of zeros.
        unsafe { start.write_bytes(1, bytes) };
        Self { start: start.cast(), layout }
    }

    fn words(&self) -> &[u64] {
        // SAFETY: aligned, initialized in `filled`, and not written as long as the array is borrowed.
        unsafe { slice::from_raw_parts(self.start, self.layout.size() / size_of::<u64>()) }
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: allocated with this same layout.
        unsafe { dealloc(self.start.cast(), self.layout) }
    }
}

/// Advice only; whatever the system makes of it is what the engine gets as well.
#[cfg(target_os = "linux")]
fn ask_for_huge_pages(start: *mut u8, bytes: usize) {
    // The C library is linked into every program of this system; these are its declaration and constant.
    const MADV_HUGEPAGE: i32 = 14;
    unsafe extern "C" {
        fn madvise(start: *mut u8, bytes: usize, advice: i32) -> i32;
    }
    // SAFETY: the range is our own allocation; this advice changes nothing that a program can see.
    unsafe { madvise(start, bytes, MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn ask_for_huge_pages(_start: *mut u8, _bytes: usize) {}

fn sum(words: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has the feature.
            return unsafe { sum_avx512(words) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { sum_avx2(words) };
        }
    }
    sum_lanes(words)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn sum_avx512(words: &[u64]) -> u64 {
    sum_lanes(words)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2(words: &[u64]) -> u64 {
    sum_lanes(words)
}

/// 64 sums side by side, eight of the widest registers: no addition waits for another, so only loads count.
#[inline(always)]
fn sum_lanes(words: &[u64]) -> u64 {
    let mut lanes = [0u64; 64];
    for chunk in words.as_chunks::<64>().0 {
        for (lane, word) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*word);
        }
    }
    lanes.into_iter().fold(0, u64::wrapping_add)
}
