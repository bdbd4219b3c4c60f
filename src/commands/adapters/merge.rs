//! `ruvllm adapters merge`: makes one adapter of several, or adds them to the weights of a model.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use ruvllm_model::adapters::merge::{BakedType, MergeMethod, bake, merge};
use ruvllm_model::adapters::{AdapterFile, AdapterFormat};
use ruvllm_runtime::Engine;
use ruvllm_store::default_home;
use serde_json::json;

use crate::flags::adapter::{WeightedAdapter, adapter_path, parse_weighted};
use crate::loading::{build, store};
use crate::output;
use crate::output::progress::{PullProgress, byte_bar, interrupt_flag};

/// Make one adapter of several, or add adapters to the weights of a model
///
/// What is combined are the products of the adapters' matrices. linear takes their mean by weight; task-arithmetic adds them up;
/// ties keeps the largest numbers of each and what agrees in sign; dare keeps random ones, scaled up; slerp goes from the first
/// to the second on an arc; stack puts the matrices beside each other, which loses nothing and adds up the ranks. With --rank the
/// result is cut to a rank by its singular values, and what that loses is told.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ruvllm adapters merge legal=0.7 polite=0.3 --name smollm2:both\n  \
                        ruvllm adapters merge a b --method ties --density 0.3 --rank 16 --output ./merged\n  \
                        ruvllm adapters merge legal --into smollm2 --output legal.gguf")]
pub struct Merge {
    /// Adapters by name or path, with a weight if it is not 1
    #[arg(required = true, value_name = "ADAPTER[=WEIGHT]", value_parser = parse_weighted)]
    adapters: Vec<WeightedAdapter>,
    /// How they are combined
    #[arg(long, value_enum, default_value_t = Method::Linear)]
    method: Method,
    /// Fraction of the numbers that ties and dare keep
    #[arg(long, value_name = "FRACTION", default_value_t = 0.5)]
    density: f32,
    /// Seed of dare: the same one keeps the same numbers
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// How far slerp goes: 0 is the first adapter, 1 the second
    #[arg(long, value_name = "T", default_value_t = 0.5)]
    t: f32,
    /// Largest rank of the result [default: what it has; for ties and dare the largest of the adapters]
    #[arg(long, value_name = "N")]
    rank: Option<usize>,
    /// Keep the result in the store under this name
    #[arg(long, required_unless_present = "output")]
    name: Option<String>,
    /// Write the result here: a new PEFT folder, or a GGUF file with --into or if the adapters are GGUF
    #[arg(long, value_name = "PATH", conflicts_with = "name")]
    output: Option<PathBuf>,
    /// Add the adapters, each by its weight, to the weights of this model and write a GGUF file that needs no adapter
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["name", "method", "density", "seed", "t", "rank"])]
    into: Option<String>,
    /// With --into, write the changed weights as 32-bit floats instead of quantizing them again
    #[arg(long, requires = "into")]
    f32: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Method {
    Linear,
    TaskArithmetic,
    Ties,
    Dare,
    Slerp,
    Stack,
}

impl Merge {
    pub fn execute(self) -> Result<()> {
        let store = store()?;
        let open = |adapter: &WeightedAdapter| {
            let path = adapter_path(&store, &adapter.spec, self.into.as_deref())?;
            let file = AdapterFile::open(&path).with_context(|| format!("cannot read {}", adapter.spec))?;
            Ok((file, adapter.weight))
        };
        let files = self.adapters.iter().map(open).collect::<Result<Vec<_>>>()?;
        let files: Vec<(&AdapterFile, f32)> = files.iter().map(|(file, weight)| (file, *weight)).collect();
        match (&self.into, &self.output, &self.name) {
            (Some(model), Some(output), _) => self.bake(model, &files, output),
            (Some(_), None, _) => bail!("--into needs --output FILE.gguf"),
            (None, Some(output), _) => self.merge(&files, output, None),
            (None, None, name) => {
                // Beside the store's own, which do not begin with a dot.
                let folder = default_home()?.join("adapters").join(format!(".merged-{}", std::process::id()));
                std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
                let is_gguf = files.first().is_some_and(|(file, _)| file.format == AdapterFormat::Gguf);
                let output = folder.join(if is_gguf { "merged.gguf" } else { "merged" });
                let merged = self.merge(&files, &output, name.as_deref());
                // What cannot be removed does no harm.
                let _ = std::fs::remove_dir_all(&folder);
                merged
            }
        }
    }

    /// Merges into a folder or file, and from there into the store if it is to have a name.
    fn merge(&self, files: &[(&AdapterFile, f32)], output: &Path, name: Option<&str>) -> Result<()> {
        if output.exists() {
            bail!("{} exists; name what does not", output.display());
        }
        let merged = merge(files, self.method(), self.rank, output)?;
        let place = match name {
            Some(name) => {
                let check = |path: &Path| AdapterFile::open(path).map(drop).map_err(|error| error.to_string());
                let mut progress = PullProgress::new(interrupt_flag());
                let spec = output.to_string_lossy();
                store()?.pull_adapter(&spec, Some(name), &check, &mut progress)?.name
            }
            None => output.display().to_string(),
        };
        if self.json {
            return output::json(&json!({
                "adapter": place, "method": self.method().name(), "rank": merged.rank,
                "relative_error": merged.relative_error, "bytes": merged.file_bytes,
            }));
        }
        let size = output::bytes(merged.file_bytes);
        output::line(&format!("{place}: rank {}, {size}, relative error {:.4}", merged.rank, merged.relative_error))
    }

    fn bake(&self, model: &str, files: &[(&AdapterFile, f32)], output: &Path) -> Result<()> {
        if output.exists() {
            bail!("{} exists; remove it, or name another file", output.display());
        }
        let input = store()?.ensure(model, &mut PullProgress::new(interrupt_flag()))?.path;
        let source = ruvllm_model::open(&input).with_context(|| format!("cannot read {}", input.display()))?;
        // Which matrices there are, a loaded model knows.
        let engine = build(Engine::builder(&input).context(Some(64)), &input)?;
        let targets = engine.adapters().targets()?;
        let to = if self.f32 { BakedType::F32 } else { BakedType::Same };
        let total = source.tensors().map(|tensor| tensor.bytes_len() as u64).sum();
        let bar = byte_bar(total, "writing");
        let baked = bake(&source, targets, files, to, output, &mut |done| bar.set_position(done));
        bar.finish_and_clear();
        let baked = baked?;
        if self.json {
            return output::json(&json!({ "file": output, "bytes": baked.file_bytes, "tensors": baked.tensors }));
        }
        let (size, tensors) = (output::bytes(baked.file_bytes), baked.tensors);
        output::line(&format!("{}: {size}, {tensors} matrices changed", output.display()))
    }

    fn method(&self) -> MergeMethod {
        let Self { density, seed, t, .. } = *self;
        match self.method {
            Method::Linear => MergeMethod::Linear,
            Method::TaskArithmetic => MergeMethod::TaskArithmetic,
            Method::Ties => MergeMethod::Ties { density },
            Method::Dare => MergeMethod::Dare { density, seed },
            Method::Slerp => MergeMethod::Slerp { t },
            Method::Stack => MergeMethod::Stack,
        }
    }
}
