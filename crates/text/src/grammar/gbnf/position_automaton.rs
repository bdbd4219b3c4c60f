//! Automata of regular nodes: a state per character of the expression (Glushkov), and the question that lexemes ask.

use std::collections::HashSet;

use super::{CharSet, Node, Rules};

/// Larger expressions are divided rather than examined: characters, and nodes with rules written out.
const POSITIONS_MAX: usize = 2_000;
const NODES_MAX: usize = 20_000;

/// Repetitions count as unlimited here: that can only make us divide more than is necessary.
pub(super) struct PositionAutomaton {
    chars: Vec<CharSet>,
    first: Vec<usize>,
    is_last: Vec<bool>,
    /// Ascending, without repetitions.
    next: Vec<Vec<usize>>,
    nodes: usize,
}

/// The automaton of a node: where it can begin and end.
struct Fragment {
    first: Vec<usize>,
    last: Vec<usize>,
    is_nullable: bool,
}

impl PositionAutomaton {
    /// `None` if the node is too large.
    pub(super) fn new(node: &Node, rules: &Rules) -> Option<Self> {
        let mut automaton =
            Self { chars: Vec::new(), first: Vec::new(), is_last: Vec::new(), next: Vec::new(), nodes: 0 };
        let part = automaton.add(node, rules)?;
        automaton.first = part.first;
        automaton.is_last = vec![false; automaton.chars.len()];
        part.last.iter().for_each(|&position| automaton.is_last[position] = true);
        for next in &mut automaton.next {
            next.sort_unstable();
            next.dedup();
        }
        Some(automaton)
    }

    fn add(&mut self, node: &Node, rules: &Rules) -> Option<Fragment> {
        self.nodes += 1;
        if self.nodes > NODES_MAX || self.chars.len() == POSITIONS_MAX {
            return None;
        }
        match node {
            Node::Chars(chars) => {
                self.chars.push(chars.clone());
                self.next.push(Vec::new());
                let position = vec![self.chars.len() - 1];
                Some(Fragment { first: position.clone(), last: position, is_nullable: false })
            }
            Node::Sequence(parts) => {
                let mut whole = Fragment { first: Vec::new(), last: Vec::new(), is_nullable: true };
                for part in parts {
                    let part = self.add(part, rules)?;
                    self.connect(&whole.last, &part.first);
                    if whole.is_nullable {
                        whole.first.extend(&part.first);
                    }
                    if !part.is_nullable {
                        whole.last.clear();
                    }
                    whole.last.extend(part.last);
                    whole.is_nullable &= part.is_nullable;
                }
                Some(whole)
            }
            Node::Either(options) => {
                let mut whole = Fragment { first: Vec::new(), last: Vec::new(), is_nullable: false };
                for option in options {
                    let option = self.add(option, rules)?;
                    whole.first.extend(option.first);
                    whole.last.extend(option.last);
                    whole.is_nullable |= option.is_nullable;
                }
                Some(whole)
            }
            Node::Repeat { of, min, max } => {
                let mut part = self.add(of, rules)?;
                if *max != Some(1) {
                    self.connect(&part.last, &part.first);
                }
                part.is_nullable |= *min == 0;
                Some(part)
            }
            Node::Rule(rule) => self.add(&rules.bodies[*rule], rules),
        }
    }

    fn connect(&mut self, from: &[usize], to: &[usize]) {
        from.iter().for_each(|&from| self.next[from].extend(to));
    }

    /// The characters that its texts begin with.
    pub(super) fn first_chars(&self) -> CharSet {
        self.first.iter().fold(CharSet::default(), |set, &position| set.union(&self.chars[position]))
    }

    /// Whether a text of this automaton is the beginning of a longer one of `other`, continued by one of `following`:
    /// taking the longest lexeme would then miss that this one ends and something else follows. `None` if the work to
    /// find out exceeds the budget.
    pub(super) fn may_be_overrun(&self, other: &Self, following: &CharSet, budget: &mut usize) -> Option<bool> {
        if following.is_empty() {
            return Some(false);
        }
        let mut open: Vec<(usize, usize)> = Vec::new();
        let mut seen: HashSet<(usize, usize)> = HashSet::new();
        let mut visit = |mine: &[usize], theirs: &[usize], open: &mut Vec<(usize, usize)>| {
            for &a in mine {
                for &b in theirs {
                    *budget = budget.checked_sub(1)?;
                    if self.chars[a].meets(&other.chars[b]) && seen.insert((a, b)) {
                        open.push((a, b));
                    }
                }
            }
            Some(())
        };
        visit(&self.first, &other.first, &mut open)?;
        while let Some((a, b)) = open.pop() {
            if self.is_last[a] && other.next[b].iter().any(|&next| other.chars[next].meets(following)) {
                return Some(true);
            }
            visit(&self.next[a], &other.next[b], &mut open)?;
        }
        Some(false)
    }
}
