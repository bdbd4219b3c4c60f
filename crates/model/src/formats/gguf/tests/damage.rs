//! One test per class of damage: the error must say what is wrong and where.

use super::super::value::ValueType;
use super::super::write::{Draft, array, string};
use super::super::{Gguf, GgufError};
use super::sample;
use ruvllm_kernels::WeightType;

const F32: u32 = WeightType::F32 as u32;
const Q4_0: u32 = WeightType::Q4_0 as u32;
const HEADER: u64 = 24;

#[track_caller]
fn check(file: impl Into<Vec<u8>>, expected: &str) {
    let error = Gguf::parse(file.into()).expect_err("the file is damaged");
    assert_eq!(error.to_string(), expected);
}

impl From<Draft> for Vec<u8> {
    fn from(draft: Draft) -> Self {
        draft.bytes()
    }
}

#[test]
fn files_of_other_formats_are_recognised() {
    let safetensors = [&2u64.to_le_bytes()[..], b"{}", &[0; 16]].concat();
    check(b"", "not a GGUF file: it is empty");
    check(safetensors, "not a GGUF file: it is a safetensors file");
    check(b"PK\x03\x04rest", "not a GGUF file: it is a zip archive, perhaps a PyTorch checkpoint");
    for page in ["<!DOCTYPE html><html>", "\n  <html lang=en>"] {
        check(page, "not a GGUF file: it is a web page; the download probably met a login or error page");
    }
    check(r#"{"error":"gated"}"#, "not a GGUF file: it is JSON text; the download probably met an error message");
    check(
        "version https://git-lfs.github.com/spec/v1\noid sha256:00",
        "not a GGUF file: it is a Git LFS pointer; the model itself was not downloaded",
    );
    for old in ["lmgg", "fmgg", "tjgg", "algg"] {
        let expected = "not a GGUF file: it is a GGML/GGJT file from before GGUF; convert the original model again";
        check(format!("{old}\x01\0\0\0"), expected);
    }
    check(b"\x1b[2J and more", r#"not a GGUF file: it starts with "\x1b[2J""#);
    check(b"no", r#"not a GGUF file: it starts with "no\x00\x00""#);
}

#[test]
fn big_endian_files_are_recognised() {
    let expected = "not a GGUF file: it is a big-endian GGUF; only little-endian ones can be read";
    check([&b"GGUF"[..], &3u32.to_be_bytes(), &[0; 16]].concat(), expected);
    check([&b"FUGG"[..], &3u32.to_be_bytes(), &[0; 16]].concat(), expected);
}

#[test]
fn other_versions_are_refused() {
    for version in [0, 1, 4, u32::MAX] {
        let mut draft = Draft::new();
        draft.version = version;
        assert!(matches!(Gguf::parse(draft.bytes()), Err(GgufError::Version(got)) if got == version));
    }
}

#[test]
fn counts_beyond_the_file_are_refused_before_anything_is_allocated() {
    for count in [16, 1 << 60, u64::MAX] {
        let mut draft = Draft::new().string("general.name", "x");
        let remaining = draft.bytes().len() as u64 - HEADER;
        let follows = format!("but only {remaining} bytes follow it");
        draft.entry_count = Some(count);
        let expected = format!("the header promises {count} metadata entries of at least 14 bytes each, {follows}");
        check(draft.clone(), &expected);
        draft.entry_count = None;
        draft.tensor_count = Some(count);
        check(draft, &format!("the header promises {count} tensors of at least 33 bytes each, {follows}"));
    }
}

#[test]
fn counts_beyond_the_limits_are_refused() {
    let mut draft = Draft::new().data(&vec![0; 4 << 20]);
    draft.entry_count = Some(65_537);
    check(draft.clone(), "65537 metadata entries are more than the supported 65536");
    draft.entry_count = None;
    draft.tensor_count = Some(65_537);
    check(draft, "65537 tensors are more than the supported 65536");
}

#[test]
fn strings_longer_than_the_rest_are_refused() {
    let value =
        |length: u64| Draft::new().entry("key", ValueType::String, &[&length.to_le_bytes()[..], b"abc"].concat());
    check(value(4), r#"a string of 4 bytes, but only 3 bytes are left, in the value of "key" at byte 39"#);
    check(
        value((1 << 31) + 1),
        "a string of 2147483649 bytes is longer than the supported 2147483648, in the value of \"key\" at byte 39",
    );
    let key = [&u64::MAX.to_le_bytes()[..], &[0; 20]].concat();
    check(
        [&Draft::new().bytes()[..16], &1u64.to_le_bytes(), &key].concat(),
        "a string of 18446744073709551615 bytes is longer than the supported 2147483648, \
         in the key of metadata entry 0 at byte 24",
    );
}

#[test]
fn names_without_length_or_too_long_are_refused() {
    let u8_entry = |key: &[u8]| Draft::new().raw_entry(key, 0, &[1]);
    check(
        u8_entry(b"").data(&[0]),
        "a name of 0 bytes; it must have 1 to 65535, in the key of metadata entry 0 at byte 24",
    );
    check(
        u8_entry(&[b'k'; 65_536]),
        "a name of 65536 bytes; it must have 1 to 65535, in the key of metadata entry 0 at byte 24",
    );
    Gguf::parse(u8_entry(&[b'k'; 65_535]).bytes()).unwrap();
    check(
        Draft::new().info(&"n".repeat(257), &[1], F32, 0).data(&[0; 4]),
        "a name of 257 bytes; it must have 1 to 256, in the name of tensor 0 at byte 24",
    );
    check(
        Draft::new().info("", &[1], F32, 0).data(&[0; 4]),
        "a name of 0 bytes; it must have 1 to 256, in the name of tensor 0 at byte 24",
    );
}

#[test]
fn long_and_unprintable_names_are_tamed_in_messages() {
    let long = "k".repeat(1000);
    let expected =
        format!("the file ends: 4 bytes needed, 1 left, in the value of \"{}…\" at byte 1036", "k".repeat(80));
    check(Draft::new().raw_entry(long.as_bytes(), 4, &[1]), &expected);
    check(
        Draft::new().raw_entry(b"\x1b[2J", 99, &[1]),
        r#"unknown value type 99, in the value of "\u{1b}[2J" at byte 36"#,
    );
}

#[test]
fn text_that_is_not_utf8_is_refused() {
    check(
        Draft::new().raw_entry(b"k\xff", 0, &[1]),
        "text that is not valid UTF-8, in the key of metadata entry 0 at byte 33",
    );
    check(
        Draft::new().entry("key", ValueType::String, &string(b"abc\xc3")),
        r#"text that is not valid UTF-8, in the value of "key" at byte 50"#,
    );
}

#[test]
fn unknown_value_types_are_refused() {
    check(Draft::new().raw_entry(b"key", 13, &[1]), r#"unknown value type 13, in the value of "key" at byte 35"#);
    let unknown_elements = [&77u32.to_le_bytes()[..], &0u64.to_le_bytes()].concat();
    check(
        Draft::new().entry("key", ValueType::Array, &unknown_elements),
        r#"unknown value type 77, in the value of "key" at byte 39"#,
    );
}

#[test]
fn bools_other_than_0_and_1_are_refused() {
    check(
        Draft::new().entry("key", ValueType::Bool, &[2]),
        r#"a bool of 2; it must be 0 or 1, in the value of "key" at byte 39"#,
    );
    check(
        Draft::new().array("key", ValueType::Bool, 3, &[0, 1, 255]),
        r#"a bool of 255; it must be 0 or 1, in the value of "key" at byte 53"#,
    );
}

#[test]
fn duplicate_keys_are_refused() {
    check(
        Draft::new().u32("b", 1).u32("a", 2).u32("b", 3),
        r#"metadata key "b" occurs twice: at byte 24 and at byte 58"#,
    );
}

#[test]
fn arrays_longer_than_the_rest_are_refused() {
    for (element, count) in
        [(ValueType::U32, 2), (ValueType::String, 1), (ValueType::U8, 1 << 60), (ValueType::F64, u64::MAX)]
    {
        check(
            Draft::new().array("key", element, count, &[0; 7]),
            &format!("an array of {count} x {element}, but only 7 bytes are left, in the value of \"key\" at byte 39"),
        );
    }
    check(
        Draft::new().array("key", ValueType::String, 2, &[&string(b"ab")[..], &9u64.to_le_bytes()].concat()),
        r#"a string of 9 bytes, but only 0 bytes are left, in the value of "key" at byte 61"#,
    );
}

#[test]
fn deeply_nested_arrays_are_refused() {
    let nested = |depth: usize| {
        let innermost = array(ValueType::U8, 1, &[1]);
        let value = std::iter::repeat_n(array(ValueType::Array, 1, &[]), depth - 1).collect::<Vec<_>>().concat();
        Draft::new().entry("key", ValueType::Array, &[value, innermost].concat())
    };
    Gguf::parse(nested(4).bytes()).unwrap();
    for depth in [5, 10_000] {
        check(nested(depth), r#"arrays nested more than 4 deep, in the value of "key" at byte 87"#);
    }
}

#[test]
fn alignments_that_make_no_sense_are_refused() {
    for alignment in [0, 4, 24, 33, 1 << 21, u32::MAX] {
        check(
            Draft::new().u32("general.alignment", alignment),
            &format!("general.alignment is {alignment}; it must be a power of two between 8 and 1048576"),
        );
    }
    check(
        Draft::new().string("general.alignment", "32"),
        r#"metadata key "general.alignment" should be an unsigned 64-bit integer, but is string"#,
    );
}

#[test]
fn tensors_without_or_with_too_many_dimensions_are_refused() {
    for dims in [&[][..], &[1, 1, 1, 1, 1]] {
        let count = dims.len();
        check(
            Draft::new().info("t", dims, F32, 0).data(&[0; 64]),
            &format!("{count} dimensions; there must be 1 to 4, in the description of tensor \"t\" at byte 33"),
        );
    }
}

#[test]
fn tensors_with_impossible_shapes_are_refused() {
    let shaped = |dims: &[u64], kind| Draft::new().info("t", dims, kind, 0).data(&[0; 64]);
    check(shaped(&[4, 0], F32), r#"tensor "t": dimension 1 of [4, 0] is zero"#);
    // Wrap to no elements; to 4 bytes; to no elements although the bytes, at 4.5 bits each, could be counted.
    check(
        shaped(&[1 << 32, 1 << 32], F32),
        r#"tensor "t": dimensions [4294967296, 4294967296] are more than can be addressed"#,
    );
    check(
        shaped(&[(1 << 62) + 1], F32),
        r#"tensor "t": dimensions [4611686018427387905] are more than can be addressed"#,
    );
    check(
        shaped(&[1 << 63, 2], Q4_0),
        r#"tensor "t": dimensions [9223372036854775808, 2] are more than can be addressed"#,
    );
    check(
        shaped(&[33], Q4_0),
        r#"tensor "t": rows of 33 elements are not a whole number of Q4_0 blocks, which hold 32"#,
    );
    // 32 elements in all, but no row is a whole block.
    check(
        shaped(&[16, 2], Q4_0),
        r#"tensor "t": rows of 16 elements are not a whole number of Q4_0 blocks, which hold 32"#,
    );
}

#[test]
fn unknown_and_unsupported_weight_types_are_named() {
    let typed = |number| Draft::new().info("t", &[256], number, 0).data(&[0; 2048]);
    check(typed(16), r#"tensor "t": weight type IQ2_XXS (number 16) is not supported"#);
    check(typed(28), r#"tensor "t": weight type F64 (number 28) is not supported"#);
    check(typed(1234), r#"tensor "t": unknown weight type number 1234"#);
}

#[test]
fn tensors_outside_the_file_are_refused() {
    let at = |offset, data: usize| Draft::new().info("t", &[8], F32, offset).data(&vec![0; data]);
    check(at(8, 64), r#"tensor "t": offset 8 is not a multiple of the alignment 32"#);
    let past = |offset: u64, file_size: u64| {
        format!(
            "tensor \"t\": its 32 bytes at offset {offset} of the data end beyond the file of {file_size} bytes; \
             is the download complete?"
        )
    };
    check(at(0, 31), &past(0, 64 + 31));
    check(at(32, 32), &past(32, 64 + 32));
    let last_aligned = u64::MAX - 31;
    check(at(last_aligned, 32), &past(last_aligned, 64 + 32));
    check(at(0, 0), &past(0, 57));
    Gguf::parse(at(0, 32).bytes()).unwrap();
}

#[test]
fn overlapping_tensors_are_refused() {
    check(
        Draft::new().info("b", &[8], F32, 32).info("a", &[16], F32, 0).data(&[0; 64]),
        r#"tensors "a" and "b" overlap: the second starts at byte 128, the first ends at byte 160"#,
    );
    check(
        Draft::new().info("a", &[8], F32, 0).info("b", &[8], F32, 0).data(&[0; 64]),
        r#"tensors "a" and "b" overlap: the second starts at byte 96, the first ends at byte 128"#,
    );
}

#[test]
fn duplicate_tensor_names_are_refused() {
    check(
        Draft::new().info("a", &[8], F32, 0).info("a", &[8], F32, 32).data(&[0; 64]),
        r#"tensor name "a" occurs twice: as tensor 0 and as tensor 1"#,
    );
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let whole = sample().bytes();
    Gguf::parse(whole.clone()).unwrap();
    for length in 0..whole.len() {
        Gguf::parse(whole[..length].to_vec()).expect_err("a byte that is needed is missing");
    }
}

#[test]
fn padding_after_the_last_tensor_may_be_missing() {
    let padded = sample().data(&[0; 8]).bytes();
    for cut in 0..=8 {
        Gguf::parse(padded[..padded.len() - cut].to_vec()).unwrap();
    }
}
