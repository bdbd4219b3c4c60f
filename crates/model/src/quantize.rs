//! Writing a model file again with other weight types: a [`Recipe`] says what a tensor becomes, a [`Plan`] what that
//! means for one file, and a [`Job`] does it.

mod job;
mod plan;
mod recipe;
#[cfg(test)]
mod tests;

pub use job::{Job, JobError, Report, TypeReport};
pub use plan::{Plan, PlannedTensor};
pub use recipe::{Fate, ModelShape, Recipe};
