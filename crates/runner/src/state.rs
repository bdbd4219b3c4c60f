//! Recurrent states: what layers keep of a sequence that have no keys and values for each of its tokens.

use std::fmt;

/// Room for the recurrent state of one sequence, or for a snapshot of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateSlot(pub u32);

impl fmt::Display for StateSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "state slot {}", self.0)
    }
}

/// The state that the rows of a sequence go on from, in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsState {
    pub slot: StateSlot,
    /// How many of the rows, at their end, are of draft tokens: the sequence may go on from any of them, or from the row
    /// before them.
    pub drafts: usize,
}
