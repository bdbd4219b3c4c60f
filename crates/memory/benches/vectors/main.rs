//! `cargo bench -p ruvllm-memory --bench vectors`: how long the vector index takes, and what it finds, by kind of filter.
//!
//! Options after `--`: `--entries N` (100,000), `--dimension N` (768), `--queries N` (300), `--segment N` and `--ef N` (the
//! index's own), `--only TEXT` (filters whose name contains it), `--json`. Entries lie around 1,000 centres. Recall is that of the ten nearest, against all entries in floats.

mod data;
mod measure;

use std::time::Instant;

use data::{Asked, Data, K, KINDS, ask};
use measure::{Line, measure, ms};
use ruvllm_memory::vector::{Facets, IndexOptions, Query, VectorCode, VectorIndex};

fn measured(index: &VectorIndex, asked: &[Asked], kind: usize) -> Line {
    measure(asked, kind, |asked| {
        let query = Query { vector: &asked.vector, k: K, filter: asked.filters[kind].clone(), ef: None };
        let hits = index.search(&query).expect("a vector of the index's dimension");
        hits.iter().map(|hit| hit.id).collect()
    })
}

/// Saves the index and loads it again.
fn load(index: &VectorIndex, entries: &[(u64, VectorCode, Facets)]) -> (VectorIndex, f64, usize) {
    let blobs = index.all_unsaved().write;
    let blob_bytes = blobs.iter().map(|blob| blob.bytes.len()).sum();
    let entries: Vec<_> = entries.iter().map(|(id, code, facets)| (*id, code.to_bytes(), *facets)).collect();
    let start = Instant::now();
    let entries = entries
        .iter()
        .map(|(id, bytes, facets)| (*id, VectorCode::from_bytes(bytes).expect("what was saved"), *facets));
    let (index, report) =
        VectorIndex::load(index.dimension(), *index.options(), blobs, entries).expect("what was saved");
    assert_eq!((report.unreadable.len(), report.unlinked), (0, 0));
    (index, ms(start), blob_bytes)
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |flag: &str| {
        let at = arguments.iter().position(|argument| argument == flag)?;
        arguments.get(at + 1)?.parse::<usize>().ok()
    };
    let json = arguments.iter().any(|argument| argument == "--json");
    let (entries, dimension) = (after("--entries").unwrap_or(100_000), after("--dimension").unwrap_or(768));
    let mut options = IndexOptions::default();
    options.segment_vectors_max = after("--segment").unwrap_or(options.segment_vectors_max);
    options.ef_search = after("--ef").unwrap_or(options.ef_search);
    options.ef_construction = after("--ef-construction").unwrap_or(options.ef_construction);
    let data = Data::new(dimension);
    let asked = ask(&data, entries as u64, after("--queries").unwrap_or(300) as u64);

    let mut index = VectorIndex::new(dimension, options).expect("a dimension that an index can have");
    let coded = (0..entries as u64).map(|id| {
        let (vector, facets) = data.vector(id);
        (id, VectorCode::new(&vector, dimension).expect("a vector with a direction"), facets)
    });
    let coded: Vec<_> = coded.collect();
    let inserts: Vec<f64> = coded
        .iter()
        .map(|(id, code, facets)| {
            let start = Instant::now();
            index.insert(*id, code, *facets).expect("a vector of the index's dimension");
            ms(start)
        })
        .collect();
    if !json {
        println!("{entries} x {dimension}, {:.0} s to build", inserts.iter().sum::<f64>() / 1e3);
        println!("{:24} {:>8} {:>8} {:>8} {:>8}", "", "p50 ms", "p99 ms", "alone", "recall");
    }
    Line::new("insert", &[inserts], None).print(json);
    let only = arguments.iter().position(|argument| argument == "--only").and_then(|at| arguments.get(at + 1));
    for kind in (0..KINDS.len()).filter(|kind| only.is_none_or(|only| KINDS[*kind].name.contains(only))) {
        measured(&index, &asked, kind).print(json);
    }
    let (loaded, load_ms, blob_bytes) = load(&index, &coded);
    measured(&loaded, &asked, 0).print(json);
    let entry_bytes = index.memory_bytes() / entries;
    if json {
        println!(r#"{{"entry_bytes":{entry_bytes},"blob_bytes":{blob_bytes},"load_ms":{load_ms:.1}}}"#);
    } else {
        println!(
            "{entry_bytes} bytes an entry, {blob_bytes} bytes of blobs, loaded in {load_ms:.0} ms (the last line is after that)"
        );
    }
}
