//! `ruvllm cache`: contents and savings of the prefix caches of a running server.

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use crate::flags::server::ServerFlags;
use crate::output;

/// Show what the prefix caches of a running server hold and save, by tenant
#[derive(Debug, Args)]
pub struct Cache {
    #[command(flatten)]
    server: ServerFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Cache {
    pub fn execute(self) -> Result<()> {
        let answer = self.server.client().get("/v1/cache")?;
        if self.json {
            return output::json(&answer);
        }
        answer["models"].as_array().into_iter().flatten().try_for_each(show)
    }
}

fn show(model: &Value) -> Result<()> {
    let number = |key: &str| model[key].as_u64().unwrap_or(0);
    output::line(model["model"].as_str().unwrap_or_default())?;
    let memory = format!("{} of {}", output::bytes(number("used_bytes")), output::bytes(number("budget_bytes")));
    let mut rows = vec![
        vec!["  memory".to_owned(), memory],
        vec!["  pages".to_owned(), format!("{}, {} of them cached", number("pages"), number("cached_pages"))],
        vec![
            "  evicted".to_owned(),
            format!("{}, {} computed again", number("evicted_pages"), number("regretted_pages")),
        ],
    ];
    let disk = &model["disk"];
    if disk.is_object() {
        let number = |key: &str| disk[key].as_u64().unwrap_or(0);
        let (pages, read) = (number("pages"), number("read_pages"));
        rows.push(vec!["  disk".to_owned(), format!("{}, {pages} pages, {read} read", output::bytes(number("bytes")))]);
    }
    for tenant in model["tenants"].as_array().into_iter().flatten() {
        let number = |key: &str| tenant[key].as_u64().unwrap_or(0);
        let name = match tenant["tenant"].as_str() {
            None | Some("") => "  everybody".to_owned(),
            Some(name) => format!("  {}", output::printable(name)),
        };
        let share = 100.0 * number("tokens_saved") as f64 / (number("tokens") as f64).max(1.0);
        rows.push(vec![name, format!("{} prompts, {share:.0} % of their tokens saved", number("lookups"))]);
    }
    output::table(&rows)
}
