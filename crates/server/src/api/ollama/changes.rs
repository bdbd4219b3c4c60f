//! `POST /api/pull`, `/api/create`, `/api/copy` and `DELETE /api/delete`: they change the store, for everybody.

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use ruvllm_store::{Event, FirstMessage, ModelSettings, Progress};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::mpsc::{self, Sender};
use utoipa::ToSchema;

use super::modelfile::{self, Modelfile};
use super::ndjson::{self, LINES_MAX, Line, ProgressLine};
use super::options::Options;
use super::show::model_of;
use super::{OllamaError, start};
use crate::access::Caller;
use crate::api::Api;
use crate::body::Body;
use crate::error::ApiError;
use crate::ignored::IgnoredParams;

/// Maximum number of adapters of a model.
const ADAPTERS_MAX: usize = 8;

#[derive(Debug, Deserialize, ToSchema)]
pub struct PullRequest {
    /// A model of the catalogue, or hf:OWNER/REPO/FILE.gguf.
    #[schema(example = "smollm2")]
    pub model: Option<String>,
    /// The same under its old name.
    pub name: Option<String>,
    /// Whether the progress comes in lines; true by default.
    pub stream: Option<bool>,
    /// Has no effect: connections are always checked.
    pub insecure: Option<bool>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct DeleteRequest {
    pub model: Option<String>,
    /// The same under its old name.
    pub name: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct CopyRequest {
    pub source: String,
    pub destination: String,
}

/// A model with the file of another and settings of its own.
#[derive(Debug, Deserialize, ToSchema)]
pub struct CreateRequest {
    pub model: Option<String>,
    /// The same under its old name.
    pub name: Option<String>,
    /// A model of this server, whose file is shared.
    pub from: Option<String>,
    /// Default parameters, as in `options`.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Map<String, Value>>,
    pub system: Option<String>,
    /// Refused, unless it is the model's own.
    pub template: Option<String>,
    /// What every conversation begins with.
    pub messages: Option<Vec<CreateMessage>>,
    pub license: Option<License>,
    /// Adapters of the store by their names, or by the SHA-256 of their files, as `{"FILE": "sha256:..."}`.
    #[schema(value_type = Option<Object>)]
    pub adapters: Option<Map<String, Value>>,
    /// Refused: `ruvllm pull` adds files.
    #[schema(value_type = Option<Object>)]
    pub files: Option<Map<String, Value>>,
    /// Refused: `ruvllm quantize` does that.
    pub quantize: Option<String>,
    /// All of the above in one text, as older clients send it.
    pub modelfile: Option<String>,
    pub stream: Option<bool>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct CreateMessage {
    pub role: String,
    pub content: String,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
pub enum License {
    One(String),
    Several(Vec<String>),
}

/// Fetch a model of the catalogue or of the hub
///
/// Needs the scope `admin`, or `serve --ollama` and a program on the same machine.
#[utoipa::path(post, path = "/api/pull", tag = "ollama", request_body = PullRequest,
    responses((status = 200, description = "The progress in lines, or with `stream: false` its end",
                content((ProgressLine = "application/x-ndjson"), (ProgressLine = "application/json"))),
              (status = 403, description = "Not allowed", body = OllamaError),
              (status = 404, description = "There is no such model", body = OllamaError)))]
pub(crate) async fn pull(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<PullRequest>,
) -> Result<Response, ApiError> {
    caller.require_store_changes(api.allows_local_changes)?;
    let name = model_of(request.model, request.name)?;
    if request.insecure == Some(true) {
        caller.ignored().note("insecure", "connections are always checked")?;
    }
    let (sender, lines) = mpsc::channel(LINES_MAX);
    tokio::spawn(async move {
        let progress = Lines { sender: sender.clone(), name: name.clone() };
        let pulled = api.models.pull(&name, progress).await;
        ndjson::finish(sender, pulled.map(drop).map_err(start::unknown)).await;
    });
    ndjson::respond(lines, request.stream.unwrap_or(true)).await
}

/// Reports what the store does. When the client disconnects, the pull ends and can be resumed.
struct Lines {
    sender: Sender<Line>,
    name: String,
}

impl Progress for Lines {
    fn report(&mut self, event: Event) {
        let status = match event {
            Event::WaitingForOtherProcess { .. } => {
                ProgressLine::new("waiting for another process that pulls this model")
            }
            Event::TrySource { .. } => ProgressLine::new("pulling manifest"),
            Event::SourceFailed { .. } => ProgressLine::new("trying the next source"),
            Event::Retrying { .. } => ProgressLine::new("retrying"),
            Event::Bytes { done_bytes, total_bytes } => ProgressLine {
                status: format!("pulling {}", self.name),
                digest: Some(self.name.clone()),
                total: Some(total_bytes),
                completed: Some(done_bytes),
            },
            Event::Verifying { .. } => ProgressLine::new("verifying sha256 digest"),
            Event::Done { .. } => ProgressLine::new("writing manifest"),
            _ => return,
        };
        // A client that reads slowly misses some lines; the last one always comes.
        let _ = self.sender.try_send(Ok(status));
    }

    fn cancelled(&self) -> bool {
        self.sender.is_closed()
    }
}

/// Make a model from another, with settings of its own
///
/// Needs the scope `admin`, or `serve --ollama` and a program on the same machine.
#[utoipa::path(post, path = "/api/create", tag = "ollama", request_body = CreateRequest,
    responses((status = 200, description = "The progress in lines, or with `stream: false` its end",
                content((ProgressLine = "application/x-ndjson"), (ProgressLine = "application/json"))),
              (status = 400, description = "A field is invalid", body = OllamaError),
              (status = 403, description = "Not allowed", body = OllamaError),
              (status = 404, description = "There is no model to make it from", body = OllamaError)))]
