//! Bytes that are not what was saved, and vectors that are none.

use ruvllm_memory::vector::{Blob, BlobError, Filter, IndexOptions, SegmentId, VectorCode, VectorError, VectorIndex};

use super::model::{Both, Random};

const DIMENSION: usize = 16;

fn saved() -> (Both, Vec<u8>) {
    let mut both = Both::new(DIMENSION, IndexOptions { ef_search: 2, ..IndexOptions::default() });
    let mut random = Random(11);
    for id in 0..600 {
        let vector = random.vector(DIMENSION);
        both.insert(id, &vector, random.facets());
    }
    let bytes = both.index.all_unsaved().write.remove(0).bytes;
    (both, bytes)
}

fn load(both: &Both, bytes: &[u8]) -> (VectorIndex, Option<BlobError>) {
    let blob = Blob { id: SegmentId(3), bytes: bytes.to_vec() };
    let options = *both.index.options();
    let (index, report) = VectorIndex::load(DIMENSION, options, [blob], both.list.entries()).unwrap();
    assert_eq!(index.len(), both.list.0.len());
    (index, report.unreadable.into_iter().next().map(|(_, error)| error))
}

#[test]
fn a_graph_that_was_cut_off_is_refused_and_deleted_and_nothing_is_lost() {
    let (both, bytes) = saved();
    for len in (0..bytes.len()).step_by(97).chain([0, 1, 4, 8, 9, bytes.len() - 1]) {
        let (index, error) = load(&both, &bytes[..len]);
        assert_eq!(error, Some(BlobError::Short(len)));
        assert_eq!(index.all_unsaved().delete, [SegmentId(3)]);
    }
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(load(&both, &longer).1, Some(BlobError::Long(1)));
    assert_eq!(load(&both, &bytes).1, None);
}

#[test]
fn counts_and_numbers_that_cannot_be_are_refused() {
    let (both, bytes) = saved();
    let with = |at: usize, new: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + new.len()].copy_from_slice(new);
        load(&both, &bytes).1
    };
    assert_eq!(with(0, b"RVG2"), Some(BlobError::Magic));
    assert_eq!(with(4, &u32::MAX.to_le_bytes()), Some(BlobError::Points(u32::MAX as usize)));
    assert_eq!(with(4, &0u32.to_le_bytes()), Some(BlobError::Points(0)));
    assert_eq!(with(8, &u16::MAX.to_le_bytes()), Some(BlobError::Top(u16::MAX)));
    let levels = 10 + 600 * 8;
    assert_eq!(with(levels, &[200]), Some(BlobError::Level(200)));
    let links = levels + 600;
    assert_eq!(with(links, &[65]), Some(BlobError::Links { links: 65, level: 0 }));
    assert_eq!(with(links + 1, &600u16.to_le_bytes()), Some(BlobError::Link { point: 600, level: 0 }));
}

#[test]
fn damaged_bytes_never_panic_and_what_is_found_is_right_all_the_same() {
    let (mut both, bytes) = saved();
    let mut random = Random(12);
    let mut usable = 0;
    for _ in 0..300 {
        let mut damaged = bytes.clone();
        for _ in 0..=random.below(4) {
            let at = random.below(damaged.len() as u64) as usize;
            damaged[at] = random.next() as u8;
        }
        let (index, error) = load(&both, &damaged);
        both.index = index;
        usable += usize::from(error.is_none());
        both.recall(&random.vector(DIMENSION), 2, &Filter::default());
    }
    assert!(usable > 50, "{usable}");
}

#[test]
fn vectors_without_direction_or_of_another_dimension_are_refused() {
    let new = |vector: &[f32]| VectorCode::new(vector, 3);
    assert_eq!(new(&[0.0, -0.0]), Err(VectorError::Zero));
    assert_eq!(new(&[]), Err(VectorError::Zero));
    assert_eq!(new(&[1.0; 4]), Err(VectorError::TooLong { got: 4, expected: 3 }));
    assert_eq!(new(&[1.0, f32::INFINITY]), Err(VectorError::NotFinite { at: 1, value: f32::INFINITY }));
    assert!(matches!(new(&[f32::NAN]), Err(VectorError::NotFinite { at: 0, .. })));
    assert_eq!(VectorCode::from_bytes(&[]), Err(VectorError::Dimension(0)));
    assert_eq!(VectorCode::from_bytes(&[0; 3]), Err(VectorError::Zero));
    assert_eq!(VectorCode::from_bytes(&[1, 128]), Err(VectorError::StoredByte { at: 1 }));
    assert!(VectorIndex::new(0, IndexOptions::default()).is_err());
    assert!(VectorIndex::new(1 << 20, IndexOptions::default()).is_err());
    let mut index = VectorIndex::new(4, IndexOptions::default()).unwrap();
    let other = new(&[1.0]).unwrap();
    let refused = VectorError::OtherDimension { got: 3, expected: 4 };
    assert_eq!(index.insert(1, &other, Default::default()), Err(refused));
}

#[test]
fn codes_keep_directions_whatever_the_length_and_come_back_from_bytes() {
    let mut random = Random(13);
    for factor in [1.0, 1e30, 1e-30, f32::MIN_POSITIVE] {
        let (a, b) = (random.vector(300), random.vector(250));
        let scaled: Vec<f32> = a.iter().map(|x| x * factor).collect();
        let (code_a, code_b) = (VectorCode::new(&scaled, 300).unwrap(), VectorCode::new(&b, 300).unwrap());
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let cosine = dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt();
        assert!((f64::from(code_a.similarity(&code_b)) - cosine).abs() < 2e-3, "{factor}");
        assert!((code_a.similarity(&code_a) - 1.0).abs() < 1e-6);
        assert_eq!(VectorCode::from_bytes(&code_a.to_bytes()), Ok(code_a));
    }
}
