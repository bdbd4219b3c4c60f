//! Models: file formats, configuration, weights, architectures.

pub mod formats;
