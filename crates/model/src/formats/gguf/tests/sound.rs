use super::super::value::ValueType;
use super::super::write::Draft;
use super::super::{Array, Gguf, GgufError, Value};
use super::sample;
use ruvllm_kernels::WeightType;

#[test]
fn every_kind_of_scalar_is_decoded() {
    let file = Gguf::parse(sample().bytes()).unwrap();
    let metadata = file.metadata();
    let expected = [
        ("general.architecture", Value::String("llama")),
        ("test.u8", Value::U8(250)),
        ("test.i8", Value::I8(-5)),
        ("test.u16", Value::U16(65_000)),
        ("test.i16", Value::I16(-300)),
        ("llama.block_count", Value::U32(2)),
        ("test.i32", Value::I32(-70_000)),
        ("test.f32", Value::F32(0.5)),
        ("test.bool", Value::Bool(true)),
        ("test.u64", Value::U64(u64::MAX)),
        ("test.i64", Value::I64(i64::MIN)),
        ("test.f64", Value::F64(-2.25)),
    ];
    for (key, value) in expected {
        assert_eq!(metadata.get(key), Some(value), "{key}");
    }
    assert_eq!(metadata.get("test"), None);
    assert_eq!(metadata.iter().take(expected.len()).collect::<Vec<_>>(), expected);
    assert_eq!(metadata.len(), 16);
}

#[test]
fn arrays_are_decoded_when_iterated() {
    let file = Gguf::parse(sample().bytes()).unwrap();
    let array = |key| file.metadata().required::<Array<'_>>(key).unwrap();
    let tokens: Vec<&str> = array("tokenizer.ggml.tokens").strings().unwrap().map(Result::unwrap).collect();
    assert_eq!(tokens, ["<s>", "", "Ġt"]);
    assert_eq!(array("test.numbers").numbers::<i32>().unwrap().collect::<Vec<_>>(), [1, -1]);
    assert_eq!(array("test.numbers").integers().unwrap().collect::<Vec<_>>(), [1, -1]);
    assert_eq!(array("test.bools").bools().unwrap().collect::<Vec<_>>(), [true, false, true]);
    let nested: Vec<Array<'_>> = array("test.nested").arrays().unwrap().map(Result::unwrap).collect();
    assert_eq!(nested[0].numbers::<u8>().unwrap().collect::<Vec<_>>(), [7, 8]);
    assert_eq!(nested[1].bools().unwrap().collect::<Vec<_>>(), [true]);
    assert_eq!(nested[2].strings().unwrap().map(Result::unwrap).collect::<Vec<_>>(), ["inner"]);
}

#[test]
fn tensors_borrow_their_bytes_from_the_file() {
    let file = Gguf::parse(sample().bytes()).unwrap();
    let tensor = file.tensor("token_embd.weight").unwrap();
    assert_eq!((tensor.dims, tensor.kind, &*tensor.bytes()), (&[32, 3][..], WeightType::Q8_0, &[1; 102][..]));
    assert_eq!(tensor.element_count(), 96);
    assert!(std::ptr::eq(&*tensor.bytes(), &file.file()[tensor.range.clone()]));
    assert_eq!(file.tensor("output_norm.weight").unwrap().bytes(), &[2; 20][..]);
    let names: Vec<&str> = file.tensors().map(|tensor| tensor.name).collect();
    assert_eq!(names, ["token_embd.weight", "output_norm.weight", "blk.0.conv.weight"]);
    assert!(file.tensor("output.weight").is_none());
}

#[test]
fn a_mapped_file_reads_like_its_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sample.gguf");
    std::fs::write(&path, sample().bytes()).unwrap();
    let mapped = Gguf::open(&path).unwrap();
    let parsed = Gguf::parse(sample().bytes()).unwrap();
    assert_eq!(**mapped.file(), **parsed.file());
    assert_eq!(format!("{:?}", mapped.metadata()), format!("{:?}", parsed.metadata()));
}

