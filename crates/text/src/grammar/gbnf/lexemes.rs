//! Which parts of a grammar become lexemes.
//!
//! Every maximal regular part is a candidate. A candidate is divided if some text of another candidate could be its
//! beginning, in a place where that other one ends and what follows looks like the continuation. Repeated until there
//! is no such pair; single characters are never divided. What is allowed at the same place is not considered, so more
//! is divided than strictly necessary, never less.

use std::collections::{HashMap, HashSet};

use super::position_automaton::PositionAutomaton;
use super::rules::is_nullable;
use super::{CharSet, Node, Rules};

/// Steps of comparing automata, in all: about a quarter of a second. Beyond, everything is divided.
const BUDGET: usize = 10_000_000;

/// A grammar over lexemes.
#[derive(Debug)]
pub(super) struct Division {
    /// Bodies of the rules that are not within lexemes, by number.
    pub rules: HashMap<usize, Tree>,
    pub lexemes: Vec<Node>,
}

#[derive(Clone, Debug)]
pub(super) enum Tree {
    /// A lexeme; if it can be empty, it may be missing.
    Lexeme {
        id: usize,
        is_optional: bool,
    },
    Sequence(Vec<Tree>),
    Either(Vec<Tree>),
    Repeat {
        of: Box<Tree>,
        min: u32,
        max: Option<u32>,
    },
    Rule(usize),
}

pub(super) fn divide(rules: &Rules) -> Division {
    let mut divider = Divider {
        rules,
        nullable: rules.nullable(),
        regular: rules.regular(),
        divided: HashSet::new(),
        divides_all: false,
        automata: HashMap::new(),
        budget: BUDGET,
    };
    loop {
        let division = divider.division();
        // A grammar that is regular as a whole is one lexeme, with nothing beside or behind it.
        if divider.divides_all || (division.lexemes.len() == 1 && divider.regular[rules.root]) {
            return division;
        }
        match divider.too_greedy(&division) {
            Some(lexemes) if lexemes.is_empty() => return division,
            Some(lexemes) => divider.divided.extend(lexemes.into_iter().map(|id| division.lexemes[id].clone())),
            None => divider.divides_all = true,
        }
    }
}

struct Divider<'r> {
    rules: &'r Rules,
    nullable: Vec<bool>,
    regular: Vec<bool>,
    divided: HashSet<Node>,
    divides_all: bool,
    /// `None` for nodes that are too large.
    automata: HashMap<Node, Option<PositionAutomaton>>,
    budget: usize,
}

impl Divider<'_> {
    /// The grammar with the candidates as they are now.
    fn division(&self) -> Division {
        let mut builder = Builder { divider: self, ids: HashMap::new(), lexemes: Vec::new(), wanted: Vec::new() };
        let mut trees = HashMap::new();
        builder.wanted.push(self.rules.root);
        while let Some(rule) = builder.wanted.pop() {
            if let std::collections::hash_map::Entry::Vacant(entry) = trees.entry(rule) {
                entry.insert(Tree::Sequence(Vec::new()));
                let tree = builder.tree(&self.rules.bodies[rule]);
                trees.insert(rule, tree);
            }
        }
        Division { rules: trees, lexemes: builder.lexemes }
    }

    fn is_regular(&self, node: &Node) -> bool {
        match node {
            Node::Chars(_) => true,
            Node::Sequence(nodes) | Node::Either(nodes) => nodes.iter().all(|node| self.is_regular(node)),
            Node::Repeat { of, .. } => self.is_regular(of),
            Node::Rule(rule) => self.regular[*rule],
        }
    }

    fn is_lexeme(&self, node: &Node) -> bool {
        match node {
            Node::Chars(_) => true,
            _ => !self.divides_all && !self.divided.contains(node) && self.is_regular(node),
        }
    }

    /// Lexemes that would swallow what belongs to others; `None` if that takes too long to find out.
    fn too_greedy(&mut self, division: &Division) -> Option<Vec<usize>> {
        for lexeme in &division.lexemes {
            if !self.automata.contains_key(lexeme) {
                let automaton = PositionAutomaton::new(lexeme, self.rules);
                self.automata.insert(lexeme.clone(), automaton);
            }
        }
        let automata: Vec<Option<&PositionAutomaton>> =
            division.lexemes.iter().map(|lexeme| self.automata[lexeme].as_ref()).collect();
        let too_large: Vec<usize> = (0..automata.len()).filter(|&id| automata[id].is_none()).collect();
        if !too_large.is_empty() {
            return Some(too_large);
        }
        let automata: Vec<&PositionAutomaton> = automata.into_iter().flatten().collect();
        let first = automata.iter().map(|automaton| automaton.first_chars()).collect();
        let following = Following::of(division, self.rules.root, first);
        let following: Vec<CharSet> = following.iter().map(CharSet::widened_to_first_bytes).collect();
        let mut greedy = Vec::new();
        for (id, longer) in automata.iter().enumerate() {
            for (shorter, following) in automata.iter().zip(&following) {
                if shorter.may_be_overrun(longer, following, &mut self.budget)? {
                    greedy.push(id);
                    break;
                }
            }
        }
        Some(greedy)
    }
}

struct Builder<'d> {
    divider: &'d Divider<'d>,
    ids: HashMap<Node, usize>,
    lexemes: Vec<Node>,
    /// Rules that are referred to.
    wanted: Vec<usize>,
}

