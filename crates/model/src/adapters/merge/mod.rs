//! Makes one adapter of several. What is combined is the product of an adapter's two matrices, never the matrices themselves: the
//! product of two means is not the mean of two products.

mod bake;
mod dense;
mod product;
mod recipe;
mod svd;
mod write_gguf;

use std::collections::BTreeMap;
use std::path::Path;

pub use bake::{BakeError, Baked, BakedType, bake};
use dense::DenseMerge;
pub(super) use product::Product;

use super::write::{About, folder as write_folder};
use super::{AdapterError, AdapterFile, AdapterFormat};

/// Adapters that are merged at a time.
const ADAPTERS_MAX: usize = 64;

/// How adapters are combined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MergeMethod {
    /// The mean of the products by their weights.
    Linear,
    /// Their sum, each multiplied by its weight.
    TaskArithmetic,
    /// Keeps the largest `density` of each product, and of these what agrees with the sign that most weight is behind.
    Ties { density: f32 },
    /// Keeps a random `density` of each product, scaled up by its inverse, and sums that.
    Dare { density: f32, seed: u64 },
    /// Goes from the first to the second on the arc between them; `t` is how far.
    Slerp { t: f32 },
    /// Puts the matrices beside each other: exact, and as high in rank as all together.
    Stack,
}

impl MergeMethod {
    /// Returns its name in recipes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::TaskArithmetic => "task_arithmetic",
            Self::Ties { .. } => "ties",
            Self::Dare { .. } => "dare",
            Self::Slerp { .. } => "slerp",
            Self::Stack => "stack",
        }
    }
}

/// What has become of the adapters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Merged {
    /// The largest rank of a matrix.
    pub rank: usize,
    /// What was lost by the rank, relative to all products together (Frobenius norm).
    pub relative_error: f64,
    pub file_bytes: u64,
}

/// Merges adapters, each with a weight, into a new PEFT folder, or a new GGUF file if that is what they are. Products of a higher
/// rank than `rank` are cut to it by their singular values; without one they keep the rank that they have, and dense ones get the
/// largest of the adapters.
pub fn merge(
    adapters: &[(&AdapterFile, f32)],
    method: MergeMethod,
    rank: Option<usize>,
    output: &Path,
) -> Result<Merged, AdapterError> {
    check(adapters, method, rank)?;
    let mut modules: BTreeMap<&str, Vec<Option<Product>>> = BTreeMap::new();
    for (number, (file, _)) in adapters.iter().enumerate() {
        for pair in &file.pairs {
            let of_module = modules.entry(&pair.source).or_insert_with(|| vec![None; adapters.len()]);
            of_module[number] = Some(Product::read(pair)?);
        }
    }
    let weights: Vec<f32> = adapters.iter().map(|(_, weight)| *weight).collect();
    let largest = adapters.iter().map(|(file, _)| file.ranks.1).max().unwrap_or(1);
    let (mut merged, mut lost, mut all) = (Vec::with_capacity(modules.len()), 0.0, 0.0);
    for (number, (module, products)) in modules.into_iter().enumerate() {
        refuse_other_shapes(module, &products)?;
        let reduced = combine(method, &products, &weights, (rank, largest), number)?;
        lost += reduced.lost_squares;
        all += reduced.squares;
        merged.push((module, reduced.product));
    }
    let relative_error = if all > 0.0 { (lost / all).sqrt() } else { 0.0 };
    let recipe = recipe::recipe(adapters, method, rank, relative_error);
    let like = adapters[0].0;
    let file_bytes = match like.format {
        AdapterFormat::Peft => {
            let (base_model, invocation) = (like.base_model.as_deref(), like.invocation.as_deref());
            write_folder(output, About { base_model, invocation, recipe: &recipe }, &merged)?
        }
        AdapterFormat::Gguf => write_gguf::file(output, like, &merged, &recipe)?,
    };
    let rank = merged.iter().map(|(_, product)| product.rank).max().unwrap_or(0);
    Ok(Merged { rank, relative_error, file_bytes })
}

