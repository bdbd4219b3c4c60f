//! The tables of a report, on standard output.

use crate::candidates::RUVLLM;
use crate::ceilings;
use crate::report::{Line, ModelReport, Outcome, Report, Unit};

pub fn print(report: &Report) {
    for model in &report.models {
        print_model(report, model);
    }
    println!();
    ceilings::lines(&report.ceilings).iter().for_each(|line| println!("{line}"));
    report.remarks.iter().for_each(|remark| println!("Note: {remark}."));
}

fn print_model(report: &Report, model: &ModelReport) {
    let megabytes = model.model.file_bytes as f64 / 1e6;
    println!("\n{} ({megabytes:.1} MB), {} threads, {}", model.model.name, report.machine.threads, report.machine.cpu);
    println!(
        "Medians of {} samples. Ratios above 1: RuvLLM is ahead, both in their best setting.\n",
        report.repetitions
    );
    let mut rows = vec![heading(model)];
    rows.extend(model.lines.iter().map(|line| row(model, line)));
    print_columns(&rows);
    println!();
    for (engine, text) in descriptions(model) {
        println!("{engine}: {text}");
    }
    print_failures(model);
    model.warnings.iter().for_each(|warning| println!("\n*** {warning} ***"));
}

fn heading(model: &ModelReport) -> Vec<String> {
    let names = model.candidates.iter().map(|candidate| format!("{} {}", candidate.engine, candidate.setting));
    let peers = peers(model).into_iter().map(|peer| format!("vs {peer}"));
    let shares = ["share".to_owned(), "best peer's".to_owned()];
    ["".to_owned(), "".to_owned()].into_iter().chain(names).chain(peers).chain(shares).collect()
}

fn row(model: &ModelReport, line: &Line) -> Vec<String> {
    let mut cells = vec![line.task.clone(), line.unit.to_string()];
    cells.extend(line.results.iter().map(|result| value(result, line.unit)));
    for peer in peers(model) {
        let ratio = line.ratios.iter().find(|ratio| ratio.peer == peer);
        let unfair = if model.warnings.is_empty() { "" } else { " (unfair)" };
        cells.push(ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.2}{unfair}", ratio.ratio)));
    }
    let share = |own: bool| {
        let of_interest = model.candidates.iter().zip(&line.results).filter(|(c, _)| (c.engine == RUVLLM) == own);
        let best = of_interest.filter_map(|(_, result)| result.share).reduce(f64::max);
        best.map_or_else(String::new, |share| format!("{:.0} %", share * 100.0))
    };
    cells.extend([share(true), share(false)]);
    cells
}

fn value(result: &Outcome, unit: Unit) -> String {
    if result.samples.failure.is_some() {
        return "failed".to_owned();
    }
    match (result.value, unit) {
        (Some(value), unit) => unit.show(value.median),
        (None, _) => "-".to_owned(),
    }
}

/// The peers in the order of the candidates.
fn peers(model: &ModelReport) -> Vec<String> {
    let mut peers: Vec<String> = model.candidates.iter().map(|candidate| candidate.engine.clone()).collect();
    peers.dedup();
    peers.retain(|engine| engine != RUVLLM);
    peers
}

/// Each engine's version and build, once.
fn descriptions(model: &ModelReport) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for candidate in model.candidates.iter().filter(|candidate| !candidate.version.is_empty()) {
        if all.iter().all(|(engine, _)| *engine != candidate.engine) {
            let buffers = candidate.weight_buffers.join("; ");
            let buffers = if buffers.is_empty() { String::new() } else { format!("; {buffers}") };
            let text = format!("{}; {}{buffers}", candidate.version, candidate.system_info.trim());
            all.push((candidate.engine.clone(), text));
        }
    }
    all
}

/// Every reason once, with all the tasks that it spoiled.
fn print_failures(model: &ModelReport) {
    for (index, candidate) in model.candidates.iter().enumerate() {
        let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
        for line in &model.lines {
            let Some(reason) = &line.results[index].samples.failure else { continue };
            match reasons.iter_mut().find(|(known, _)| known == reason) {
                Some((_, tasks)) => tasks.push(&line.task),
                None => reasons.push((reason, vec![&line.task])),
            }
        }
        for (reason, tasks) in reasons {
            println!("failed: {} {}: {}: {reason}", candidate.engine, candidate.setting, tasks.join(", "));
        }
    }
}

/// Columns of equal width, the first two to the left and figures to the right.
pub fn print_columns(rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.trim().chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        let cell = |(column, (text, width)): (usize, (&String, &usize))| match column {
            0 | 1 => format!("{:<width$}", text.trim()),
            _ => format!("{:>width$}", text.trim()),
        };
        let cells: Vec<String> = row.iter().zip(&widths).enumerate().map(cell).collect();
        println!("{}", cells.join("  ").trim_end());
    }
}
