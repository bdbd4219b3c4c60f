//! Reads everything but the weights of a model file.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use ruvllm_model::formats::gguf::facts::ModelFacts;
use ruvllm_model::formats::gguf::{Gguf, GgufError};
use ruvllm_model::quantize::{AtLoadError, Recipe, quantize_at_load};
use ruvllm_model::{Config, Model, OpenError, RowLimits, folder_of, open, read_config};
use ruvllm_runner::{KvShape, Runner};
use ruvllm_text::{ChatTemplate, ReasoningFormat, Tokenizer, ToolFormat};

use super::build::padded;
use super::{BuildError, BuildProgress, vocabulary};
use crate::backend::{Backend, BackendChoice, BackendModel, LoadSizes, NATIVE, OtherBackends};
use crate::encode::PromptEncoder;

/// An open model file.
pub(super) struct ModelFile {
    pub gguf: Gguf,
    pub facts: ModelFacts,
    pub plan: Plan,
}

/// What is known of a model, by what will run it.
pub(super) enum Plan {
    Native(Box<Config>),
    Other(Arc<dyn Backend>, Box<dyn BackendModel>),
}

/// What a model file says about text.
pub(super) struct TextParts {
    pub tokenizer: Tokenizer,
    pub template: Option<ChatTemplate>,
    /// How the model writes tool calls.
    pub tool_format: ToolFormat,
    /// How it marks its reasoning, if it reasons.
    pub reasoning_format: Option<ReasoningFormat>,
}

impl ModelFile {
    /// Opens a model for a backend. The native one quantizes weights when they are loaded, if a recipe is given.
    pub(super) fn open(
        path: &Path,
        quantize: Option<Recipe>,
        choice: BackendChoice,
        others: &OtherBackends,
    ) -> Result<Self, BuildError> {
        let mut gguf = open(path)?;
        let architecture = gguf.metadata().required("general.architecture")?;
        if let Some(other) = choice.backend(others, architecture)? {
            let model =
                other.open(path, &gguf).map_err(|source| BuildError::Backend { backend: other.name(), source })?;
            return Ok(Self { facts: ModelFacts::of(&gguf)?, gguf, plan: Plan::Other(other, model) });
        }
        match quantize.map(|recipe| quantize_at_load(&mut gguf, recipe)) {
            // A server may have models that are quantized and others.
            Some(Err(nothing @ AtLoadError::Nothing(_))) => tracing::warn!("{}: {nothing}", path.display()),
            result => result.transpose().map(drop)?,
        }
        let (facts, config) = (ModelFacts::of(&gguf)?, read_config(&gguf)?);
        Ok(Self { gguf, facts, plan: Plan::Native(Box::new(config)) })
    }

