//! Reads any bytes as the saved graph of a segment of vectors, and searches with what loads.

use ruvllm_memory::vector::{Blob, Facets, Filter, IndexOptions, Query, SegmentId, VectorCode, VectorIndex};

const DIMENSION: usize = 4;
const ENTRIES: u64 = 8;

pub fn run(bytes: &[u8]) {
    let blob = Blob { id: SegmentId(1), bytes: bytes.to_vec() };
    let code = |id: u64| VectorCode::new(&[1.0, id as f32, -(id as f32), 0.5], DIMENSION).expect("it has a direction");
    let entries = (0..ENTRIES).map(|id| (id, code(id), Facets::default()));
    let (mut index, _) =
        VectorIndex::load(DIMENSION, IndexOptions::default(), [blob], entries).expect("blobs are optional");
    index.maintain(100);
    let query = Query { vector: &[1.0, 2.0, -2.0, 0.5], k: 3, filter: Filter::default(), ef: None };
    let hits = index.search(&query).expect("a query that fits");
    assert!(hits.len() <= 3);
    let saved = index.all_unsaved();
    index.mark_saved(&saved);
    (0..ENTRIES).for_each(|id| assert!(index.remove(id)));
}
