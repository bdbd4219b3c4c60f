//! Inserts, updates, removals, facets, maintenance and restarts in any order.

use proptest::prelude::*;
use ruvllm_memory::vector::{Filter, IndexOptions, VectorIndex};

use super::model::{Both, Random};

const DIMENSION: usize = 12;
/// Few, so that they repeat.
const IDS: u64 = 120;

#[derive(Clone, Debug)]
enum Change {
    Insert { id: u64, seed: u64 },
    Remove { id: u64 },
    SetFacets { id: u64, seed: u64 },
    Maintain { entries_max: usize },
    Restart { save: bool },
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        // Few seeds, so that vectors repeat too.
        10 => (0..IDS, 0..200u64).prop_map(|(id, seed)| Change::Insert { id, seed }),
        4 => (0..IDS).prop_map(|id| Change::Remove { id }),
        2 => (0..IDS, any::<u64>()).prop_map(|(id, seed)| Change::SetFacets { id, seed }),
        1 => (0..40usize).prop_map(|entries_max| Change::Maintain { entries_max }),
        1 => any::<bool>().prop_map(|save| Change::Restart { save }),
    ]
}

fn filter(random: &mut Random) -> Filter {
    let mut filter = Filter::default();
    for _ in 0..random.below(3) {
        let least = random.below(100) as u32;
        filter = filter.with_range(random.below(8) as usize, least..=least + random.below(80) as u32);
    }
    if random.below(4) == 0 {
        let values: Vec<u32> = (0..random.below(30)).map(|_| random.below(100) as u32).collect();
        filter = filter.with_one_of(random.below(8) as usize, &values);
    }
    filter
}

fn apply(both: &mut Both, blobs: &mut std::collections::BTreeMap<u64, Vec<u8>>, change: &Change) {
    match *change {
        Change::Insert { id, seed } => {
            let mut random = Random(seed);
            both.insert(id, &random.vector(DIMENSION), random.facets());
        }
        Change::Remove { id } => both.remove(id),
        Change::SetFacets { id, seed } => {
            let facets = Random(seed).facets();
            if let Some(entry) = both.list.0.get_mut(&id) {
                entry.1 = facets;
                both.index.insert(id, &entry.0, facets).unwrap();
            }
        }
        Change::Maintain { entries_max } => {
            both.index.maintain(entries_max);
        }
        Change::Restart { save } => {
            if save {
                let unsaved = both.index.all_unsaved();
                both.index.mark_saved(&unsaved);
                unsaved.delete.iter().for_each(|id| assert!(blobs.remove(&id.0).is_some(), "{id:?} was never written"));
                blobs.extend(unsaved.write.into_iter().map(|blob| (blob.id.0, blob.bytes)));
            }
            let saved = blobs.iter().map(|(id, bytes)| ruvllm_memory::vector::Blob {
                id: ruvllm_memory::vector::SegmentId(*id),
                bytes: bytes.clone(),
            });
            let options = *both.index.options();
            let (index, report) = VectorIndex::load(DIMENSION, options, saved, both.list.entries()).unwrap();
            assert!(report.unreadable.is_empty());
            both.index = index;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn an_index_is_its_list_whatever_happens(changes in prop::collection::vec(change(), 1..300), seed: u64) {
        // With so few entries an index compares all of them, so nothing may escape it.
        let options = IndexOptions { segment_vectors_max: 25, ..IndexOptions::default() };
        let mut both = Both::new(DIMENSION, options);
        let mut blobs = std::collections::BTreeMap::new();
        let mut random = Random(seed);
        for change in &changes {
            apply(&mut both, &mut blobs, change);
            prop_assert_eq!(both.index.len(), both.list.0.len());
            let filter = filter(&mut random);
            prop_assert_eq!(both.recall(&random.vector(DIMENSION), 1 + random.below(12) as usize, &filter), 1.0);
        }
        for id in 0..IDS {
            let entry = both.list.0.get(&id);
            prop_assert_eq!(both.index.contains(id), entry.is_some());
        }
    }
}

#[test]
fn segments_of_which_much_is_removed_are_emptied_and_their_blobs_deleted() {
    let mut random = Random(1);
    let mut both = Both::new(DIMENSION, IndexOptions { segment_vectors_max: 100, ..IndexOptions::default() });
    for id in 0..1000 {
        let vector = random.vector(DIMENSION);
        both.insert(id, &vector, random.facets());
    }
    let written = both.index.all_unsaved();
    assert_eq!((written.write.len(), written.delete.len()), (10, 0));
    both.index.mark_saved(&written);
    assert!(both.index.all_unsaved().write.is_empty());
    (0..1000).filter(|id| id % 2 == 0 || *id < 100).for_each(|id| both.remove(id));
    let memory_before = both.index.memory_bytes();
    let mut calls = 0;
    while both.index.maintain(50) {
        calls += 1;
        assert!(calls < 100, "there is no end to it");
        let vector = random.vector(DIMENSION);
        assert_eq!(both.recall(&vector, 10, &Filter::default()), 1.0);
    }
    let after = both.index.all_unsaved();
    assert!(after.delete.len() >= 9, "{:?} deleted", after.delete);
    assert!(both.index.memory_bytes() < memory_before * 3 / 4);
}
