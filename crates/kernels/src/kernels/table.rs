//! The kernels of each instruction set behind one table, chosen once when the program starts.
//!
//! Unit tests have the scalar kernels alone: they test no kernels (`tests/it` does), and compiling all sets once more takes
//! minutes.

use std::sync::OnceLock;

use super::attention::{Cell, Chunk, Partial, Queries};
use super::bf16::{BLOCK_ROWS, Bf16, Bf16Product, RowBlocks, Sums, UnpackedTiles};
use super::low_rank::{RANKS, ROWS};
use super::matmul::{FloatColumns, IntegerTiles, QuantColumns, TileSums};
use super::recurrent::DeltaRow;
use super::rows::{Quantized, WeightedRows};
use crate::lanes::{LANES, Lanes};
use crate::ops::Activation;
use crate::weights::WeightType;

/// Convolves inputs with a kernel, tap by tap.
type CausalConv = unsafe fn(&[&[f32]], &[&[f32]], bool, &mut [f32]);

/// The first matrix, the distance of its rows, columns, rows of the batch, results.
type Project = unsafe fn(*const u16, usize, usize, &[*const f32], &mut [[f32; RANKS]; ROWS]);
/// The second matrix, its ranks and tiles, what it is multiplied with, and what that is added to.
type Expand = unsafe fn(*const u16, usize, usize, &[*const f32], &[*mut f32]);

/// Multiplies a row by norm weights, and sums the squares of its groups.
type Weigh = unsafe fn(&[f32], &[f32], &mut [f32], &mut [f32]);

