//! What a search by likeness needs, on every kernel set, against plain integer math.

use crate::support::Random;
use ruvllm_kernels::KernelSet;
use ruvllm_kernels::ops::{ByteRow, ByteRows, keep_in_range};

/// Below, at and above whole lines, and the usual lengths of embeddings.
const LENGTHS: [usize; 9] = [1, 3, 63, 64, 65, 128, 384, 768, 1000];

fn numbers(random: &mut Random, len: usize) -> Vec<i8> {
    (0..len).map(|_| (random.below(255) as i32 - 127) as i8).collect()
}

fn dot(a: &[i8], b: &[i8]) -> i32 {
    a.iter().zip(b).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum()
}

fn rows_of(set: KernelSet, rows: &[Vec<i8>]) -> ByteRows {
    let mut all = ByteRows::new(set, rows[0].len(), rows.len());
    rows.iter().for_each(|row| all.push(row));
    all
}

#[test]
fn dots_with_rows_in_any_order_equal_integer_math() {
    let mut random = Random(20);
    for set in KernelSet::available() {
        for len in LENGTHS {
            let mut rows: Vec<Vec<i8>> = (0..40).map(|_| numbers(&mut random, len)).collect();
            rows[1].fill(127);
            rows[2].fill(-127);
            rows[3].fill(0);
            let all = rows_of(set, &rows);
            let named: Vec<u32> = (0..100).map(|_| random.below(40) as u32).chain([1, 2, 3]).collect();
            for query in [numbers(&mut random, len), vec![127; len], vec![-127; len]] {
                let mut out = vec![7; named.len()];
                all.dots(&ByteRow::new(&query), &named, &mut out);
                let want: Vec<i32> = named.iter().map(|row| dot(&query, &rows[*row as usize])).collect();
                assert_eq!(out, want, "{} {len}", set.name());
                let mut few = [0; 2];
                all.dots(all.row(5), &named[..2], &mut few);
                let want = [0, 1].map(|i| dot(&rows[5], &rows[named[i] as usize]));
                assert_eq!(few, want, "{} {len}", set.name());
                all.dots(all.row(5), &[], &mut []);
            }
        }
    }
}

#[test]
fn a_row_that_is_replaced_or_set_later_counts_as_it_is_then() {
    let mut random = Random(21);
    for set in KernelSet::available() {
        let (old, new) = (numbers(&mut random, 100), numbers(&mut random, 100));
        let mut rows = ByteRows::new(set, 100, 3);
        rows.push(&old);
        rows.extend_to(3);
        rows.set(2, &new);
        let mut out = [0; 3];
        rows.dots(&ByteRow::new(&new), &[0, 1, 2], &mut out);
        assert_eq!(out, [dot(&old, &new), 0, dot(&new, &new)], "{}", set.name());
        rows.set(0, &new);
        assert_eq!(rows.row(0), rows.row(2), "{}", set.name());
        assert_eq!((rows.len(), rows.rows_max()), (3, 3));
    }
}

#[test]
fn rows_that_are_not_there_and_numbers_without_opposite_are_refused() {
    for set in KernelSet::available() {
        let rows = rows_of(set, &[vec![1; 10]]);
        let outside = || rows.dots(rows.row(0), &[1], &mut [0]);
        assert!(std::panic::catch_unwind(outside).is_err(), "{}", set.name());
        assert!(std::panic::catch_unwind(|| ByteRow::new(&[0, -128])).is_err());
        assert!(std::panic::catch_unwind(|| rows_of(set, &[vec![-128; 10]])).is_err());
    }
}

#[test]
fn numbers_in_a_range_keep_their_bits_also_at_both_ends() {
    let mut random = Random(22);
    let ranges =
        [(0, u32::MAX), (5, 9), (7, 7), (0, 0), (u32::MAX, u32::MAX), (9, 5), (1 << 31, u32::MAX), (3, 1 << 31)];
    for set in KernelSet::available() {
        for len in [0usize, 1, 15, 16, 63, 64, 65, 200, 1000] {
            let values: Vec<u32> = (0..len)
                .map(|_| match random.below(4) {
                    0 => random.next() as u32,
                    1 => u32::MAX - random.below(2) as u32,
                    _ => random.below(12) as u32,
                })
                .collect();
            for (least, most) in ranges {
                let before: Vec<u64> =
                    (0..len.div_ceil(64)).map(|i| if i % 3 == 1 { 0 } else { random.next() }).collect();
                let mut kept = before.clone();
                keep_in_range(set, &values, least..=most, &mut kept);
                for i in 0..before.len() * 64 {
                    let was = before[i / 64] >> (i % 64) & 1 == 1;
                    let want = was && values.get(i).is_some_and(|value| (least..=most).contains(value));
                    assert_eq!(
                        kept[i / 64] >> (i % 64) & 1 == 1,
                        want,
                        "{} {i} of {len}, {least}..={most}",
                        set.name()
                    );
                }
            }
        }
    }
}
