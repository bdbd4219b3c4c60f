//! `ruvllm serve`: the HTTP server.

mod adapters;
mod budget;
mod describe;
mod grpc;
mod kv_events;
mod learning;
mod listen_flags;
mod log_flags;
mod memory;
mod models;
mod ollama;
mod pause;
mod router;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use ruvllm_runtime::{RequestRecorder, bound_allocator};
use ruvllm_server::access::{Gate, LocalToken, LocalTokenError};
use ruvllm_server::listen::{self, Bound, ConnectionLimits, Listener, Tls};
use ruvllm_server::metrics::Metrics;
use ruvllm_server::{App, Lifecycle, Phase, Services, log};
use ruvllm_store::default_home;
use tokio::time::interval;

use crate::commands::keys;
use crate::config::FlagValues;
use crate::output;
use grpc::GrpcFlags;
use kv_events::KvEventFlags;
use learning::{LearningFlags, Served};
use listen_flags::{LimitFlags, ListenFlags};
use log_flags::LogFlags;
use memory::MemoryFlags;
use models::{Endpoint, ModelsFlags, Ready};
use ollama::{OllamaEnvironment, OllamaFlags};

/// Maximum number of prompts that are prepared concurrently; others wait.
const PREPARING_MAX: usize = 32;
/// Interval at which latencies are sorted into their buckets and the usage of keys is saved.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(5);
/// A pack that fails is withdrawn within a second.
const KERNEL_PACKS_INTERVAL: Duration = Duration::from_millis(500);
/// How long threads may run on after the server has ended.
const SHUTDOWN_MAX: Duration = Duration::from_secs(2);
/// Connections that are reserved for administration.
const ADMIN_CONNECTIONS_MAX: usize = 64;

/// Serve models over HTTP with the APIs of OpenAI, Anthropic and Ollama
///
/// The first Ctrl-C lets running answers finish, the second stops them, the third ends the process at once. `ruvllm
/// keys` controls access.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ruvllm serve smollm2\n  ruvllm serve smollm2 --host 0.0.0.0 --tls-cert cert.pem \
                  --tls-key key.pem\n\nFor operators: /health, /ready, /metrics and /openapi.json.")]
pub struct Serve {
    /// Names from the catalogue, hf:OWNER/REPO[/FILE.gguf], or paths of GGUF files or of folders of safetensors. Other
    /// models in the store are loaded on their first request
    #[arg(value_name = "MODEL")]
    model: Vec<String>,
    #[command(flatten)]
    models: ModelsFlags,
    #[command(flatten)]
    listen: ListenFlags,
    #[command(flatten)]
    grpc: GrpcFlags,
    #[command(flatten)]
    kv_events: KvEventFlags,
    #[command(flatten)]
    limits: LimitFlags,
    /// Refuse parameters that have no effect. By default they are accepted and named in the response header
    /// x-ruvllm-ignored and in the log
    #[arg(long)]
    strict: bool,
    /// End when standard input does: for a server that another program starts for itself
    #[arg(long, hide = true)]
    until_input_ends: bool,
    #[command(flatten)]
    memory: MemoryFlags,
    #[command(flatten)]
    learning: LearningFlags,
    #[command(flatten)]
    ollama: OllamaFlags,
    #[command(flatten)]
    log: LogFlags,
}

impl Serve {
    /// `values` are the flags as text, for processes that learn.
    pub fn execute(self, values: &FlagValues) -> Result<()> {
        bound_allocator();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .max_blocking_threads(PREPARING_MAX)
            .build()
            .context("cannot start threads")?;
        let outcome = runtime.block_on(self.serve(values));
        // Users of the memory must end before the process does, which takes down the encryption library. A model that
        // is still being loaded is not waited for.
        runtime.shutdown_timeout(SHUTDOWN_MAX);
        outcome
    }

