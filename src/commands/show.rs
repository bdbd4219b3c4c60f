//! `ruvllm show`: the contents of a model file, and what can run it.

mod fit;

use std::path::Path;

use anyhow::{Context, Result};
use clap::Args;
use ruvllm_backends::{EncoderFacts, Purpose, is_encoder};
use ruvllm_model::formats::gguf::Gguf;
use ruvllm_model::formats::gguf::facts::{ModelFacts, PerLayer};
use ruvllm_runtime::hardware::{self, Hardware};
use ruvllm_runtime::{ColdFormat, FastPrefill, NATIVE, SamplingDefaults};
use ruvllm_store::{ModelFile, StoredFile};
use serde_json::{Value, json};

use self::fit::ShowFit;
use crate::flags::backend::BackendFlags;
use crate::loading::{calibration_folder, store};
use crate::output;
use crate::output::progress::{PullProgress, interrupt_flag};

/// Show the contents of a model, and what can run it
#[derive(Debug, Args)]
pub struct Show {
    /// Model on this machine (see `ruvllm list`), or path of a GGUF file or of a folder of safetensors
    model: String,
    /// Read the whole file and compare its SHA-256
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    backend: BackendFlags,
    #[command(flatten)]
    fit: ShowFit,
    /// Print only the chat template
    #[arg(long, conflicts_with = "json")]
    template: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Show {
    pub fn execute(self) -> Result<()> {
        let store = store()?;
        let file = if self.verify {
            store.verify(&self.model, &mut PullProgress::new(interrupt_flag()))?
        } else {
            store.resolve(&self.model)?
        };
        if is_encoder(&file.path) {
            return self.show_encoder(&file);
        }
        if self.fit.fit {
            return self.fit.execute(&file.path, &self.backend, self.json);
        }
        let shown = || format!("cannot read {}", file.path.display());
        let gguf = ruvllm_model::open(&file.path).with_context(shown)?;
        let facts = ModelFacts::of(&gguf).with_context(shown)?;
        let sampling = SamplingDefaults::of_file(&gguf);
        let folder = calibration_folder()?;
        let cold = ColdFormat::of_file(&gguf, &folder);
        let (kernels, cores) = (hardware::chosen_kernels()?, Hardware::detect().cores);
        let prefill = FastPrefill::of_file(&gguf, &folder, kernels.name(), cores);
        if self.template {
            return output::line(&output::printable(facts.chat_template.as_deref().unwrap_or("")));
        }
        let manifest = file.manifest.as_ref();
        let licence = facts.license.clone().or_else(|| manifest.and_then(|manifest| manifest.licence.clone()));
        let runs_on = runs_on(&file.path, &gguf, &self.backend)?;
        if self.json {
            let sha256 = manifest.map(|manifest| manifest.main.sha256.clone());
            let mut object = to_json(&facts, licence, &runs_on);
            object["sampling"] = sampling.to_json();
            object["kv_cold"] = cold.as_ref().map(ColdFormat::to_json).into();
            object["prefill_auto"] = prefill.as_ref().map(FastPrefill::to_json).into();
            object["path"] = json!(file.path);
            object["sha256"] = json!(sha256);
            return output::json(&object);
        }
        let mut rows = rows(&facts, licence, &runs_on);
        if !sampling.is_empty() {
            rows.push(("sampling", sampling.to_string()));
        }
        if runs_on.backend == Some(NATIVE) {
            let cold = cold.map_or_else(|| "measured on the first run".to_owned(), |cold| cold.to_string());
            rows.push(("oldest KV", cold));
            let prefill = prefill.map_or_else(
                || "measured on the first run where the processor multiplies bf16".to_owned(),
                |prefill| prefill.to_string(),
            );
            rows.push(("prompts (auto)", prefill));
        }
        rows.push(("file", file.path.display().to_string()));
        if let Some(manifest) = manifest {
            let state = if self.verify { " (checked)" } else { "" };
            rows.push(("sha256", format!("{}{state}", manifest.main.sha256)));
            rows.push(("source", manifest.source.clone()));
        }
        print(rows)
    }

    /// An embedding or reranking model: a folder of several files.
    fn show_encoder(&self, file: &ModelFile) -> Result<()> {
        let facts = EncoderFacts::of(&file.path).with_context(|| format!("cannot read {}", file.path.display()))?;
        if self.template {
            return output::line("");
        }
        let manifest = file.manifest.as_ref();
        let purpose = match facts.purpose {
            Purpose::Embedding => "embeddings",
            Purpose::Reranking => "reranking",
        };
        let reason = format!("supports the architecture '{}', for {purpose}", facts.architecture);
        if self.json {
            let stored = |file: &StoredFile| json!({ "file": file.file, "bytes": file.bytes, "sha256": file.sha256 });
            return output::json(&json!({
                "name": file.name,
                "architecture": facts.architecture,
                "context": facts.context,
                "layers": facts.layers,
                "embedding": facts.dimensions,
                "heads": facts.heads,
                "vocabulary": facts.vocabulary,
                "licence": manifest.and_then(|manifest| manifest.licence.clone()),
                "backend": { "name": "candle", "reason": reason },
                "path": file.path,
                "sha256": manifest.map(|manifest| manifest.main.sha256.clone()),
                "files": manifest.map(|manifest| manifest.files().map(stored).collect::<Vec<_>>()),
            }));
        }
        let mut rows = vec![
            ("name", file.name.clone()),
            ("architecture", facts.architecture.to_owned()),
            ("context", facts.context.to_string()),
            ("layers", facts.layers.to_string()),
            ("embedding", facts.dimensions.to_string()),
            ("heads", facts.heads.to_string()),
            ("vocabulary", facts.vocabulary.to_string()),
            ("backend", format!("candle: {reason}")),
            ("file", file.path.display().to_string()),
        ];
        if let Some(manifest) = manifest {
            let state = if self.verify { " (checked)" } else { "" };
            rows.push(("licence", manifest.licence.clone().unwrap_or_else(|| "not stated".to_owned())));
            rows.push(("size", output::bytes(manifest.bytes())));
            rows.extend(manifest.files().map(|file| ("sha256", format!("{} {}{state}", file.sha256, file.file))));
            rows.push(("source", manifest.source.clone()));
        }
        print(rows)
    }
}

fn print(rows: Vec<(&str, String)>) -> Result<()> {
    let rows: Vec<Vec<String>> =
        rows.into_iter().map(|(name, value)| vec![name.to_owned(), output::printable(&value)]).collect();
    output::table(&rows)
}

/// What can run the model, and why.
struct RunsOn {
    backend: Option<&'static str>,
    reason: String,
}

fn runs_on(path: &Path, gguf: &Gguf, backend: &BackendFlags) -> Result<RunsOn> {
    let architecture = gguf.metadata().optional::<&str>("general.architecture")?.unwrap_or("unknown");
    let supports = format!("supports the architecture '{architecture}'");
    Ok(match backend.backend.choice()?.backend(&backend.others(), architecture) {
        Ok(None) => {
            let kernels = hardware::chosen_kernels()?;
            RunsOn { backend: Some(NATIVE), reason: format!("{supports}; {} kernels", kernels.name()) }
        }
        Ok(Some(other)) => match other.open(path, gguf) {
            Ok(_) => RunsOn { backend: Some(other.name()), reason: format!("{supports}; no prefix is cached") },
            Err(error) => RunsOn { backend: None, reason: format!("{} cannot run the model: {error}", other.name()) },
        },
        Err(error) => RunsOn { backend: None, reason: error.to_string() },
    })
}

fn rows(facts: &ModelFacts, licence: Option<String>, runs_on: &RunsOn) -> Vec<(&'static str, String)> {
    let number = |value: Option<u64>| value.map_or_else(|| "not stated".to_owned(), |value| value.to_string());
    let text = |value: Option<String>| value.unwrap_or_else(|| "not stated".to_owned());
    let mix: Vec<String> = facts
        .weights
        .iter()
        .map(|share| format!("{} {} ({} tensors)", share.kind, output::bytes(share.bytes), share.tensors))
        .collect();
    vec![
        ("name", text(facts.name.clone())),
        ("architecture", text(facts.architecture.clone())),
        ("parameters", format!("{:.1} million", facts.parameters as f64 / 1e6)),
        ("quantization", mix.join(", ")),
        ("size", output::bytes(facts.file_bytes)),
        ("context", number(facts.context_length)),
        ("layers", number(facts.layers)),
        ("embedding", number(facts.embedding_length)),
        ("heads", format!("{}, {} for keys and values", per_layer(&facts.heads), per_layer(&facts.kv_heads))),
        ("vocabulary", number(facts.vocabulary_size)),
        ("chat template", facts.chat_template.as_ref().map_or("none".to_owned(), |_| "yes (--template)".to_owned())),
        ("licence", text(licence)),
        ("backend", format!("{}: {}", runs_on.backend.unwrap_or("none"), runs_on.reason)),
    ]
}

fn per_layer(value: &Option<PerLayer>) -> String {
    match value {
        None => "not stated".to_owned(),
        Some(PerLayer::Same(count)) => count.to_string(),
        Some(PerLayer::Each(counts)) => format!("{counts:?}"),
    }
}

fn to_json(facts: &ModelFacts, licence: Option<String>, runs_on: &RunsOn) -> Value {
    let heads = |value: &Option<PerLayer>| match value {
        None => Value::Null,
        Some(PerLayer::Same(count)) => json!(count),
        Some(PerLayer::Each(counts)) => json!(counts),
    };
    let weights: Vec<Value> = facts
        .weights
        .iter()
        .map(|share| json!({ "type": share.kind.name(), "tensors": share.tensors, "bytes": share.bytes }))
        .collect();
    json!({
        "name": facts.name,
        "architecture": facts.architecture,
        "parameters": facts.parameters,
        "quantization": weights,
        "file_bytes": facts.file_bytes,
        "context": facts.context_length,
        "layers": facts.layers,
        "embedding": facts.embedding_length,
        "heads": heads(&facts.heads),
        "kv_heads": heads(&facts.kv_heads),
        "vocabulary": facts.vocabulary_size,
        "chat_template": facts.chat_template,
        "licence": licence,
        "backend": { "name": runs_on.backend, "reason": runs_on.reason },
    })
}
