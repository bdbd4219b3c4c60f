//! The vector index: nearest neighbours by cosine, filtered by facets, of entries that change.
//!
//! It lives in memory. What lasts is in a database that the index does not know: the code and facets of each entry, and a
//! blob for each segment's graph, without which an index finds the same but takes longer to be fast after it is loaded.
//!
//! - A *point* is a vector (`points.rs`) that is linked to others by a graph (`graph.rs`, `link.rs`, `walk.rs`).
//! - An *entry* (`entries.rs`) is an id with facets (`columns.rs`), whose vector is a point. Equal vectors are one point.
//! - A *segment* (`segment.rs`) is a graph with its entries. New ones go to the growing segment; when it is full, it is
//!   sealed and another begun. A search (`search.rs`) asks all of them.

mod best;
mod bits;
mod blob;
mod code;
mod columns;
mod entries;
mod facets;
mod graph;
mod index;
mod link;
mod maintenance;
mod options;
mod points;
mod saved;
mod search;
mod segment;
mod walk;

pub use blob::BlobError;
pub use code::{DIMENSION_DEFAULT, DIMENSION_MAX, VectorCode, VectorError};
pub use facets::{FACETS, Facets, Filter};
pub use index::VectorIndex;
pub use options::{Blob, Hit, IndexOptions, LoadReport, Query, SegmentId, Unsaved};
