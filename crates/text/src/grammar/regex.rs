//! Regular expressions: read once with `regex-syntax`, which bounds their nesting and reports what is wrong and where.

use llguidance::regex_to_lark;
use regex_syntax::ast::parse::ParserBuilder;
use regex_syntax::ast::{AssertionKind, Ast};
use regex_syntax::hir::translate::Translator;
use regex_syntax::hir::{Hir, HirKind};

use super::GrammarError;
use super::limits::{GRAMMAR_BYTES_MAX, GRAMMAR_DEPTH_MAX};

/// A Lark grammar for exactly this expression. Anchors at both ends say what goes without saying, and are taken off.
pub(super) fn to_lark(pattern: &str) -> Result<String, GrammarError> {
    let ast = parsed(pattern)?;
    let pattern = without_anchors(pattern, &ast);
    if pattern.is_empty() {
        return Ok("start: \"\"\n".to_owned());
    }
    Ok(format!("start: /{}/\n", regex_to_lark(pattern, "")))
}

/// Whether an expression inside a grammar can be handed on.
pub(super) fn check(pattern: &str) -> Result<(), GrammarError> {
    parsed(pattern).map(drop)
}

/// Whether an expression for a string in JSON can be handed on.
pub(super) fn check_in_json(pattern: &str) -> Result<(), GrammarError> {
    let ast = parsed(pattern)?;
    let refused = |problem: String| GrammarError::Regex { pattern: shortened(pattern), problem };
    let hir = Translator::new().translate(pattern, &ast);
    let hir = hir.map_err(|error| refused(format!("is not understood: {}", error.kind())))?;
    if spells_control_characters(&hir) {
        return Err(refused("demands a control character, which cannot be written in JSON without \\u".to_owned()));
    }
    Ok(())
}

/// Control characters that JSON can only write as `\uXXXX`. llguidance would leave them out.
pub(super) fn needs_unicode_escape(char: char) -> bool {
    char.is_ascii_control() && !matches!(char, '\u{8}' | '\u{C}' | '\n' | '\r' | '\t')
}

/// Nesting was bounded when the expression was read.
fn spells_control_characters(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Literal(literal) => literal.0.iter().any(|&byte| needs_unicode_escape(char::from(byte))),
        HirKind::Repetition(repetition) => spells_control_characters(&repetition.sub),
        HirKind::Capture(capture) => spells_control_characters(&capture.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().any(spells_control_characters),
        HirKind::Empty | HirKind::Class(_) | HirKind::Look(_) => false,
    }
}

fn parsed(pattern: &str) -> Result<Ast, GrammarError> {
    if pattern.len() > GRAMMAR_BYTES_MAX {
        let what = "regular expression";
        return Err(GrammarError::TooLong { what, got: pattern.len(), max: GRAMMAR_BYTES_MAX });
    }
    let mut parser = ParserBuilder::new().nest_limit(GRAMMAR_DEPTH_MAX as u32).build();
    parser.parse(pattern).map_err(|error| GrammarError::Regex {
        pattern: shortened(pattern),
        problem: format!("is not understood at character {}: {}", error.span().start.offset, error.kind()),
    })
}

/// The expression without `^` at its beginning and `$` at its end; with alternatives outside of any group, these
/// would belong to one of them only.
fn without_anchors<'p>(pattern: &'p str, ast: &Ast) -> &'p str {
    let is = |ast: &Ast, kinds: [AssertionKind; 2]| match ast {
        Ast::Assertion(assertion) => kinds.contains(&assertion.kind),
        _ => false,
    };
    let starts = [AssertionKind::StartLine, AssertionKind::StartText];
    let ends = [AssertionKind::EndLine, AssertionKind::EndText];
    let parts = match ast {
        Ast::Concat(concat) => concat.asts.as_slice(),
        single => std::slice::from_ref(single),
    };
    let (mut from, mut to) = (0, pattern.len());
    if let Some(first) = parts.first().filter(|first| is(first, starts)) {
        from = first.span().end.offset;
    }
    if let Some(last) = parts.last().filter(|last| is(last, ends)) {
        to = last.span().start.offset;
    }
    &pattern[from..to.max(from)]
}

/// Errors quote what is wrong, but not all of 64 KiB.
fn shortened(pattern: &str) -> String {
    const SHOWN_MAX: usize = 100;
    match pattern.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}...", &pattern[..end]),
        None => pattern.to_owned(),
    }
}
