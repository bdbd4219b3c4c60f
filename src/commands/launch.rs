//! `ruvllm launch`: runs an agent of somebody else with the models of this machine.

mod program;
mod server;

use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use self::program::{Invocation, Program};
use self::server::Server;
use crate::output;

/// Model of a server that is started without one: an agent's prompt needs a long context.
const MODEL_DEFAULT: &str = "qwen2.5-coder:1.5b";

/// Run a coding agent with the models of this machine
///
/// Uses the server that listens on the port, or starts one for as long as the program runs. The program must be
/// installed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ruvllm launch claude\n  ruvllm launch codex --model qwen2.5-coder:0.5b -- exec \
                        \"Explain this folder\"\n  ruvllm launch opencode --print")]
pub struct Launch {
    #[arg(value_enum)]
    program: Program,
    /// Model that the program uses [default: the first that the server has loaded, or qwen2.5-coder:1.5b]
    #[arg(long, short, value_name = "MODEL")]
    model: Option<String>,
    /// Port of the server on this machine
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// API key, if the server requires one
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Show the command and its variables, and run nothing
    #[arg(long)]
    print: bool,
    /// Arguments of the program
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

impl Launch {
    pub fn execute(self) -> Result<()> {
        let url = format!("http://127.0.0.1:{}", self.port);
        if self.print {
            let model = self.model.as_deref().unwrap_or(MODEL_DEFAULT);
            return self.invocation(&url, model, None).print();
        }
        let server = Server::find_or_start(&url, self.port, self.key.as_deref(), self.model.as_deref())?;
        let invocation = self.invocation(&url, &server.model, server.context);
        if server.is_ours() {
            output::remark(&format!("{} is served on {url} until {} ends", server.model, invocation.program));
        }
        // Ctrl-C is the program's.
        let _ = ctrlc::set_handler(|| {});
        let status = Command::new(invocation.program)
            .args(&invocation.arguments)
            .envs(invocation.variables.iter().map(|(name, value)| (name, value)))
            .status()
            .with_context(|| format!("{} cannot be run: {}", invocation.program, self.program.how_to_install()))?;
        drop(server);
        match status.code() {
            Some(0) => Ok(()),
            Some(code) => bail!("{} ended with the exit code {code}", invocation.program),
            None => bail!("{} was ended by a signal", invocation.program),
        }
    }

    fn invocation(&self, url: &str, model: &str, context: Option<u64>) -> Invocation {
        let key = self.key.as_deref().unwrap_or("ruvllm");
        self.program.invocation(url, model, key, context, &self.arguments)
    }
}
