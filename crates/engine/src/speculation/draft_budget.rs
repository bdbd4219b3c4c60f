//! Whether a step is better with one row more.

/// What a step is expected to give, and how long it takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftBudget {
    tokens: f32,
    /// In units of a step of one row.
    time: f32,
    row_cost: f32,
}

impl DraftBudget {
    /// A step of `rows` rows that are needed anyway. Each counts as a sure token, those of prompts too: a draft must
    /// be about as good to stand beside them.
    pub(crate) fn new(rows: usize, row_cost: f32) -> Self {
        let rows = rows as f32;
        Self { tokens: rows, time: 1.0 + row_cost * (rows - 1.0), row_cost }
    }

    /// Tokens that the time of one row more would give elsewhere. Near 1 when many rows run anyway: then a draft
    /// must be nearly sure.
    pub(crate) fn price(&self) -> f32 {
        self.price_with(0.0)
    }

    /// The same for a row that costs this much to draft.
    pub(crate) fn price_with(&self, drafting: f32) -> f32 {
        (self.row_cost + drafting) * self.rate()
    }

    /// Tokens in the time of a step of one row.
    pub(crate) fn rate(&self) -> f32 {
        self.tokens / self.time
    }

    /// Adds a row that gives a token with this chance, if there are more tokens in a second with it.
    pub(crate) fn add_if_worth(&mut self, chance: f32) -> bool {
        self.add_if_worth_with(0.0, chance)
    }

    /// The same for a row that costs this much to draft.
    pub(crate) fn add_if_worth_with(&mut self, drafting: f32, chance: f32) -> bool {
        if chance <= self.price_with(drafting) {
            return false;
        }
        self.tokens += chance;
        self.time += self.row_cost + drafting;
        true
    }

    /// Takes time for drafting.
    pub(crate) fn spend(&mut self, drafting: f32) {
        self.time += drafting;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many draft tokens are worth their rows, if each is right with this chance when those before it were.
    fn worth(rows: usize, row_cost: f32, chance: f32) -> usize {
        let mut draft_budget = DraftBudget::new(rows, row_cost);
        (1..100).take_while(|i| draft_budget.add_if_worth(chance.powi(*i))).count()
    }

    #[test]
    fn the_length_grows_with_the_chance_and_shrinks_with_the_cost() {
        assert_eq!([0.05, 0.3, 0.6, 0.9].map(|chance| worth(1, 0.1, chance)), [0, 1, 3, 10]);
        assert_eq!([0.05, 0.1, 0.25, 0.5].map(|cost| worth(1, cost, 0.9)), [13, 10, 6, 3]);
    }

    #[test]
    fn drafts_give_way_when_many_rows_run_anyway() {
        assert_eq!([1, 4, 16, 64].map(|rows| worth(rows, 0.1, 0.8)), [6, 4, 1, 0]);
        assert_eq!(worth(128, 0.1, 0.9), 0, "a prompt's rows come first");
    }

    #[test]
    fn the_length_is_the_best_one() {
        for chance in [0.3f32, 0.5, 0.7, 0.9, 0.97] {
            for cost in [0.05, 0.1, 0.25, 0.5] {
                let rate =
                    |rows: usize| (0..=rows).map(|i| chance.powi(i as i32)).sum::<f32>() / (1.0 + cost * rows as f32);
                let chosen = rate(worth(1, cost, chance));
                assert!((0..100).all(|rows| rate(rows) <= chosen * 1.0001), "{chance} {cost}");
            }
        }
    }
}
