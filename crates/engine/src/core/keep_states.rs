//! Hidden states: kept beside keys and values, and told to those who want them.

use ruvllm_model::Config;

use super::Core;
use crate::schedule::Slice;
use crate::sequence::Sequence;
use crate::{Event, HiddenStates, StepError, states};

impl Core {
    /// Bytes that the state of a token takes, where states are kept.
    pub fn state_bytes(config: &Config) -> usize {
        states::note_bytes(config.hidden)
    }

    /// Keeps the states of a slice whose rows begin with `first_row`: of its tokens and of guesses that were right. `results`
    /// are those of the slice; their states are added where the request wants them. Comes before the pages are cached.
    pub(super) fn keep_states(&mut self, slice: &Slice, first_row: usize, results: &mut [Result<Event, StepError>]) {
        let Sequence { table, computed, states_of, .. } = &self.schedule.running[slice.running];
        let (model, state, cache) = (&self.model, &mut self.state, &mut self.cache);
        let width = model.config().hidden;
        let mut row = vec![0f32; width];
        for token in slice.tokens.start..*computed {
            if let Some(note) = cache.note_mut(table, token) {
                model.final_state(state, first_row + token - slice.tokens.start, &mut row);
                states::write(&row, note);
            }
        }
        let Some(states_of) = states_of else { return };
        let last_row = first_row + slice.tokens.len() - 1;
        for (guess, event) in results.iter_mut().flatten().enumerate() {
            let prompt = event.prefix.as_ref().and_then(|_| {
                // All tokens attend to the first for want of anything better: its state is of its own kind and says nothing.
                let first = usize::from(states_of.end > 1);
                let tokens = states_of.start.max(first)..states_of.end.min(*computed);
                states::mean(width, tokens.filter_map(|token| cache.note(table, token)))
            });
            model.final_state(state, last_row + guess, &mut row);
            event.states = Some(Box::new(HiddenStates { prompt, last: row.clone() }));
        }
    }
}
