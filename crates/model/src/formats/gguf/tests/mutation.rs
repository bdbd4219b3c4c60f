//! Random damage: the reader may refuse or accept the file, but never panics.

use proptest::prelude::*;
use proptest::sample::Index;

use super::super::{Array, Gguf, Value, facts::ModelFacts};
use super::sample;

/// Touches everything that a sound file offers.
fn walk(file: &Gguf) {
    for (key, value) in file.metadata().iter() {
        assert_eq!(file.metadata().get(key).map(|value| value.kind()), Some(value.kind()));
        if let Value::Array(array) = value {
            walk_array(array);
        }
    }
    for tensor in file.tensors() {
        assert_eq!(tensor.bytes().len(), tensor.range.len());
        assert_eq!(file.tensor(tensor.name).map(|found| found.range), Some(tensor.range));
    }
    let _ = ModelFacts::of(file);
}

fn walk_array(array: Array<'_>) {
    if let Ok(strings) = array.strings() {
        assert_eq!(strings.count(), array.len());
    } else if let Ok(arrays) = array.arrays() {
        arrays.map(Result::unwrap).for_each(walk_array);
    } else if let Ok(integers) = array.integers() {
        assert_eq!(integers.count(), array.len());
    }
}

#[derive(Clone, Debug)]
enum Mutation {
    SetByte(Index, u8),
    FlipBit(Index, u8),
    /// The values at which counts and sizes go wrong.
    SetU64(Index, u64),
    Cut(Index),
    Remove(Index, usize),
    Insert(Index, Vec<u8>),
    Repeat(Index, usize),
}

impl Mutation {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let spot = |index: &Index| index.index(bytes.len().max(1));
        match self {
            _ if bytes.is_empty() => {}
            Self::SetByte(index, value) => {
                let at = spot(index);
                bytes[at] = *value;
            }
            Self::FlipBit(index, bit) => {
                let at = spot(index);
                bytes[at] ^= 1 << bit;
            }
            Self::SetU64(index, value) => {
                let at = spot(index);
                let end = bytes.len().min(at + 8);
                bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
            }
            Self::Cut(index) => bytes.truncate(spot(index)),
            Self::Remove(index, count) => {
                let at = spot(index);
                bytes.drain(at..bytes.len().min(at + count));
            }
            Self::Insert(index, extra) => {
                let at = spot(index);
                bytes.splice(at..at, extra.iter().copied());
            }
            Self::Repeat(index, count) => {
                let at = spot(index);
                let part = bytes[at..bytes.len().min(at + count)].to_vec();
                bytes.splice(at..at, part);
            }
        }
    }
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let boundary = prop_oneof![
        Just(u64::MAX),
        Just(u64::MAX - 31),
        Just(i64::MAX as u64),
        (0u32..64).prop_map(|shift| 1 << shift),
        0..40u64
    ];
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, value)| Mutation::SetByte(at, value)),
        (any::<Index>(), 0..8u8).prop_map(|(at, bit)| Mutation::FlipBit(at, bit)),
        (any::<Index>(), boundary).prop_map(|(at, value)| Mutation::SetU64(at, value)),
        any::<Index>().prop_map(Mutation::Cut),
        (any::<Index>(), 1..40usize).prop_map(|(at, count)| Mutation::Remove(at, count)),
        (any::<Index>(), prop::collection::vec(any::<u8>(), 1..40)).prop_map(|(at, extra)| Mutation::Insert(at, extra)),
        (any::<Index>(), 1..100usize).prop_map(|(at, count)| Mutation::Repeat(at, count)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_files_never_panic(mutations in prop::collection::vec(mutation(), 1..4)) {
        let mut bytes = sample().bytes();
        mutations.iter().for_each(|mutation| mutation.apply(&mut bytes));
        if let Ok(file) = Gguf::parse(bytes) {
            walk(&file);
        }
    }

    #[test]
    fn random_bytes_after_the_header_never_panic(
        tensors in 0..4u64,
        entries in 0..4u64,
        rest in prop::collection::vec(prop_oneof![3 => Just(0u8), 2 => 0..13u8, 1 => any::<u8>()], 0..300),
    ) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend([tensors.to_le_bytes(), entries.to_le_bytes()].concat());
        bytes.extend(rest);
        if let Ok(file) = Gguf::parse(bytes) {
            walk(&file);
        }
    }
}
