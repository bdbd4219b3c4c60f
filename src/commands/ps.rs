//! `ruvllm ps`: the loaded models of a running server, or all servers that share its memory.

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use crate::flags::server::ServerFlags;
use crate::output::{self, times};

/// List the loaded models of a running server and their activity
#[derive(Debug, Args)]
pub struct Ps {
    #[command(flatten)]
    server: ServerFlags,
    /// List all servers that share the memory of this one (--memory-postgres), with their models
    #[arg(long)]
    all: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Ps {
    pub fn execute(self) -> Result<()> {
        let answer = self.server.client().get(if self.all { "/admin/workers" } else { "/admin/models" })?;
        if self.json {
            return output::json(&answer);
        }
        if self.all {
            return workers(&answer);
        }
        let heading =
            ["model", "running", "waiting", "kv memory", "cached", "context", "backend", "kernels", "prompts"];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        rows.extend(answer["models"].as_array().into_iter().flatten().map(row));
        output::table(&rows)?;
        let adapters: Vec<_> = answer["models"].as_array().into_iter().flatten().filter_map(adapters_row).collect();
        if !adapters.is_empty() {
            output::line("")?;
            let heading = ["model", "adapters", "in memory", "memory", "loads", "evictions"];
            output::table(&[vec![heading.map(str::to_owned).to_vec()], adapters].concat())?;
        }
        output::line("")?;
        output::table(&memory_rows(&answer["memory"]))
    }
}

/// A line for each model of each worker.
fn workers(answer: &Value) -> Result<()> {
    let heading = ["worker", "seen", "model", "running", "waiting", "kv memory", "cached", "version"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(answer["workers"].as_array().into_iter().flatten().flat_map(worker_rows));
    output::table(&rows)?;
    if answer["shared"] != true {
        output::remark("this server's memory is its own: it knows no others (--memory-postgres is for several)");
    }
    Ok(())
}

fn worker_rows(worker: &Value) -> Vec<Vec<String>> {
    let text = |key: &str| worker[key].as_str().unwrap_or_default().to_owned();
    let seen = match (worker["this"].as_bool(), worker["alive"].as_bool()) {
        (Some(true), _) => "this one".to_owned(),
        (_, Some(true)) => times::ago(worker["seen_ms"].as_i64().unwrap_or(0)),
        _ => format!("gone, {}", times::ago(worker["seen_ms"].as_i64().unwrap_or(0))),
    };
    let of_model = |model: &Value| {
        let number = |key: &str| model[key].as_u64().unwrap_or(0);
        let name = model["name"].as_str().unwrap_or_default().to_owned();
        let mut row = vec![text("address"), seen.clone(), name, number("running").to_string()];
        row.extend([number("waiting").to_string(), kv_memory(model), cached(model), text("version")]);
        row
    };
    let rows: Vec<_> = worker["models"].as_array().into_iter().flatten().map(of_model).collect();
    if rows.is_empty() {
        let no_model = ["no model", "", "", "", ""].map(str::to_owned);
        return vec![[vec![text("address"), seen], no_model.to_vec(), vec![text("version")]].concat()];
    }
    rows
}

fn kv_memory(model: &Value) -> String {
    let size = |key: &str| output::bytes(model[key].as_u64().unwrap_or(0));
    format!("{} of {}", size("kv_used_bytes"), size("kv_budget_bytes"))
}

fn cached(model: &Value) -> String {
    let tokens = |key: &str| model[key].as_u64().unwrap_or(0) as f64;
    format!("{:.0} % of prompts", 100.0 * tokens("cached_tokens") / tokens("prompt_tokens").max(1.0))
}

/// How the server's memory is divided.
fn memory_rows(memory: &Value) -> Vec<Vec<String>> {
    let size = |value: &Value| value.as_u64().map_or("?".to_owned(), output::bytes);
    let list = |key: &str| memory[key].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut rows = vec![vec!["memory".to_owned(), "maximum".to_owned()]];
    for model in list("models") {
        let parts = [
            ("weights", "weights_bytes"),
            ("experts on disk", "experts_on_disk_bytes"),
            ("work", "working_bytes"),
            ("work with adapters", "adapter_buffer_bytes"),
            ("KV cache", "kv_bytes"),
        ];
        // Most models have no experts, or have them in memory, and no adapters.
        let is_rare = |key: &str| ["experts_on_disk_bytes", "adapter_buffer_bytes"].contains(&key);
        let is_there = |key: &str| !is_rare(key) || model[key].as_u64().unwrap_or(0) > 0;
        for (part, key) in parts.into_iter().filter(|(_, key)| is_there(key)) {
            rows.push(vec![format!("{}: {part}", text(&model["model"])), size(&model[key])]);
        }
    }
    rows.extend(list("parts").map(|part| vec![text(&part["part"]), size(&part["max_bytes"])]));
    rows.push(vec!["all (--memory)".to_owned(), size(&memory["budget_bytes"])]);
    rows.push(vec!["in use".to_owned(), size(&memory["resident_bytes"])]);
    rows
}

/// The adapters of a model, if it has any.
fn adapters_row(model: &Value) -> Option<Vec<String>> {
    let number = |key: &str| model["adapters"][key].as_u64().unwrap_or(0);
    let memory = format!("{} of {}", output::bytes(number("hot_bytes")), output::bytes(number("budget_bytes")));
    let row = || {
        let name = model["name"].as_str().unwrap_or_default().to_owned();
        let counts = ["registered", "hot"].map(|key| number(key).to_string());
        let [registered, hot] = counts;
        vec![name, registered, hot, memory, number("loads").to_string(), number("evictions").to_string()]
    };
    (number("registered") > 0).then(row)
}

fn row(model: &Value) -> Vec<String> {
    let number = |key: &str| model[key].as_u64().unwrap_or(0);
    vec![
        model["name"].as_str().unwrap_or_default().to_owned(),
        number("running").to_string(),
        number("waiting").to_string(),
        kv_memory(model),
        cached(model),
        number("context").to_string(),
        model["backend"].as_str().unwrap_or_default().to_owned(),
        model["kernels"].as_str().unwrap_or_default().to_owned(),
        model["fast_prefill_from"]
            .as_u64()
            .map_or("exact".to_owned(), |tokens| format!("fast from {tokens} tokens on")),
    ]
}
