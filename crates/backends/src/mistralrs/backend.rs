//! mistral.rs as a backend: where its program is, which models it runs, and what they take.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use ruvllm_model::formats::gguf::facts::{ModelFacts, PerLayer};
use ruvllm_model::formats::gguf::{Array, Gguf};
use ruvllm_runner::{KvShape, Runner, RunnerLimits};
use ruvllm_runtime::{Backend, BackendError, BackendModel, LoadSizes, open_tokenizer};
use ruvllm_text::{SpecialTokens, Tokenizer};
use serde_json::{Value, json};

use super::MistralRsRunner;
use super::spelling::Spelling;
use super::stream::agent;
use super::supervisor::Supervisor;
use super::wire::message;
use crate::MISTRALRS;

/// Name of its program since version 0.8.
const PROGRAM: &str = "mistralrs";
/// Versions whose command line and answers are known begin so.
const KNOWN: &str = "0.8.";
/// The architectures of GGUF files that it runs.
const ARCHITECTURES: [&str; 8] = ["llama", "qwen2", "qwen3", "qwen3moe", "phi2", "phi3", "mistral3", "starcoder2"];
/// Characters that are told of another program's answer.
const SAID_CHARS_MAX: usize = 80;
/// What it has of a row's activations at the same time, more or less, in floats of the model's width.
const COPIES: usize = 12;
/// Its tokens here, beside what it keeps there.
const BYTES_PER_TOKEN: usize = 16;
/// Split files are named so.
const PART: &str = "-of-";
/// What tokenizers divide in different ways.
const SAMPLE: &str = "It's 2026: 3.14159 × naïve café,  東京\n\n\tfn main() { println!(\"{}\", 0xFF); } I'LL";

/// Runs models with the program of mistral.rs, which the user has installed.
#[derive(Clone, Debug, Default)]
pub struct MistralRs {
    program: Option<PathBuf>,
}

/// A model that was checked.
#[derive(Debug)]
struct CheckedModel {
    program: PathBuf,
    file: PathBuf,
    vocabulary: usize,
    context: usize,
    hidden: usize,
    kv_shape: KvShape,
    weights_bytes: usize,
}

impl MistralRs {
    /// The program at a path; by default the one that is found on `PATH`.
    pub fn new(program: Option<PathBuf>) -> Self {
        Self { program }
    }

    fn find(&self) -> Result<PathBuf, String> {
        match &self.program {
            Some(path) if path.is_file() => Ok(path.clone()),
            Some(path) => {
                Err(format!("there is no program at {}; --mistralrs names that of mistral.rs", path.display()))
            }
            None => {
                let folders = env::var_os("PATH").unwrap_or_default();
                let found = env::split_paths(&folders).map(|folder| folder.join(PROGRAM)).find(|path| path.is_file());
                found.ok_or_else(|| {
                    format!(
                        "its program '{PROGRAM}' is not on PATH; install mistral.rs (cargo install --locked \
                         mistralrs-cli), or name its program with --mistralrs"
                    )
                })
            }
        }
    }
}

impl Backend for MistralRs {
    fn name(&self) -> &'static str {
        MISTRALRS
    }

    fn architectures(&self) -> &'static [&'static str] {
        &ARCHITECTURES
    }

    /// Another program is started if it is asked for only.
    fn is_automatic(&self) -> bool {
        false
    }

    fn open(&self, path: &Path, gguf: &Gguf) -> Result<Box<dyn BackendModel>, BackendError> {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_dir() || name.contains(PART) || name.contains(';') {
            return Err("it is given single GGUF files here, and this is a folder or a part of one".into());
        }
        let facts = ModelFacts::of(gguf)?;
        let number = |name: &str, value: Option<u64>| {
            let value = value.and_then(|value| usize::try_from(value).ok()).filter(|value| *value > 0);
            value.ok_or_else(|| format!("the file does not say its {name}"))
        };
        let heads = |value: &Option<PerLayer>| match value {
            Some(PerLayer::Same(heads)) => Some(*heads),
            Some(PerLayer::Each(heads)) => heads.iter().max().copied(),
            None => None,
        };
        let layers = number("block_count", facts.layers)?;
        if layers > gguf.tensors().len() {
            return Err("the file has fewer tensors than layers".into());
        }
        let hidden = number("embedding_length", facts.embedding_length)?;
        let head_dim = match facts.key_length {
            Some(_) => number("attention.key_length", facts.key_length)?,
            None => hidden / number("attention.head_count", heads(&facts.heads))?,
        };
        let kv_heads = number("attention.head_count_kv", heads(&facts.kv_heads))?;
        let elements = layers.saturating_mul(kv_heads).saturating_mul(head_dim);
        if head_dim == 0 || elements > u32::MAX as usize {
            return Err("the sizes of the model's heads make no sense".into());
        }
        let vocabulary = gguf.metadata().optional::<Array<'_>>("tokenizer.ggml.tokens")?;
        let embedding = gguf.tensor("token_embd.weight").map_or(0, |tensor| tensor.element_count());
        Ok(Box::new(CheckedModel {
            program: self.find()?,
            file: path.canonicalize()?,
            vocabulary: number("vocabulary", vocabulary.map(|tokens| tokens.len() as u64))?,
            context: number("context_length", facts.context_length)?,
            hidden,
            // It keeps floats, which take twice as much as the half floats of a page.
            kv_shape: KvShape::new(2 * layers, kv_heads, head_dim),
            // The embedding is there once more, as floats.
            weights_bytes: usize::try_from(gguf.size_bytes()).unwrap_or(usize::MAX).saturating_add(4 * embedding),
        }))
    }
}

