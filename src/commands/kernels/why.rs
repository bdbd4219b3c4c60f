//! `ruvllm kernels why`: what was learned of kernels on this machine, and what is chosen by it.

use anyhow::Result;
use clap::Args;
use ruvllm_runtime::hardware::chosen_kernels;
use ruvllm_runtime::{KernelCandidate, KernelExperience, kernel_experience};
use serde_json::{Value, json};

use crate::flags::memory::MemoryLocationFlags;
use crate::output;

/// Explain which kernels are faster on this machine, and which of them `--kernel-choice faster` therefore uses
///
/// Servers measure the kernels of packs beside the native ones when they load a model, and keep that in their memory. Only kernels
/// that compute what the reference computes are ever used; times decide nothing else. Attention and products of matrices are
/// native in any case. `ruvllm kernels status` shows what a running server uses.
#[derive(Debug, Args)]
pub struct Why {
    /// Also show what machines of other kinds have learned that share the memory
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    memory: MemoryLocationFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Why {
    pub fn execute(self) -> Result<()> {
        let kernels = chosen_kernels()?;
        let known = self.memory.open_if_exists()?.map(|memory| kernel_experience(&memory, kernels)).transpose()?;
        let known: Vec<_> = known.into_iter().flatten().filter(|known| self.all || known.is_here).collect();
        if self.json {
            return output::json(&json!({ "operations": known.iter().map(to_json).collect::<Vec<_>>() }));
        }
        if known.is_empty() {
            output::remark(
                "nothing was measured here yet: `ruvllm serve MODEL --kernel-pack PACK --kernel-choice faster` does",
            );
        }
        known.iter().try_for_each(|known| self.print(known))
    }

    fn print(&self, known: &KernelExperience) -> Result<()> {
        let KernelExperience { operation, numbers, machine, candidates, chosen, why, .. } = known;
        let on = if self.all { format!(" on {}", output::printable(machine)) } else { String::new() };
        let by = output::printable(&candidates[*chosen].kernel);
        output::line(&format!("{operation} of {numbers} numbers{on}: {by}, because {}", output::printable(why)))?;
        let rows = candidates.iter().map(|candidate| {
            let [time, measured] = match candidate.timing {
                Some(timing) => [timing.to_string(), format!("measured {} times", timing.measured)],
                None => ["-".to_owned(), "not measured".to_owned()],
            };
            vec![format!("  {}", output::printable(&candidate.kernel)), time, measured]
        });
        output::table(&rows.collect::<Vec<_>>())
    }
}

fn to_json(known: &KernelExperience) -> Value {
    let candidate = |candidate: &KernelCandidate| {
        let timing = candidate.timing;
        json!({
            "kernel": candidate.kernel,
            "ns": timing.map(|timing| timing.ns),
            "measured": timing.map_or(0, |timing| timing.measured),
            "measured_at_ms": timing.map(|timing| timing.at_ms),
        })
    };
    json!({
        "operation": known.operation,
        "numbers": known.numbers,
        "machine": known.machine,
        "is_here": known.is_here,
        "chosen": known.candidates[known.chosen].kernel,
        "why": known.why,
        "candidates": known.candidates.iter().map(candidate).collect::<Vec<_>>(),
    })
}