pub(crate) async fn create(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<CreateRequest>,
) -> Result<Response, ApiError> {
    caller.require_store_changes(api.allows_local_changes)?;
    let streams = request.stream.unwrap_or(true);
    let Wanted { name, from, mut settings, template } = request.wanted(caller.ignored())?;
    settings.adapters = api.models.named_adapters(settings.adapters).await.map_err(start::unknown)?;
    let from = base(&api, from, template).await?;
    api.models.derive(&name, &from, settings).await.map_err(start::unknown)?;
    let (sender, lines) = mpsc::channel(LINES_MAX);
    for status in ["using existing layer", "writing manifest"] {
        let _ = sender.try_send(Ok(ProgressLine::new(status)));
    }
    ndjson::finish(sender, Ok(())).await;
    ndjson::respond(lines, streams).await
}

/// Returns the name of the model to make one from: given by its name, or by the path of its file. A template must be its own.
async fn base(api: &Api, from: String, template: Option<String>) -> Result<String, ApiError> {
    let models = api.models.clone();
    let found = tokio::task::spawn_blocking(move || {
        let known = match models.find_known(&from) {
            Ok(known) => known,
            // Only files of models that are listed: whoever names a path must not learn what else there is.
            Err(error) => models
                .known()
                .into_iter()
                .find(|known| known.base.is_none() && is_file_of(&known.file, &from))
                .ok_or(error)?,
        };
        let description = template.is_some().then(|| models.description(&known.name, &known.file)).transpose()?;
        Ok((known, description, template))
    });
    let found = found.await.map_err(|_| ApiError::internal("the model could not be read"))?;
    let (known, description, template) = found.map_err(start::unknown)?;
    let own = description.and_then(|description| description.chat_template.clone());
    if template.is_some() && template != own {
        let message =
            "template is not supported, unless it is the model's own: templates here are Jinja, in the model's file";
        return Err(ApiError::invalid_param("template", message).with_code("unsupported_parameter"));
    }
    Ok(known.name)
}

fn is_file_of(file: &std::path::Path, from: &str) -> bool {
    let is_path = from.starts_with('/') || from.starts_with("~/");
    let path = match (from.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => from.into(),
    };
    is_path
        && !from.contains("..")
        && file.canonicalize().is_ok_and(|file| path.canonicalize().is_ok_and(|path| path == file))
}

