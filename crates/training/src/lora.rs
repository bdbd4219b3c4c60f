//! The factors of a LoRA: where each matrix has its two in one list of numbers, and what they begin with.

use std::ops::Range;

use crate::base::{Base, SITES};
use crate::random::Random;
use crate::{TrainError, TrainOptions};

/// The largest rank that is trained.
pub(crate) const RANK_MAX: usize = 64;

/// A matrix of the model with two thin ones whose product is added to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoraModule {
    pub layer: usize,
    /// The matrix by its GGUF name without the layer, such as `attn_q`.
    pub tensor: &'static str,
    pub(crate) site: usize,
    /// Number of its tensor within the site.
    pub(crate) part: usize,
    pub rows: usize,
    pub cols: usize,
    /// Where its rows begin in the site, and its ranks among those of the site.
    pub(crate) first_row: usize,
    pub(crate) first_rank: usize,
    /// Where the factors are: `[rank, cols]`, `[rows, rank]`.
    pub a: Range<usize>,
    pub b: Range<usize>,
}

/// All factors, as one list of numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraWeights {
    pub rank: usize,
    /// What products are multiplied by: alpha divided by the rank.
    pub scale: f32,
    pub modules: Vec<LoraModule>,
    pub numbers: Vec<f32>,
}

impl LoraWeights {
    /// Makes factors for the targets of a model: the first is random, the second zero, so that they change nothing yet.
    pub fn new(base: &Base, options: &TrainOptions) -> Result<Self, TrainError> {
        let rank = options.rank;
        check_targets(base, options)?;
        let is_target = |tensor: &str| options.targets.as_ref().is_none_or(|list| list.iter().any(|one| one == tensor));
        let (mut modules, mut len) = (Vec::new(), 0);
        for layer in &base.layers {
            for (site, of_site) in layer.sites.iter().enumerate() {
                let wanted = of_site.parts.iter().enumerate().filter(|(_, part)| is_target(part.tensor));
                for (number, (part_number, part)) in wanted.enumerate() {
                    let (a, b) = (rank * of_site.cols, part.rows * rank);
                    modules.push(LoraModule {
                        layer: part.layer,
                        tensor: part.tensor,
                        site,
                        part: part_number,
                        rows: part.rows,
                        cols: of_site.cols,
                        first_row: part.first_row,
                        first_rank: number * rank,
                        a: len..len + a,
                        b: len + a..len + a + b,
                    });
                    len += a + b;
                }
            }
        }
        let mut weights = Self { rank, scale: options.alpha / rank as f32, modules, numbers: vec![0.0; len] };
        weights.fill(options.seed);
        Ok(weights)
    }

    fn fill(&mut self, seed: u64) {
        const FACTORS: u64 = 1;
        let mut random = Random::new(seed, FACTORS);
        for module in &self.modules {
            let bound = 1.0 / (module.cols as f32).sqrt();
            self.numbers[module.a.clone()].iter_mut().for_each(|number| *number = random.float() * bound);
        }
    }

    /// Returns the ranks that each site has together.
    pub(crate) fn site_ranks(&self) -> [usize; SITES] {
        let mut ranks = [0; SITES];
        for module in self.modules.iter().filter(|module| module.layer == 0) {
            ranks[module.site] += self.rank;
        }
        ranks
    }

    /// Returns the modules of a layer's site.
    pub(crate) fn of_site(&self, layer: usize, site: usize) -> impl Iterator<Item = &LoraModule> {
        self.modules.iter().filter(move |module| module.layer == layer && module.site == site)
    }
}

fn check_targets(base: &Base, options: &TrainOptions) -> Result<(), TrainError> {
    let known: Vec<&str> =
        base.layers[0].sites.iter().flat_map(|site| site.parts.iter().map(|part| part.tensor)).collect();
    let wrong = |got: &str| TrainError::Option {
        option: "targets",
        got: format!("{got:?}"),
        remedy: format!("the matrices of this model are {}", known.join(", ")),
    };
    match &options.targets {
        Some(targets) if targets.is_empty() => Err(wrong("")),
        Some(targets) => match targets.iter().find(|target| !known.contains(&&***target)) {
            Some(unknown) => Err(wrong(unknown)),
            None => Ok(()),
        },
        None => Ok(()),
    }
}
