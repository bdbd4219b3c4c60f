//! The architectures that candle's code runs as their files are, one file each: what it asks of a file, and what it takes for
//! granted without looking.

mod glm4;
mod llama;
mod phi2;

use candle_core::quantized::gguf_file::{Content, Value};

use super::CandleModel;
use super::error::CandleError;
use super::keys::Keys;
use super::source::TensorReader;
use super::tensors::Expected;

/// Maximum context where candle's code has a table of this length.
const CONTEXT_MAX: usize = 4096;

/// All of them: first those that the native backend does not know.
pub(super) const ARCHITECTURES: [Architecture; 3] = [phi2::ARCHITECTURE, glm4::ARCHITECTURE, llama::ARCHITECTURE];

pub(super) struct Architecture {
    pub name: &'static str,
    pub describe: fn(&Keys<'_>) -> Result<Description, CandleError>,
    pub load: fn(Content, &mut TensorReader<'_>) -> candle_core::Result<CandleModel>,
}

/// What a file says of its model.
#[derive(Clone, Debug)]
pub(super) struct Description {
    pub shape: Shape,
    /// Longest context.
    pub context: usize,
    pub tensors: Vec<Expected>,
    /// What candle's code reads, all but the context.
    pub metadata: Vec<(String, Value)>,
    pub cache: Cache,
}

/// Dimensions, all at least 1 and as the tensors have them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub feed_forward: usize,
    pub vocabulary: usize,
}

impl Shape {
    /// Reads the dimensions that all files state alike; heads share the width of the model.
    fn of(keys: &Keys<'_>, feed_forward: usize) -> Result<Self, CandleError> {
        let (hidden, heads) = (keys.count("embedding_length")?, keys.count("attention.head_count")?);
        Ok(Self {
            layers: keys.layers()?,
            hidden,
            heads,
            kv_heads: keys.count_or("attention.head_count_kv", heads)?,
            head_dim: hidden / heads,
            feed_forward,
            vocabulary: keys.rows_of("token_embd.weight"),
        })
    }
}

/// What candle keeps for a sequence beside its keys and values.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cache {
    /// The mask of every pass of a prompt.
    Masks,
    /// Room for so many tokens more.
    Growing(usize),
}

impl Architecture {
    pub(super) fn of(name: &str) -> Option<&'static Self> {
        ARCHITECTURES.iter().find(|architecture| architecture.name == name)
    }
}

/// Refuses heads that candle's code would fail on: it divides them into groups, and rotates pairs of their elements.
fn check_heads(keys: &Keys<'_>, shape: &Shape, rotated: usize) -> Result<(), CandleError> {
    let Shape { heads, kv_heads, head_dim, .. } = *shape;
    let divides = heads.is_multiple_of(kv_heads);
    keys.require("attention.head_count_kv", kv_heads, divides, "it must divide attention.head_count")?;
    let are_pairs = rotated.is_multiple_of(2) && (1..=head_dim).contains(&rotated);
    keys.require("rope.dimension_count", rotated, are_pairs, "it must be even and within the length of a head")
}

/// Refuses heads that do not fill the width of the model together.
fn check_width(keys: &Keys<'_>, shape: &Shape) -> Result<(), CandleError> {
    let Shape { hidden, heads, head_dim, .. } = *shape;
    keys.require("embedding_length", hidden, heads * head_dim == hidden, "attention.head_count must divide it")
}
