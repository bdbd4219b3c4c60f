//! `ruvllm adapters`: the LoRA adapters on this machine.

mod list;
mod merge;
mod pull;
mod show;
mod train;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::flags::adapter::stored_adapter;
use crate::loading::store;
use crate::output;

/// Fetch, train, list, show, remove and merge LoRA adapters
///
/// An adapter is a small set of weights that is added to those of a model. It is trained here, or with a program such as
/// PEFT, and kept in the store beside the models. Requests name it: `ruvllm run smollm2 --adapter legal`, or the model smollm2:legal of a
/// server.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ruvllm adapters pull ./my-lora --name smollm2:legal\n  \
                        ruvllm adapters pull hf:OWNER/REPO\n  ruvllm adapters list\n  \
                        ruvllm run smollm2 --adapter legal \"Is this binding?\"\n  \
                        ruvllm serve smollm2     and requests with \"model\": \"smollm2:legal\"")]
pub struct Adapters {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Pull(pull::Pull),
    List(list::List),
    Show(show::Show),
    Rm(Rm),
    Merge(Box<merge::Merge>),
    Train(Box<train::Train>),
}

/// Remove adapters from this machine
///
/// A server that has loaded one keeps it until it is unloaded there. Files that another name has too stay.
#[derive(Debug, Args)]
struct Rm {
    /// Names, as shown by `ruvllm adapters list`
    #[arg(required = true, value_name = "ADAPTER")]
    adapters: Vec<String>,
}

impl Adapters {
    pub fn execute(self) -> Result<()> {
        match self.what {
            What::Pull(pull) => pull.execute(),
            What::List(list) => list.execute(),
            What::Show(show) => show.execute(),
            What::Rm(rm) => rm.execute(),
            What::Merge(merge) => merge.execute(),
            What::Train(train) => train.execute(),
        }
    }
}

impl Rm {
    fn execute(self) -> Result<()> {
        let store = store()?;
        for adapter in &self.adapters {
            // Also one that cannot be used any more, which has its full name.
            let name = stored_adapter(&store, adapter).map_or_else(|_| adapter.clone(), |stored| stored.name);
            store.remove_adapter(&name)?;
            output::line(&format!("removed {name}"))?;
        }
        Ok(())
    }
}
