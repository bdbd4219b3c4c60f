//! Requests repeat: vectors that are equal, or nearly so.

use ruvllm_memory::vector::{Facets, Filter, IndexOptions, Query};

use super::model::{Both, Random};

const DIMENSION: usize = 64;
const REPEATS: u64 = 10_000;

#[test]
fn ten_thousand_equal_vectors_cost_next_to_nothing_and_are_all_found() {
    let mut random = Random(3);
    let mut both = Both::new(DIMENSION, IndexOptions { ef_search: 16, ..IndexOptions::default() });
    let repeated = random.vector(DIMENSION);
    for id in 0..2000 {
        let vector = random.vector(DIMENSION);
        both.insert(id, &vector, random.facets());
    }
    let before = both.index.memory_bytes();
    for id in 2000..2000 + REPEATS {
        both.insert(id, &repeated, Facets([id as u32; 8]));
    }
    assert!(both.index.memory_bytes() - before < REPEATS as usize * 150, "each has a vector of its own");
    for filter in [
        Filter::default(),
        Filter::default().with_range(0, 3000..=9000),
        Filter::default().with_value(0, 2345),
        Filter::default().with_one_of(3, &[2345, 7000, 11_999]),
    ] {
        assert_eq!(both.recall(&repeated, 10, &filter), 1.0, "{filter:?}");
    }
    let other = random.vector(DIMENSION);
    assert!(both.recall(&other, 10, &Filter::default()) >= 0.8);
    // All but one are removed: that one is found among those that are not there any more.
    (2000..2000 + REPEATS - 1).for_each(|id| both.remove(id));
    let query = Query { vector: &repeated, k: 1, filter: Filter::default(), ef: None };
    assert_eq!(both.index.search(&query).unwrap()[0].id, 2000 + REPEATS - 1);
}

#[test]
fn vectors_that_differ_by_a_hair_are_told_apart() {
    let mut random = Random(4);
    let mut both = Both::new(DIMENSION, IndexOptions { ef_search: 16, ..IndexOptions::default() });
    let middle = random.vector(DIMENSION);
    for id in 0..5000 {
        let vector = if id % 5 == 0 { random.vector(DIMENSION) } else { random.near(&middle, 0.02) };
        both.insert(id, &vector, random.facets());
    }
    let near: f32 = (0..50).map(|_| both.recall(&random.near(&middle, 0.02), 5, &Filter::default())).sum();
    let far: f32 = (0..50).map(|_| both.recall(&random.vector(DIMENSION), 5, &Filter::default())).sum();
    // From afar the many are all alike and crowd out others among so few candidates.
    assert!(near / 50.0 >= 0.8 && far / 50.0 >= 0.6, "{} {}", near / 50.0, far / 50.0);
}
