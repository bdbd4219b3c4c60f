//! `ruvllm quantize`: writes a copy of a model with other weight types.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use ruvllm_model::quantize::{Job, Plan, PlannedTensor, Recipe, Report};
use serde_json::{Value, json};

use crate::exit::Interrupted;
use crate::loading::store;
use crate::output;
use crate::output::progress::{PullProgress, byte_bar, interrupt_flag};

/// Quantize a model: write a copy with smaller weights
///
/// Matrices get the type of --to; vectors (norms, biases) and metadata are copied. The output matrix, or the embedding
/// of a model without one, becomes q6_k if --to has fewer bits, as in llama.cpp's recipes.
///
/// q4_k_m is llama.cpp's mixture: q4_k, with q6_k for attn_v and ffn_down in the first and the last eighth of the
/// layers and in every third layer between.
///
/// A matrix whose rows are not a whole number of blocks becomes the next larger type that fits, and the output says so:
/// q5_0 for q4_k, q5_1 for q5_k, q8_0 for q6_k, and finally f16.
#[derive(Debug, Args)]
pub struct Quantize {
    /// Name from the catalogue (see `ruvllm list`), hf:OWNER/REPO[/FILE.gguf], or path of a GGUF file or of a folder of
    /// safetensors
    input: String,
    /// GGUF file to write
    #[arg(required_unless_present = "dry_run")]
    output: Option<PathBuf>,
    /// One of q4_k_m, q4_k, q4_0, q4_1, q5_0, q5_1, q5_k, q6_k, q8_0, f16, bf16, f32
    #[arg(long, value_name = "TYPE")]
    to: Recipe,
    /// Only show the type of every tensor and the size of the file
    #[arg(long)]
    dry_run: bool,
    /// Replace OUTPUT if it exists
    #[arg(long)]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Quantize {
    pub fn execute(self) -> Result<()> {
        let interrupted = interrupt_flag();
        let input = store()?.ensure(&self.input, &mut PullProgress::new(interrupted.clone()))?.path;
        let source = ruvllm_model::open(&input).with_context(|| format!("cannot read {}", input.display()))?;
        let plan = Plan::new(&source, self.to)?;
        let destination = self.output.as_deref().filter(|_| !self.dry_run);
        if let Some(destination) = destination {
            check_output(&input, destination, self.force)?;
        }
        if let Some(warning) = self.warning(&plan) {
            output::remark(&format!("warning: {warning}"));
        }
        let Some(destination) = destination else { return self.show(&plan) };
        let started = Instant::now();
        let report = self.run(&plan, destination, &interrupted)?;
        self.tell(&plan, &report, destination, started.elapsed().as_secs_f64())
    }

    fn run(&self, plan: &Plan<'_>, destination: &Path, interrupted: &AtomicBool) -> Result<Report> {
        let mut job = Job::begin(plan, destination)?;
        let bar = byte_bar(job.total_bytes(), &format!("quantizing to {}", self.to));
        while job.step()? {
            bar.set_position(job.done_bytes());
            if interrupted.load(Ordering::Relaxed) {
                return Err(Interrupted.into());
            }
        }
        bar.finish_and_clear();
        Ok(job.finish()?)
    }

