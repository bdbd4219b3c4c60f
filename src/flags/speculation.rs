//! When to use speculative decoding.

use clap::ValueEnum;
use ruvllm_runtime::Speculation;

// Each command's help says what the values mean for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SpeculationFlag {
    Auto,
    On,
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
