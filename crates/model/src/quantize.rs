//! Writing a model file again with other weight types: a [`Recipe`] says what a tensor becomes, a [`Plan`] what that
//! means for one file, and a [`Job`] does it.

mod at_load;
mod job;
mod plan;
mod recipe;
#[cfg(test)]
mod tests;

pub(crate) use at_load::quantize_rows;
pub use at_load::{AtLoadError, quantize_at_load};
pub use job::{Job, JobError, Report, TypeReport};
pub use plan::{Plan, PlannedTensor};
pub use recipe::{Fate, ModelShape, Recipe};