    async fn serve(self, values: &FlagValues) -> Result<()> {
        let _logs = log::start(&self.log.options())?;
        let tls = self.listen.tls()?;
        let gate = Gate::open(keys::key_file()?, local_token(&default_home()?)?)?;
        let gate = Arc::new(gate.with_learning(self.memory.learns()));
        let metrics = Arc::new(Metrics::default());
        let lifecycle = Lifecycle::default().with_drain_delay(self.listen.drain_delay.unwrap_or_default());
        let bound = Bound::bind(&self.listen.host, self.listen.port, "--port").await?;
        let admin_bound = match self.listen.admin_port {
            Some(port) => Some(Bound::bind(&self.listen.admin_host, port, "--admin-port").await?),
            None => None,
        };
        let grpc_bound = self.grpc.bind(&self.listen.host).await?;
        let ollama = self.ollama.environment()?;
        let ollama_bound = match &ollama {
            Some(ollama) => self.bind_ollama(ollama, &bound).await?,
            None => None,
        };
        for bound in [Some(&bound), ollama_bound.as_ref(), grpc_bound.as_ref()].into_iter().flatten() {
            warn_if_open(bound, &gate, tls.as_ref());
        }
        let memory = tokio::task::block_in_place(|| self.memory.start())?;
        let body_limits = self.limits.body();
        let addresses = Addresses::new(&bound, admin_bound.as_ref(), ollama_bound.as_ref(), tls.as_ref());
        let addresses = Addresses { grpc: grpc_bound.as_ref().map(Bound::address), ..addresses };
        let (listened_to, heard) = self.kv_events.listen().unzip();
        let flags = self.models.clone().listened_to(listened_to).reached_at(&addresses.elsewhere);
        let flags = flags.tokenizer_for_routers(self.grpc.tokenizer()?);
        let learned = self.memory.learned_files()?;
        // Reads the memory.
        let models = tokio::task::block_in_place(|| {
            let (names, memory) = (self.model.clone(), (memory.clone(), learned));
            flags.endpoints(names, &metrics, &lifecycle, memory, body_limits.bytes_max, ollama.as_ref())
        })?;
        let app = App {
            body_limits,
            body_budget: models.body_budget,
            is_strict: self.strict,
            cors_origins: self.listen.origins()?,
            snapshots: models.snapshots,
            inference: models.inference,
            admin: models.admin,
            grpc: models.grpc,
            ..App::new(Arc::clone(&gate), Arc::clone(&metrics), lifecycle.clone())
        };
        if let Some(heard) = heard {
            let named = (addresses.api.as_str(), self.model.first().map(String::as_str));
            self.kv_events.publish(heard, Arc::clone(&models.adapter_names), named).await?;
        }
        let bound = [Some(bound), ollama_bound].into_iter().flatten().collect();
        let listeners = self.listeners(app, bound, grpc_bound, admin_bound, tls);
        listen::advance_on_signals(lifecycle.clone())?;
        if self.until_input_ends {
            listen::drain_at_end_of_input(lifecycle.clone());
        }
        let mut loading = tokio::task::spawn_blocking(models.load);
        let mut serving = tokio::spawn({
            let (metrics, lifecycle) = (Arc::clone(&metrics), lifecycle.clone());
            async move { listen::serve(listeners, &metrics, lifecycle, self.listen.drain_timeout).await }
        });
        // Ends with this function.
        let _learning = match (&memory, self.memory.learned_files()?) {
            (Some(memory), Some(files)) => self.learning.start(
                Served {
                    models: self.model.clone(),
                    memory: memory.clone(),
                    files,
                    is_busy: models.is_busy,
                    metrics: Arc::clone(&metrics),
                },
                values,
            )?,
            _ => None,
        };
        let mut maintenance = interval(MAINTENANCE_INTERVAL);
        let mut kernel_packs = interval(KERNEL_PACKS_INTERVAL);
        let mut is_loading = true;
        let mut models_maintenance = tokio::task::spawn_blocking(|| {});
        loop {
            tokio::select! {
                loaded = &mut loading, if is_loading => {
                    is_loading = false;
                    let ready = loaded.context("loading a model failed")??;
                    lifecycle.advance(Phase::Ready);
                    addresses.announce(gate.is_closed(), ready.first());
                }
                served = &mut serving => {
                    gate.save_usage();
                    if let Some(memory) = &memory {
                        tokio::task::block_in_place(|| {
                            flush(memory);
                            models.fleet.leave();
                        });
                    }
                    return served.context("the server failed");
                }
                _ = kernel_packs.tick() => (models.watch_kernel_packs)(),
                _ = maintenance.tick() => {
                    metrics.maintain();
                    gate.save_usage();
                    if models_maintenance.is_finished() {
                        let maintain = Arc::clone(&models.maintain);
                        models_maintenance = tokio::task::spawn_blocking(move || maintain());
                    }
                }
            }
        }
    }

    /// Binds Ollama's address, unless it is the one that the server has already.
    async fn bind_ollama(&self, ollama: &OllamaEnvironment, bound: &Bound) -> Result<Option<Bound>> {
        if ollama.port != 0 && bound.address().port() == ollama.port && ollama.host == self.listen.host {
            return Ok(None);
        }
        let bound = Bound::bind(&ollama.host, ollama.port, "OLLAMA_HOST").await;
        Ok(Some(bound.context("cannot take Ollama's place (--ollama)")?))
    }