    /// Returns what the user should know about the source.
    fn warning(&self, plan: &Plan<'_>) -> Option<String> {
        let again = plan.tensors.iter().filter(|tensor| tensor.was_quantized() && !tensor.is_copied());
        let mut kinds: Vec<_> = again.map(|tensor| tensor.source.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let kinds: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        if kinds.is_empty() {
            return None;
        }
        let (input, kinds, to) = (&self.input, kinds.join(", "), self.to);
        Some(match to.is_float() {
            true => format!("{input} is already quantized ({kinds}): {to} makes it larger, not better"),
            false => format!(
                "{input} is already quantized ({kinds}): quality is lost twice; start from an F32, F16 or BF16 file \
                 if possible"
            ),
        })
    }

    /// Shows every tensor before anything is written.
    fn show(&self, plan: &Plan<'_>) -> Result<()> {
        if self.json {
            let tensors = plan.tensors.iter().map(|tensor| {
                json!({ "name": tensor.source.name, "dims": tensor.source.dims, "from": tensor.source.kind.name(),
                        "to": tensor.to.name(), "instead_of": tensor.instead_of.map(|kind| kind.name()),
                        "bytes": tensor.bytes })
            });
            let mut object = self.summary(plan);
            object["tensors"] = tensors.collect();
            return output::json(&object);
        }
        let mut rows = vec![["TENSOR", "SHAPE", "FROM", "TO", "SIZE"].map(str::to_owned).to_vec()];
        rows.extend(plan.tensors.iter().map(|tensor| {
            let dims: Vec<String> = tensor.source.dims.iter().map(usize::to_string).collect();
            let to = match tensor.instead_of {
                Some(wanted) => format!("{} (rows do not fit {wanted})", tensor.to),
                None => tensor.to.to_string(),
            };
            let name = output::printable(tensor.source.name);
            vec![name, dims.join(" x "), tensor.source.kind.to_string(), to, output::bytes(tensor.bytes)]
        }));
        output::table(&rows)?;
        print_fallbacks(plan)?;
        output::line(&format!("as {}: {}, now {}", self.to, sizes(plan.file_bytes, new_bits(plan)), source_sizes(plan)))
    }

    /// Shows what was written.
    fn tell(&self, plan: &Plan<'_>, report: &Report, destination: &Path, seconds: f64) -> Result<()> {
        if self.json {
            let types = report.types.iter().map(|of| {
                json!({ "type": of.kind.name(), "tensors": of.tensors, "weights": of.weights, "bytes": of.bytes,
                        "relative_rms_error": of.relative_rms_error() })
            });
            let mut object = self.summary(plan);
            object["types"] = types.collect();
            object["output"] = json!(destination);
            object["seconds"] = json!(seconds);
            return output::json(&object);
        }
        let mut rows = vec![["TYPE", "TENSORS", "WEIGHTS", "SIZE", "RMS ERROR"].map(str::to_owned).to_vec()];
        rows.extend(report.types.iter().map(|of| {
            let error = match of.relative_rms_error() {
                0.0 => "none".to_owned(),
                error => format!("{:.3} %", error * 100.0),
            };
            vec![of.kind.to_string(), of.tensors.to_string(), of.weights.to_string(), output::bytes(of.bytes), error]
        }));
        output::table(&rows)?;
        print_fallbacks(plan)?;
        output::line(&format!(
            "{}: {}, from {}, in {seconds:.1} s",
            destination.display(),
            sizes(report.file_bytes, new_bits(plan)),
            source_sizes(plan)
        ))
    }

    /// Returns the fields that both kinds of JSON have.
    fn summary(&self, plan: &Plan<'_>) -> Value {
        let fallbacks = plan.tensors.iter().filter_map(|tensor| {
            let wanted = tensor.instead_of?;
            Some(json!({ "tensor": tensor.source.name, "wanted": wanted.name(), "got": tensor.to.name() }))
        });
        json!({
            "input": self.input,
            "to": self.to.to_string(),
            "file_bytes": plan.file_bytes,
            "bits_per_weight": new_bits(plan),
            "source_bytes": plan.source_bytes(),
            "source_bits_per_weight": source_bits(plan),
            "fallbacks": fallbacks.collect::<Vec<_>>(),
            "warning": self.warning(plan),
        })
    }
}

/// Refuses to overwrite files by mistake, and reports what cannot work before the work starts.
fn check_output(input: &Path, destination: &Path, force: bool) -> Result<()> {
    let shown = destination.display();
    if destination.is_dir() {
        bail!("{shown} is a folder; OUTPUT must name a file");
    }
    let folder = destination.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        bail!("the folder {} does not exist; create it first", folder.display());
    }
    let same = fs::canonicalize(destination).ok().zip(fs::canonicalize(input).ok()).is_some_and(|(a, b)| a == b);
    if same {
        bail!("OUTPUT {shown} is the input itself; give the new file another name");
    }
    if destination.exists() && !force {
        bail!("{shown} already exists; give another name, or --force to replace it");
    }
    Ok(())
}

/// Lists tensors that did not get the recipe's type, by reason.
fn print_fallbacks(plan: &Plan<'_>) -> Result<()> {
    let mut groups: BTreeMap<_, Vec<&PlannedTensor<'_>>> = BTreeMap::new();
    for tensor in &plan.tensors {
        if let Some(wanted) = tensor.instead_of {
            groups.entry((wanted, tensor.to, tensor.source.dims[0])).or_default().push(tensor);
        }
    }
    for ((wanted, to, row_len), tensors) in groups {
        let first = output::printable(tensors[0].source.name);
        output::line(&format!(
            "{to} instead of {wanted} for {} of {} tensors ({first}, ...): rows of {row_len} are not a whole number \
             of blocks of {}",
            tensors.len(),
            plan.tensors.len(),
            wanted.block_len()
        ))?;
    }
    Ok(())
}

fn sizes(bytes: u64, bits: f64) -> String {
    format!("{} at {bits:.2} bits per weight", output::bytes(bytes))
}

fn source_sizes(plan: &Plan<'_>) -> String {
    sizes(plan.source_bytes(), source_bits(plan))
}

/// Counts tensors only: a vocabulary is not a weight.
fn new_bits(plan: &Plan<'_>) -> f64 {
    bits(plan, plan.tensors.iter().map(|tensor| tensor.bytes).sum())
}

fn source_bits(plan: &Plan<'_>) -> f64 {
    bits(plan, plan.tensors.iter().map(|tensor| tensor.source.bytes_len() as u64).sum())
}

fn bits(plan: &Plan<'_>, bytes: u64) -> f64 {
    // A file without tensors has no bits either.
    bytes as f64 * 8.0 / plan.weights().max(1) as f64
}
