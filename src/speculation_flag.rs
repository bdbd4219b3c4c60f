//! The choice of speculative decoding on the command line.

use clap::ValueEnum;
use ruvllm_runtime::Speculation;

// Each flag's help says what the values mean: it differs a little between commands.
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
