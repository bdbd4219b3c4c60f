//! Attention over pages of every format, on every kernel set, against an f64 formula over what the pages hold.

use crate::support::sequence::{Model, assert_close};
use crate::support::{Random, pools};
use ruvllm_runner::{KeyFormat, PAGE_TOKENS, PageFormat, Rotation, ValueFormat};

/// Head dimension and query heads for each KV head. Only one where tests usually run under emulation, a hundred times
/// slower.
const SHAPES: &[(usize, usize)] =
    if cfg!(target_arch = "aarch64") { &[(80, 3)] } else { &[(64, 3), (80, 1), (128, 7)] };
/// More than two chunks, and a page that is not full.
const TOKENS: usize = 300;

/// How far results may be from the formula. Weights have 15 bits; queries are exact but for keys by channel, where
/// products with the scales are rounded.
fn tolerance(keys: KeyFormat) -> f64 {
    match keys {
        KeyFormat::F16 | KeyFormat::Q8 => 1e-4,
        KeyFormat::Q6 | KeyFormat::Q4 => 3e-3,
    }
}

#[test]
fn every_format_equals_the_f64_formula_over_what_its_pages_hold() {
    let mut random = Random(11);
    for &(head_dim, group) in SHAPES {
        for (set, pool) in pools() {
            let mut model = Model::new(pool, head_dim, group, Rotation::None);
            let rows = model.rows(&mut random, TOKENS);
            let hot = model.pages(PageFormat::F16, TOKENS);
            model.step(&hot, 0, &rows[..TOKENS - 1]);
            let mut check = |formats: &[PageFormat], tolerance: f64| {
                let pages = model.copies(&hot);
                // All that are full.
                model.convert(&pages[..TOKENS / PAGE_TOKENS], formats);
                let got = model.step(&pages, TOKENS - 1, &rows[TOKENS - 1..]);
                let want = model.formula(&pages, TOKENS, &rows[TOKENS - 1]);
                assert_close(&got[0], &want, tolerance, &format!("{} {formats:?} {head_dim}", set.name()));
                pages.iter().for_each(|page| model.kv.free(*page));
            };
            let formats: Vec<PageFormat> = PageFormat::all().collect();
            formats.iter().for_each(|format| check(&[*format], tolerance(format.keys)));
            // One softmax over pages of all formats.
            check(&formats, tolerance(KeyFormat::Q4));
        }
    }
}