fn check(adapters: &[(&AdapterFile, f32)], method: MergeMethod, rank: Option<usize>) -> Result<(), AdapterError> {
    let fault = |problem: String| Err(AdapterError::Merge(problem));
    if !(1..=ADAPTERS_MAX).contains(&adapters.len()) {
        return Err(AdapterError::Count { count: adapters.len(), max: ADAPTERS_MAX });
    }
    for (file, weight) in adapters {
        if !weight.is_finite() {
            return Err(AdapterError::Weight { id: file.id, weight: *weight });
        }
        let first = adapters[0].0;
        if file.format != first.format {
            let (path, first) = (file.path.display(), first.path.display());
            return fault(format!(
                "one of {first} and {path} is GGUF and the other of PEFT, which order rows in different ways: give both in \
                 one format"
            ));
        }
        if let (Some(expected), Some(got)) = (&first.architecture, &file.architecture)
            && expected != got
        {
            return Err(AdapterError::Architecture { expected: expected.clone(), got: got.clone() });
        }
        if file.invocation != adapters[0].0.invocation {
            return Err(AdapterError::MixedInvocation(file.id));
        }
    }
    if rank == Some(0) {
        return fault("the rank is 0; it must be at least 1".to_owned());
    }
    match method {
        MergeMethod::Ties { density } | MergeMethod::Dare { density, .. } if !(density > 0.0 && density <= 1.0) => {
            fault(format!("the density is {density}; it must be above 0 and at most 1"))
        }
        MergeMethod::Slerp { .. } if adapters.len() != 2 => {
            fault(format!("slerp goes from one adapter to another, and {} are given", adapters.len()))
        }
        MergeMethod::Slerp { t } if !(0.0..=1.0).contains(&t) => fault(format!("t is {t}; it must be 0 to 1")),
        MergeMethod::Linear if adapters.iter().map(|(_, weight)| weight).sum::<f32>().abs() < 1e-6 => {
            fault("the weights add up to 0, which a mean cannot be taken by: use task_arithmetic".to_owned())
        }
        _ => Ok(()),
    }
}

fn refuse_other_shapes(module: &str, products: &[Option<Product>]) -> Result<(), AdapterError> {
    let mut shapes = products.iter().flatten().map(|product| [product.rows, product.cols]);
    let first = shapes.next().expect("some adapter has the module");
    match shapes.find(|shape| *shape != first) {
        Some(got) => {
            let (name, expected, got) = (module.to_owned(), first.to_vec(), got.to_vec());
            Err(AdapterError::Shape { name, expected, got })
        }
        None => Ok(()),
    }
}

/// A product at its final rank, and the squares of its numbers before that and of what was lost.
struct Reduced {
    product: Product,
    squares: f64,
    lost_squares: f64,
}

/// Combines the products of one module; `number` is that of the module.
fn combine(
    method: MergeMethod,
    products: &[Option<Product>],
    weights: &[f32],
    (rank, largest): (Option<usize>, usize),
    number: usize,
) -> Result<Reduced, AdapterError> {
    let stack = |weights: &[f32]| {
        let parts = products.iter().zip(weights).filter_map(|(product, weight)| Some((product.as_ref()?, *weight)));
        Product::stack(&parts.collect::<Vec<_>>())
    };
    let product = match method {
        MergeMethod::Linear => {
            let total: f32 = weights.iter().sum();
            stack(&weights.iter().map(|weight| weight / total).collect::<Vec<f32>>())
        }
        MergeMethod::TaskArithmetic | MergeMethod::Stack => stack(weights),
        MergeMethod::Slerp { t } => stack(&product::slerp_weights(products, weights, t)),
        MergeMethod::Ties { density } => {
            return DenseMerge::new(products, weights)?.ties(density).reduce(rank.unwrap_or(largest));
        }
        MergeMethod::Dare { density, seed } => {
            return DenseMerge::new(products, weights)?.dare(density, seed, number).reduce(rank.unwrap_or(largest));
        }
    };
    let squares = product.inner(&product);
    match rank.filter(|rank| *rank < product.rank) {
        None => Ok(Reduced { product, squares, lost_squares: 0.0 }),
        Some(rank) => {
            let (product, kept) = svd::truncate(&product, rank);
            Ok(Reduced { product, squares, lost_squares: (squares - kept).max(0.0) })
        }
    }
}

#[cfg(test)]
mod tests;
