//! Items on the sides of a split.

use ruvllm_training::Item;

/// What is learned from and what it is judged by. No document is on two sides.
#[derive(Debug, Default)]
pub struct Divided {
    pub training: Vec<Item>,
    /// Says when a training should end.
    pub validation: Vec<Item>,
    /// Seen by nothing but what judges.
    pub held_out: Vec<Item>,
}

impl Divided {
    /// Returns the document of each item that is held out.
    pub fn held_out_documents(&self) -> Vec<u64> {
        self.held_out.iter().map(|item| item.document as u64).collect()
    }
}
