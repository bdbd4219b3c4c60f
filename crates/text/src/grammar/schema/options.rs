//! Options of which exactly one must hold.

use serde_json::Value;

use super::super::limits::EXCLUSIVE_OPTIONS_MAX;
use super::cost::Cost;
use super::disjoint::Comparison;
use super::distribution::distributed;
use super::written::Written;
use super::{GrammarError, Position, Rewriter};

/// Options that are compared with each other.
const COMPARED_MAX: usize = 256;

impl Rewriter<'_> {
    /// Options that are disjoint are alternatives. Others become so, where each can exclude what the others accept.
    pub(super) fn one_of(
        &mut self,
        value: &Value,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        let list = value.as_array().filter(|list| !list.is_empty());
        let list = list.ok_or_else(|| position.wrong("oneOf", "must be a non-empty array of schemas"))?;
        let mut options = Vec::with_capacity(list.len());
        let mut are_exact = Vec::with_capacity(list.len());
        let narrowed_before = self.narrowed_count;
        for (index, option) in list.iter().enumerate() {
            let before = self.inexact_count;
            options.push(self.schema(option, &position.below("oneOf", index))?);
            are_exact.push(self.inexact_count == before);
        }
        // What a narrowed option leaves out may be what it shares with another.
        let are_narrowed = self.narrowed_count != narrowed_before;
        let overlapping = self.overlapping(&options, are_narrowed);
        let alternatives = if overlapping.iter().all(Vec::is_empty) {
            Some(options.iter().map(|(schema, _)| schema.clone()).collect())
        } else {
            self.exclusive(&options, &are_exact, &overlapping)
        };
        let fits = |alternatives: &Vec<Value>, costs: &_| {
            let cost = alternatives.iter().map(|schema| Cost::of(schema, costs)).reduce(Cost::or);
            written.cost.and(cost.unwrap_or(Cost::ANYTHING)).nodes() <= EXCLUSIVE_NODES_MAX
        };
        let alternatives = match alternatives {
            Some(alternatives) if overlapping.iter().all(Vec::is_empty) || fits(&alternatives, &self.costs) => {
                alternatives
            }
            _ => {
                self.relax(position.unenforceable(
                    "oneOf",
                    "has options that may overlap; make them distinct (by type, or by a required property with different \
                     constants), or use \"anyOf\"",
                ))?;
                options.into_iter().map(|(schema, _)| schema).collect()
            }
        };
        let cost = alternatives.iter().map(|schema| Cost::of(schema, &self.costs)).reduce(Cost::or);
        let cost = cost.unwrap_or(Cost::ANYTHING);
        self.combine("oneOf", "anyOf", Value::Array(alternatives), cost, position, written)
    }

    /// For each option, the others that may accept the same.
    fn overlapping(&self, options: &[(Value, Cost)], are_narrowed: bool) -> Vec<Vec<usize>> {
        let is_few = options.len() <= COMPARED_MAX;
        let comparison = Comparison::new(&self.definitions);
        let overlap = |one: usize, other: usize| {
            !is_few || are_narrowed || !comparison.are_disjoint(&options[one].0, &options[other].0)
        };
        let mut all = vec![Vec::new(); options.len()];
        for one in 0..options.len() {
            for other in 0..one {
                if overlap(one, other) {
                    all[one].push(other);
                    all[other].push(one);
                }
                if !is_few {
                    return all;
                }
            }
        }
        all
    }

    fn exclusive(
        &mut self,
        options: &[(Value, Cost)],
        are_exact: &[bool],
        overlapping: &[Vec<usize>],
    ) -> Option<Vec<Value>> {
        if !self.effort.rewrites() || options.len() > EXCLUSIVE_OPTIONS_MAX {
            return None;
        }
        let each = overlapping.iter().enumerate().map(|(index, others)| {
            let mut all = vec![options[index].0.clone()];
            for &other in others {
                all.push(if are_exact[other] { self.negation(&options[other].0)? } else { return None });
            }
            Some(distributed(all, &self.definitions))
        });
        each.collect()
    }
}

/// What options that exclude each other may grow to: beyond that they are taken as they are.
const EXCLUSIVE_NODES_MAX: u64 = 20_000;
