//! The matrices of a model that adapters may change, by their GGUF names.

use std::collections::BTreeMap;
use std::ops::Range;

/// The `Linear`s of a layer that take adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Site {
    MixerInput,
    MixerOutput,
    GateUp,
    Down,
}

impl Site {
    const COUNT: usize = 4;

    /// Returns the number of a layer's `Linear` in adapters.
    pub(crate) fn number(self, layer: usize) -> usize {
        layer * Self::COUNT + self as usize
    }
}

/// A matrix that an adapter may change: what it is called, and where its rows went when the model was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Without the layer, such as `attn_q`.
    pub name: &'static str,
    pub layer: usize,
    pub site: Site,
    pub rows: usize,
    pub cols: usize,
    /// Parts of the `Linear` that are made of its rows.
    pub outputs: Vec<(usize, RowPick)>,
    /// Whether keys and values, or a recurrent state, of the same layer depend on it.
    pub is_kept: bool,
    /// How its rows, or columns, are ordered in files of transformers.
    pub order: Order,
}

/// Which rows of a tensor a part is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RowPick {
    Range(Range<usize>),
    /// Runs of `run` rows, taken by turns; those with number `which` of two.
    Alternating {
        run: usize,
        which: usize,
    },
}

impl RowPick {
    /// Returns the rows in their order.
    pub(crate) fn rows(&self, all: usize) -> Box<dyn Iterator<Item = usize>> {
        match *self {
            Self::Range(Range { start, end }) => Box::new(start..end),
            Self::Alternating { run, which } => Box::new((0..all).filter(move |row| row / run % 2 == which)),
        }
    }
}

/// How transformers orders what GGUF has in another order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Same,
    /// Rotated pairs are halves of a head there and neighbours here.
    HalvesOfHeads {
        heads: usize,
    },
    /// By value heads, in a way that only converters of whole models know.
    Unknown,
}

/// All targets of a model.
#[derive(Clone, Debug)]
pub struct AdapterTargets {
    pub(crate) architecture: String,
    pub(crate) layers: usize,
    /// By layer and name.
    targets: Vec<BTreeMap<&'static str, Target>>,
    /// Columns and rows of the parts of each `Linear`, by its number.
    pub(crate) linears: Vec<Option<(usize, Vec<usize>)>>,
    /// The last layer whose keys and values, or state, are kept.
    last_kept: usize,
}

impl AdapterTargets {
    pub(crate) fn new(
        architecture: &str,
        layers: usize,
        last_kept: usize,
        targets: Vec<Target>,
        linears: Vec<Option<(usize, Vec<usize>)>>,
    ) -> Self {
        let mut by_layer = vec![BTreeMap::new(); layers];
        for target in targets {
            by_layer[target.layer].insert(target.name, target);
        }
        Self { architecture: architecture.to_owned(), layers, targets: by_layer, linears, last_kept }
    }

    /// Finds a matrix by its layer and its name without it.
    pub(crate) fn find(&self, layer: usize, name: &str) -> Option<&Target> {
        self.targets.get(layer)?.get(name)
    }

    /// Returns the names of a layer's matrices.
    pub(crate) fn names(&self, layer: usize) -> Vec<&'static str> {
        self.targets.get(layer).into_iter().flat_map(BTreeMap::keys).copied().collect()
    }

    /// Whether keys and values become others if the adapter of a matrix does something.
    pub(crate) fn changes_kv(&self, target: &Target) -> bool {
        target.layer < self.last_kept || target.layer == self.last_kept && target.is_kept
    }
}
