//! `ruvllm serve`: answers requests over HTTP.

mod budget;
mod listen_flags;
mod log_flags;
mod memory;
mod models;

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
use crate::output;
use listen_flags::{LimitFlags, ListenFlags};
use log_flags::LogFlags;
use memory::MemoryFlags;
use models::{Endpoint, ModelsFlags, Ready};

/// Requests whose prompts are prepared at the same time; others wait a moment.
const PREPARING_MAX: usize = 32;
/// Between sorting of measured times into their buckets, and saving of what keys have used.
const UPKEEP: Duration = Duration::from_secs(5);
/// How long threads may go on when the server has ended.
const SHUTDOWN_MAX: Duration = Duration::from_secs(2);
/// Administrators need few connections, and get them when all others are taken.
const ADMIN_CONNECTIONS_MAX: usize = 64;

/// Serve models over HTTP, with the API of OpenAI
///
/// Ctrl-C lets running answers finish; a second one does not; a third ends everything at once. Who may use it is set by `ruvllm keys`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ruvllm serve smollm2\n  ruvllm serve smollm2 --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem\n\n\
                        /health, /ready, /metrics and /openapi.json are for those who operate it."
)]
pub struct Serve {
    /// Names from the catalogue, hf:OWNER/REPO/FILE.gguf, or paths of GGUF files. Others of the store are loaded when they
    /// are first asked for
    #[arg(value_name = "MODEL")]
    model: Vec<String>,
    #[command(flatten)]
    models: ModelsFlags,
    #[command(flatten)]
    listen: ListenFlags,
    #[command(flatten)]
    limits: LimitFlags,
    #[command(flatten)]
    memory: MemoryFlags,
    #[command(flatten)]
    log: LogFlags,
}

impl Serve {
    pub fn execute(self) -> Result<()> {
        bound_allocator();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .max_blocking_threads(PREPARING_MAX)
            .build()
            .context("cannot start threads")?;
        let outcome = runtime.block_on(self.serve());
        // Whoever uses the memory ends before the process does, which takes down the library that encrypts it. A model that is
        // still being loaded is not waited for.
        runtime.shutdown_timeout(SHUTDOWN_MAX);
        outcome
    }

    async fn serve(self) -> Result<()> {
        let _logs = log::start(&self.log.options())?;
        let tls = self.listen.tls()?;
        let gate = Arc::new(Gate::open(keys::key_file()?, local_token(&default_home()?)?)?);
        let (metrics, lifecycle) = (Arc::new(Metrics::default()), Lifecycle::default());
        let bound = Bound::bind(&self.listen.host, self.listen.port, "--port").await?;
        let admin_bound = match self.listen.admin_port {
            Some(port) => Some(Bound::bind(&self.listen.admin_host, port, "--admin-port").await?),
            None => None,
        };
        warn_if_open(&bound, &gate, tls.as_ref());
        let memory = tokio::task::block_in_place(|| self.memory.start())?;
        let body_limits = self.limits.body();
        let flags = self.models.clone();
        let models =
            flags.endpoints(self.model.clone(), &metrics, &lifecycle, memory.clone(), body_limits.bytes_max)?;
        let app = App {
            body_limits,
            body_budget: models.body_budget,
            cors_origins: self.listen.origins()?,
            snapshots: models.snapshots,
            inference: models.inference,
            admin: models.admin,
            ..App::new(Arc::clone(&gate), Arc::clone(&metrics), lifecycle.clone())
        };
        let addresses = Addresses::new(&bound, admin_bound.as_ref(), tls.as_ref());
        let listeners = self.listeners(app, bound, admin_bound, tls);
        listen::advance_on_signals(lifecycle.clone())?;
        let mut loading = tokio::task::spawn_blocking(models.load);
        let mut serving = tokio::spawn({
            let (metrics, lifecycle) = (Arc::clone(&metrics), lifecycle.clone());
            async move { listen::serve(listeners, &metrics, lifecycle, self.listen.drain_timeout).await }
        });
        let mut upkeep = interval(UPKEEP);
        let mut is_loading = true;
        let mut models_upkeep = tokio::task::spawn_blocking(|| {});
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
                        tokio::task::block_in_place(|| flush(memory));
                    }
                    return served.context("the server failed");
                }
                _ = upkeep.tick() => {
                    metrics.upkeep();
                    gate.save_usage();
                    if models_upkeep.is_finished() {
                        let upkeep = Arc::clone(&models.upkeep);
                        models_upkeep = tokio::task::spawn_blocking(move || upkeep());
                    }
                }
            }
        }
    }

    fn listeners(&self, app: App, bound: Bound, admin_bound: Option<Bound>, tls: Option<Tls>) -> Vec<Listener> {
        let limits = self.limits.connections();
        let Services { api, admin } = if admin_bound.is_some() { app.build_with_admin_listener() } else { app.build() };
        let mut listeners = vec![Listener { bound, router: api, tls: tls.clone(), limits, until: Phase::Draining }];
        if let (Some(bound), Some(router)) = (admin_bound, admin) {
            let connections_max = ADMIN_CONNECTIONS_MAX.min(limits.connections_max);
            let limits = ConnectionLimits { connections_max, ..limits };
            // Whoever watches the server can see it drain.
            listeners.push(Listener { bound, router, tls, limits, until: Phase::Ended });
        }
        listeners
    }
}

