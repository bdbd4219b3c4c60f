//! What a walk through a graph finds of what there is.

use std::sync::RwLock;

use ruvllm_memory::vector::{Filter, IndexOptions, Query, VectorIndex};

use super::model::{Both, EVERY_FACET, Random};

const DIMENSION: usize = 48;
const ENTRIES: u64 = 6000;
/// So few candidates that a walk is chosen where a thousand or two are accepted.
const EF: usize = 16;
const K: usize = 5;

fn options() -> IndexOptions {
    IndexOptions { ef_search: EF, segment_vectors_max: 3500, ..IndexOptions::default() }
}

/// Two segments of entries around 40 centres, the number of which is the last facet.
fn clustered() -> Both {
    let mut both = Both::new(DIMENSION, options());
    let mut random = Random(5);
    for id in 0..ENTRIES {
        let (centre, vector) = random.near_centre(DIMENSION, 40);
        let mut facets = random.facets();
        facets.0[7] = centre as u32;
        both.insert(id, &vector, facets);
    }
    both
}

fn mean_recall(both: &Both, filter: impl Fn(u64) -> Filter) -> f32 {
    let mut random = Random(99);
    let recalls = (0..100).map(|_| {
        let (centre, vector) = random.near_centre(DIMENSION, 40);
        both.recall(&vector, K, &filter(centre))
    });
    recalls.sum::<f32>() / 100.0
}

#[test]
fn nearly_all_of_the_nearest_are_found_with_and_without_filters() {
    let both = clustered();
    let share = |percent: u32| Filter::default().with_range(0, 0..=percent - 1);
    for (name, least, recall) in [
        ("everything", 0.95, mean_recall(&both, |_| Filter::default())),
        ("80 %", 0.95, mean_recall(&both, |_| share(80))),
        ("50 %", 0.95, mean_recall(&both, |_| share(50))),
        ("35 %", 0.95, mean_recall(&both, |_| share(35))),
        ("10 %", 1.0, mean_recall(&both, |_| share(10))),
        ("1 %", 1.0, mean_recall(&both, |_| share(1))),
        ("all facets", 0.95, {
            mean_recall(&both, |_| EVERY_FACET.fold(Filter::default(), |all, facet| all.with_range(facet, 3..=96)))
        }),
        ("near ones only", 1.0, mean_recall(&both, |centre| Filter::default().with_value(7, centre as u32))),
        ("far ones only", 0.8, {
            mean_recall(&both, |centre| {
                let first = if centre < 20 { 20 } else { 0 };
                Filter::default().with_range(7, first..=first + 19)
            })
        }),
        ("nothing", 1.0, mean_recall(&both, |_| Filter::default().with_value(0, 1000))),
    ] {
        assert!(recall >= least, "{name}: {recall}");
    }
}

#[test]
fn entries_that_come_centre_by_centre_are_found_as_well() {
    let mut both = Both::new(DIMENSION, options());
    let mut random = Random(6);
    for id in 0..ENTRIES {
        let centre = Random(id / 150).vector(DIMENSION);
        let vector = random.near(&centre, 0.6);
        both.insert(id, &vector, random.facets());
    }
    let recall = mean_recall(&both, |_| Filter::default());
    assert!(recall >= 0.95, "{recall}");
}

#[test]
fn removed_entries_are_not_found_but_still_show_the_way() {
    let mut both = clustered();
    (0..ENTRIES).filter(|id| id % 3 != 0).for_each(|id| both.remove(id));
    let recall = mean_recall(&both, |_| Filter::default());
    assert!(recall >= 0.95, "{recall}");
}

#[test]
fn the_same_entries_give_the_same_index() {
    let [a, b] = [(); 2].map(|()| clustered().index.all_unsaved().write);
    assert_eq!(a.len(), 2);
    assert!(a.iter().zip(&b).all(|(a, b)| a.id == b.id && a.bytes == b.bytes));
}

#[test]
fn many_threads_search_while_one_writes() {
    let both = clustered();
    let index: RwLock<VectorIndex> = RwLock::new(both.index);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (index, list) = (&index, &both.list);
            scope.spawn(move || {
                let mut random = Random(seed);
                for _ in 0..200 {
                    let vector = random.near_centre(DIMENSION, 40).1;
                    let query = Query { vector: &vector, k: K, filter: Filter::default(), ef: None };
                    let hits = index.read().unwrap().search(&query).unwrap();
                    assert!(hits.len() == K && hits.iter().all(|hit| list.0.contains_key(&hit.id)));
                }
            });
        }
        for (id, (code, facets)) in &both.list.0 {
            index.write().unwrap().insert(*id, code, *facets).unwrap();
        }
    });
}

#[test]
fn asking_for_too_much_gives_all_there_is() {
    let mut both = Both::new(3, IndexOptions::default());
    let query = |k, ef| Query { vector: &[1.0], k, filter: Filter::default(), ef };
    assert_eq!(both.index.search(&query(usize::MAX, Some(usize::MAX))), Ok(Vec::new()));
    both.insert(7, &[1.0, 1.0], Default::default());
    both.insert(8, &[-1.0, 0.5, 0.5], Default::default());
    let hits = both.index.search(&query(usize::MAX, Some(usize::MAX))).unwrap();
    assert_eq!(hits.iter().map(|hit| hit.id).collect::<Vec<_>>(), [7, 8]);
    assert_eq!(both.index.search(&query(0, Some(0))), Ok(Vec::new()));
}
