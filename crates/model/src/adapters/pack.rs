//! Holds adapters against a model, and packs their weights for its forward pass.

use std::collections::BTreeMap;

use ruvllm_kernels::ops::{Adapter, LowRank, LowRankPiece};

use super::file::Pair;
use super::merge::Product;
use super::targets::{AdapterTargets, Order, Target};
use super::{AdapterError, AdapterFile, AdapterFormat};
use crate::formats::gguf::shortened;
use crate::hugging_face::{half_of_pair, layer_tensor};

/// Ranks that are applied to one `Linear` at most, those of all adapters of a request together.
const RANKS_MAX: usize = 4096;

/// What an adapter is for a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterFacts {
    /// Memory that it takes when it is packed.
    pub bytes: usize,
    /// The most ranks that it has for one `Linear`.
    pub ranks: usize,
    /// Whether keys and values of the model become others.
    pub changes_kv: bool,
}

/// A pair of matrices with the matrix of the model that they change.
pub(super) struct Placed<'a> {
    pub pair: &'a Pair,
    pub target: &'a Target,
    weight: f32,
    format: AdapterFormat,
}

impl AdapterFile {
    /// Checks that all of it can be applied to a model. Reads all weights, and keeps none.
    pub fn check(&self, targets: &AdapterTargets) -> Result<AdapterFacts, AdapterError> {
        let placed = place(&[(self, 1.0)], targets)?;
        for Placed { pair, .. } in placed.values().flatten() {
            pair.a.floats()?;
            pair.b.floats()?;
        }
        let changes_kv = placed.values().flatten().any(|one| targets.changes_kv(one.target));
        let ranks = placed.values().map(|all| all.iter().map(|one| one.pair.rank()).sum()).max().unwrap_or(0);
        Ok(AdapterFacts { bytes: packed_bytes(&placed, targets), ranks, changes_kv })
    }
}

/// Packs adapters for a model, each multiplied by its weight: their products are added up.
pub fn pack(adapters: &[(&AdapterFile, f32)], targets: &AdapterTargets) -> Result<Adapter, AdapterError> {
    let placed = place(adapters, targets)?;
    let mut low_rank: Vec<Option<LowRank>> = targets.linears.iter().map(|_| None).collect();
    for (number, all) in &placed {
        let (cols, part_rows) = targets.linears[*number].as_ref().expect("targets are parts of one");
        let pieces = all.iter().map(piece).collect::<Result<Vec<_>, _>>()?;
        low_rank[*number] = Some(LowRank::new(*cols, part_rows, &pieces));
    }
    Ok(Adapter::new(low_rank))
}

/// Finds what each pair of matrices changes, by the number of the `Linear`; pairs of one matrix are neighbours.
pub(super) fn place<'a>(
    adapters: &[(&'a AdapterFile, f32)],
    targets: &'a AdapterTargets,
) -> Result<BTreeMap<usize, Vec<Placed<'a>>>, AdapterError> {
    let mut placed: BTreeMap<usize, Vec<Placed<'a>>> = BTreeMap::new();
    for (file, weight) in adapters {
        if let Some(got) = file.architecture.as_ref().filter(|got| **got != targets.architecture) {
            let expected = targets.architecture.clone();
            return Err(AdapterError::Architecture { expected, got: shortened(got) });
        }
        for pair in &file.pairs {
            let target = find(pair, file.format, targets)?;
            let one = Placed { pair, target, weight: *weight, format: file.format };
            placed.entry(target.site.number(target.layer)).or_default().push(one);
        }
    }
    for all in placed.values_mut() {
        all.sort_by_key(|one| one.target.outputs[0].0);
        let rank: usize = all.iter().map(|one| one.pair.rank()).sum();
        if rank > RANKS_MAX {
            return Err(AdapterError::Rank { rank, max: RANKS_MAX });
        }
    }
    Ok(placed)
}