/// The operator's token. A home folder that cannot be written has none; one that others may know is an error.
fn local_token(home: &Path) -> Result<Option<LocalToken>> {
    match LocalToken::ensure(home) {
        Ok(token) => Ok(Some(token)),
        Err(error @ LocalTokenError::Io { .. }) => {
            tracing::warn!(%error, "there is no token for the local operator: administration needs a key of the scope admin");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Has everything written that is remembered, if the store takes it in time.
fn flush(memory: &RequestRecorder) {
    if !memory.recorder().flush() {
        let entries = memory.recorder().stats().waiting;
        tracing::error!(entries, "the memory does not answer: entries of the witness log are lost");
    }
}

fn warn_if_open(bound: &Bound, gate: &Gate, tls: Option<&Tls>) {
    if !bound.is_public() {
        return;
    }
    let address = bound.address();
    if !gate.is_closed() {
        tracing::warn!(%address, "others can reach this server and it has no keys: add one with `ruvllm keys add NAME`");
    } else if tls.is_none() {
        tracing::warn!(%address, "others can reach this server, and keys go over the network as they are: use --tls-cert");
    }
}

/// Where the server can be reached, for those who started it.
struct Addresses {
    api: String,
    admin: Option<String>,
}

impl Addresses {
    fn new(bound: &Bound, admin: Option<&Bound>, tls: Option<&Tls>) -> Self {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = |bound: &Bound| {
            let mut address = bound.address();
            // All addresses of this machine; this one works from here.
            if address.ip().is_unspecified() {
                let local =
                    if address.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() };
                address.set_ip(local);
            }
            format!("{scheme}://{address}")
        };
        Self { api: url(bound), admin: admin.map(url) }
    }

    /// `model` is one that is loaded.
    fn announce(&self, needs_key: bool, model: Option<&Ready>) {
        let key = if needs_key { " -H \"Authorization: Bearer $RUVLLM_KEY\"" } else { "" };
        output::remark(&format!("listening on {}", self.api));
        if let Some(admin) = &self.admin {
            output::remark(&format!("administration on {admin}"));
        }
        let try_it = match model {
            Some(Ready { name, endpoint }) => {
                let (path, asked) = match endpoint {
                    Endpoint::Chat => ("chat/completions", r#""messages": [{"role": "user", "content": "Hello"}]"#),
                    Endpoint::Embeddings => ("embeddings", r#""input": "Hello""#),
                };
                let body = format!(r#"{{"model": "{name}", {asked}}}"#);
                format!("{}/v1/{path}{key} -H 'Content-Type: application/json' -d '{body}'", self.api)
            }
            None => format!("{}/v1/models{key}", self.api),
        };
        output::remark(&format!("try: curl {try_it}"));
    }
}
