//! The server that a launched program talks to: one that runs, or one for as long as the program does.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ruvllm_store::default_home;

use super::MODEL_DEFAULT;
use crate::client::Client;
use crate::loading;
use crate::output::{self, progress};

/// Interval at which a server that starts is asked whether it is ready.
const POLL: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub struct Server {
    /// The model that the program shall use.
    pub model: String,
    /// Its context in tokens, if the server says so.
    pub context: Option<u64>,
    /// Ends with this.
    process: Option<Child>,
}

impl Server {
    pub fn find_or_start(url: &str, port: u16, key: Option<&str>, model: Option<&str>) -> Result<Self> {
        let client = Client::new(url, key.map(str::to_owned));
        match client.status("/health") {
            Ok(200) => Self::running(&client, model, None),
            Ok(_) => bail!("something else than a RuvLLM server answers at {url}; choose another --port"),
            Err(_) => {
                let model = model.unwrap_or(MODEL_DEFAULT);
                let process = start(port, model)?;
                let mut server = Self { model: model.to_owned(), context: None, process: Some(process) };
                server.wait(&client)?;
                Self::running(&client, Some(model), server.process.take())
            }
        }
    }

    /// Returns whether it was started for the program.
    pub fn is_ours(&self) -> bool {
        self.process.is_some()
    }

    fn running(client: &Client, model: Option<&str>, process: Option<Child>) -> Result<Self> {
        let list = client.get("/v1/models")?;
        let models = list["data"].as_array().cloned().unwrap_or_default();
        let named = |name: &str| models.iter().find(|model| model["id"] == name);
        let loaded = || models.iter().find(|model| model["loaded"] == true);
        let found = match model {
            Some(name) => named(name),
            None => loaded().or_else(|| models.first()),
        };
        let name = model.map(str::to_owned).or_else(|| Some(found?["id"].as_str()?.to_owned()));
        let model = name.context("the server has no model: pull one with `ruvllm pull qwen2.5-coder:1.5b`")?;
        Ok(Self { model, context: found.and_then(|found| found["max_model_len"].as_u64()), process })
    }

    /// Waits until it is ready, or has ended.
    fn wait(&mut self, client: &Client) -> Result<()> {
        let interrupted = progress::interrupt_flag();
        while client.status("/ready").ok() != Some(200) {
            let ended = self.process.as_mut().map(Child::try_wait).transpose()?.flatten();
            if ended.is_some() {
                bail!("the server did not start: {} says why", log_path()?.display());
            }
            if interrupted.load(std::sync::atomic::Ordering::Relaxed) {
                bail!(crate::exit::Interrupted);
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            stop(&mut process);
        }
    }
}

fn log_path() -> Result<std::path::PathBuf> {
    Ok(default_home()?.join("launch.log"))
}

/// Starts a server whose log goes to a file. The model is fetched first, where its progress can be seen.
fn start(port: u16, model: &str) -> Result<Child> {
    loading::model_file(model, progress::interrupt_flag())?;
    let path = log_path()?;
    let log = File::create(&path).with_context(|| format!("{} cannot be written", path.display()))?;
    output::remark(&format!("starting a server (its log: {})", path.display()));
    let mut command = Command::new(std::env::current_exe().context("this program cannot find itself")?);
    // It ends with this process, even if that is killed.
    command.args(["serve", model, "--port", &port.to_string(), "--until-input-ends"]);
    command.stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log);
    // Ctrl-C in the terminal is the program's.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.spawn().context("the server cannot be started")
}

/// Lets a server save what it has cached.
fn stop(process: &mut Child) {
    #[cfg(target_os = "linux")]
    if let Some(id) = rustix::process::Pid::from_raw(process.id().cast_signed()) {
        let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        let _ = process.wait();
        return;
    }
    let _ = process.kill();
    let _ = process.wait();
}