/// Finds the matrix that a pair changes, and checks that it fits.
fn find<'a>(pair: &Pair, format: AdapterFormat, targets: &'a AdapterTargets) -> Result<&'a Target, AdapterError> {
    let refuse = |problem: String| AdapterError::Tensor { name: shortened(&pair.module), problem };
    let layers = if format == AdapterFormat::Peft { "layers." } else { "blk." };
    let parts = pair.module.strip_prefix(layers).and_then(|rest| rest.split_once('.'));
    let parts = parts.and_then(|(layer, name)| Some((layer.parse::<usize>().ok()?, name)));
    let Some((layer, module)) = parts else {
        return Err(refuse("is in no layer: embeddings and output matrices cannot be changed here".to_owned()));
    };
    if layer >= targets.layers {
        return Err(refuse(format!("is in layer {layer}, and the model has {} layers", targets.layers)));
    }
    let name = match format {
        AdapterFormat::Gguf => Some(module.to_owned()),
        AdapterFormat::Peft => layer_tensor(&targets.architecture, module),
    };
    let known = || targets.names(layer).join(", ");
    let target = name.and_then(|name| targets.find(layer, &name));
    let target =
        target.ok_or_else(|| refuse(format!("cannot be changed by adapters; in this layer can {}", known())))?;
    if format == AdapterFormat::Peft && target.order == Order::Unknown {
        return Err(refuse(
            "is ordered otherwise by PEFT: convert the adapter to GGUF with llama.cpp's converter".to_owned(),
        ));
    }
    for (factor, expected) in [(&pair.a, [pair.rank(), target.cols]), (&pair.b, [target.rows, pair.rank()])] {
        let got = [factor.rows, factor.cols];
        if got != expected {
            let (name, expected, got) = (shortened(&factor.name), expected.to_vec(), got.to_vec());
            return Err(AdapterError::Shape { name, expected, got });
        }
    }
    Ok(target)
}

fn packed_bytes(placed: &BTreeMap<usize, Vec<Placed<'_>>>, targets: &AdapterTargets) -> usize {
    let of_linear = |(number, all): (&usize, &Vec<Placed<'_>>)| {
        let (cols, part_rows) = targets.linears[*number].as_ref().expect("targets are parts of one");
        let ranks_of = |part: usize| {
            let own = all.iter().filter(|one| one.target.outputs.iter().any(|(number, _)| *number == part));
            own.map(|one| one.pair.rank()).sum::<usize>()
        };
        let parts: Vec<(usize, usize)> =
            part_rows.iter().enumerate().map(|(part, rows)| (*rows, ranks_of(part))).collect();
        LowRank::bytes_for(*cols, all.iter().map(|one| one.pair.rank()).sum(), &parts)
    };
    placed.iter().map(of_linear).sum()
}

impl Placed<'_> {
    /// Returns the row of the file that is a row of the model.
    fn row_in_file(&self, row: usize) -> usize {
        match self.target.order {
            Order::HalvesOfHeads { heads } if self.format == AdapterFormat::Peft => {
                let head_dim = self.target.rows / heads;
                row / head_dim * head_dim + half_of_pair(row % head_dim, head_dim)
            }
            _ => row,
        }
    }

    /// Returns some rows of the model from `b` as the file has it.
    fn rows_of(&self, b: &[f32], rows: impl Iterator<Item = usize>) -> Vec<f32> {
        let rank = self.pair.rank();
        let mut picked = Vec::with_capacity(b.len());
        rows.for_each(|row| picked.extend_from_slice(&b[self.row_in_file(row) * rank..][..rank]));
        picked
    }
}

/// Reads a pair with its rows in the model's order, and what its product is multiplied by.
pub(super) fn in_model_order(placed: &Placed<'_>) -> Result<(Product, f32), AdapterError> {
    let product = Product::read_unscaled(placed.pair)?;
    let b = placed.rows_of(&product.b, 0..placed.target.rows);
    Ok((Product { b, ..product }, placed.pair.scale * placed.weight))
}

/// Reads a pair as the parts of a `Linear` take it.
fn piece(placed: &Placed<'_>) -> Result<LowRankPiece, AdapterError> {
    let Product { a, b, rank, .. } = Product::read_unscaled(placed.pair)?;
    let rows = placed.target.rows;
    let outputs = placed.target.outputs.iter().map(|(part, pick)| (*part, placed.rows_of(&b, pick.rows(rows))));
    Ok(LowRankPiece { rank, scale: placed.pair.scale * placed.weight, outputs: outputs.collect(), a })
}
