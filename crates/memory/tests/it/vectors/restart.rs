//! What an index is after it was saved and loaded.

use ruvllm_memory::vector::{Blob, Filter, IndexOptions, Query, SegmentId, VectorIndex};

use super::model::{Both, Random};

const DIMENSION: usize = 32;

fn options() -> IndexOptions {
    IndexOptions { ef_search: 12, segment_vectors_max: 3000, ..IndexOptions::default() }
}

fn filled(entries: u64) -> Both {
    let mut both = Both::new(DIMENSION, options());
    let mut random = Random(8);
    for id in 0..entries {
        let vector = random.near_centre(DIMENSION, 30).1;
        both.insert(id, &vector, random.facets());
    }
    both
}

fn mean_recall(both: &Both) -> f32 {
    let mut random = Random(100);
    (0..100).map(|_| both.recall(&random.near_centre(DIMENSION, 30).1, 5, &Filter::default())).sum::<f32>() / 100.0
}

fn reload(both: &mut Both, blobs: Vec<Blob>) -> usize {
    // A database may tell its entries in any order.
    let entries = both.list.entries().into_iter().rev();
    let (index, report) = VectorIndex::load(DIMENSION, options(), blobs, entries).unwrap();
    assert!(report.unreadable.is_empty(), "{:?}", report.unreadable);
    both.index = index;
    report.unlinked
}

#[test]
fn a_saved_index_is_loaded_linked_and_goes_on_growing() {
    let mut both = filled(4500);
    let blobs = both.index.all_unsaved().write;
    assert_eq!(blobs.len(), 2);
    assert_eq!(reload(&mut both, blobs), 0);
    assert!(mean_recall(&both) >= 0.95);
    assert!(both.index.all_unsaved().write.is_empty(), "nothing has changed");
    let mut random = Random(9);
    for id in 10_000..10_100 {
        let vector = random.near_centre(DIMENSION, 30).1;
        both.insert(id, &vector, random.facets());
    }
    let unsaved = both.index.all_unsaved();
    assert_eq!(unsaved.write.iter().map(|blob| blob.id).collect::<Vec<_>>(), [SegmentId(1)]);
    assert!(mean_recall(&both) >= 0.95);
}

#[test]
fn what_was_not_saved_is_found_at_once_and_linked_bit_by_bit() {
    let mut both = filled(3500);
    let blobs = both.index.unsaved().write;
    assert_eq!(blobs.iter().map(|blob| blob.id).collect::<Vec<_>>(), [SegmentId(0)], "the growing one is small yet");
    assert_eq!(reload(&mut both, blobs), 500);
    assert!(mean_recall(&both) >= 0.95);
    // Each is nearest to itself.
    let itself = |id: u64| {
        let vector: Vec<f32> = both.list.0[&id].0.codes().iter().map(|code| f32::from(*code)).collect();
        let query = Query { vector: &vector, k: 1, filter: Filter::default(), ef: None };
        both.index.search(&query).unwrap()[0].id == id
    };
    assert!((3000..3500).all(itself));
    let mut calls = 1;
    while both.index.maintain(100) {
        calls += 1;
    }
    assert_eq!(calls, 5);
    assert!(mean_recall(&both) >= 0.95);
}

#[test]
fn without_blobs_everything_is_found_and_linked_later() {
    let mut both = filled(3500);
    assert_eq!(reload(&mut both, Vec::new()), 3500);
    assert_eq!(mean_recall(&both), 1.0);
    while both.index.maintain(1000) {}
    assert!(mean_recall(&both) >= 0.95);
    assert_eq!(both.index.all_unsaved().write.len(), 2);
}

#[test]
fn entries_that_changed_after_the_graph_was_saved_are_as_the_database_has_them() {
    let mut both = filled(3000);
    let blobs = both.index.all_unsaved().write;
    let mut random = Random(10);
    for id in 0..300 {
        let vector = random.near_centre(DIMENSION, 30).1;
        both.insert(id, &vector, random.facets());
    }
    (300..1200).for_each(|id| both.remove(id));
    assert_eq!(reload(&mut both, blobs), 300);
    assert!(mean_recall(&both) >= 0.95);
    // A third of the graph's points have no vectors any more.
    while both.index.maintain(1000) {}
    assert!(mean_recall(&both) >= 0.95);
}

#[test]
fn a_segment_that_is_gone_when_its_blob_was_written_has_it_deleted() {
    let mut both = filled(10);
    let unsaved = both.index.all_unsaved();
    (0..10).for_each(|id| both.remove(id));
    both.index.mark_saved(&unsaved);
    assert_eq!(both.index.all_unsaved().delete, [SegmentId(0)]);
    both.index.mark_saved(&both.index.all_unsaved());
    assert!(both.index.all_unsaved().delete.is_empty());
}

#[test]
fn a_graph_none_of_whose_entries_is_left_is_deleted() {
    let mut both = filled(100);
    let blobs = both.index.all_unsaved().write;
    both.list.0.clear();
    reload(&mut both, blobs);
    assert_eq!(both.index.all_unsaved().delete, [SegmentId(0)]);
    let mut random = Random(1);
    both.insert(5, &random.vector(DIMENSION), random.facets());
    assert_eq!(both.index.all_unsaved().write[0].id, SegmentId(1));
}
