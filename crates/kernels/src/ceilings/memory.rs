//! How fast memory is read: an array far larger than any cache, in huge pages where the system gives them, with the widest
//! loads.

use std::hint::black_box;

use super::{ATTEMPTS, together};
use crate::aligned::AlignedVec;

/// Larger than the last-level caches that we know of (a few hundred megabytes).
const BYTES: usize = 1 << 30;

pub(super) fn read_bytes_s(threads: usize) -> f64 {
    read_bytes_s_of(threads, BYTES)
}

pub(super) fn read_bytes_s_of(threads: usize, bytes: usize) -> f64 {
    let mut words = AlignedVec::zeroed(bytes / size_of::<u64>());
    // Written, so that they are memory of their own and not the system's one page of zeros.
    words.fill(1);
    let words = &*words;
    let share = words.len() / threads;
    let read = |index: usize| {
        let own = &words[index * share..(index + 1) * share];
        black_box(sum(own));
        size_of_val(own) as u64
    };
    (0..ATTEMPTS).map(|_| together(threads, read)).fold(0.0, f64::max)
}

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
