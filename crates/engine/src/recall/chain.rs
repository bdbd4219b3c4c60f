//! What the parts of a memory suggest for one token, and how that adds up.
//!
//! Suggestions are mixed one after the other, from the vaguest to the most definite: each gets its share of the
//! mixture, and leaves the rest to those before it.

use std::ops::Range;

use ruvllm_runner::TokenId;

use super::RECALL_SHARE_MAX;
use super::ngrams::Ngrams;
use super::shares::Shares;

/// A kind of suggestion, whose share is learned: where it comes from, and how definite it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opinion(pub usize);

/// Kinds of context, by how much its tokens surprised the model: what is the same in all texts, such as the marks
/// between the messages of a chat, surprises nobody, and says nothing of what comes next.
const INFORMATION: [f32; 4] = [1.0, 3.0, 6.0, 12.0];
const CLASSES: usize = INFORMATION.len() + 1;
/// Kinds of neighbours, by the distance of the nearest.
const DISTANCES: [f32; 5] = [0.1, 0.25, 0.5, 0.8, 1.1];

/// Tokens of the longest context that is counted; longer ones are looked up.
pub(super) const ORDER_MAX: usize = 3;
const LONG: usize = 1 + ORDER_MAX * CLASSES * 2;
const NEAR: usize = LONG + CLASSES + 1;
const KINDS: usize = NEAR + DISTANCES.len() + 1;

/// Shares to begin with, before anything was predicted. Whatever is vague has none until it has shown that it helps: one
/// correction must not change what has nothing to do with it.
pub(super) const PRIORS: [f64; KINDS] = [
    0.0, // whatever occurs anywhere
    // Behind one token: seen once, then more often; by information.
    0.0, 0.0, 0.0, 0.01, 0.02, //
    0.0, 0.0, 0.01, 0.05, 0.1, //
    // Behind two.
    0.0, 0.01, 0.05, 0.1, 0.1, //
    0.01, 0.05, 0.1, 0.1, 0.2, //
    // Behind three.
    0.01, 0.05, 0.1, 0.1, 0.2, //
    0.02, 0.1, 0.1, 0.2, 0.2, //
    // Behind a longer context; the last is one that can hardly be met by chance.
    0.02, 0.1, 0.2, 0.35, 0.5, 0.8, //
    // Neighbours.
    0.5, 0.35, 0.2, 0.05, 0.0, 0.0,
];

/// From how much information on a context can hardly be met by chance.
const UNIQUE: f32 = 24.0;

fn class(information: f32) -> usize {
    INFORMATION.iter().take_while(|limit| information >= **limit).count()
}

impl Opinion {
    pub const ANYWHERE: Self = Self(0);

    /// Behind `order` tokens, which had this much information together and occurred `count` times.
    pub fn behind(order: usize, information: f32, count: u32) -> Self {
        Self(1 + ((order - 1) * 2 + usize::from(count > 1)) * CLASSES + class(information))
    }

    /// Behind a longer context.
    pub fn behind_long(information: f32) -> Self {
        Self(LONG + if information >= UNIQUE { CLASSES } else { class(information) })
    }

    /// Of neighbours, the nearest of which is this far away.
    pub fn near(distance: f32) -> Self {
        Self(NEAR + DISTANCES.iter().take_while(|limit| distance >= **limit).count())
    }
}

/// Suggestions for one token. Kept between tokens, so that nothing is allocated for each.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// Whether all that was ever a target is suggested too, before the others.
    suggests_anything: bool,
    opinions: Vec<(Opinion, Range<usize>)>,
    /// Tokens with their chance by the opinion that they belong to.
    suggested: Vec<(TokenId, f32)>,
}

impl Chain {
    pub fn clear(&mut self) {
        self.suggests_anything = false;
        self.opinions.clear();
        self.suggested.clear();
    }

    pub fn suggest_anything(&mut self) {
        self.suggests_anything = true;
    }

    /// Adds an opinion: tokens with weights, which are divided by their sum.
    pub fn add(&mut self, opinion: Opinion, weighted: impl Iterator<Item = (TokenId, f32)>) {
        let first = self.suggested.len();
        for (token, weight) in weighted {
            match self.suggested[first..].iter_mut().find(|(known, _)| *known == token) {
                Some((_, known)) => *known += weight,
                None => self.suggested.push((token, weight)),
            }
        }
        let sum: f32 = self.suggested[first..].iter().map(|(_, weight)| weight).sum();
        if sum > 0.0 {
            self.suggested[first..].iter_mut().for_each(|(_, weight)| *weight /= sum);
            self.opinions.push((opinion, first..self.suggested.len()));
        } else {
            self.suggested.truncate(first);
        }
    }

