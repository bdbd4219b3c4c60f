//! Where the weights of experts are kept.

use anyhow::Result;
use clap::ValueEnum;
use ruvllm_runtime::ExpertPlace;
use ruvllm_store::default_home;

/// Auto is on disk only if the model does not fit into memory otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ExpertsFlag {
    #[default]
    Auto,
    Memory,
    Disk,
}

impl ExpertsFlag {
    pub fn place(self) -> Result<ExpertPlace> {
        let folder = || Ok::<_, anyhow::Error>(default_home()?.join("experts"));
        Ok(match self {
            Self::Auto => ExpertPlace::DiskIfNeeded(folder()?),
            Self::Memory => ExpertPlace::Memory,
            Self::Disk => ExpertPlace::Disk(folder()?),
        })
    }
}
