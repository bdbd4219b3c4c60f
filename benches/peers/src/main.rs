//! `cargo run --release -p peers`: RuvLLM beside its peers, on the same files and prompts, in one interleaved run.
//!
//! This process measures nothing itself but the machine's ceilings: it starts one process for each engine and setting
//! (`peers-engines`, and itself for RuvLLM), gives them work in turns, and writes down what they say. With `--agree` it
//! compares what they compute instead.

mod agreement;
mod candidates;
mod ceilings;
mod fairness;
mod machine;
mod models;
mod options;
mod peers_build;
mod process;
mod progress;
mod report;
mod ruvllm;
mod schedule;
mod spread;
mod synthetic;
mod table;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use ruvllm_kernels::ceilings::Ceilings;

use crate::options::Options;
use crate::report::Report;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // How this program starts itself as the measured process of RuvLLM.
        [_, candidates::RUVLLM, start] => peers_protocol::serve(start, ruvllm::load),
        _ => compare(&Options::parse()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn compare(options: &Options) -> Result<()> {
    options.check()?;
    let machine = machine::Machine::detect(options.threads);
    for remark in machine.remarks() {
        eprintln!("note: {remark}");
    }
    let mut names = options.models.clone();
    if let Some(folder) = &options.synthetic {
        names.extend(synthetic::ensure_all(folder, &options.shapes)?);
    }
    let models = models::find_all(&names)?;
    let candidates = candidates::prepare(options)?;
    if options.agree {
        return models.iter().try_for_each(|model| agreement::compare(model, &candidates, options, &machine));
    }
    eprintln!("measuring what this machine can do at most ({} threads)", machine.threads);
    let ceilings = Ceilings::measure(machine.threads);
    let mut report = Report::new(options, &machine, ceilings);
    let path = options.report_path(&report.date, &models);
    for model in &models {
        let measured = schedule::measure(model, &candidates, options, &machine);
        report.add(model, measured, &machine);
        // After each model, so that what was measured stays when a later one fails.
        report.write(&path)?;
    }
    table::print(&report);
    println!("\nAll samples: {}", path.display());
    Ok(())
}
