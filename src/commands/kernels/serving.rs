//! `ruvllm kernels load|unload|status`: the packs of a running server.

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};

use crate::flags::server::ServerFlags;
use crate::output;

/// Have a running server use installed packs, from its next step on
///
/// The server verifies them, compiles them and compares them with the reference first. What it used before is kept for 300
/// seconds.
#[derive(Debug, Args)]
pub struct Load {
    /// Names of packs that are installed on the server's machine
    #[arg(value_name = "PACK", required_unless_present = "previous")]
    packs: Vec<String>,
    /// Go back to what was used before, up to 300 seconds after a change
    #[arg(long, conflicts_with_all = ["packs", "kernel_choice"])]
    previous: bool,
    /// What computes an operation that the packs have kernels for: `always` a pack, or what is `faster` on the server's machine,
    /// the native kernel or a pack's [default: what the server was started with]
    #[arg(long, value_name = "CHOICE", value_parser = ["always", "faster"])]
    kernel_choice: Option<String>,
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
        let Self { packs, previous, kernel_choice, model, server } = self;
        if previous {
            return change(server, "rollback", &json!({ "model": model }));
        }
        change(server, "load", &json!({ "packs": packs, "model": model, "choice": kernel_choice }))
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

fn text(value: &Value) -> String {
    output::printable(&value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

fn each(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn print(list: &Value) -> Result<()> {
    let heading = ["MODEL", "PACK", "KERNEL", "CALLS", "FAILED", "STATE"].map(str::to_owned).to_vec();
    let mut rows = vec![heading];
    for model in each(&list["models"]) {
        let name = text(&model["model"]);
        let packs: Vec<String> = each(&model["packs"]).map(|pack| text(&pack["pack"])).collect();
        if packs.is_empty() {
            rows.push(vec![name, "none: native kernels".to_owned()]);
        } else if each(&model["kernels"]).next().is_none() {
            rows.push(vec![name, format!("nothing of {}: native kernels", packs.join(", "))]);
        }
        for kernel in each(&model["kernels"]) {
            let state = match (&kernel["disabled"], &kernel["last_fault"]) {
                (Value::Bool(true), fault) => format!("off: {}", text(fault)),
                (_, Value::Null) => "on".to_owned(),
                (_, fault) => format!("on; failed last: {}", text(fault)),
            };
            let of_kernel = ["pack", "id", "calls", "failed"].map(|field| text(&kernel[field]));
            rows.push([vec![text(&model["model"])], of_kernel.to_vec(), vec![state]].concat());
        }
    }
    output::table(&rows)?;
    each(&list["models"]).try_for_each(|model| {
        each(&model["operations"]).try_for_each(|operation| {
            let [operation, chosen, why] = ["operation", "chosen", "why"].map(|field| text(&operation[field]));
            output::line(&format!("{}: {operation} by {chosen}: {why}", text(&model["model"])))
        })
    })
}
