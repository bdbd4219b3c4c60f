//! `ruvllm rm`: removes a model from the store.

use anyhow::Result;
use clap::Args;

use crate::loading::store;
use crate::output;

/// Remove a model from this machine
#[derive(Debug, Args)]
pub struct Rm {
    /// Name of the model, as shown by `ruvllm list`
    #[arg(required = true)]
    models: Vec<String>,
}

impl Rm {
    pub fn execute(self) -> Result<()> {
        let store = store()?;
        for model in &self.models {
            store.remove(model)?;
            output::line(&format!("removed {model}"))?;
        }
        Ok(())
    }
}
