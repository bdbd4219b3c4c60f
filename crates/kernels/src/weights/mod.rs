//! Weights: GGUF's block formats, and the tiles into which we repack them at load.

mod block;
pub(crate) mod format;
mod pack;
mod quantize;
mod tiles;
mod unpack;
mod weight_type;

pub use block::dequantize_row;
pub use pack::PackError;
pub use quantize::{QuantizeError, quantize_row};
pub use tiles::PackedMatrix;
pub use weight_type::WeightType;

pub(crate) use format::{Format, Planes, Scales, for_format};
pub(crate) use tiles::{GROUP, TILE_ROWS};
