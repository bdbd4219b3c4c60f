//! Learns from new feedback while the server runs.
//!
//! `ruvllm learn now` runs for each tenant that has given feedback, as a process of its own, and stands still while requests are
//! answered. So it takes neither time nor locks from them, and what goes wrong there stays there.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use ruvllm_runtime::{LearnedFiles, RequestRecorder};
use ruvllm_server::metrics::Metrics;
use serde_json::Value;

use super::pause::Pausing;
use crate::config::FlagValues;
use crate::flags::duration::parse_duration;

/// Interval at which a process is looked after.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long nothing must have been asked before it goes on.
const QUIET: Duration = Duration::from_millis(300);
/// How long a process may take to end when the server does.
const END_MAX: Duration = Duration::from_secs(1);
/// More is not read of what it says.
const SAID_MAX: u64 = 1 << 20;
/// Flags of the server that say how a model reads and computes, and where the memory is: learning must have the same.
const SHARED_FLAGS: [&str; 11] = [
    "backend",
    "mistralrs",
    "threads",
    "chat_template",
    "experts",
    "quantize",
    "prefill",
    "kv",
    "memory_folder",
    "memory_postgres",
    "memory_key_command",
];

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Memory")]
pub struct LearningFlags {
    /// Learn from new feedback at this interval, such as 6h, as `ruvllm learn now` does (its settings hold here, too): for
    /// the models named here and each tenant, one after the other, only while no request is answered. What has won is
    /// served at once
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "no_memory")]
    learn_every: Option<Duration>,
    /// Answers that must have been corrected or approved since a tenant's last version
    #[arg(long, value_name = "N", default_value_t = 8)]
    learn_new: usize,
}

/// What learning needs of a server.
pub struct Served {
    pub models: Vec<String>,
    pub memory: RequestRecorder,
    pub files: LearnedFiles,
    /// Whether requests are answered now.
    pub is_busy: Arc<dyn Fn() -> bool + Send + Sync>,
    pub metrics: Arc<Metrics>,
}

/// Learning goes on until this is dropped.
pub struct Learning {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

struct Work {
    every: Duration,
    least: usize,
    served: Served,
    /// For processes, in which these settings outrank those of files.
    environment: Vec<(String, OsString)>,
    config: Option<PathBuf>,
    /// Where the log is looked at from.
    mark: i64,
    stop: Arc<AtomicBool>,
}

impl LearningFlags {
    /// Starts learning, if that is wanted.
    pub fn start(&self, served: Served, values: &FlagValues) -> Result<Option<Learning>> {
        let Some(every) = self.learn_every else { return Ok(None) };
        if !cfg!(unix) {
            bail!("--learn-every: processes cannot stand still on this system; run `ruvllm learn now` by a timer");
        }
        let stop = Arc::new(AtomicBool::new(false));
        let variable = |flag: &&str| Some((format!("RUVLLM_LEARN_NOW_{}", flag.to_uppercase()), values.get(flag)?));
        let work = Work {
            every,
            least: self.learn_new,
            served,
            environment: SHARED_FLAGS.iter().filter_map(variable).collect(),
            config: values.get("config").map(PathBuf::from),
            mark: 0,
            stop: Arc::clone(&stop),
        };
        let thread = std::thread::Builder::new().name("learning".into()).spawn(move || work.run());
        Ok(Some(Learning { stop, thread: Some(thread.context("cannot start a thread")?) }))
    }
}

impl Drop for Learning {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // If it panicked, that was logged.
            let _ = thread.join();
        }
    }
}