impl Builder<'_> {
    fn tree(&mut self, node: &Node) -> Tree {
        if matches!(node, Node::Sequence(parts) if parts.is_empty()) {
            return Tree::Sequence(Vec::new());
        }
        if self.divider.is_lexeme(node) {
            return self.lexeme(node);
        }
        match node {
            Node::Chars(_) => self.lexeme(node),
            Node::Sequence(parts) => self.sequence(parts),
            Node::Either(options) => Tree::Either(options.iter().map(|option| self.tree(option)).collect()),
            Node::Repeat { of, min, max } => Tree::Repeat { of: Box::new(self.tree(of)), min: *min, max: *max },
            Node::Rule(rule) => {
                self.wanted.push(*rule);
                Tree::Rule(*rule)
            }
        }
    }

    /// Runs of regular parts are one lexeme, unless that was divided.
    fn sequence(&mut self, parts: &[Node]) -> Tree {
        let mut trees = Vec::new();
        let mut rest = parts;
        while !rest.is_empty() {
            let run = rest.iter().take_while(|part| self.divider.is_regular(part)).count();
            let together = Node::Sequence(rest[..run].to_vec());
            if (2..parts.len()).contains(&run) && self.divider.is_lexeme(&together) {
                trees.push(self.lexeme(&together));
                rest = &rest[run..];
            } else {
                // A run that is not one lexeme is taken apart completely.
                trees.extend(rest[..run.max(1)].iter().map(|part| self.tree(part)));
                rest = &rest[run.max(1)..];
            }
        }
        Tree::Sequence(trees)
    }

    fn lexeme(&mut self, node: &Node) -> Tree {
        let is_optional = is_nullable(node, &self.divider.nullable);
        let id = *self.ids.entry(node.clone()).or_insert_with(|| {
            self.lexemes.push(node.clone());
            self.lexemes.len() - 1
        });
        Tree::Lexeme { id, is_optional }
    }
}

/// What can follow each lexeme: the usual fixed point of FIRST and FOLLOW.
struct Following {
    lexeme_first: Vec<CharSet>,
    rule_first: HashMap<usize, (CharSet, bool)>,
    after_rule: HashMap<usize, CharSet>,
    after_lexeme: Vec<CharSet>,
}

impl Following {
    fn of(division: &Division, root: usize, lexeme_first: Vec<CharSet>) -> Vec<CharSet> {
        let mut following = Self {
            lexeme_first,
            rule_first: division.rules.keys().map(|&rule| (rule, (CharSet::default(), false))).collect(),
            after_rule: HashMap::from([(root, CharSet::default())]),
            after_lexeme: vec![CharSet::default(); division.lexemes.len()],
        };
        loop {
            let firsts: HashMap<_, _> =
                division.rules.iter().map(|(&rule, tree)| (rule, following.first(tree))).collect();
            if firsts == following.rule_first {
                break;
            }
            following.rule_first = firsts;
        }
        loop {
            let before = (following.after_rule.clone(), following.after_lexeme.clone());
            for (rule, tree) in &division.rules {
                let after = following.after_rule.get(rule).cloned().unwrap_or_default();
                following.spread(tree, &after);
            }
            if (&following.after_rule, &following.after_lexeme) == (&before.0, &before.1) {
                return following.after_lexeme;
            }
        }
    }

    /// What a tree can begin with, and whether it can be empty.
    fn first(&self, tree: &Tree) -> (CharSet, bool) {
        match tree {
            Tree::Lexeme { id, is_optional } => (self.lexeme_first[*id].clone(), *is_optional),
            Tree::Sequence(parts) => {
                let mut set = CharSet::default();
                for part in parts {
                    let (first, is_nullable) = self.first(part);
                    set = set.union(&first);
                    if !is_nullable {
                        return (set, false);
                    }
                }
                (set, true)
            }
            Tree::Either(options) => options
                .iter()
                .map(|option| self.first(option))
                .fold((CharSet::default(), false), |(set, is_nullable), (first, option)| {
                    (set.union(&first), is_nullable | option)
                }),
            Tree::Repeat { of, min, .. } => {
                let (first, is_nullable) = self.first(of);
                (first, is_nullable || *min == 0)
            }
            Tree::Rule(rule) => self.rule_first[rule].clone(),
        }
    }

    /// Notes for everything in the tree what can follow it, given what can follow the tree.
    fn spread(&mut self, tree: &Tree, after: &CharSet) {
        match tree {
            Tree::Lexeme { id, .. } => self.after_lexeme[*id] = self.after_lexeme[*id].union(after),
            Tree::Sequence(parts) => {
                let mut after = after.clone();
                for part in parts.iter().rev() {
                    self.spread(part, &after);
                    let (first, is_nullable) = self.first(part);
                    after = if is_nullable { after.union(&first) } else { first };
                }
            }
            Tree::Either(options) => options.iter().for_each(|option| self.spread(option, after)),
            Tree::Repeat { of, max, .. } => {
                let after = if *max == Some(1) { after.clone() } else { after.union(&self.first(of).0) };
                self.spread(of, &after);
            }
            Tree::Rule(rule) => {
                let known = self.after_rule.entry(*rule).or_default();
                *known = known.union(after);
            }
        }
    }
}
