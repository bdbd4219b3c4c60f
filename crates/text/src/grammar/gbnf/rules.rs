//! What follows from the rules as a whole.

use super::super::GrammarError;
use super::{Node, Rules, syntax_error};

impl Rules {
    /// llama.cpp cannot read such grammars, so one that has it is a mistake.
    pub(super) fn refuse_left_recursion(&self) -> Result<(), GrammarError> {
        let nullable = self.nullable();
        let begins_with: Vec<Vec<usize>> = self
            .bodies
            .iter()
            .map(|body| {
                let mut first = Vec::new();
                leftmost(body, &nullable, &mut first);
                first
            })
            .collect();
        match on_a_cycle(&begins_with).iter().position(|&is_on| is_on) {
            None => Ok(()),
            Some(rule) => {
                let problem = format!(
                    "the rule {:?} is left-recursive: it can begin with itself; write what repeats with * or +",
                    self.names[rule]
                );
                Err(syntax_error(self.lines[rule], problem))
            }
        }
    }

    /// Rules that can match the empty text.
    pub(super) fn nullable(&self) -> Vec<bool> {
        let mut nullable = vec![false; self.bodies.len()];
        loop {
            let before = nullable.clone();
            for (rule, body) in self.bodies.iter().enumerate() {
                nullable[rule] |= is_nullable(body, &before);
            }
            if nullable == before {
                return nullable;
            }
        }
    }

    /// Rules that lead to no recursion, and are therefore regular.
    pub(super) fn regular(&self) -> Vec<bool> {
        let uses: Vec<Vec<usize>> = self
            .bodies
            .iter()
            .map(|body| {
                let mut used = Vec::new();
                collect_rules(body, &mut used);
                used
            })
            .collect();
        let mut irregular = on_a_cycle(&uses);
        loop {
            let before = irregular.clone();
            for (rule, used) in uses.iter().enumerate() {
                irregular[rule] |= used.iter().any(|&used| before[used]);
            }
            if irregular == before {
                return irregular.into_iter().map(|is_irregular| !is_irregular).collect();
            }
        }
    }
}

pub(super) fn is_nullable(node: &Node, rules: &[bool]) -> bool {
    match node {
        Node::Chars(_) => false,
        Node::Sequence(parts) => parts.iter().all(|part| is_nullable(part, rules)),
        Node::Either(options) => options.iter().any(|option| is_nullable(option, rules)),
        Node::Repeat { of, min, .. } => *min == 0 || is_nullable(of, rules),
        Node::Rule(rule) => rules[*rule],
    }
}

/// The rules that a node can begin with.
fn leftmost(node: &Node, nullable: &[bool], out: &mut Vec<usize>) {
    match node {
        Node::Chars(_) => {}
        Node::Sequence(parts) => {
            for part in parts {
                leftmost(part, nullable, out);
                if !is_nullable(part, nullable) {
                    return;
                }
            }
        }
        Node::Either(options) => options.iter().for_each(|option| leftmost(option, nullable, out)),
        Node::Repeat { of, .. } => leftmost(of, nullable, out),
        Node::Rule(rule) => out.push(*rule),
    }
}

fn collect_rules(node: &Node, out: &mut Vec<usize>) {
    match node {
        Node::Chars(_) => {}
        Node::Sequence(nodes) | Node::Either(nodes) => nodes.iter().for_each(|node| collect_rules(node, out)),
        Node::Repeat { of, .. } => collect_rules(of, out),
        Node::Rule(rule) => out.push(*rule),
    }
}

/// Which nodes of a graph can reach themselves.
fn on_a_cycle(edges: &[Vec<usize>]) -> Vec<bool> {
    let components = components(edges);
    let mut sizes = vec![0; edges.len()];
    components.iter().for_each(|&component| sizes[component] += 1);
    (0..edges.len()).map(|node| sizes[components[node]] > 1 || edges[node].contains(&node)).collect()
}

/// Numbers the strongly connected components (Kosaraju: order of finishing, then the reversed graph), without recursion.
fn components(edges: &[Vec<usize>]) -> Vec<usize> {
    let mut reversed = vec![Vec::new(); edges.len()];
    for (from, to) in edges.iter().enumerate() {
        to.iter().for_each(|&to| reversed[to].push(from));
    }
    let mut order = Vec::with_capacity(edges.len());
    let mut is_seen = vec![false; edges.len()];
    for start in 0..edges.len() {
        let mut open = vec![(start, 0)];
        if std::mem::replace(&mut is_seen[start], true) {
            continue;
        }
        while let Some((node, next)) = open.pop() {
            match edges[node].get(next) {
                Some(&to) => {
                    open.push((node, next + 1));
                    if !std::mem::replace(&mut is_seen[to], true) {
                        open.push((to, 0));
                    }
                }
                None => order.push(node),
            }
        }
    }
    let mut component = vec![usize::MAX; edges.len()];
    for &start in order.iter().rev() {
        let mut open = vec![start];
        while let Some(node) = open.pop() {
            if component[node] == usize::MAX {
                component[node] = start;
                open.extend(&reversed[node]);
            }
        }
    }
    component
}