/// Give a model a further name
///
/// Needs the scope `admin`, or `serve --ollama` and a program on the same machine.
#[utoipa::path(post, path = "/api/copy", tag = "ollama", request_body = CopyRequest,
    responses((status = 200, description = "Both names mean the same file now"),
              (status = 403, description = "Not allowed", body = OllamaError),
              (status = 404, description = "There is no such model", body = OllamaError),
              (status = 409, description = "The new name is taken", body = OllamaError)))]
pub(crate) async fn copy(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(CopyRequest { source, destination }): Body<CopyRequest>,
) -> Result<StatusCode, ApiError> {
    caller.require_store_changes(api.allows_local_changes)?;
    api.models.derive(&destination, &source, ModelSettings::default()).await.map_err(start::unknown)?;
    Ok(StatusCode::OK)
}

/// Remove a model from the store
///
/// Needs the scope `admin`, or `serve --ollama` and a program on the same machine.
#[utoipa::path(delete, path = "/api/delete", tag = "ollama", request_body = DeleteRequest,
    responses((status = 200, description = "It is removed"),
              (status = 403, description = "Not allowed", body = OllamaError),
              (status = 404, description = "There is no such model", body = OllamaError),
              (status = 409, description = "It is in use", body = OllamaError)))]
pub(crate) async fn delete(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<DeleteRequest>,
) -> Result<StatusCode, ApiError> {
    caller.require_store_changes(api.allows_local_changes)?;
    let name = model_of(request.model, request.name)?;
    api.models.remove(&name).await.map_err(start::unknown)?;
    Ok(StatusCode::OK)
}

/// A valid request to make a model.
#[derive(Debug)]
pub(crate) struct Wanted {
    name: String,
    from: String,
    settings: ModelSettings,
    /// Has to be the model's own.
    template: Option<String>,
}

impl CreateRequest {
    /// Checks what can be checked without the model that it is made from.
    pub(crate) fn wanted(self, ignored: &IgnoredParams) -> Result<Wanted, ApiError> {
        let refused = |field: &str, why: &str| {
            ApiError::invalid_param(field, format!("{field} is not supported: {why}"))
                .with_code("unsupported_parameter")
        };
        let is_given = |map: &Option<Map<String, Value>>| map.as_ref().is_some_and(|map| !map.is_empty());
        if is_given(&self.files) {
            return Err(refused("files", "add files with `ruvllm pull FILE` and name the model in from"));
        }
        if self.quantize.as_ref().is_some_and(|kind| !kind.is_empty()) {
            return Err(refused("quantize", "use `ruvllm quantize`"));
        }
        let name = model_of(self.model.clone(), self.name.clone())?;
        let file = self.modelfile.as_deref().map(modelfile::parse).transpose()?.unwrap_or_default();
        let Modelfile { from, settings } = file;
        let adapters = adapters(self.adapters.as_ref())?;
        let from = self.from.clone().filter(|from| !from.is_empty()).or(from);
        let from =
            from.ok_or_else(|| ApiError::invalid_param("from", "from is missing: name the model to make it from"))?;
        let mut settings = self.settings().over(&settings);
        if !adapters.is_empty() {
            settings.adapters = adapters;
        }
        let template = settings.template.take().filter(|template| !template.trim().is_empty());
        check(&settings, ignored)?;
        Ok(Wanted { name, from, settings, template })
    }

    fn settings(self) -> ModelSettings {
        let message = |CreateMessage { role, content }| FirstMessage { role, content };
        ModelSettings {
            parameters: self.parameters.unwrap_or_default(),
            system: self.system.filter(|text| !text.is_empty()),
            template: self.template,
            messages: self.messages.unwrap_or_default().into_iter().map(message).collect(),
            adapters: Vec::new(),
            license: match self.license {
                None => Vec::new(),
                Some(License::One(text)) => vec![text],
                Some(License::Several(texts)) => texts,
            },
        }
    }
}

