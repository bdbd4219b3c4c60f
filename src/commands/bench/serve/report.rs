//! A page with plots of a run, for those who would rather look than read. One file, nothing is loaded from elsewhere.

use std::fmt::Write;

use super::summary::Summary;

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 260.0;
const MARGIN: f64 = 48.0;
/// Told apart by those who do not see all colours, too: their lightness differs.
const COLOURS: [&str; 5] = ["#0b5394", "#e69138", "#6aa84f", "#a64d79", "#777777"];

/// What is shown of a run: a title, and the value of each point.
type Plot = (&'static str, fn(&Summary) -> f64);

const PLOTS: [Plot; 6] = [
    ("Generated tokens per second", Summary::tok_s),
    ("Good answers per second", Summary::goodput),
    ("Time to first token, median (ms)", |summary| summary.ttft.p50),
    ("Time to first token, 99 % (ms)", |summary| summary.ttft.p99),
    ("Time between tokens, median (ms)", |summary| summary.inter_token.p50),
    ("Share of prompts that was cached (%)", |summary| summary.cached_share() * 100.0),
];

/// The page. `about` says what was measured.
pub fn page(about: &str, summaries: &[Summary]) -> String {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>ruvllm bench serve</title>\n<style>body{{font:14px \
         system-ui,sans-serif;margin:2em;color-scheme:light dark}}svg{{margin:0 1.5em 1.5em 0}}td,th{{padding:.2em .8em;\
         text-align:right}}text{{fill:currentColor;font-size:11px}}</style>\n<h1>ruvllm bench serve</h1>\n<p>{}</p>\n<p>",
        escape(about)
    );
    for (index, name) in workloads(summaries).into_iter().enumerate() {
        let _ = write!(page, "<span style=\"color:{}\">&#9632; {name}</span> ", COLOURS[index % COLOURS.len()]);
    }
    page.push_str("</p>\n");
    for (title, value) in PLOTS {
        page.push_str(&plot(title, value, summaries));
    }
    page.push_str("<table><tr>");
    for cell in Summary::HEADING {
        let _ = write!(page, "<th>{cell}</th>");
    }
    for summary in summaries {
        page.push_str("</tr>\n<tr>");
        for cell in summary.row() {
            let _ = write!(page, "<td>{}</td>", escape(&cell));
        }
    }
    page.push_str("</tr></table></html>\n");
    page
}

/// One diagram: a line for each workload over the number of clients.
fn plot(title: &str, value: fn(&Summary) -> f64, summaries: &[Summary]) -> String {
    let most = summaries.iter().map(value).fold(0.0, f64::max).max(1e-9) * 1.05;
    let mut clients: Vec<usize> = summaries.iter().map(|summary| summary.concurrency).collect();
    clients.sort_unstable();
    clients.dedup();
    let x = |concurrency: usize| {
        let place = clients.iter().position(|other| *other == concurrency).unwrap_or(0) as f64;
        MARGIN + place / (clients.len().max(2) - 1) as f64 * (WIDTH - 1.5 * MARGIN)
    };
    let y = |value: f64| HEIGHT - MARGIN + value / most * (1.5 * MARGIN - HEIGHT);
    let mut svg = format!(
        "<svg width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" aria-label=\"{title}\"><text x=\"{MARGIN}\" y=\"14\" \
         style=\"font-weight:bold\">{title}</text>\n"
    );
    for step in 0..=4 {
        let level = most * f64::from(step) / 4.0;
        let _ = writeln!(
            svg,
            "<line x1=\"{MARGIN}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" stroke=\"currentColor\" opacity=\"0.2\"/><text x=\"{}\" \
             y=\"{}\" text-anchor=\"end\">{}</text>",
            WIDTH - MARGIN / 2.0,
            MARGIN - 5.0,
            y(level) + 4.0,
            short(level),
            y = y(level),
        );
    }
    for concurrency in &clients {
        let below = HEIGHT - MARGIN + 16.0;
        let _ =
            writeln!(svg, "<text x=\"{}\" y=\"{below}\" text-anchor=\"middle\">{concurrency}</text>", x(*concurrency));
    }
    let _ = writeln!(svg, "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">clients</text>", WIDTH / 2.0, HEIGHT - 12.0);
    for (index, name) in workloads(summaries).into_iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let points: Vec<(f64, f64)> = summaries
            .iter()
            .filter(|summary| summary.workload == name)
            .map(|summary| (x(summary.concurrency), y(value(summary))))
            .collect();
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (x, y) in points {
            let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// In the order in which they ran.
fn workloads(summaries: &[Summary]) -> Vec<&'static str> {
    let mut names = Vec::new();
    for summary in summaries {
        if !names.contains(&summary.workload) {
            names.push(summary.workload);
        }
    }
    names
}

/// A number of three digits or so.
fn short(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