/// The kernels compiled for one instruction set. Each is as safe to call as the generic function behind it, provided
/// that the processor has the instructions: tables are only handed out by `KernelSet::table`, which checks that.
pub(crate) struct Table {
    /// Token columns per matmul call that keep everything in registers.
    pub tokens: usize,
    /// Multiplies neighbouring tiles of one matrix by up to `tokens` tokens.
    pub integer_tiles: unsafe fn(WeightType, IntegerTiles, QuantColumns, usize, TileSums),
    pub float_tile: unsafe fn(WeightType, *const u8, usize, FloatColumns, usize, TileSums),
    /// Where there is a better way for many tokens.
    pub wide: Option<Wide>,
    /// Where rows of prompts can be multiplied so.
    pub bf16: Option<Bf16>,
    /// Products of bf16 in plain code.
    plain_product: Bf16Product,
    pub weigh: Weigh,
    pub sum: unsafe fn(&[f32]) -> f32,
    pub add: unsafe fn(&mut [f32], &[f32]),
    pub add_weighted_rows: unsafe fn(WeightedRows<'_>),
    /// Multiplies up to `low_rank::ROWS` rows with a few ranks of an adapter's first matrix.
    pub project: Project,
    /// Adds the products of as many rows with tiles of an adapter's second matrix.
    pub expand: Expand,
    pub quantize: unsafe fn(&[f32], Quantized<'_>),
    pub swiglu: unsafe fn(&[f32], &mut [f32]),
    pub geglu: unsafe fn(&[f32], &mut [f32]),
    pub swiglu_oai: unsafe fn(&[f32], &mut [f32]),
    pub softcap: unsafe fn(f32, &mut [f32]),
    pub sigmoid_gate: unsafe fn(&[f32], &mut [f32]),
    pub causal_conv: CausalConv,
    pub l2_normalize: unsafe fn(&[f32], f32, &mut [f32]),
    pub delta_step: unsafe fn(DeltaRow<'_>, &mut [f32], &mut [f32], &mut [f32]),
    pub delta_apply: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    /// Writes the keys and values of one head and token to a slot of a cell.
    pub append: unsafe fn(&[f32], &[f32], usize, Cell),
    /// Converts a cell to one of a colder format.
    pub convert: unsafe fn(Cell, Cell, usize),
    pub attend_chunk: unsafe fn(Queries<'_>, Chunk<'_>, Partial<'_>),
    pub merge: unsafe fn(Partial<'_>, Partial<'_>, usize),
    /// Computes dot products of a query with the selected rows (by index, from the first row on).
    pub byte_dots: unsafe fn(&[i8], *const i8, &[u32], &mut [i32]),
    /// Clears the bits of values outside `least..=least + span`.
    pub keep_in_range: unsafe fn(&[u32], u32, u32, &mut [u64]),
}

impl Table {
    /// Returns the fastest products of bf16.
    pub(crate) fn bf16_product(&self) -> Bf16Product {
        self.bf16.map_or(self.plain_product, |bf16| bf16.product)
    }

    /// Returns the kernel of a gated activation.
    pub(crate) fn gated(&self, activation: Activation) -> unsafe fn(&[f32], &mut [f32]) {
        match activation {
            Activation::Silu => self.swiglu,
            Activation::GeluTanh => self.geglu,
            Activation::SwigluOai => self.swiglu_oai,
        }
    }
}

/// Matmul of weights that are unpacked to bytes first, once for all tokens.
#[derive(Clone, Copy)]
pub(crate) struct Wide {
    /// Tokens per call; this many must be readable.
    pub tokens: usize,
    /// In batches of fewer rows unpacking does not pay, by measurement.
    pub rows_min: usize,
    /// Fewer at the end of a batch are better left to `integer_tiles`.
    pub tokens_min: usize,
    /// Bytes that a tile takes for each column.
    pub column_bytes: usize,
    /// Bytes that a group of 32 columns of `tokens` tokens takes arranged.
    pub group_bytes: usize,
    /// Unpacks the first of some tiles.
    pub unpack: unsafe fn(WeightType, IntegerTiles, *mut i8),
    /// Arranges groups of `tokens` tokens in the order that `multiply` wants.
    pub arrange: unsafe fn(QuantColumns, usize, *mut u8),
    /// Neighbouring tiles of one matrix, the same unpacked, one after the other; tokens, arranged, and their factors. The
    /// tiles' results stand side by side; there must be room for `tokens` of them.
    pub multiply: unsafe fn(WeightType, IntegerTiles, *const i8, *const u8, *const f32, TileSums),
}

/// Compiles every kernel for one instruction set, as a module with a `TABLE`. The list holds the numbers of token columns
/// that a matmul takes at once, up to `Lanes::TOKENS`.
macro_rules! compile_kernels {
    ($module:ident, $lanes:ident, [$($tokens:literal)*] $(, $features:literal)?) => {
        // SAFETY (all blocks of the module): each function has the contract of the generic one that it calls, and is
        // compiled for the features that those lanes need.
        #[allow(clippy::undocumented_unsafe_blocks)]
        mod $module {
            use super::*;
            use crate::kernels::{append, attention, bf16, byte_rows, convert, low_rank, matmul, ranges, recurrent, rows};
            use crate::lanes::$lanes as L;
            use crate::weights::{Format, for_format};

            pub(super) const TABLE: Table = Table {
                tokens: <L as Lanes>::TOKENS,
                integer_tiles,
                float_tile,
                wide: None,
                bf16: None,
                plain_product: Bf16Product { rows: BLOCK_ROWS, multiply: plain_product },
                weigh,
                sum,
                add,
                add_weighted_rows,
                project,
                expand,
                quantize,
                swiglu,
                geglu,
                swiglu_oai,
                softcap,
                sigmoid_gate,
                causal_conv,
                l2_normalize,
                delta_step,
                delta_apply,
                append,
                convert,
                attend_chunk,
                merge,
                byte_dots,
                keep_in_range,
            };

            $(#[target_feature(enable = $features)])?
            unsafe fn integer<F: Format, const T: usize, const N: usize>(
                tiles: IntegerTiles,
                x: QuantColumns,
                out: TileSums,
            ) {
                let side_by_side = |tile: usize| TileSums { start: out.start.wrapping_add(tile * LANES), ..out };
                let together = tiles.count / T * T;
                for i in (0..together).step_by(T) {
                    unsafe { matmul::integer_tiles::<L, F, T, N>(tiles.from(i), x, side_by_side(i)) }
                }
                for i in together..tiles.count {
                    unsafe { matmul::integer_tiles::<L, F, 1, N>(tiles.from(i), x, side_by_side(i)) }
                }
            }

            unsafe fn integer_tiles(
                kind: WeightType,
                tiles: IntegerTiles,
                x: QuantColumns,
                tokens: usize,
                out: TileSums,
            ) {
                for_format!(kind, F => unsafe { match tokens {
                    $($tokens => integer::<F, { <L as Lanes>::TILES }, $tokens>(tiles, x, out),)*
                    _ => unreachable!("more tokens than a tile takes"),
                } })
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn float_tile(
                kind: WeightType,
                codes: *const u8,
                cols: usize,
                x: FloatColumns,
                tokens: usize,
                out: TileSums,
            ) {
                unsafe {
                    match tokens {
                        $($tokens => matmul::float_tile::<L, $tokens>(kind, codes, cols, x, out),)*
                        _ => unreachable!("more tokens than a tile takes"),
                    }
                }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn plain_product(tiles: UnpackedTiles, x: RowBlocks, out: Sums) {
                unsafe { bf16::plain::multiply::<L>(tiles, x, out) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn weigh(x: &[f32], weight: &[f32], out: &mut [f32], squares: &mut [f32]) {
                unsafe { rows::weigh::<L>(x, weight, out, squares) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn sum(x: &[f32]) -> f32 {
                unsafe { rows::sum::<L>(x) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn add(x: &mut [f32], y: &[f32]) {
                unsafe { rows::add::<L>(x, y) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn add_weighted_rows(of: WeightedRows<'_>) {
                unsafe { rows::add_weighted_rows::<L>(of) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn project(
                a: *const u16,
                stride: usize,
                cols: usize,
                x: &[*const f32],
                out: &mut [[f32; RANKS]; ROWS],
            ) {
                unsafe { low_rank::project::<L>(a, stride, cols, x, out) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn expand(b: *const u16, ranks: usize, tiles: usize, h: &[*const f32], to: &[*mut f32]) {
                unsafe { low_rank::expand::<L>(b, ranks, tiles, h, to) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn quantize(x: &[f32], out: Quantized<'_>) {
                unsafe { rows::quantize::<L>(x, out) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn swiglu(up: &[f32], gate: &mut [f32]) {
                unsafe { rows::swiglu::<L>(up, gate) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn geglu(up: &[f32], gate: &mut [f32]) {
                unsafe { rows::geglu::<L>(up, gate) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn swiglu_oai(up: &[f32], gate: &mut [f32]) {
                unsafe { rows::swiglu_oai::<L>(up, gate) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn softcap(cap: f32, x: &mut [f32]) {
                unsafe { rows::softcap::<L>(cap, x) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn sigmoid_gate(gate: &[f32], x: &mut [f32]) {
                unsafe { recurrent::sigmoid_gate::<L>(gate, x) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn causal_conv(kernel: &[&[f32]], inputs: &[&[f32]], is_silu: bool, out: &mut [f32]) {
                unsafe { recurrent::causal_conv::<L>(kernel, inputs, is_silu, out) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn l2_normalize(x: &[f32], scale: f32, out: &mut [f32]) {
                unsafe { recurrent::l2_normalize::<L>(x, scale, out) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn delta_step(row: DeltaRow<'_>, state: &mut [f32], update: &mut [f32], out: &mut [f32]) {
                unsafe { recurrent::delta_step::<L>(row, state, update, out) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn delta_apply(key: &[f32], update: &[f32], decay: f32, state: &mut [f32]) {
                unsafe { recurrent::delta_apply::<L>(key, update, decay, state) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn append(keys: &[f32], values: &[f32], slot: usize, cell: Cell) {
                unsafe { append::append::<L>(keys, values, slot, cell) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn convert(from: Cell, to: Cell, head_dim: usize) {
                unsafe { convert::convert::<L>(from, to, head_dim) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn attend_chunk(queries: Queries<'_>, chunk: Chunk<'_>, out: Partial<'_>) {
                unsafe { attention::attend_chunk::<L>(queries, chunk, out) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn merge(so_far: Partial<'_>, next: Partial<'_>, head_dim: usize) {
                unsafe { attention::merge::<L>(so_far, next, head_dim) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn byte_dots(query: &[i8], rows: *const i8, numbers: &[u32], out: &mut [i32]) {
                unsafe { byte_rows::dots::<L>(query, rows, numbers, out) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn keep_in_range(values: &[u32], least: u32, span: u32, kept: &mut [u64]) {
                unsafe { ranges::keep_in_range::<L>(values, least, span, kept) }
            }
        }
    };
}

compile_kernels!(scalar, Scalar, [1 2]);
#[cfg(all(target_arch = "x86_64", not(test)))]
compile_kernels!(avx2, Avx2, [1 2], "avx2,fma,f16c");
#[cfg(all(target_arch = "x86_64", not(test)))]
compile_kernels!(avx512, Avx512, [1 2 3 4 5 6 7 8], "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c");
/// AVX-512 with dot products of bf16.
#[cfg(all(target_arch = "x86_64", not(test)))]
static AVX512_BF16: Table = Table { bf16: Some(super::bf16::dots::BF16), ..avx512::TABLE };
/// The tile unit for many tokens, AVX-512 for all else.
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(test)))]
static AMX: Table = Table { wide: Some(super::amx::WIDE), bf16: Some(super::bf16::tiles::BF16), ..avx512::TABLE };
#[cfg(all(target_arch = "aarch64", not(test)))]
compile_kernels!(neon, Neon, [1 2]);
#[cfg(all(target_arch = "aarch64", not(test)))]
compile_kernels!(neon_dot, NeonDot, [1 2], "dotprod");
#[cfg(all(target_arch = "aarch64", not(test)))]
compile_kernels!(neon_i8mm, NeonI8mm, [1 2 3 4], "dotprod,i8mm");

/// An instruction set for which we have kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelSet {
    Scalar,
    Avx2,
    Avx512,
    Amx,
    Neon,
    NeonDot,
    NeonI8mm,
}

impl KernelSet {
    /// From the plainest to the fastest.
    pub const ALL: [Self; 7] =
        [Self::Scalar, Self::Avx2, Self::Avx512, Self::Amx, Self::Neon, Self::NeonDot, Self::NeonI8mm];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Amx => "amx",
            Self::Neon => "neon",
            Self::NeonDot => "neon-dot",
            Self::NeonI8mm => "neon-i8mm",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|set| set.name() == name)
    }

    /// Whether this processor can run it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(all(target_arch = "x86_64", not(test)))]
            Self::Avx2 => has_avx2(),
            #[cfg(all(target_arch = "x86_64", not(test)))]
            Self::Avx512 => {
                has_avx2()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(all(target_arch = "x86_64", target_os = "linux", not(test)))]
            Self::Amx => {
                let has_bf16 = is_x86_feature_detected!("avx512bf16");
                has_bf16 && Self::Avx512.is_available() && super::amx::is_permitted()
            }
            #[cfg(all(target_arch = "aarch64", not(test)))]
            Self::Neon => true,
            #[cfg(all(target_arch = "aarch64", not(test)))]
            Self::NeonDot => std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(all(target_arch = "aarch64", not(test)))]
            Self::NeonI8mm => Self::NeonDot.is_available() && std::arch::is_aarch64_feature_detected!("i8mm"),
            _ => false,
        }
    }

    /// The sets that this processor can run, from the plainest to the fastest.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|set| set.is_available())
    }

    /// The fastest set of this processor, whatever it is; detected once.
    pub fn best() -> Self {
        static BEST: OnceLock<KernelSet> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().last().unwrap_or(Self::Scalar))
    }

    /// Whether it multiplies bf16. Panics if the processor cannot run the set.
    pub fn has_bf16(self) -> bool {
        self.table().bf16.is_some()
    }

    /// Panics if the processor cannot run the set: that is checked before one is chosen.
    pub(crate) fn table(self) -> &'static Table {
        assert!(self.is_available(), "{} kernels need another processor", self.name());
        match self {
            #[cfg(all(target_arch = "x86_64", not(test)))]
            Self::Avx2 => &const { avx2::TABLE },
            #[cfg(all(target_arch = "x86_64", not(test)))]
            Self::Avx512 if is_x86_feature_detected!("avx512bf16") => &AVX512_BF16,
            #[cfg(all(target_arch = "x86_64", not(test)))]
            Self::Avx512 => &const { avx512::TABLE },
            #[cfg(all(target_arch = "x86_64", target_os = "linux", not(test)))]
            Self::Amx => &AMX,
            #[cfg(all(target_arch = "aarch64", not(test)))]
            Self::Neon => &const { neon::TABLE },
            #[cfg(all(target_arch = "aarch64", not(test)))]
            Self::NeonDot => &const { neon_dot::TABLE },
            #[cfg(all(target_arch = "aarch64", not(test)))]
            Self::NeonI8mm => &const { neon_i8mm::TABLE },
            _ => &const { scalar::TABLE },
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(test)))]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}
