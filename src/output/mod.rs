//! Output of commands: results on standard output as text or as one JSON object, remarks on standard error.

pub mod plot;
pub mod progress;
pub mod times;
pub mod training;
pub mod warnings;

use std::io::{self, IsTerminal, Write};

use anstyle::{AnsiColor, Color, Style};
use anyhow::Result;
use serde_json::Value;

const DIM: Style = Style::new().fg_color(Some(Color::Ansi(AnsiColor::BrightBlack)));

/// Writes a line to standard output. A closed pipe is an error, not a panic.
pub fn line(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

/// Writes part of a line and flushes it.
pub fn piece(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Writes a part of a text that is not part of the result to standard error, dimmed on a terminal.
pub fn aside(text: &str) -> Result<()> {
    let mut out = io::stderr().lock();
    if out.is_terminal() {
        write!(out, "{DIM}{text}{DIM:#}")?;
    } else {
        out.write_all(text.as_bytes())?;
    }
    Ok(out.flush()?)
}

/// Writes one JSON object on a line of its own.
pub fn json(value: &Value) -> Result<()> {
    line(&value.to_string())
}

/// Writes a remark that is not part of the result to standard error, dimmed on a terminal.
pub fn remark(text: &str) {
    if io::stderr().is_terminal() {
        eprintln!("{DIM}{text}{DIM:#}");
    } else {
        eprintln!("{text}");
    }
}

/// Replaces control characters other than newlines and tabs, so that text from models and files is safe to print.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// Prints rows with aligned columns; the first row is the heading.
pub fn table(rows: &[Vec<String>]) -> Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        line(cells.join("  ").trim_end())?;
    }
    Ok(())
}

/// Formats a number of bytes for people.
pub fn bytes(count: u64) -> String {
    let units = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    match units.iter().find(|(_, size)| count as f64 >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", count as f64 / size),
        None => format!("{count} B"),
    }
}