#[test]
fn keys_whose_channels_are_alike_are_exact_in_few_bits() {
    let mut random = Random(13);
    for (keys, levels) in [(KeyFormat::Q4, 16), (KeyFormat::Q6, 64)] {
        for (set, pool) in pools() {
            let mut model = Model::new(pool, 80, 3, Rotation::None);
            let mut rows = model.rows(&mut random, PAGE_TOKENS + 1);
            for (t, row) in rows[..PAGE_TOKENS].iter_mut().enumerate() {
                // Every channel goes from one end to the other, so all have the same scale.
                for key in &mut row[6 * 80..8 * 80] {
                    let code = [0, levels - 1].get(t).copied().unwrap_or_else(|| random.below(levels));
                    *key = code as f32 - (levels / 2) as f32;
                }
            }
            let pages = model.pages(PageFormat::F16, PAGE_TOKENS + 1);
            model.step(&pages, 0, &rows[..PAGE_TOKENS]);
            let format = PageFormat::new(keys, ValueFormat::F16);
            model.kv.convert(&mut model.pool, pages[0], format);
            let got = model.step(&pages, PAGE_TOKENS, &rows[PAGE_TOKENS..]);
            let want = model.formula(&pages, PAGE_TOKENS + 1, &rows[PAGE_TOKENS]);
            assert_close(&got[0], &want, 1e-4, &format!("{} {format}", set.name()));
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_company() {
    let mut random = Random(14);
    let cold = PageFormat::new(KeyFormat::Q4, ValueFormat::Q4);
    let mixed = PageFormat::new(KeyFormat::Q6, ValueFormat::Q8);
    let mixtures = [vec![PageFormat::F16], vec![PageFormat::Q8], vec![cold, PageFormat::Q8, mixed, PageFormat::F16]];
    for &(head_dim, group) in SHAPES {
        for (set, pool) in pools() {
            let mut model = Model::new(pool, head_dim, group, Rotation::None);
            let rows = model.rows(&mut random, 160 + 70);
            let first = model.pages(PageFormat::F16, 160);
            model.step(&first, 0, &rows[..160]);
            for formats in &mixtures {
                let old = model.copies(&first);
                model.convert(&old, formats);
                let hot = *formats.iter().find(|format| format.is_appendable()).unwrap();
                let runs = [64, 1, 9].map(|at_once| {
                    let pages = [old.clone(), model.pages(hot, 70)].concat();
                    let steps = (160..230).step_by(at_once).map(|start| start..230.min(start + at_once));
                    let results: Vec<Vec<f32>> =
                        steps.flat_map(|step| model.step(&pages, step.start, &rows[step])).collect();
                    // Those that are full: in the last there is room for anything.
                    let written: Vec<Vec<u8>> = pages[10..14].iter().map(|page| model.kv.read(*page)).collect();
                    (results, written)
                });
                assert!(runs[0] == runs[1] && runs[0] == runs[2], "{} {formats:?}", set.name());
            }
        }
    }
}

#[test]
fn what_was_never_written_has_no_effect() {
    let mut random = Random(15);
    for hot in PageFormat::all().filter(|format| format.is_appendable()) {
        for (set, pool) in pools() {
            let mut model = Model::new(pool, 80, 3, Rotation::None);
            let rows = model.rows(&mut random, 20);
            let clean = model.pages(hot, 20);
            let want = [model.step(&clean, 0, &rows[..19]), model.step(&clean, 19, &rows[19..])];
            // As half floats: not a number, minus infinity, and something.
            for byte in [0xff, 0xfc, 0x5b] {
                let dirty = model.pages(hot, 20);
                let bytes = vec![byte; model.kv.shape().page_bytes(hot)];
                dirty.iter().for_each(|page| model.kv.bytes.write(model.kv.location(*page).offset, &bytes));
                let got = [model.step(&dirty, 0, &rows[..19]), model.step(&dirty, 19, &rows[19..])];
                assert!(got == want, "{} {hot} {byte}", set.name());
            }
        }
    }
}

#[test]
fn conversion_moves_no_number_by_more_than_half_a_step() {
    let mut random = Random(16);
    for &(head_dim, group) in SHAPES {
        for hot in [PageFormat::F16, PageFormat::Q8] {
            for to in PageFormat::all().filter(|to| hot.can_become(*to)) {
                for (set, pool) in pools() {
                    let mut model = Model::new(pool, head_dim, group, Rotation::None);
                    let mut rows = model.rows(&mut random, PAGE_TOKENS);
                    // Channels of all sizes, some far from zero, some constant.
                    for row in &mut rows {
                        for (i, number) in row[model.heads * head_dim..].iter_mut().enumerate() {
                            *number = *number * [0.0, 1.0, 0.01, 20.0][i % 4] + [0.0, -3.0, 0.1, 0.0, 40.0][i % 5];
                        }
                    }
                    let pages = model.pages(hot, PAGE_TOKENS);
                    model.step(&pages, 0, &rows);
                    let before = [0, 1].map(|head| model.read(pages[0], head));
                    model.convert(&pages, &[to]);
                    for (head, before) in before.iter().enumerate() {
                        let after = model.read(pages[0], head);
                        let what = format!("{} {hot} to {to}, {head_dim}", set.name());
                        check_steps(
                            &before.keys,
                            &after.keys,
                            &after.key_steps,
                            hot.keys.name() == to.keys.name(),
                            &what,
                        );
                        let is_same = hot.values.name() == to.values.name();
                        check_steps(&before.values, &after.values, &after.value_steps, is_same, &what);
                    }
                }
            }
        }
    }
}

fn check_steps(before: &[Vec<f64>], after: &[Vec<f64>], steps: &[Vec<f64>], is_same: bool, what: &str) {
    for (t, ((before, after), steps)) in before.iter().zip(after).zip(steps).enumerate() {
        for (d, ((before, after), step)) in before.iter().zip(after).zip(steps).enumerate() {
            let most = if is_same { 0.0 } else { step * 0.5001 + 1e-6 };
            assert!((before - after).abs() <= most, "{what}: token {t}, {d}: {after} for {before}, step {step}");
        }
    }
}

#[test]
fn a_cell_of_zeros_stays_one_in_every_format() {
    for to in PageFormat::all() {
        let (_, pool) = pools().next().unwrap();
        let mut model = Model::new(pool, 64, 1, Rotation::None);
        let pages = model.pages(PageFormat::F16, PAGE_TOKENS);
        model.convert(&pages, &[to]);
        let numbers = model.read(pages[0], 0);
        assert!(numbers.keys.concat().iter().chain(&numbers.values.concat()).all(|number| *number == 0.0), "{to}");
    }
}

#[test]
fn rotation_changes_what_is_stored_and_not_what_comes_out() {
    let mut random = Random(17);
    for &(head_dim, group) in SHAPES {
        for (set, pool) in pools() {
            let mut model = Model::new(pool, head_dim, group, Rotation::None);
            let rows = model.rows(&mut random, 50);
            let pages = model.pages(PageFormat::F16, 50);
            let plain = model.step(&pages, 0, &rows);
            let stored = model.read(pages[0], 0).values;
            let mut model = Model::new(model.pool, head_dim, group, Rotation::Hadamard);
            let pages = model.pages(PageFormat::F16, 50);
            let rotated = model.step(&pages, 0, &rows);
            assert!(stored != model.read(pages[0], 0).values);
            for (plain, rotated) in plain.iter().zip(&rotated) {
                let want: Vec<f64> = plain.iter().map(|v| f64::from(*v)).collect();
                assert_close(rotated, &want, 2e-3, set.name());
            }
            // All formats are in the same basis.
            let all: Vec<PageFormat> = PageFormat::all().collect();
            for (page, to) in pages[..3].iter().zip(&all[3..]) {
                model.kv.convert(&mut model.pool, *page, *to);
            }
            let converted = model.step(&pages, 49, &rows[49..]);
            let want: Vec<f64> = plain[49].iter().map(|v| f64::from(*v)).collect();
            assert_close(&converted[0], &want, 0.1, set.name());
        }
    }
}

#[test]
fn a_window_sees_its_last_tokens_in_pages_of_any_format() {
    let mut random = Random(23);
    let formats: Vec<PageFormat> = PageFormat::all().collect();
    for (set, pool) in pools() {
        let mut model = Model::new(pool, 64, 3, Rotation::None);
        let rows = model.rows(&mut random, TOKENS);
        let pages = model.pages(PageFormat::F16, TOKENS);
        model.step(&pages, 0, &rows[..TOKENS - 3]);
        model.convert(&pages[..TOKENS / PAGE_TOKENS - 1], &formats);
        // One token, part of a page, over the border of a chunk, and more than there are.
        for window in [1, 5, 100, 200, 1000] {
            let got = model.step_in_window(&pages, TOKENS - 3, &rows[TOKENS - 3..], Some(window));
            for (row, got) in (TOKENS - 3..TOKENS).zip(got) {
                let seen = (row + 1_usize).saturating_sub(window)..row + 1;
                let want = model.formula_in_window(&pages, seen, &rows[row]);
                let what = format!("{} window {window} row {row}", set.name());
                assert_close(&got, &want, tolerance(KeyFormat::Q4), &what);
            }
        }
    }
}

#[test]
fn rows_in_bf16_are_near_the_formula_in_every_format_and_have_the_same_bits_whatever_rows_are_beside_them() {
    let mut random = Random(21);
    let formats: Vec<PageFormat> = PageFormat::all().collect();
    for &(head_dim, group) in SHAPES {
        for (set, pool) in pools().filter(|(_, pool)| pool.has_bf16()) {
            let mut model = Model::new(pool, head_dim, group, Rotation::None);
            let rows = model.rows(&mut random, TOKENS);
            let before = 144;
            let hot = model.pages(PageFormat::F16, TOKENS);
            model.step(&hot, 0, &rows[..before]);
            for format in formats.iter().map(|format| vec![*format]).chain([formats.clone()]) {
                for window in [None, Some(50)] {
                    let pages = model.copies(&hot);
                    model.convert(&pages[..before / PAGE_TOKENS], &format);
                    let what = format!("{} {format:?} {head_dim} {window:?}", set.name());
                    let got = model.fast_step(&pages, before, &rows[before..], window);
                    for t in [0, 1, 77, TOKENS - before - 1] {
                        let end = before + t + 1;
                        let seen = end - window.map_or(end, |window| end.min(window))..end;
                        let want = model.formula_in_window(&pages, seen, &rows[before + t]);
                        assert_close(&got[t], &want, 0.02, &what);
                    }
                    // In two parts, which end in the middle of a block.
                    let again = model.copies(&pages);
                    let mut parts = model.fast_step(&again, before, &rows[before..before + 21], window);
                    parts.extend(model.fast_step(&again, before + 21, &rows[before + 21..], window));
                    assert_eq!(got, parts, "{what}");
                    pages.iter().chain(&again).for_each(|page| model.kv.free(*page));
                }
            }
        }
    }
}