    /// Returns the name of the backend that runs the model.
    pub(super) fn backend(&self) -> &'static str {
        match &self.plan {
            Plan::Native(_) => NATIVE,
            Plan::Other(other, _) => other.name(),
        }
    }

    pub(super) fn vocabulary(&self) -> usize {
        match &self.plan {
            Plan::Native(config) => config.vocabulary,
            Plan::Other(_, model) => model.vocabulary(),
        }
    }

    /// Returns the longest context that the model can have.
    pub(super) fn context(&self) -> usize {
        match &self.plan {
            Plan::Native(config) => config.context,
            Plan::Other(_, model) => model.context(),
        }
    }

    /// Returns the length of a hidden state; 0 where the backend gives none.
    pub(super) fn hidden(&self) -> usize {
        match &self.plan {
            Plan::Native(config) => config.hidden,
            Plan::Other(..) => 0,
        }
    }

    pub(super) fn kv_shape(&self) -> KvShape {
        match &self.plan {
            Plan::Native(config) => config.kv_shape(),
            Plan::Other(_, model) => model.kv_shape(),
        }
    }

    /// Returns the bytes of the buffers of a step.
    pub(super) fn run_state_bytes(&self, context: usize, rows: RowLimits) -> usize {
        match &self.plan {
            Plan::Native(config) => config.run_state_bytes(context, rows),
            Plan::Other(_, model) => model.run_state_bytes(context, rows.all),
        }
    }

    /// Returns about what the weights take in memory.
    pub(super) fn loaded_bytes(&self) -> usize {
        match &self.plan {
            Plan::Native(_) => padded(self.weights_bytes()),
            Plan::Other(_, model) => model.weights_bytes(),
        }
    }

    /// Returns how many experts of a layer are used for a token, and how many there are.
    pub(super) fn active_experts(&self) -> Option<(usize, usize)> {
        match &self.plan {
            Plan::Native(config) => config.active_experts(),
            Plan::Other(..) => None,
        }
    }

    /// Reads the vocabulary and the chat template, unless another is given.
    pub(super) fn read_text_parts(&self, chat_template: Option<&str>) -> Result<TextParts, BuildError> {
        let tokenizer = tokenizer(&self.gguf)?;
        let (in_tokenizer, in_model) = (tokenizer.vocab_size(), self.vocabulary());
        if in_tokenizer != in_model {
            return Err(BuildError::VocabularySize { tokenizer: in_tokenizer, model: in_model });
        }
        let source = chat_template.or(self.facts.chat_template.as_deref());
        let template = source.map(|source| ChatTemplate::new(source, &tokenizer)).transpose()?;
        let source = source.unwrap_or_default();
        let tool_format = ToolFormat::of_template(source);
        let reasoning_format = ReasoningFormat::of_template(source, &tokenizer);
        Ok(TextParts { tokenizer, template, tool_format, reasoning_format })
    }

    /// Loads the weights for the native backend, those of experts to `expert_file` if there is one. The file's pages are
    /// released on the way.
    pub(super) fn load_weights(
        &self,
        context: usize,
        expert_file: Option<File>,
        progress: &mut dyn FnMut(BuildProgress),
    ) -> Result<Model, BuildError> {
        let total = self.total_bytes();
        let mut progress = |done| progress(BuildProgress::Weights { done, total });
        Ok(Model::load_with_experts_in(expert_file, &self.gguf, context, &mut progress)?)
    }

    /// Loads the weights for another backend.
    pub(super) fn load_other(
        &self,
        other: &dyn Backend,
        model: &dyn BackendModel,
        sizes: LoadSizes,
        progress: &mut dyn FnMut(BuildProgress),
    ) -> Result<Box<dyn Runner>, BuildError> {
        let total = self.total_bytes();
        let mut progress = |done| progress(BuildProgress::Weights { done, total });
        let loaded = model.load(&self.gguf, sizes, &mut progress);
        loaded.map_err(|source| BuildError::Backend { backend: other.name(), source })
    }

    /// Returns the bytes of all tensors in the file.
    fn total_bytes(&self) -> u64 {
        self.facts.weights.iter().map(|share| share.bytes).sum()
    }

    /// Returns the size of the weights of experts.
    pub(super) fn expert_bytes(&self) -> u64 {
        let experts = self.gguf.tensors().filter(|tensor| tensor.name.contains("_exps."));
        experts.map(|tensor| tensor.loaded_len() as u64).sum()
    }

    /// Returns the size of the weights.
    pub(super) fn weights_bytes(&self) -> u64 {
        self.gguf.tensors().map(|tensor| tensor.loaded_len() as u64).sum()
    }
}

/// Opens the tokenizer of a model file, without its weights, or of a `tokenizer.json`.
pub fn open_tokenizer(path: &Path) -> Result<Tokenizer, BuildError> {
    if folder_of(path).is_none() && path.extension().is_some_and(|extension| extension == "json") {
        let bytes =
            std::fs::read(path).map_err(|source| OpenError::from(GgufError::Open { path: path.to_owned(), source }))?;
        return Ok(Tokenizer::from_tokenizer_json(&bytes)?);
    }
    tokenizer(&open(path)?)
}

/// Opens how the native backend encodes prompts of up to `context` tokens for a model, without its weights.
pub(crate) fn open_prompt_encoder(path: &Path, context: usize) -> Result<PromptEncoder, BuildError> {
    let file = ModelFile::open(path, None, BackendChoice::Named(NATIVE), &OtherBackends::default())?;
    let TextParts { tokenizer, template, tool_format, reasoning_format } = file.read_text_parts(None)?;
    Ok(PromptEncoder::new(Arc::new(tokenizer), template, tool_format, reasoning_format, context))
}

fn tokenizer(gguf: &Gguf) -> Result<Tokenizer, BuildError> {
    if gguf.metadata().get("tokenizer.ggml.tokens").is_none() {
        return Err(BuildError::NoVocabulary);
    }
    Ok(Tokenizer::from_vocabulary(vocabulary::read(gguf.metadata())?)?)
}