#[test]
fn a_missing_file_is_named() {
    let error = Gguf::open("/nowhere/model.gguf").unwrap_err();
    assert!(matches!(error, GgufError::Open { .. }));
    assert!(error.to_string().starts_with("cannot open /nowhere/model.gguf: "), "{error}");
}

#[test]
fn version_2_and_files_without_tensors_or_metadata_are_read() {
    let mut draft = sample();
    draft.version = 2;
    assert_eq!(Gguf::parse(draft.bytes()).unwrap().version(), 2);
    let empty = Gguf::parse(Draft::new().bytes()).unwrap();
    assert_eq!((empty.metadata().len(), empty.tensors().len()), (0, 0));
    assert!(empty.metadata().is_empty());
}

#[test]
fn the_files_own_alignment_is_used() {
    for alignment in [8, 64, 4096] {
        let mut draft = Draft::new().u32("general.alignment", alignment);
        draft.alignment = alignment as usize;
        let file = draft.tensor("a", &[1], WeightType::F32, &[5; 4]).tensor("b", &[1], WeightType::F32, &[6; 4]);
        let file = Gguf::parse(file.bytes()).unwrap();
        assert_eq!(file.tensor("a").unwrap().range.start % alignment as usize, 0);
        assert_eq!(file.tensor("b").unwrap().bytes(), &[6; 4][..]);
    }
}

#[test]
fn tensors_may_lie_in_another_order_than_described() {
    let file = Draft::new().info("late", &[8], 0, 32).info("early", &[8], 0, 0).data(&[0; 32]).data(&[1; 32]);
    let file = Gguf::parse(file.bytes()).unwrap();
    assert_eq!(file.tensor("late").unwrap().bytes(), &[1; 32][..]);
    assert_eq!(file.tensors().map(|tensor| tensor.name).collect::<Vec<_>>(), ["late", "early"]);
}

#[test]
fn integers_of_any_width_are_accepted_if_they_fit() {
    let file = Gguf::parse(sample().bytes()).unwrap();
    let metadata = file.metadata();
    assert_eq!(metadata.required::<usize>("test.u8"), Ok(250));
    assert_eq!(metadata.required::<u64>("llama.block_count"), Ok(2));
    assert_eq!(metadata.required::<i64>("test.i16"), Ok(-300));
    assert_eq!(metadata.required::<f32>("test.f64"), Ok(-2.25));
    assert_eq!(metadata.optional::<bool>("test.bool"), Ok(Some(true)));
    assert_eq!(metadata.optional::<u32>("absent"), Ok(None));
}

#[test]
fn getters_say_which_key_has_which_wrong_type() {
    let file = Gguf::parse(sample().strings("bad.utf8", &[b"ok", b"\xff", b"fine"]).bytes()).unwrap();
    let metadata = file.metadata();
    let check = |error: super::super::MetadataError, expected: &str| assert_eq!(error.to_string(), expected);
    check(metadata.required::<u32>("no.such").unwrap_err(), r#"metadata key "no.such" is missing"#);
    check(
        metadata.required::<u32>("general.architecture").unwrap_err(),
        r#"metadata key "general.architecture" should be an unsigned 32-bit integer, but is string"#,
    );
    check(
        metadata.required::<&str>("test.numbers").unwrap_err(),
        r#"metadata key "test.numbers" should be a string, but is array of i32"#,
    );
    check(
        metadata.required::<u32>("test.u64").unwrap_err(),
        "metadata key \"test.u64\" should be an unsigned 32-bit integer, \
         but its value 18446744073709551615 does not fit",
    );
    let tokens = metadata.required::<Array<'_>>("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens.element_type(), ValueType::String);
    check(
        tokens.numbers::<f32>().map(drop).unwrap_err(),
        r#"metadata key "tokenizer.ggml.tokens" should be an array of f32, but is an array of string"#,
    );
    let strings: Vec<_> = metadata.required::<Array<'_>>("bad.utf8").unwrap().strings().unwrap().collect();
    assert_eq!((&strings[0], &strings[2]), (&Ok("ok"), &Ok("fine")));
    check(strings[1].clone().unwrap_err(), r#"metadata key "bad.utf8": element 1 is not valid UTF-8"#);
}
