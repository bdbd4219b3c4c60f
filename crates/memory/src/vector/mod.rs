//! The vector index: nearest neighbors by cosine similarity, filtered by facets, of entries that change.
//!
//! It lives in memory. A database, which the index does not know, stores the code and facets of each entry, and a blob for
//! the graph of each segment. Without the blobs an index finds the same, but is slower until its points are linked again.
//!
//! - A *point* is a vector (`points.rs`) that is linked to others by a graph (`graph.rs`, `link.rs`, `walk.rs`).
//! - An *entry* (`entries.rs`) is an id with facets (`columns.rs`), whose vector is a point. Equal vectors share a point.
//! - A *segment* (`segment.rs`) is a graph with its entries. New ones go to the growing segment; when it is full, it is
//!   sealed and another one is started. A search (`search.rs`) covers all of them.

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
