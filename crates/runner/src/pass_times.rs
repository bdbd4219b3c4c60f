//! Where the time of forward passes goes.

use std::ops::AddAssign;
use std::time::Duration;

/// The time of forward passes by what it was spent on; waiting for the slowest thread is a part of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassTimes {
    /// Looking up the vectors of tokens.
    pub embed: Duration,
    /// Products with weights, and what is done with each result while it is at hand.
    pub matmul: Duration,
    /// Appending keys and values, and attending to them.
    pub attention: Duration,
    /// Norms, routers, recurrent layers.
    pub other: Duration,
    /// Multiplications, each with its addition, of the products with weights.
    pub products: u64,
}

impl PassTimes {
    pub fn total(&self) -> Duration {
        self.embed + self.matmul + self.attention + self.other
    }
}

impl AddAssign for PassTimes {
    fn add_assign(&mut self, more: Self) {
        self.embed += more.embed;
        self.matmul += more.matmul;
        self.attention += more.attention;
        self.other += more.other;
        self.products += more.products;
    }
}
