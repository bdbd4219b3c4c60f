//! The memory store: what RuvLLM keeps, and one search by meaning over all of it. Knows nothing of models or requests.

pub mod vector;
