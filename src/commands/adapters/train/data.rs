//! Reads the lines of a file into items.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};
use ruvllm_runtime::ItemEncoder;
use ruvllm_training::Item;

/// A line is one conversation or text.
const LINE_BYTES_MAX: u64 = 8 << 20;
/// More is days of work for a small model.
const LINES_MAX: usize = 1_000_000;
const TOKENS_MAX: usize = 100_000_000;

/// Reads all items of a file; empty lines are left out. Errors name the line.
pub fn read(path: &Path, encoder: &mut ItemEncoder) -> Result<Vec<Item>> {
    let name = path.display();
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    let mut reader = BufReader::new(file);
    let (mut items, mut tokens, mut bytes) = (Vec::new(), 0, Vec::new());
    for number in 1.. {
        bytes.clear();
        let at = || format!("{name}, line {number}");
        reader.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut bytes).with_context(at)?;
        if bytes.is_empty() {
            break;
        }
        if bytes.len() as u64 > LINE_BYTES_MAX {
            bail!("{}: it has more than {LINE_BYTES_MAX} bytes", at());
        }
        if number > LINES_MAX {
            bail!("{name} has more than {LINES_MAX} lines");
        }
        let line = std::str::from_utf8(&bytes).with_context(|| format!("{}: it is not UTF-8 text", at()))?;
        if line.trim().is_empty() {
            continue;
        }
        let more = encoder.encode(line, number).with_context(at)?;
        tokens += more.iter().map(Item::rows).sum::<usize>();
        if tokens > TOKENS_MAX {
            bail!("{name} has more than {TOKENS_MAX} tokens up to line {number}: give fewer lines");
        }
        items.extend(more);
    }
    if items.is_empty() {
        bail!("{name} is empty: give one JSON object per line, such as {{\"prompt\": \"…\", \"completion\": \"…\"}}");
    }
    Ok(items)
}
