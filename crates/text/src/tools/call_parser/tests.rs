use proptest::prelude::*;

use super::super::Explanation;
use super::*;

/// What the pieces say, with neighbours joined: text, `[name`, arguments, `]`.
fn parsed(format: ToolFormat, pieces: &[&str]) -> Vec<String> {
    let mut parser = ToolCallParser::new(format);
    let mut all: Vec<ToolPiece> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    all.extend(parser.finish());
    let mut out: Vec<(char, String)> = Vec::new();
    for piece in all {
        let (kind, text) = match piece {
            ToolPiece::Text(text) => ('t', text),
            ToolPiece::Call { index, name } => ('c', format!("{index}:{name}")),
            ToolPiece::Arguments { delta, .. } => ('a', delta),
            ToolPiece::CallEnd { index } => ('e', format!("{index}")),
        };
        match out.last_mut() {
            Some(last) if last.0 == kind && "ta".contains(kind) => last.1 += &text,
            _ => out.push((kind, text)),
        }
    }
    out.into_iter().map(|(kind, text)| format!("{kind} {text}")).collect()
}

fn check(format: ToolFormat, text: &str, expect: &[&str]) {
    assert_eq!(parsed(format, &[text]), expect, "{text:?} in one piece");
    let chars: Vec<String> = text.chars().map(String::from).collect();
    let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
    assert_eq!(parsed(format, &chars), expect, "{text:?} in single characters");
}

const TWO_CALLS: &str = "Let me see.\n<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": \"}]\\\"\", \"b\": [{}]}}\n\
                         </tool_call>\n<tool_call>\n{\"name\": \"put\", \"arguments\": {}}\n</tool_call>\n";

#[test]
fn calls_are_found_between_tags() {
    use ToolFormat::Hermes;
    let expect = ["t Let me see.\n", "c 0:get", "a {\"a\": \"}]\\\"\", \"b\": [{}]}", "e 0", "c 1:put", "a {}", "e 1"];
    check(Hermes, TWO_CALLS, &expect);
    check(ToolFormat::Generic(Explanation::SystemMessage), TWO_CALLS, &expect);
    check(Hermes, "Just <text> with a < b and <tool_", &["t Just <text> with a < b and <tool_"]);
    check(Hermes, "", &[]);
    let compact = "<tool_call>{\"name\":\"a\",\"arguments\":{\"x\":1}}</tool_call> and text";
    check(Hermes, compact, &["c 0:a", "a {\"x\":1}", "e 0", "t  and text"]);
}

#[test]
fn arguments_come_out_as_they_are_written() {
    let mut parser = ToolCallParser::new(ToolFormat::Hermes);
    assert!(parser.push("<tool_call>\n{\"name\": \"f\", \"arguments\": ").is_empty());
    let pieces = parser.push("{\"x\": ");
    let delta = |delta: &str| ToolPiece::Arguments { index: 0, delta: delta.into() };
    assert_eq!(pieces, [ToolPiece::Call { index: 0, name: "f".into() }, delta("{\"x\": ")]);
    assert_eq!(parser.push("1"), [delta("1")]);
    assert_eq!(parser.push("}}\n</tool"), [delta("}"), ToolPiece::CallEnd { index: 0 }]);
    assert_eq!(parser.calls(), 1);
    assert_eq!((parser.push("_call>"), parser.finish()), (vec![], vec![]));
}

#[test]
fn what_only_looks_like_a_call_is_text() {
    use ToolFormat::Hermes;
    for text in [
        "<tool_call> is a tag",
        "<tool_call>\n{\"arguments\": {}, \"name\": \"f\"}\n</tool_call>",
        "<tool_call>\n{\"name\": \"\", \"arguments\": {}}",
        "<tool_call>\n{\"name\": 3, \"arguments\": {}}",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": []}",
        "<tool_call>\n{\"name\": \"f\", \"parameters\": {}}",
        "<tool_call>\n{\"name\": \"f\", \"argu",
        "<tool_call>",
    ] {
        check(Hermes, text, &[&format!("t {text}")]);
    }
    let long = format!("<tool_call>\n{{\"name\": \"{}\", \"arguments\": {{}}}}", "x".repeat(2_000));
    check(Hermes, &long, &[&format!("t {long}")]);
    // A real call may follow.
    let text = "<tool_call> no <tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    check(Hermes, text, &["t <tool_call> no ", "c 0:f", "a {}", "e 0"]);
}

#[test]
fn a_call_that_is_cut_off_has_no_end() {
    let cut = "Hm.<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"ab";
    check(ToolFormat::Hermes, cut, &["t Hm.", "c 0:f", "a {\"x\": \"ab"]);
    let cut = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool";
    check(ToolFormat::Hermes, cut, &["c 0:f", "a {}", "e 0"]);
}

#[test]
fn bare_calls_stand_alone() {
    use ToolFormat::BareJson;
    let call = "{\"name\": \"f\", \"parameters\": {\"x\": {}}}";
    check(BareJson, call, &["c 0:f", "a {\"x\": {}}", "e 0"]);
    check(BareJson, &format!("\n {call}\n"), &["c 0:f", "a {\"x\": {}}", "e 0"]);
    check(BareJson, &format!("Call: {call}"), &[&format!("t Call: {call}")]);
    check(BareJson, "{\"name\": \"Ann\", \"age\": 3}", &["t {\"name\": \"Ann\", \"age\": 3}"]);
    check(BareJson, "{\"na", &["t {\"na"]);
    check(BareJson, "  ", &["t   "]);
}

proptest! {
    #[test]
    fn any_division_gives_the_same_pieces(
        parts in prop::collection::vec(prop::sample::select(vec![
            "text ", "<", "<tool_call>", "\n", "{\"name\": \"f\", ", "\"arguments\": ", "{\"x\": \"}\\\"\"}", "}",
            "</tool_call>", " ", "é", "{\"name\": \"g\", \"arguments\": {\"y\": [1]}}", "{\"name\": \"h\", \"parameters\": {}}",
        ]), 0..12),
        divisions in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        format in prop::sample::select(vec![ToolFormat::Hermes, ToolFormat::BareJson]),
    ) {
        let text = parts.concat();
        let chars: Vec<char> = text.chars().collect();
        let mut places: Vec<usize> = divisions.iter().map(|place| place.index(chars.len() + 1)).collect();
        places.extend([0, chars.len()]);
        places.sort_unstable();
        let pieces: Vec<String> = places.windows(2).map(|ends| chars[ends[0]..ends[1]].iter().collect()).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        prop_assert_eq!(parsed(format, &pieces), parsed(format, &[&text]));
    }
}
