//! Models: file formats, configuration, weights, architectures.
