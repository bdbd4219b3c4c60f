//! Writing a divided grammar as Lark.
//!
//! Lark allows little nesting, so everything that is not a single part gets a definition of its own.

use std::collections::HashMap;
use std::fmt::Write;

use super::lexemes::{Division, Tree};
use super::{Node, Rules};

pub(super) fn lark(rules: &Rules, division: &Division) -> String {
    let mut writer = Writer { rules, out: String::new(), terminals: HashMap::new(), parts: 0 };
    writer.define("start", &format!("r{}", rules.root));
    let mut ids: Vec<&usize> = division.rules.keys().collect();
    ids.sort_unstable();
    for id in ids {
        let body = writer.tree(&division.rules[id]);
        writer.define(&format!("r{id}"), &body);
    }
    for (id, lexeme) in division.lexemes.iter().enumerate() {
        let body = writer.terminal(lexeme);
        // Where a lexeme can be empty, its rule says that it may be missing.
        writer.define(&format!("L{id}"), &format!("({body}) & /(?s:.+)/"));
    }
    writer.out
}

struct Writer<'r> {
    rules: &'r Rules,
    out: String,
    /// Names of definitions for parts of lexemes.
    terminals: HashMap<Node, String>,
    parts: usize,
}

impl Writer<'_> {
    fn define(&mut self, name: &str, body: &str) {
        let body = if body.is_empty() { "\"\"" } else { body };
        writeln!(self.out, "{name}: {body}").expect("a string takes everything");
    }

    fn new_name(&mut self, prefix: char) -> String {
        self.parts += 1;
        format!("{prefix}{}", self.parts)
    }

    /// One part of a rule.
    fn tree(&mut self, tree: &Tree) -> String {
        match tree {
            Tree::Lexeme { id, is_optional: false } => format!("L{id}"),
            Tree::Lexeme { id, is_optional: true } => format!("L{id}?"),
            Tree::Rule(rule) => format!("r{rule}"),
            Tree::Sequence(parts) => {
                let parts: Vec<String> = parts.iter().map(|part| self.tree_part(part)).collect();
                parts.join(" ")
            }
            Tree::Either(options) => {
                let options: Vec<String> = options.iter().map(|option| self.tree_part(option)).collect();
                options.join(" | ")
            }
            Tree::Repeat { of, min, max } => format!("{}{}", self.tree_part(of), repetition(*min, *max)),
        }
    }

    /// A part that can stand in a sequence or be repeated.
    fn tree_part(&mut self, tree: &Tree) -> String {
        if let Tree::Lexeme { is_optional: false, .. } | Tree::Rule(_) = tree {
            return self.tree(tree);
        }
        let body = self.tree(tree);
        let name = self.new_name('p');
        self.define(&name, &body);
        name
    }

    fn terminal(&mut self, node: &Node) -> String {
        match node {
            Node::Chars(chars) => format!("/{}/", chars.to_class()),
            Node::Rule(rule) => self.terminal_part(&self.rules.bodies[*rule].clone()),
            Node::Sequence(parts) => self.terminal_sequence(parts),
            Node::Either(options) => {
                let options: Vec<String> = options.iter().map(|option| self.terminal_part(option)).collect();
                options.join(" | ")
            }
            Node::Repeat { of, min, max } => format!("{}{}", self.terminal_part(of), repetition(*min, *max)),
        }
    }

    fn terminal_sequence(&mut self, parts: &[Node]) -> String {
        if parts.is_empty() {
            return "\"\"".to_owned();
        }
        let literal: Option<String> = parts.iter().map(only_char).collect();
        if let Some(literal) = literal {
            return serde_json::Value::from(literal.as_str()).to_string();
        }
        let parts: Vec<String> = parts.iter().map(|part| self.terminal_part(part)).collect();
        parts.join(" ")
    }

    fn terminal_part(&mut self, node: &Node) -> String {
        if let Node::Chars(_) = node {
            return self.terminal(node);
        }
        if let Some(name) = self.terminals.get(node) {
            return name.clone();
        }
        let body = self.terminal(node);
        let name = self.new_name('P');
        self.define(&name, &body);
        self.terminals.insert(node.clone(), name.clone());
        name
    }
}

fn only_char(node: &Node) -> Option<char> {
    match node {
        // Lark's strings cannot hold this one.
        Node::Chars(chars) => chars.only().filter(|&char| char != '\u{7F}'),
        _ => None,
    }
}

fn repetition(min: u32, max: Option<u32>) -> String {
    match (min, max) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (min, None) => format!("{{{min},}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    }
}