impl Work {
    fn run(mut self) {
        loop {
            let next = Instant::now() + self.every;
            while Instant::now() < next {
                if self.is_stopped() {
                    return;
                }
                std::thread::sleep(LOOK_EVERY.max(self.every / 100).min(Duration::from_millis(100)));
            }
            let before = self.mark;
            match self.tenants() {
                Ok(tenants) if self.learn_from(&tenants) => {}
                // They are tried again.
                Ok(_) => self.mark = before,
                Err(error) => tracing::warn!("cannot look for new feedback: {error:#}"),
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Returns the tenants that have given feedback since this was asked last.
    fn tenants(&mut self) -> Result<BTreeSet<String>> {
        let changes = self.served.memory.memory().learning().changes(self.mark)?;
        self.mark = changes.mark;
        Ok(changes.rated.into_iter().map(|(tenant, _)| tenant).collect())
    }

    /// Returns whether nothing failed.
    fn learn_from(&self, tenants: &BTreeSet<String>) -> bool {
        let mut is_sound = true;
        for model in &self.served.models {
            for tenant in tenants.iter().take_while(|_| !self.is_stopped()) {
                self.served.metrics.learning_begins();
                let learned = self.learn(model, tenant);
                let outcome = match &learned {
                    Ok(said) => told(model, tenant, said),
                    // That is why it ended.
                    Err(_) if self.is_stopped() => None,
                    Err(error) => {
                        tracing::warn!(model, tenant, "learning failed: {error:#}");
                        is_sound = false;
                        Some("failed")
                    }
                };
                self.served.metrics.learning_ended(outcome);
            }
        }
        is_sound
    }

    /// Learns from one tenant. Returns what the process said.
    fn learn(&self, model: &str, tenant: &str) -> Result<Value> {
        let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        command.args(["learn", "now", model, "--json", "--until-input-ends", "--new", &self.least.to_string()]);
        if !tenant.is_empty() {
            command.args(["--tenant", tenant]);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        // Its input ends with this process at the latest.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Pausing::prepare(&mut command);
        let mut child = command.spawn().context("cannot start a process")?;
        let (out, err) = (reader(child.stdout.take()), reader(child.stderr.take()));
        let status = match self.look_after(&mut child) {
            Ok(status) => status,
            Err(error) => {
                // Nobody would stop it for requests any more.
                child.kill()?;
                child.wait()?;
                return Err(error);
            }
        };
        let (out, err) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
        if !status.success() {
            bail!("{}", err.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing"));
        }
        serde_json::from_str(&out).context("what it said is no JSON")
    }

    /// Waits for the end of a process, which stands still while requests are answered.
    fn look_after(&self, child: &mut Child) -> Result<ExitStatus> {
        let mut pausing = Pausing::new(child, &self.served.files);
        let mut busy_at = None::<Instant>;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if self.is_stopped() {
                return end(child, pausing);
            }
            if (self.served.is_busy)() {
                busy_at = Some(Instant::now());
                pausing.pause()?;
            } else if busy_at.is_none_or(|at| at.elapsed() > QUIET) {
                pausing.resume();
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// Has a process end: it removes what it has written so far. Whoever does not answer is ended all the same.
fn end(child: &mut Child, mut pausing: Pausing) -> Result<ExitStatus> {
    pausing.resume();
    pausing.interrupt();
    let asked = Instant::now();
    while asked.elapsed() < END_MAX {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(LOOK_EVERY);
    }
    child.kill()?;
    Ok(child.wait()?)
}

/// Reads what a process says, so that it need not wait for anybody.
fn reader(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut said = Vec::new();
        // What was read before it failed is told.
        let _ = pipe.map(|pipe| pipe.take(SAID_MAX).read_to_end(&mut said));
        String::from_utf8_lossy(&said).into_owned()
    })
}

/// Logs what came of it. Returns its name in metrics, if anything was learned.
fn told(model: &str, tenant: &str, said: &Value) -> Option<&'static str> {
    let (version, report) = (&said["version"], &said["report"]);
    match said["state"].as_str() {
        Some("waiting") => {
            tracing::debug!(model, tenant, reason = %said["reason"], "too early to learn");
            None
        }
        Some("promoted") => {
            let seconds = report["seconds"].as_f64();
            tracing::info!(model, tenant, %version, seconds, "what was learned has won, and is served");
            Some("promoted")
        }
        _ => {
            let reasons = &report["gate"]["reasons"];
            tracing::info!(model, tenant, %version, %reasons, "what was learned has not won, and is kept aside");
            Some("refused")
        }
    }
}
