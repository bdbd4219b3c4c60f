//! The choice of speculative decoding on the command line.

use clap::ValueEnum;
use ruvllm_runtime::Speculation;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SpeculationFlag {
    /// At temperatures below 0.5
    Auto,
    /// At any temperature
    On,
    /// One token at a time
    Off,
}

impl From<SpeculationFlag> for Speculation {
    fn from(flag: SpeculationFlag) -> Self {
        match flag {
            SpeculationFlag::Auto => Self::Auto,
            SpeculationFlag::On => Self::On,
            SpeculationFlag::Off => Self::Off,
        }
    }
}
