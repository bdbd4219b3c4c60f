//! What followed the last tokens where they occurred in an item: counts for short contexts, and places for long ones.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ruvllm_runner::TokenId;

use super::RecallItem;
use super::chain::{Chain, ORDER_MAX, Opinion};

/// Last places of a context that are looked at, and how far back from each.
const PLACES_MAX: usize = 48;
const LENGTH_MAX: usize = 64;

/// Stands for nothing in contexts that are shorter than the longest.
const NONE: TokenId = TokenId::MAX;
type Context = [TokenId; ORDER_MAX];

/// What followed a context.
#[derive(Clone, Debug, Default, PartialEq)]
struct Followers {
    counts: Vec<(TokenId, u32)>,
    total: u32,
    /// How much the context's tokens surprised the model where they occurred, in nats: all places together.
    information: f32,
    /// Item and position of the last targets behind it, of the longest contexts that are counted.
    places: Vec<(u32, u32)>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ngrams {
    followers: HashMap<Context, Followers>,
    anywhere: BTreeMap<TokenId, u32>,
    total: u32,
}

impl Ngrams {
    /// Adds the targets of an item.
    pub fn add(&mut self, items: &[Arc<RecallItem>], index: usize) {
        let item = &items[index];
        let tokens = item.tokens();
        for target in item.first_target()..tokens.len() {
            let token = tokens[target];
            *self.anywhere.entry(token).or_default() += 1;
            self.total += 1;
            let mut information = 0.0;
            for order in 1..=ORDER_MAX.min(target) {
                information += item.surprise(target - order);
                let followers = self.followers.entry(context(&tokens[..target], order)).or_default();
                match followers.counts.iter_mut().find(|(known, _)| *known == token) {
                    Some((_, count)) => *count += 1,
                    None => followers.counts.push((token, 1)),
                }
                followers.total += 1;
                followers.information += information;
                if order == ORDER_MAX {
                    if followers.places.len() == PLACES_MAX {
                        followers.places.remove(0);
                    }
                    followers.places.push((index as u32, target as u32));
                }
            }
        }
    }

    /// Collects what followed the last of `tokens`, the shortest context first.
    pub fn ask(&self, tokens: &[TokenId], chain: &mut Chain) {
        if self.total > 0 {
            chain.suggest_anything();
        }
        for order in 1..=ORDER_MAX.min(tokens.len()) {
            let Some(followers) = self.followers.get(&context(tokens, order)) else { return };
            let information = followers.information / followers.total as f32;
            let opinion = Opinion::behind(order, information, followers.total);
            chain.add(opinion, followers.counts.iter().map(|(token, count)| (*token, *count as f32)));
        }
    }

    /// Collects what followed the longest context that occurred, if that is longer than what is counted.
    pub fn ask_long(&self, items: &[Arc<RecallItem>], tokens: &[TokenId], chain: &mut Chain) {
        if tokens.len() <= ORDER_MAX {
            return;
        }
        let Some(followers) = self.followers.get(&context(tokens, ORDER_MAX)) else { return };
        let length_of = |(index, target): (u32, u32)| {
            let before = &items[index as usize].tokens()[..target as usize];
            let pairs = before.iter().rev().zip(tokens.iter().rev());
            pairs.take(LENGTH_MAX).take_while(|(one, other)| one == other).count()
        };
        let lengths: Vec<usize> = followers.places.iter().map(|place| length_of(*place)).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        if longest <= ORDER_MAX {
            return;
        }
        let found = followers.places.iter().zip(&lengths).filter(|(_, length)| **length == longest);
        let mut information = 0f32;
        let found: Vec<TokenId> = found
            .map(|((index, target), _)| {
                let (item, target) = (&items[*index as usize], *target as usize);
                let surprises: f32 = (target - longest..target).map(|at| item.surprise(at)).sum();
                information = information.max(surprises);
                item.tokens()[target]
            })
            .collect();
        chain.add(Opinion::behind_long(information), found.into_iter().map(|token| (token, 1.0)));
    }

    /// Returns how often a token is a target, as a share of all.
    pub fn chance_anywhere(&self, token: TokenId) -> f64 {
        self.anywhere.get(&token).map_or(0.0, |count| f64::from(*count) / f64::from(self.total))
    }

    /// Returns all targets with these shares.
    pub fn anywhere(&self) -> impl Iterator<Item = (TokenId, f64)> {
        let total = f64::from(self.total);
        self.anywhere.iter().map(move |(token, count)| (*token, f64::from(*count) / total))
    }

    /// Returns about how much memory it takes.
    pub fn bytes(&self) -> usize {
        // Each target has an entry of each order at most, with one follower and one place.
        let entry = size_of::<Context>() + size_of::<Followers>() + 4 * size_of::<(TokenId, u32)>();
        self.followers.len() * entry + self.anywhere.len() * 4 * size_of::<(TokenId, u32)>()
    }
}

fn context(tokens: &[TokenId], order: usize) -> Context {
    let mut context = [NONE; ORDER_MAX];
    context[..order].copy_from_slice(&tokens[tokens.len() - order..]);
    context
}
