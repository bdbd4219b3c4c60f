//! Observes texts at once, for measurements: nothing else may be asked of the engine meanwhile.

use std::sync::Arc;

use ruvllm_engine::{EvaluateError, Observed, RecallItem, RecallSpace, TextToObserve, TokenId};

use super::worker::space_sample;
use crate::Engine;

/// Rows of a text that are run at a time.
const ROWS: usize = 256;

impl Engine {
    /// Measures the space of the model's states; `None` for models that give none.
    pub fn recall_space(&self) -> Result<Option<Arc<RecallSpace>>, EvaluateError> {
        if self.model().hidden == 0 {
            return Ok(None);
        }
        let mut core = self.model().thread.core();
        core.begin_measuring_space(space_sample(self.model()))?;
        loop {
            if let Some(Observed::Space(space)) = core.observe(ROWS)? {
                return Ok(Some(Arc::new(space)));
            }
        }
    }

    /// Returns what a memory keeps of a text from `first_target` on.
    pub fn recall_item(
        &self,
        space: Option<Arc<RecallSpace>>,
        tokens: Vec<TokenId>,
        first_target: usize,
    ) -> Result<RecallItem, EvaluateError> {
        let mut core = self.model().thread.core();
        core.begin_observation(TextToObserve { tokens, first_target, space, adapter: None })?;
        loop {
            if let Some(Observed::Item(item)) = core.observe(ROWS)? {
                return Ok(item);
            }
        }
    }
}
