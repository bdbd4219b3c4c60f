//! The writer: what it writes is what the reader reads, and nothing else ever appears.

use std::fs;
use std::path::Path;

use super::super::write::{Draft, Header, WriteError, Writer};
use super::super::{Array, Gguf, Value};
use super::sample;
use ruvllm_kernels::WeightType;

/// Writes the tensors of `source` under `header`, in pieces of `piece` bytes.
fn write_tensors(path: &Path, mut header: Header, source: &Gguf, piece: usize) {
    for tensor in source.tensors() {
        header.add_tensor(tensor.name, tensor.dims, tensor.kind);
    }
    let mut writer = Writer::create(path, &header).unwrap();
    for tensor in source.tensors() {
        tensor.bytes().chunks(piece).for_each(|bytes| writer.write(bytes).unwrap());
    }
    writer.finish().unwrap();
    assert_eq!(fs::metadata(path).unwrap().len(), header.layout().unwrap().file_bytes());
}

fn names_in(folder: &Path) -> Vec<String> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_copied_file_is_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("copy.gguf");
    let mut aligned = Draft::new().u32("general.alignment", 4096);
    aligned.alignment = 4096;
    let aligned = aligned.tensor("a", &[1], WeightType::F32, &[1; 4]).tensor("b", &[1], WeightType::F32, &[2; 4]);
    for draft in [sample(), aligned, Draft::new()] {
        let source = Gguf::parse(draft.bytes()).unwrap();
        for piece in [1, 7, 1000] {
            write_tensors(&path, Header::copying(source.metadata()), &source, piece);
            let copy = fs::read(&path).unwrap();
            let (same, padding) = copy.split_at(source.file().len());
            assert!(same == &source.file()[..]);
            assert!(padding.len() < 4096 && padding.iter().all(|byte| *byte == 0));
        }
    }
    assert_eq!(names_in(folder.path()), ["copy.gguf"]);
}

#[test]
fn keys_are_set_replaced_in_place_and_added() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new.gguf");
    let mut header = Header::new();
    header.set("b", Value::String("old"));
    header.set("a", Value::I64(-1));
    header.set("b", Value::U32(7));
    header.set_strings("words", &["", "Ġt"]);
    header.set_numbers("numbers", &[0.5f32, -1.0]);
    Writer::create(&path, &header).unwrap().finish().unwrap();
    let file = Gguf::open(&path).unwrap();
    assert_eq!(file.version(), 3);
    let keys: Vec<&str> = file.metadata().iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["b", "a", "words", "numbers"]);
    assert_eq!(file.metadata().get("b"), Some(Value::U32(7)));
    let array = |key| file.metadata().required::<Array<'_>>(key).unwrap();
    assert_eq!(array("words").strings().unwrap().map(Result::unwrap).collect::<Vec<_>>(), ["", "Ġt"]);
    assert_eq!(array("numbers").numbers::<f32>().unwrap().collect::<Vec<_>>(), [0.5, -1.0]);
}

#[test]
fn a_file_that_was_not_finished_never_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, "what was there before").unwrap();
    let mut header = Header::new();
    header.add_tensor("t", &[8], WeightType::F32);
    let mut writer = Writer::create(&path, &header).unwrap();
    writer.write(&[1; 16]).unwrap();
    assert_eq!(names_in(folder.path()).len(), 2);
    assert_eq!(fs::read(&path).unwrap(), b"what was there before");
    drop(writer);
    assert_eq!(names_in(folder.path()), ["model.gguf"]);
    assert_eq!(fs::read(&path).unwrap(), b"what was there before");
}

#[test]
#[should_panic(expected = "all tensors are written")]
fn a_file_with_missing_bytes_is_not_finished() {
    let folder = tempfile::tempdir().unwrap();
    let mut header = Header::new();
    header.add_tensor("t", &[8], WeightType::F32);
    let mut writer = Writer::create(&folder.path().join("t.gguf"), &header).unwrap();
    writer.write(&[0; 31]).unwrap();
    let _ = writer.finish();
}

#[test]
#[should_panic(expected = "tensor 0 holds 32 bytes, not 33")]
fn more_bytes_than_a_tensor_has_are_a_mistake_of_the_caller() {
    let folder = tempfile::tempdir().unwrap();
    let mut header = Header::new();
    header.add_tensor("t", &[8], WeightType::F32);
    let _ = Writer::create(&folder.path().join("t.gguf"), &header).unwrap().write(&[0; 33]);
}

#[test]
fn what_readers_would_refuse_is_not_written() {
    let check = |change: &dyn Fn(&mut Header), expected: &str| {
        let folder = tempfile::tempdir().unwrap();
        let mut header = Header::new();
        change(&mut header);
        let error = Writer::create(&folder.path().join("t.gguf"), &header).unwrap_err();
        assert_eq!(error.to_string(), expected);
        assert!(names_in(folder.path()).is_empty());
    };
    let tensor =
        |name: &'static str, dims: &'static [usize], kind| move |h: &mut Header| h.add_tensor(name, dims, kind);
    check(&tensor("t", &[], WeightType::F32), r#"tensor "t" has 0 dimensions; there must be 1 to 4"#);
    check(&tensor("t", &[1; 5], WeightType::F32), r#"tensor "t" has 5 dimensions; there must be 1 to 4"#);
    check(&tensor("t", &[8, 0], WeightType::F32), r#"tensor "t": dimension 1 of [8, 0] is zero"#);
    check(
        &tensor("t", &[33], WeightType::Q8_0),
        r#"tensor "t": rows of 33 elements are not a whole number of Q8_0 blocks, which hold 32"#,
    );
    check(
        &tensor("t", &[usize::MAX, 2], WeightType::F32),
        r#"tensor "t": dimensions [18446744073709551615, 2] are more than can be addressed"#,
    );
    check(&tensor("", &[1], WeightType::F32), r#"tensor name "" has 0 bytes; it must have 1 to 256"#);
    check(
        &|header| {
            header.add_tensor("t", &[1], WeightType::F32);
            header.add_tensor("t", &[2], WeightType::F32);
        },
        r#"there are two tensors "t""#,
    );
    check(&|header| header.set("", Value::U8(1)), r#"metadata key "" has 0 bytes; it must have 1 to 65535"#);
    let alignment = "must be a power of two between 8 and 1048576";
    check(
        &|header| header.set("general.alignment", Value::U32(24)),
        &format!("general.alignment is 24; it {alignment}"),
    );
    check(
        &|header| header.set("general.alignment", Value::String("32")),
        &format!("general.alignment is a string; it {alignment}"),
    );
}

#[test]
fn a_place_where_nothing_can_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().join("missing/t.gguf"), folder.path().to_owned()] {
        let error = Writer::create(&path, &Header::new()).unwrap_err();
        assert!(matches!(&error, WriteError::Io { action: "create", path: named, .. } if *named == path), "{error}");
    }
    assert!(names_in(folder.path()).is_empty());
}
