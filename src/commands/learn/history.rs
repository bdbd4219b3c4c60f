//! `ruvllm learn history`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use ruvllm_learning::Report;
use ruvllm_memory::{LearnedVersion, ScopeState};
use serde_json::json;

use super::serving::served;
use crate::flags::memory::MemoryLocationFlags;
use crate::flags::scope::{ScopeFlags, describe};
use crate::output::plot::{self, Line};
use crate::output::{self, times};

/// List the versions that were learned, with the figures that they were judged by
#[derive(Debug, Args)]
pub struct History {
    /// The model
    model: String,
    #[command(flatten)]
    scope: ScopeFlags,
    /// Write a page that shows the losses over the versions
    #[arg(long, value_name = "FILE.html")]
    plot: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

impl History {
    pub fn execute(self) -> Result<()> {
        let memory = self.memory.open()?;
        let scope = self.scope.of_named(&self.model)?;
        let versions = memory.learning().versions(&scope)?;
        let state = memory.learning().scope_state(&scope)?;
        if let Some(path) = &self.plot {
            if versions.is_empty() {
                bail!("nothing was learned yet of {}: there is nothing to plot", describe(&scope));
            }
            write_plot(path, &describe(&scope), &versions)?;
        }
        if self.json {
            return output::json(&json!({ "scope": scope, "served": state, "versions": versions }));
        }
        if versions.is_empty() {
            output::remark(&format!("nothing was learned yet of {}: see `ruvllm learn now`", describe(&scope)));
            return Ok(());
        }
        output::table(&rows(&versions, &state))?;
        output::remark(&served(&scope, &state));
        Ok(())
    }
}

/// Returns the figures of the gate. What was written by another version of the program may have others.
pub fn gate_of(version: &LearnedVersion) -> Option<Report> {
    serde_json::from_value(version.body.report.get("gate")?.clone()).ok()
}

/// Returns the change of the loss against something, and what it lies between.
pub fn change(report: &Report, against: &str) -> Option<String> {
    let one = report.comparisons.iter().find(|one| one.against == against)?;
    let percent = |share: f64| format!("{:+.1}", 100.0 * share);
    let interval = one.interval;
    Some(format!("{} % ({} to {})", percent(interval.change), percent(interval.low), percent(interval.high)))
}

fn rows(versions: &[LearnedVersion], state: &ScopeState) -> Vec<Vec<String>> {
    let heading =
        ["VERSION", "MADE", "STATE", "ITEMS", "LOSS", "AGAINST MODEL", "AGAINST SERVED", "GENERAL", "ADAPTER"];
    let row = |version: &LearnedVersion| {
        let report = gate_of(version);
        let figure = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let state = match version.version == state.version {
            true => format!("{}, served", version.state.name()),
            false => version.state.name().to_owned(),
        };
        vec![
            version.version.to_string(),
            times::ago(version.at_ms),
            state,
            figure(version.body.report["items"]["training"].as_u64().map(|count| count.to_string())),
            figure(report.as_ref().map(|report| format!("{:.4}", report.loss))),
            figure(report.as_ref().and_then(|report| change(report, "base"))),
            figure(report.as_ref().and_then(|report| change(report, "served"))),
            figure(report.as_ref().map(|report| format!("{:+.2} %", 100.0 * report.general.rise))),
            version.body.adapter.chars().take(12).collect(),
        ]
    };
    std::iter::once(heading.map(str::to_owned).to_vec()).chain(versions.iter().map(row)).collect()
}

fn write_plot(path: &Path, about: &str, versions: &[LearnedVersion]) -> Result<()> {
    let names = ["candidate", "base", "served", "ngram", "examples"];
    let reports: Vec<Option<Report>> = versions.iter().map(gate_of).collect();
    let loss = |report: &Report, name: &str| match name {
        "candidate" => Some(report.loss),
        against => report.comparisons.iter().find(|one| one.against == against).map(|one| one.loss),
    };
    let of = |name: &str| reports.iter().map(|report| loss(report.as_ref()?, name)).collect::<Vec<_>>();
    let lines: Vec<Line> = names.iter().map(|name| Line { points: of(name) }).collect();
    let general =
        |value: fn(&Report) -> f64| Line { points: reports.iter().map(|one| one.as_ref().map(value)).collect() };
    let general = [general(|report| report.general.candidate), general(|report| report.general.base)];
    let places: Vec<String> = versions.iter().map(|version| version.version.to_string()).collect();
    let mut page = plot::page("ruvllm learn history", about);
    page.push_str(&plot::legend(&names));
    page.push_str(&plot::plot("Loss on what is held out (nats per token)", "version", &places, &lines));
    page.push_str(&plot::plot("Loss on general texts (nats per token)", "version", &places, &general));
    page.push_str(&plot::table(&rows(versions, &ScopeState::default())));
    page.push_str("</html>\n");
    std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
    output::remark(&format!("written: {}", path.display()));
    Ok(())
}
