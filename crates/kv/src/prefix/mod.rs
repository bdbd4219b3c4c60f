//! The prefix cache: which pages hold the keys and values of which beginnings of texts.
//!
//! A radix tree over pages: an edge is a run of whole pages, and the children of a node differ in their first page. Two
//! texts that part within a page have a page each. The last, unfilled page of a text is a leaf of its own; whoever
//! continues the text copies it.

mod branch;
mod evict;
mod find;
mod insert;
mod key;
mod node;
mod tree;

pub use branch::TextNamespaces;
pub use find::{Divergence, Found};
pub use insert::{Change, TakenPage};
pub use key::{Namespace, PageHash};
pub use tree::PrefixTree;

#[cfg(test)]
mod tests;
