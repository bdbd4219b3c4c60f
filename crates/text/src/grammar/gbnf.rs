//! llama.cpp's grammar format, as Lark.
//!
//! GBNF is a grammar over characters, while llguidance cuts text into lexemes first and always takes the longest. So
//! the parts of a grammar that are regular become lexemes only where taking the longest can never be wrong
//! ([`lexemes`]); elsewhere they are divided, down to single characters if need be. The language stays exactly the
//! same, and the usual grammars (quoted strings, numbers, words) keep large lexemes, which are fast.

mod char_set;
mod lexemes;
mod parse;
mod position_automaton;
mod rules;
mod write;

use super::GrammarError;
use char_set::CharSet;

const WHAT: &str = "GBNF grammar";

/// As in llama.cpp.
const REPETITIONS_MAX: u32 = 2_000;

/// A part of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Node {
    /// One character of these.
    Chars(CharSet),
    Sequence(Vec<Node>),
    Either(Vec<Node>),
    Repeat {
        of: Box<Node>,
        min: u32,
        max: Option<u32>,
    },
    /// The rule with this number.
    Rule(usize),
}

/// The rules of a grammar; every reference has been resolved.
#[derive(Debug)]
struct Rules {
    bodies: Vec<Node>,
    /// Where each is defined.
    lines: Vec<usize>,
    names: Vec<String>,
    root: usize,
}

pub(super) fn to_lark(source: &str) -> Result<String, GrammarError> {
    let rules = parse::rules(source)?;
    rules.refuse_left_recursion()?;
    let division = lexemes::divide(&rules);
    Ok(write::lark(&rules, &division))
}

fn syntax_error(line: usize, problem: impl Into<String>) -> GrammarError {
    GrammarError::Syntax { what: WHAT, line, problem: problem.into() }
}

#[cfg(test)]
mod tests;
