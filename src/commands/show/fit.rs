//! `ruvllm show --fit`: what a model would take, against what there is.

use std::path::Path;

use anyhow::{Context, Result};
use clap::Args;
use ruvllm_runtime::{Engine, Fit, KvChoice, ModelMemory, Quantization};
use serde_json::{Value, json};

use crate::flags::backend::BackendFlags;
use crate::flags::experts::ExpertsFlag;
use crate::flags::size::parse_size;
use crate::output;

#[derive(Debug, Args)]
pub struct ShowFit {
    /// Work out what the model would take in memory, whether that fits, and what would, without loading it
    #[arg(long, conflicts_with_all = ["template", "verify"])]
    pub fit: bool,
    /// Context length to work it out for [default: the one that would be chosen]
    #[arg(long, short = 'c', value_name = "TOKENS", requires = "fit")]
    context: Option<usize>,
    /// Memory to fit into, such as 8G [default: what is free on this machine, or in its control group]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "fit")]
    memory: Option<u64>,
    /// Format of keys and values, as `ruvllm run` takes it
    #[arg(long, value_name = "FORMAT", default_value = "auto", requires = "fit")]
    kv: KvChoice,
    /// Where a mixture of experts keeps its experts, as `ruvllm run` takes it
    #[arg(long, value_name = "PLACE", default_value = "auto", requires = "fit")]
    experts: ExpertsFlag,
}

impl ShowFit {
    pub fn execute(&self, path: &Path, backend: &BackendFlags, is_json: bool) -> Result<()> {
        let builder = Engine::builder(path).context(self.context).memory_bytes(self.memory).kv(self.kv);
        let builder = backend.apply(builder.experts(self.experts.place()?))?;
        let fit = builder.fit().with_context(|| format!("cannot work out what {} takes", path.display()))?;
        if is_json { output::json(&to_json(&fit)) } else { super::print(rows(&fit)) }
    }
}

fn rows(fit: &Fit) -> Vec<(&'static str, String)> {
    let size = |bytes: usize| output::bytes(bytes as u64);
    let ModelMemory { weights_bytes, disk_bytes, working_bytes, kv_min_bytes, .. } = fit.memory;
    let memory = fit.memory_bytes.map_or_else(|| "not known".to_owned(), size);
    let verdict = match (fit.fits(), fit.context_fits) {
        (true, Some(context)) => format!("fits; the longest context that does is {context}"),
        (true, None) => "fits".to_owned(),
        (false, _) => format!("does not fit: {}", fit.remedy()),
    };
    let mut rows = vec![
        ("weights", size(weights_bytes)),
        ("buffers", size(working_bytes)),
        ("keys and values", format!("{} for a text of {} tokens", size(kv_min_bytes), fit.context)),
        ("together", size(fit.memory.min_bytes())),
        ("memory", memory),
        ("verdict", verdict),
        ("threads", fit.threads.to_string()),
    ];
    if disk_bytes > 0 {
        rows.insert(
            1,
            ("experts on disk", format!("{}; tokens wait for those that are not in memory", size(disk_bytes))),
        );
    }
    let recommended = fit.recommended().filter(|_| !fit.fits());
    rows.extend(fit.quantizations.iter().map(|one| ("quantized", quantization(one, recommended))));
    rows
}

fn quantization(one: &Quantization, recommended: Option<&Quantization>) -> String {
    let context = one.context_fits.map_or_else(|| "does not fit".to_owned(), |context| format!("context {context}"));
    let mark = if recommended == Some(one) { " (recommended)" } else { "" };
    format!("{} {}, {context}{mark}", one.recipe, output::bytes(one.file_bytes))
}

fn to_json(fit: &Fit) -> Value {
    let ModelMemory { weights_bytes, disk_bytes, working_bytes, kv_min_bytes, .. } = fit.memory;
    let quantizations: Vec<Value> = (fit.quantizations.iter())
        .map(|one| {
            json!({
                "type": one.recipe.to_string(),
                "file_bytes": one.file_bytes,
                "context_fits": one.context_fits,
                "recommended": !fit.fits() && fit.recommended() == Some(one),
            })
        })
        .collect();
    json!({
        "fits": fit.fits(),
        "remedy": (!fit.fits()).then(|| fit.remedy()),
        "context": fit.context,
        "model_context": fit.context_max,
        "context_fits": fit.context_fits,
        "weights_bytes": weights_bytes,
        "experts_on_disk_bytes": disk_bytes,
        "buffers_bytes": working_bytes,
        "kv_bytes": kv_min_bytes,
        "needed_bytes": fit.memory.min_bytes(),
        "memory_bytes": fit.memory_bytes,
        "threads": fit.threads,
        "quantizations": quantizations,
    })
}