impl CheckedModel {
    fn arguments(&self, sequences: usize) -> Vec<OsString> {
        let folder = self.file.parent().unwrap_or(Path::new("/"));
        let name = self.file.file_name().unwrap_or_default();
        let mut arguments: Vec<OsString> = ["serve", "--format", "gguf", "-m"].map(OsString::from).into();
        arguments.extend([folder.into(), "-f".into(), name.into()]);
        // Tenants must not learn of each other's prompts by the time that answers take.
        arguments.extend(["--prefix-cache-n", "0", "--token-source", "none", "--max-seqs"].map(OsString::from));
        arguments.push(sequences.to_string().into());
        arguments
    }
}

impl BackendModel for CheckedModel {
    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn context(&self) -> usize {
        self.context
    }

    fn weights_bytes(&self) -> usize {
        self.weights_bytes
    }

    fn kv_shape(&self) -> KvShape {
        self.kv_shape
    }

    fn state_bytes(&self, context: usize) -> usize {
        context.saturating_mul(BYTES_PER_TOKEN)
    }

    /// A prompt is computed as a whole.
    fn run_state_bytes(&self, context: usize, _: usize) -> usize {
        let floats = context.saturating_mul(self.hidden).saturating_mul(COPIES).saturating_add(self.vocabulary);
        floats.saturating_mul(size_of::<f32>())
    }

    fn load(
        &self,
        _: &Gguf,
        LoadSizes { context, sequences, rows_max }: LoadSizes,
        _: &mut dyn FnMut(u64),
    ) -> Result<Box<dyn Runner>, BackendError> {
        if context > self.context {
            return Err(
                format!("a context of {context} tokens is asked for, and the model has {}", self.context).into()
            );
        }
        check_version(&self.program)?;
        let tokenizer = Arc::new(open_tokenizer(&self.file)?);
        let mut supervisor = Supervisor::start(self.program.clone(), self.arguments(sequences))?;
        let spelling = Arc::new(Spelling::new(Arc::clone(&tokenizer)));
        compare_tokenizers(&supervisor.running()?, &tokenizer, &spelling)?;
        let limits = RunnerLimits {
            vocabulary: self.vocabulary,
            context,
            hidden: 0,
            kv_shape: self.kv_shape,
            state_bytes: self.state_bytes(context),
            drafts_max: 0,
            rows_max,
            logit_rows_max: rows_max,
            caches_prefixes: false,
            chooses_tokens: true,
            has_fast_rows: false,
            numerics: MISTRALRS.to_owned(),
        };
        Ok(Box::new(MistralRsRunner::new(supervisor, spelling, limits)))
    }
}

/// Refuses a program that is another than mistral.rs. A version that is not known may do: it is named in the log.
fn check_version(program: &Path) -> Result<(), String> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output();
    let output = output.map_err(|error| format!("{} cannot be started: {error}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let said: String = said.lines().next().unwrap_or_default().chars().take(SAID_CHARS_MAX).collect();
    let version = said.strip_prefix(PROGRAM).map(str::trim).filter(|version| version.starts_with(char::is_numeric));
    match version {
        Some(version) if version.starts_with(KNOWN) => {}
        Some(version) => {
            tracing::warn!("mistral.rs {version} is not known here: {KNOWN}x is, and others may do as well")
        }
        None => {
            return Err(format!("{} is not mistral.rs: asked for its version, it says {said:?}", program.display()));
        }
    }
    Ok(())
}

/// Has a sample read by both tokenizers: that of mistral.rs divides words of all GGUF files in the same way. Fails if it does not
/// answer at all.
fn compare_tokenizers(url: &str, tokenizer: &Tokenizer, spelling: &Spelling) -> Result<(), BackendError> {
    let tokens: Vec<u32> = tokenizer.eos().into_iter().chain(tokenizer.encode(SAMPLE, SpecialTokens::AsText)).collect();
    let body = json!({ "model": "default", "prompt": spelling.text(&tokens), "max_tokens": 1, "temperature": 0.0 });
    let response = agent().post(format!("{url}/v1/completions")).header("content-type", "application/json");
    let response = response.send(body.to_string())?;
    let status = response.status();
    let text = response.into_body().read_to_string()?;
    if !status.is_success() {
        return Err(format!("mistral.rs does not answer: {status}: {}", message(&text)).into());
    }
    let answer: Value = serde_json::from_str(&text)?;
    let theirs = answer["usage"]["prompt_tokens"].as_u64().ok_or("mistral.rs does not count tokens")?;
    if theirs != tokens.len() as u64 {
        tracing::warn!(
            "mistral.rs divides text otherwise than this model's file says ({theirs} tokens for {} of a sample): \
             answers may be a little different, and token counts are those of the file",
            tokens.len()
        );
    }
    Ok(())
}
