//! Any text as an answer: taken apart in one piece and in many, the result is the same and nothing is lost.
//!
//! The first byte says which format it is in, the second how long the pieces are.

use ruvllm_text::{ToolCallParser, ToolFormat, ToolPiece};

pub fn run(bytes: &[u8]) {
    let [kind, size, text @ ..] = bytes else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let format = if kind & 1 == 1 { ToolFormat::BareJson } else { ToolFormat::Hermes };
    let chars: Vec<char> = text.chars().collect();
    let pieces: Vec<String> = chars.chunks(usize::from(size % 16) + 1).map(|chunk| chunk.iter().collect()).collect();
    assert_eq!(parsed(format, pieces.iter().map(String::as_str)), parsed(format, [text]));
}

/// The pieces as one text, with marks between their kinds.
fn parsed<'t>(format: ToolFormat, pieces: impl IntoIterator<Item = &'t str>) -> String {
    let mut parser = ToolCallParser::new(format);
    let mut all: Vec<ToolPiece> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    all.extend(parser.finish());
    all.into_iter()
        .map(|piece| match piece {
            ToolPiece::Text(text) => text,
            ToolPiece::Call { index, name } => format!("\0call {index} {name}\0"),
            ToolPiece::Arguments { delta, .. } => delta,
            ToolPiece::CallEnd { index } => format!("\0end {index}\0"),
        })
        .collect()
}
