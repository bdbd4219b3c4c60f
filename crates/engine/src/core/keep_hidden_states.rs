//! Hidden states: kept in page sidecars, and reported with requests that ask for them.

use super::Core;
use crate::schedule::Slice;
use crate::sequence::Sequence;
use crate::{Event, HiddenStates, StepError, hidden_states};

impl Core {
    /// Bytes that the state of a token takes, where states are kept.
    pub fn state_bytes(hidden: usize) -> usize {
        hidden_states::sidecar_bytes(hidden)
    }

    /// Keeps the states of a slice whose rows begin with `first_row`: of its tokens and of draft tokens that were right. `results`
    /// are those of the slice; their states are added where the request wants them. Comes before the pages are cached.
    pub(super) fn keep_hidden_states(
        &mut self,
        slice: &Slice,
        first_row: usize,
        results: &mut [Result<Event, StepError>],
    ) {
        let Sequence { table, computed, states_of, .. } = &self.schedule.running()[slice.running];
        let (runner, cache) = (&mut self.runner, &mut self.cache);
        let width = runner.limits().hidden;
        let mut row = vec![0f32; width];
        for token in slice.tokens.start..*computed {
            if let Some(note) = cache.sidecar_mut(table, token) {
                runner.hidden_state(first_row + token - slice.tokens.start, &mut row);
                hidden_states::write(&row, note);
            }
        }
        let Some(states_of) = states_of else { return };
        let last_row = first_row + slice.tokens.len() - 1;
        for (draft, event) in results.iter_mut().flatten().enumerate() {
            let prompt = event.prefix.as_ref().and_then(|_| {
                // All tokens attend to the first for want of anything better: its state is of its own kind and says nothing.
                let first = usize::from(states_of.end > 1);
                let tokens = states_of.start.max(first)..states_of.end.min(*computed);
                hidden_states::mean(width, tokens.filter_map(|token| cache.sidecar(table, token)))
            });
            runner.hidden_state(last_row + draft, &mut row);
            event.states = Some(Box::new(HiddenStates { prompt, last: row.clone() }));
        }
    }
}
