//! Judges what was learned before anybody is served with it, and learns which of several models answers best.
//!
//! [`part_of`] says which documents are learned from and which are held out. [`judge`] compares the losses of a
//! candidate on what was held out with those of what is served now and of cheaper ways to the same end: an
//! [`NgramMemory`], and examples in the prompt ([`with_examples`]). Figures come from callers: this crate knows token
//! ids and losses, and no models, texts or files. What a router sees of a text is in [`routing`].

mod bootstrap;
mod examples;
mod gate;
mod loss;
mod ngram;
mod overlap;
mod random;
mod repeats;
pub mod routing;
mod split;

pub use bootstrap::Interval;
pub use examples::{Prompted, with_examples};
pub use gate::{Comparison, GateError, GateOptions, GeneralReport, HeldOut, Report, Verdict, judge};
pub use loss::Loss;
pub use ngram::{NgramMemory, Scored};
pub use overlap::{SHARED_TOKENS, Shingles};
pub use repeats::Repeats;
pub use split::{DocumentKey, Needed, Part, part_of};
