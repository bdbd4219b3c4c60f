//! `ruvllm ps`: the loaded models of a running server.

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use crate::flags::server::ServerFlags;
use crate::output;

/// List the loaded models of a running server and their activity
#[derive(Debug, Args)]
pub struct Ps {
    #[command(flatten)]
    server: ServerFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Ps {
    pub fn execute(self) -> Result<()> {
        let answer = self.server.client().get("/admin/models")?;
        if self.json {
            return output::json(&answer);
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
    let memory = format!("{} of {}", output::bytes(number("kv_used_bytes")), output::bytes(number("kv_budget_bytes")));
    let cached = 100.0 * number("cached_tokens") as f64 / (number("prompt_tokens") as f64).max(1.0);
    vec![
        model["name"].as_str().unwrap_or_default().to_owned(),
        number("running").to_string(),
        number("waiting").to_string(),
        memory,
        format!("{cached:.0} % of prompts"),
        number("context").to_string(),
        model["backend"].as_str().unwrap_or_default().to_owned(),
        model["kernels"].as_str().unwrap_or_default().to_owned(),
        model["fast_prefill_from"]
            .as_u64()
            .map_or("exact".to_owned(), |tokens| format!("fast from {tokens} tokens on")),
    ]
}