    /// Returns all opinions with the chance that each gives a token.
    pub fn chances_of(&self, token: TokenId, ngrams: &Ngrams) -> impl Iterator<Item = (Opinion, f64)> {
        let anything = self.suggests_anything.then(|| (Opinion::ANYWHERE, ngrams.chance_anywhere(token)));
        let of = move |range: &Range<usize>| {
            let found = self.suggested[range.clone()].iter().find(|(known, _)| *known == token);
            found.map_or(0.0, |(_, chance)| f64::from(*chance))
        };
        anything.into_iter().chain(self.opinions.iter().map(move |(opinion, range)| (*opinion, of(range))))
    }

    /// Gives each opinion its share of the whole.
    pub fn weigh(&self, shares: &Shares) -> Weighed<'_> {
        let mut weighed = Weighed { chain: self, total: 0.0, anything: 0.0, parts: [0.0; PARTS_MAX] };
        let mut rest = 1.0;
        for (index, (opinion, _)) in self.opinions.iter().enumerate().rev() {
            weighed.parts[index] = rest * shares.of(*opinion);
            rest -= weighed.parts[index];
        }
        if self.suggests_anything {
            weighed.anything = rest * shares.of(Opinion::ANYWHERE);
            rest -= weighed.anything;
        }
        weighed.total = 1.0 - rest;
        if weighed.total > RECALL_SHARE_MAX {
            weighed.scale(RECALL_SHARE_MAX / weighed.total);
        }
        weighed
    }
}

/// Opinions about one token: an order each, a longer context, neighbours.
const PARTS_MAX: usize = ORDER_MAX + 2;

/// Suggestions with their shares.
#[derive(Debug)]
pub(super) struct Weighed<'c> {
    chain: &'c Chain,
    /// What they have of the mixture together.
    pub total: f64,
    anything: f64,
    parts: [f64; PARTS_MAX],
}

impl Weighed<'_> {
    /// Believes all of them less.
    pub fn scale(&mut self, factor: f64) {
        self.parts.iter_mut().for_each(|part| *part *= factor);
        self.anything *= factor;
        self.total *= factor;
    }

    /// Returns what all of them have together, and how much of that is a token's.
    pub fn chance_of(&self, token: TokenId, ngrams: &Ngrams) -> (f64, f64) {
        let mut sum = if self.anything > 0.0 { self.anything * ngrams.chance_anywhere(token) } else { 0.0 };
        for ((_, range), part) in self.chain.opinions.iter().zip(self.parts) {
            let found = self.chain.suggested[range.clone()].iter().find(|(known, _)| *known == token);
            sum += part * found.map_or(0.0, |(_, chance)| f64::from(*chance));
        }
        (self.total, sum)
    }

    /// Passes every token that is suggested, with what it has of the mixture; a token may come several times.
    pub fn each(&self, ngrams: &Ngrams, mut each: impl FnMut(TokenId, f64)) {
        if self.anything > 0.0 {
            ngrams.anywhere().for_each(|(token, chance)| each(token, self.anything * chance));
        }
        for ((_, range), part) in self.chain.opinions.iter().zip(self.parts).filter(|(_, part)| *part > 0.0) {
            let suggested = &self.chain.suggested[range.clone()];
            suggested.iter().for_each(|(token, chance)| each(*token, part * f64::from(*chance)));
        }
    }

    /// Returns the token that the most definite opinion with a share expects, if it is all but certain of it.
    pub fn expected(&self) -> Option<TokenId> {
        let definite = self.chain.opinions.iter().zip(self.parts).rev().find(|(_, part)| *part >= EXPECTATION_MIN);
        let suggested = &self.chain.suggested[definite?.0.1.clone()];
        suggested.iter().find(|(_, chance)| *chance > 0.5).map(|(token, _)| *token)
    }
}

/// Share from which on a suggestion is held against the memory if something else comes.
const EXPECTATION_MIN: f64 = 0.05;