/// Returns what names each adapter: its digest where there is one, otherwise its name.
fn adapters(given: Option<&Map<String, Value>>) -> Result<Vec<String>, ApiError> {
    let given = given.into_iter().flatten();
    let one = |(name, digest): (&String, &Value)| match digest {
        Value::String(digest) if digest.is_empty() => Ok(name.clone()),
        Value::String(digest) => Ok(digest.clone()),
        _ => Err(ApiError::invalid_param("adapters", "adapters must be an object of names and digests")),
    };
    let adapters = given.map(one).collect::<Result<Vec<_>, _>>()?;
    if adapters.len() > ADAPTERS_MAX {
        return Err(ApiError::invalid_param("adapters", format!("up to {ADAPTERS_MAX} adapters can be combined")));
    }
    Ok(adapters)
}

/// Refuses settings with which every request would fail.
fn check(settings: &ModelSettings, ignored: &IgnoredParams) -> Result<(), ApiError> {
    Options::of_settings(settings, ignored)?.check().map_err(|error| match &error.param {
        Some(param) => {
            let param = format!("parameters.{}", param.trim_start_matches("options."));
            error.with_param(param)
        }
        None => error,
    })?;
    let known = ["system", "user", "assistant"];
    match settings.messages.iter().position(|message| !known.contains(&message.role.as_str())) {
        Some(index) => {
            let message = "the role of a message must be system, user or assistant";
            Err(ApiError::invalid_param(format!("messages[{index}].role"), message))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::body::parse;

    fn wanted(body: Value) -> Result<Wanted, ApiError> {
        let ignored = IgnoredParams::default();
        parse::<CreateRequest>(body.to_string().as_bytes(), &ignored)?.wanted(&ignored)
    }

    #[test]
    fn fields_and_modelfiles_make_the_same_model() {
        let fields =
            json!({"model": "p", "from": "toy", "system": "Arr.", "parameters": {"top_k": 3}, "license": "MIT"});
        let text = "FROM toy\nSYSTEM Arr.\nPARAMETER top_k 3\nLICENSE MIT";
        let (one, other) = (wanted(fields).unwrap(), wanted(json!({"name": "p", "modelfile": text})).unwrap());
        assert_eq!((one.name, one.from, one.settings), (other.name, other.from, other.settings));
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_name() {
        for (field, value, param) in [
            ("adapters", json!({"a": 7}), "adapters"),
            ("files", json!({"a": "sha256:0"}), "files"),
            ("quantize", json!("q4_K_M"), "quantize"),
            ("parameters", json!({"num_ctx": -1}), "parameters.num_ctx"),
            ("parameters", json!({"temperature": "hot"}), "parameters.temperature"),
            ("parameters", json!({"stop": [""]}), "parameters.stop"),
            ("messages", json!([{"role": "robot", "content": ""}]), "messages[0].role"),
            ("messages", json!("Hi"), "messages"),
            ("license", json!(7), "license"),
            ("from", json!(""), "from"),
        ] {
            let mut body = json!({"model": "p", "from": "toy"});
            body[field] = value.clone();
            assert_eq!(wanted(body).unwrap_err().param.as_deref(), Some(param), "{field}: {value}");
        }
        assert_eq!(wanted(json!({"from": "toy"})).unwrap_err().param.as_deref(), Some("model"));
    }

    #[test]
    fn a_path_means_only_the_file_of_a_model() {
        let folder = tempfile::tempdir().unwrap();
        let (model, other) = (folder.path().join("toy.gguf"), folder.path().join("other"));
        std::fs::write(&model, "GGUF").unwrap();
        std::fs::write(&other, "secret").unwrap();
        assert!(is_file_of(&model, model.to_str().unwrap()));
        assert!(!is_file_of(&model, other.to_str().unwrap()));
        assert!(!is_file_of(&model, "toy.gguf"));
        let around = folder.path().join("x/../toy.gguf");
        assert!(!is_file_of(&model, around.to_str().unwrap()));
    }
}
