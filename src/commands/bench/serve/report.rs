//! A self-contained HTML page with plots of a run.

use super::summary::Summary;
use crate::output::plot::{self, Line};

/// The plots: a title, and the value of each point.
type Plot = (&'static str, fn(&Summary) -> f64);

const PLOTS: [Plot; 6] = [
    ("Generated tokens per second", Summary::tok_s),
    ("Answers per second that meet the goal", Summary::goodput),
    ("Time to first token, median (ms)", |summary| summary.ttft.p50),
    ("Time to first token, p99 (ms)", |summary| summary.ttft.p99),
    ("Time between tokens, median (ms)", |summary| summary.inter_token.p50),
    ("Cached share of prompts (%)", |summary| summary.cached_share() * 100.0),
];

/// Returns the page. `about` describes what was measured.
pub fn page(about: &str, summaries: &[Summary]) -> String {
    let mut page = plot::page("ruvllm bench serve", about);
    page.push_str(&plot::legend(&workloads(summaries)));
    for (title, value) in PLOTS {
        page.push_str(&diagram(title, value, summaries));
    }
    let heading = Summary::HEADING.map(str::to_owned).to_vec();
    let rows: Vec<Vec<String>> =
        std::iter::once(heading).chain(summaries.iter().map(|summary| summary.row())).collect();
    page.push_str(&plot::table(&rows));
    page.push_str("</html>\n");
    page
}

/// Returns one diagram: a line for each workload over the number of clients.
fn diagram(title: &str, value: fn(&Summary) -> f64, summaries: &[Summary]) -> String {
    let mut clients: Vec<usize> = summaries.iter().map(|summary| summary.concurrency).collect();
    clients.sort_unstable();
    clients.dedup();
    let line = |name: &'static str| {
        let at = |clients: &usize| {
            let is_it = |summary: &&Summary| summary.workload == name && summary.concurrency == *clients;
            summaries.iter().find(is_it).map(value)
        };
        Line { points: clients.iter().map(at).collect() }
    };
    let lines: Vec<Line> = workloads(summaries).into_iter().map(line).collect();
    let places: Vec<String> = clients.iter().map(ToString::to_string).collect();
    plot::plot(title, "clients", &places, &lines)
}

/// In the order of the runs.
fn workloads(summaries: &[Summary]) -> Vec<&'static str> {
    let mut names = Vec::new();
    for summary in summaries {
        if !names.contains(&summary.workload) {
            names.push(summary.workload);
        }
    }
    names
}
