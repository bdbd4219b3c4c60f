//! Flags of every command that loads a model.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use clap::Args;
use ruvllm_backends::is_encoder;
use ruvllm_model::quantize::Recipe;
use ruvllm_runtime::{Engine, EngineBuilder, Prefill};
use ruvllm_store::ModelFile;

use super::backend::BackendFlags;
use super::draft_model::DraftModelFlag;
use super::experts::ExpertsFlag;
use super::kv::KvFlags;
use super::pack::PackFlags;
use crate::loading;

#[derive(Debug, Args)]
pub struct ModelFlags {
    /// Name from the catalogue, hf:OWNER/REPO[/FILE.gguf], or path of a GGUF file or of a folder of safetensors
    pub model: String,
    #[command(flatten)]
    pub engine: EngineFlags,
}

/// How models are run.
#[derive(Clone, Debug, Default, Args)]
pub struct EngineFlags {
    #[command(flatten)]
    pub backend: BackendFlags,
    /// Number of compute threads [default: one for each core that the process may use]
    #[arg(long, short = 't', value_name = "N")]
    pub threads: Option<usize>,
    /// Context length in tokens [default: the model's own, up to 131072 and as far as memory allows]
    #[arg(long, short = 'c', value_name = "TOKENS")]
    pub context: Option<usize>,
    /// File with a Jinja chat template, used instead of the model's own
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Where a mixture of experts keeps its experts: in memory, on disk (a file in ~/.ruvllm/experts, of which the system
    /// keeps in memory what is used), or auto: on disk only if the model does not fit into memory otherwise
    #[arg(long, value_name = "PLACE", default_value = "auto")]
    pub experts: ExpertsFlag,
    /// A smaller model with the same vocabulary that drafts tokens for speculative decoding, by name or path; auto takes one
    /// that is in the store, a tenth to a third of the size, if there is any. Answers stay the same
    #[arg(long, value_name = "MODEL", default_value = "off")]
    pub draft_model: DraftModelFlag,
    /// Quantize weights of 16 or 32 bits while they are loaded: q4_k_m, q4_k, q4_0, q4_1, q5_0, q5_1, q5_k, q6_k or q8_0.
    /// `ruvllm quantize` does it once and for all
    #[arg(long, value_name = "TYPE")]
    pub quantize: Option<Recipe>,
    /// How prompts are computed: exact, as answers are; fast, with weights and activations in bf16, on processors with AMX
    /// or AVX-512 BF16; or auto: fast where a measurement at the first load shows that it pays and leaves predictions as they are
    #[arg(long, value_name = "WAY", default_value = "auto")]
    pub prefill: Prefill,
    #[command(flatten)]
    pub kv: KvFlags,
    #[command(flatten)]
    pub pack: PackFlags,
}

impl ModelFlags {
    /// Returns the model's file, fetched if necessary.
    pub fn file(&self, interrupted: Arc<AtomicBool>) -> Result<ModelFile> {
        loading::model_file(&self.model, interrupted)
    }

    /// Loads the model for up to `sequences` concurrent sequences.
    pub fn load(&self, interrupted: Arc<AtomicBool>, sequences: usize) -> Result<Engine> {
        self.load_with_context(interrupted, sequences, self.engine.context)
    }

    pub fn load_with_context(
        &self,
        interrupted: Arc<AtomicBool>,
        sequences: usize,
        context: Option<usize>,
    ) -> Result<Engine> {
        let file = self.file(interrupted)?;
        loading::build(self.engine.builder(&file.path)?.sequences(sequences).context(context), &file.path)
    }
}

impl EngineFlags {
    pub fn builder(&self, file: &Path) -> Result<EngineBuilder> {
        if is_encoder(file) {
            bail!(
                "this is an embedding or reranking model and cannot generate text: see ruvllm embed --help, ruvllm rerank --help"
            );
        }
        let chat_template = self.chat_template.as_deref().map(read_template).transpose()?;
        let builder = Engine::builder(file).threads(self.threads).context(self.context).chat_template(chat_template);
        let builder = builder.experts(self.experts.place()?).quantize(self.quantize).prefill(self.prefill);
        let builder = self.backend.apply(builder)?.kernel_packs(self.pack.load()?, self.pack.choice());
        let builder = builder.draft_model(self.draft_model.find(file)?);
        Ok(self.kv.apply(builder)?.calibration_folder(loading::calibration_folder()?))
    }
}

fn read_template(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("--chat-template {} cannot be read", path.display()))
}