    fn listeners(
        &self,
        app: App,
        bound: Vec<Bound>,
        grpc_bound: Option<Bound>,
        admin_bound: Option<Bound>,
        tls: Option<Tls>,
    ) -> Vec<Listener> {
        let limits = self.limits.connections();
        let Services { api, admin, grpc } =
            if admin_bound.is_some() { app.build_with_admin_listener() } else { app.build() };
        let bound = bound.into_iter().map(|bound| (bound, api.clone())).chain(grpc_bound.map(|bound| (bound, grpc)));
        let listener = |(bound, router)| Listener { bound, router, tls: tls.clone(), limits, until: Phase::Draining };
        let mut listeners: Vec<Listener> = bound.map(listener).collect();
        if let (Some(bound), Some(router)) = (admin_bound, admin) {
            let connections_max = ADMIN_CONNECTIONS_MAX.min(limits.connections_max);
            let limits = ConnectionLimits { connections_max, ..limits };
            // Operators can watch the server drain.
            listeners.push(Listener { bound, router, tls, limits, until: Phase::Ended });
        }
        listeners
    }
}

/// Returns the name of this machine.
fn host_name() -> Option<String> {
    #[cfg(unix)]
    return rustix::system::uname().nodename().to_str().ok().map(str::to_owned);
    #[cfg(not(unix))]
    return std::env::var("COMPUTERNAME").ok();
}

/// Returns the operator's token. A home folder that cannot be written has none; a token that others may know is an
/// error.
fn local_token(home: &Path) -> Result<Option<LocalToken>> {
    match LocalToken::ensure(home) {
        Ok(token) => Ok(Some(token)),
        Err(error @ LocalTokenError::Io { .. }) => {
            tracing::warn!(%error, "there is no token for the local operator: administration needs a key with the \
                                    scope admin");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Writes everything that is recorded, if the store accepts it in time.
fn flush(memory: &RequestRecorder) {
    if !memory.recorder().flush() {
        let entries = memory.recorder().stats().waiting;
        tracing::error!(entries, "the memory does not respond: entries of the witness log are lost");
    }
}

fn warn_if_open(bound: &Bound, gate: &Gate, tls: Option<&Tls>) {
    if !bound.is_public() {
        return;
    }
    let address = bound.address();
    if !gate.is_closed() {
        tracing::warn!(%address, "this server can be reached from other machines and has no keys: add one with \
                                  `ruvllm keys add NAME`");
    } else if tls.is_none() {
        tracing::warn!(%address, "this server can be reached from other machines and keys are sent unencrypted: use \
                                  --tls-cert");
    }
}

/// Addresses of the server, as shown to its operator.
struct Addresses {
    api: String,
    /// The same for other machines.
    elsewhere: String,
    admin: Option<String>,
    ollama: Option<String>,
    grpc: Option<SocketAddr>,
}

impl Addresses {
    fn new(bound: &Bound, admin: Option<&Bound>, ollama: Option<&Bound>, tls: Option<&Tls>) -> Self {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = |bound: &Bound| {
            let mut address = bound.address();
            // Stands for all addresses of this machine; this one works locally.
            if address.ip().is_unspecified() {
                let local =
                    if address.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() };
                address.set_ip(local);
            }
            format!("{scheme}://{address}")
        };
        let api = url(bound);
        let elsewhere = match host_name().filter(|_| bound.address().ip().is_unspecified()) {
            Some(host) => format!("{scheme}://{host}:{}", bound.address().port()),
            None => api.clone(),
        };
        Self { api, elsewhere, admin: admin.map(url), ollama: ollama.map(url), grpc: None }
    }

    /// `model` is a loaded one.
    fn announce(&self, needs_key: bool, model: Option<&Ready>) {
        let key = if needs_key { " -H \"Authorization: Bearer $RUVLLM_KEY\"" } else { "" };
        if let Some(grpc) = &self.grpc {
            output::remark(&format!("gRPC on {grpc}"));
        }
        output::remark(&format!("listening on {}", self.api));
        if let Some(admin) = &self.admin {
            output::remark(&format!("administration on {admin}"));
        }
        if let Some(ollama) = &self.ollama {
            output::remark(&format!("in Ollama's place on {ollama}"));
        }
        let try_it = match model {
            Some(Ready { name, endpoint }) => {
                let (path, asked) = match endpoint {
                    Endpoint::Chat => ("chat/completions", r#""messages": [{"role": "user", "content": "Hello"}]"#),
                    Endpoint::Embeddings => ("embeddings", r#""input": "Hello""#),
                    Endpoint::Rerank => ("rerank", r#""query": "Hello", "documents": ["Hi", "Bye"]"#),
                };
                let body = format!(r#"{{"model": "{name}", {asked}}}"#);
                format!("{}/v1/{path}{key} -H 'Content-Type: application/json' -d '{body}'", self.api)
            }
            None => format!("{}/v1/models{key}", self.api),
        };
        output::remark(&format!("try: curl {try_it}"));
    }
}
