use super::*;

fn bytes(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![7; data]].concat()
}

fn open(files: &[(&str, Vec<u8>)]) -> Result<Safetensors, SafetensorsError> {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    Safetensors::open(folder.path())
}

const A: &str = r#""a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}"#;

#[test]
fn tensors_of_one_file_and_of_several_are_found() {
    let header =
        format!(r#"{{"__metadata__":{{"format":"pt"}},{A},"b":{{"dtype":"F32","shape":[],"data_offsets":[12,16]}}}}"#);
    let one = open(&[(SINGLE, bytes(&header, 16))]).unwrap();
    let a = one.get("a").unwrap();
    assert_eq!((a.element, &a.shape[..], &a.file[a.range.clone()]), (ElementType::Bf16, &[2, 3][..], &[7; 12][..]));
    assert_eq!(one.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["a", "b"]);

    let index = br#"{"weight_map":{"a":"x-1.safetensors","b":"x-2.safetensors"}}"#.to_vec();
    let b = r#"{"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
    let first = bytes(&format!("{{{A}}}"), 12);
    let both =
        open(&[(INDEX, index.clone()), ("x-1.safetensors", first.clone()), ("x-2.safetensors", bytes(b, 3))]).unwrap();
    assert_eq!(both.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["a", "b"]);
    let twice = open(&[(INDEX, index), ("x-1.safetensors", first.clone()), ("x-2.safetensors", first)]).unwrap_err();
    assert!(matches!(twice, SafetensorsError::Duplicate { .. }), "{twice}");
}

/// What hostile files say, and a part of the answer.
#[test]
fn damaged_and_hostile_headers_are_refused() {
    let tensor = |what: &str| format!(r#"{{"a":{{{what}}}}}"#);
    for (header, data, expected) in [
        ("{".to_owned(), 0, "header cannot be read"),
        ("[]".to_owned(), 0, "header cannot be read"),
        (tensor(r#""dtype":"F32","shape":[1]"#), 4, "data_offsets"),
        (tensor(r#""dtype":"F33","shape":[1],"data_offsets":[0,4]"#), 4, "type \"F33\""),
        (tensor(r#""dtype":"F32","shape":[-1],"data_offsets":[0,4]"#), 4, "header cannot be read"),
        (tensor(r#""dtype":"F32","shape":[1],"data_offsets":[0,8]"#), 4, "4 bytes follow the header"),
        (tensor(r#""dtype":"F32","shape":[1],"data_offsets":[4,0]"#), 4, "offsets 4 to 0"),
        (tensor(r#""dtype":"F32","shape":[2],"data_offsets":[0,4]"#), 4, "which its shape"),
        (tensor(r#""dtype":"F4","shape":[1],"data_offsets":[0,0]"#), 0, "which its shape"),
        (tensor(r#""dtype":"F32","shape":[9223372036854775807,4],"data_offsets":[0,4]"#), 4, "addressed"),
        (tensor(r#""dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]"#), 4, "addressed"),
        (tensor(r#""dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]"#), 4, "9 dimensions"),
        (format!("{{{A},{A}}}"), 12, "\"a\" occurs twice"),
        (format!(r#"{{{A},"b":{{"dtype":"U8","shape":[4],"data_offsets":[8,12]}}}}"#), 12, "shares bytes with \"a\""),
    ] {
        let error = open(&[(SINGLE, bytes(&header, data))]).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(SINGLE), "{header}: {error}");
    }
    for (file, expected) in [
        (vec![1, 2, 3], "3 bytes, too few"),
        ([&[255; 8][..], b"{}"].concat(), "18446744073709551615 bytes, and 2 bytes follow"),
        ([&9u64.to_le_bytes()[..], b"{}"].concat(), "9 bytes, and 2 bytes follow"),
    ] {
        let error = open(&[(SINGLE, file)]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn an_index_that_leads_elsewhere_is_refused() {
    for (index, expected) in [
        (r#"{"weight_map":{"a":"../x.safetensors"}}"#, "no name of a file in the same folder"),
        (r#"{"weight_map":{"a":"/etc/passwd"}}"#, "no name of a file in the same folder"),
        (r#"{"weight_map":{"a":7}}"#, "no name of a file in the same folder"),
        (r#"{"weight_map":{}}"#, "names 0 files"),
        (r#"{}"#, "weight_map is missing"),
        ("no json", "expected"),
        (r#"{"weight_map":{"a":"missing.safetensors"}}"#, "cannot open"),
    ] {
        let error = open(&[(INDEX, index.into())]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(open(&[]).unwrap_err().to_string().contains("has neither model.safetensors nor"));
}
