//! `ruvllm kernels load|unload|status`: the packs of a running server.

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};

use crate::flags::server::ServerFlags;
use crate::output;

/// Have a running server use an installed pack, from its next step on
///
/// The server verifies it, compiles it and compares it with the reference first. What it used before is kept for 300 seconds.
#[derive(Debug, Args)]
pub struct Load {
    /// Name of a pack that is installed on the server's machine
    #[arg(value_name = "PACK", required_unless_present = "previous")]
    pack: Option<String>,
    /// Go back to what was used before, up to 300 seconds after a change
    #[arg(long, conflicts_with = "pack")]
    previous: bool,
    /// Model that uses it [default: all that are loaded]
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    #[command(flatten)]
    server: ServerFlags,
}

/// Have a running server use its native kernels, from its next step on
#[derive(Debug, Args)]
pub struct Unload {
    /// Model that uses them [default: all that are loaded]
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    #[command(flatten)]
    server: ServerFlags,
}

/// Show the packs that a running server uses, and what became of their kernels
#[derive(Debug, Args)]
pub struct Status {
    #[command(flatten)]
    server: ServerFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Load {
    pub fn execute(self) -> Result<()> {
        let (path, body) = match &self.pack {
            Some(pack) => ("load", json!({ "pack": pack, "model": self.model })),
            None => ("rollback", json!({ "model": self.model })),
        };
        change(self.server, path, &body)
    }
}

impl Unload {
    pub fn execute(self) -> Result<()> {
        change(self.server, "unload", &json!({ "model": self.model }))
    }
}

impl Status {
    pub fn execute(self) -> Result<()> {
        let list = self.server.client().get("/v1/kernels")?;
        if self.json {
            return output::json(&list);
        }
        print(&list)
    }
}

fn change(server: ServerFlags, what: &str, body: &Value) -> Result<()> {
    let mut response = server.client().post(&format!("/v1/kernels/{what}"), body)?;
    let text = response.body_mut().read_to_string()?;
    print(&serde_json::from_str(&text).context("the response is not JSON")?)
}

fn print(list: &Value) -> Result<()> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let heading = ["MODEL", "PACK", "KERNEL", "CALLS", "FAILED", "STATE"].map(str::to_owned).to_vec();
    let mut rows = vec![heading];
    for model in list["models"].as_array().into_iter().flatten() {
        let name = output::printable(&text(&model["model"]));
        if model["pack"].is_null() {
            rows.push(vec![name, "none: native kernels".to_owned()]);
            continue;
        }
        let unsigned = if model["unsigned"] == true { " (unsigned)" } else { "" };
        let pack = format!("{}@{}{unsigned}", text(&model["pack"]), text(&model["version"]));
        for kernel in model["kernels"].as_array().into_iter().flatten() {
            let state = match (&kernel["disabled"], &kernel["last_fault"]) {
                (Value::Bool(true), fault) => format!("off: {}", text(fault)),
                (_, Value::Null) => "on".to_owned(),
                (_, fault) => format!("on; failed last: {}", text(fault)),
            };
            let counts = ["id", "calls", "failed"].map(|field| text(&kernel[field]));
            rows.push(
                [vec![name.clone(), output::printable(&pack)], counts.to_vec(), vec![output::printable(&state)]]
                    .concat(),
            );
        }
    }
    output::table(&rows)
}
