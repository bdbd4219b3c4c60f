//! The vector index against a plain list that is searched from end to end.

mod changes;
mod corruption;
mod likeness;
mod model;
mod repeats;
mod restart;
